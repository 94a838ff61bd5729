package solehold_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

func watchOf(t testing.TB, client *solehold.Client, config solehold.WatchConfig) *solehold.Watch {
	t.Helper()
	watch, err := client.Watch(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Close)
	return watch
}

func next(t testing.TB, watch *solehold.Watch) solehold.Seen {
	t.Helper()
	seen, err := watch.Next(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func TestAWatchResumesByCursorWithNoGapsAndNoDuplicates(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	client := newClient(t, solehold.Config{Servers: []string{server.URL}, RetryFor: time.Minute})
	watch := watchOf(t, client, solehold.WatchConfig{Kind: "scene"})
	if snapshot := next(t, watch).Snapshot; snapshot == nil || len(snapshot.Resources) != 0 {
		t.Fatalf("the snapshot: %+v", snapshot)
	}
	var tokens, acquired []uint64
	cursors := []string{watch.Cursor()}
	see := func(watch *solehold.Watch, count int) {
		for range count {
			event := next(t, watch).Event
			if event == nil || event.Kind != "scene" || event.Key != "hall" {
				t.Fatalf("the event: %+v", event)
			}
			if event.Type == "lease_acquired" {
				acquired = append(acquired, event.Token)
			}
		}
		cursors = append(cursors, watch.Cursor())
	}
	for round := range 3 {
		worker := session(t, client, fmt.Sprintf("worker-%d", round))
		for range 5 {
			guard := acquire(t, worker, "scene", "hall")
			tokens = append(tokens, guard.Token())
			release(t, guard)
		}
		worker.Close(t.Context())
		if round == 1 { // the same events, by a reader that was interrupted
			late, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := watch.Next(late); !errors.Is(err, context.Canceled) {
				t.Fatalf("a cancelled read: %v", err)
			}
		}
		if round == 2 { // seen after the server was killed and started again
			server.Kill()
			server = server.Again(t)
		}
		see(watch, 10)
	}
	if fmt.Sprint(acquired) != fmt.Sprint(tokens) {
		t.Errorf("seen %v of %v", acquired, tokens)
	}
	acquired = nil
	see(watchOf(t, client, solehold.WatchConfig{Kind: "scene", Cursor: cursors[1]}), 20)
	if fmt.Sprint(acquired) != fmt.Sprint(tokens[5:]) {
		t.Errorf("from the first round's cursor on, %v of %v", acquired, tokens[5:])
	}
	holder := session(t, client, "holder")
	guard := acquire(t, holder, "scene", "hall")
	owned := next(t, watchOf(t, client, solehold.WatchConfig{})).Snapshot.Resources
	if len(owned) != 1 || owned[0].Holder != "holder" || owned[0].Token != guard.Token() || owned[0].TTLLeft <= 0 {
		t.Errorf("the snapshot: %+v", owned)
	}
}

func TestAWatchThatIsClosedOrRefusedSaysSo(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	watch := watchOf(t, client, solehold.WatchConfig{})
	next(t, watch)
	time.AfterFunc(50*time.Millisecond, watch.Close)
	for _, err := range watch.All(soon(t)) {
		if !errors.Is(err, solehold.ErrWatchClosed) {
			t.Errorf("closed: %v", err)
		}
	}
	if _, err := watchOf(t, client, solehold.WatchConfig{Cursor: "1.999999"}).Next(soon(t)); err == nil {
		t.Error("a cursor that is ahead is accepted")
	}
	if _, err := client.Watch(solehold.WatchConfig{Cursor: "yesterday"}); !errors.Is(err, solehold.BadRequest) {
		t.Errorf("a cursor that is none: %v", err)
	}
}

// A server that sends what it likes.
func TestAWatchReadsWhatAnOddServerSends(t *testing.T) {
	t.Parallel()
	event := func(cursor string) string {
		return fmt.Sprintf("event: event\r\ndata: {\"event_type\":\"lease_acquired\",\"cursor\":\"%s\",\r\n"+
			"data: \"kind\":\"scene\",\"key\":\"a\",\"token\":7}\r\n\r\n", cursor)
	}
	asked := make(chan string, 10)
	connections := 0
	answer := func(answer http.ResponseWriter, request *http.Request) {
		asked <- request.URL.Query().Get("from")
		connections++
		switch connections {
		case 1: // a snapshot that is cut off
			fmt.Fprint(answer, "event: snapshot\ndata: {\"cursor\":\"1.4\",\"more\":true,",
				"\"resources\":[{\"kind\":\"scene\"}]}\n\n")
		case 2:
			fmt.Fprint(answer, ": hello\n\nevent: snapshot\rdata: {\"cursor\":\"1.5\",",
				"\"more\":false,\"resources\":[]}\r\r")
			fmt.Fprint(answer, event("1.6"), event("1.7"), "event: later\ndata: ?\n\n")
		case 3: // from the cursor, and what was seen before
			fmt.Fprint(answer, event("1.7"), event("1.8"), "event: resync\ndata: {}\n\n", event("1.9"))
		case 4:
			fmt.Fprint(answer, "event: progress\ndata: {\"cursor\":\"1.12\"}\n\n")
		default:
			fmt.Fprint(answer, "event: compacted\ndata: {\"floor\":\"1.30\"}\n\n")
		}
	}
	server := httptest.NewServer(http.HandlerFunc(answer))
	defer server.Close()
	watch := watchOf(t, clientOf(t, server.URL), solehold.WatchConfig{})
	if snapshot := next(t, watch).Snapshot; snapshot == nil || len(snapshot.Resources) != 0 || snapshot.Cursor != "1.5" {
		t.Errorf("the snapshot: %+v", snapshot)
	}
	for _, cursor := range []string{"1.6", "1.7", "1.8"} {
		if event := next(t, watch).Event; event == nil || event.Cursor != cursor || event.Token != 7 {
			t.Errorf("the event: %+v", event)
		}
	}
	if _, err := watch.Next(soon(t)); !errors.Is(err, solehold.Compacted) {
		t.Errorf("compacted: %v", err)
	}
	for _, from := range []string{"", "", "1.7", "1.8", "1.12"} {
		if got := <-asked; got != from {
			t.Errorf("it asked from %q, not %q", got, from)
		}
	}
}
