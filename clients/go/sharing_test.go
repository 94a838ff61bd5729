package solehold_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

const sharingBound = 2 * time.Minute

func untilWaiting(t testing.TB, client *solehold.Client, name string, count int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d in line for %s", count, name), func() bool {
		_, waiting := lockOf(t, client, name)
		return waiting == count
	})
}

func free(t testing.TB, session *solehold.Session, names ...string) {
	t.Helper()
	for _, name := range names {
		release(t, acquire(t, session, "lock", name, solehold.Wait(0)))
	}
}

func TestSoManyHoldItAtOnceAndTheNextWaits(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	sharer := session(t, client, "sharer")
	locks := locksOf(t, sharer)
	var guards []*solehold.Guard
	for n := range 3 {
		guard, err := locks.Acquire(t.Context(), "printers", solehold.Slots(3))
		if err != nil || guard.Slot() != n+1 || guard.Slots() != 3 {
			t.Fatalf("guard %d: %v, %v", n, guard, err)
		}
		guards = append(guards, guard)
	}
	for _, options := range [][]solehold.AcquireOption{{solehold.Slots(3)}, nil} {
		if _, err := locks.TryAcquire(t.Context(), "printers", options...); !errors.Is(err, solehold.Refused) {
			t.Errorf("one more: %v", err)
		}
	}
	waiting := make(chan *solehold.Guard, 1)
	go func() {
		guard, err := locks.Acquire(soon(t), "printers", solehold.Slots(3))
		if err != nil {
			t.Errorf("the heir: %v", err)
		}
		waiting <- guard
	}()
	untilWaiting(t, client, "printers", 1)
	release(t, guards[1])
	heir := <-waiting
	if heir == nil || heir.Slot() != 2 || heir.Token() <= guards[1].Token() || !guards[0].IsLive() {
		t.Fatalf("the heir: %v", heir)
	}
	for _, guard := range []*solehold.Guard{guards[0], heir, guards[2]} {
		release(t, guard)
	}
	alone := acquire(t, sharer, "lock", "printers", solehold.Wait(0))
	if alone.Slot() != 0 || alone.Slots() != 0 {
		t.Errorf("an exclusive guard has slot %d of %d", alone.Slot(), alone.Slots())
	}
	if _, err := sharer.Acquire(t.Context(), "lock", "x", solehold.Slots(0)); !errors.Is(err, solehold.BadRequest) {
		t.Errorf("no slots: %v", err)
	}
}

func TestNobodyOvertakesOneWhoWaitsForAllOfIt(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder := session(t, client, "fair")
	first := acquire(t, holder, "lock", "fair", solehold.Slots(3))
	order := make(chan int, 2)
	var both sync.WaitGroup
	for place, options := range [][]solehold.AcquireOption{nil, {solehold.Slots(3)}} {
		both.Go(func() {
			guard, err := holder.Acquire(soon(t), "lock", "fair", options...)
			if err != nil {
				t.Errorf("place %d: %v", place, err)
				return
			}
			order <- place
			_ = guard.Close()
		})
		untilWaiting(t, client, "fair", place+1)
	}
	if _, err := holder.TryAcquire(t.Context(), "lock", "fair", solehold.Slots(3)); !errors.Is(err, solehold.Refused) {
		t.Errorf("one who does not wait: %v", err)
	}
	release(t, first)
	both.Wait()
	if early, late := <-order, <-order; early != 0 || late != 1 {
		t.Errorf("the order is %d, %d", early, late)
	}
}

func TestTheSlotOfAHolderThatIsGoneGoesToOneWhoWaits(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	heirs := session(t, client, "heirs")
	kept := acquire(t, heirs, "scene", "gone", solehold.Slots(2))
	// Nobody renews this one, as after a kill.
	body := map[string]any{"holder": "killed", "ttl_ms": 2000, "slots": 2}
	answer, err := client.Request(t.Context(), "POST", "/api/v1/resources/scene/gone/lease", body)
	var killed struct{ Token, Slot uint64 }
	if err != nil || json.Unmarshal(answer, &killed) != nil || killed.Slot != 2 {
		t.Fatalf("%s, %v", answer, err)
	}
	heir := acquire(t, heirs, "scene", "gone", solehold.Slots(2), solehold.Wait(sharingBound))
	if heir.Slot() != 2 || heir.Token() <= killed.Token || !kept.IsLive() {
		t.Errorf("the heir: %v in slot %d", heir, heir.Slot())
	}
}

func TestAllAreAcquiredOrNone(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder := session(t, client, "holder")
	locks := locksOf(t, holder)
	wanted := []solehold.Wanted{{Kind: "lock", Key: "z"}, {Kind: "lock", Key: "a", Slots: 2}}
	guards, err := holder.AcquireAll(t.Context(), wanted, solehold.Wait(0))
	if err != nil || len(guards) != 2 {
		t.Fatalf("%v, %v", guards, err)
	}
	for n, guard := range guards {
		if guard.Key() != wanted[n].Key || guard.Slots() != wanted[n].Slots || !guard.IsLive() {
			t.Errorf("guard %d: %v", n, guard)
		}
	}
	for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
		_, err := locks.AcquireAll(t.Context(), []string{"before", "z", "under"}, solehold.Wait(wait))
		var refused *solehold.Error
		if !errors.As(err, &refused) || refused.Code != "held" || refused.Token != guards[0].Token() {
			t.Errorf("after %v: %v", wait, err)
		}
		free(t, holder, "before", "under")
	}
	waiting := make(chan error, 1)
	go func() {
		all, err := locks.AcquireAll(soon(t), []string{"more", "z", "a"})
		for _, guard := range all {
			err = errors.Join(err, guard.Close())
		}
		waiting <- err
	}()
	untilWaiting(t, client, "a", 1)
	release(t, guards[1])
	untilWaiting(t, client, "z", 1)
	release(t, guards[0])
	if err := <-waiting; err != nil {
		t.Errorf("one who waited: %v", err)
	}
	free(t, holder, "more", "z", "a")
	for _, names := range [][]string{nil, {"a", "a"}, make([]string, 101)} {
		if _, err := locks.AcquireAll(t.Context(), names); !errors.Is(err, solehold.BadRequest) {
			t.Errorf("%d names: %v", len(names), err)
		}
	}
}

func TestACancelledAcquireOfSeveralLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder := session(t, client, "holder")
	held := acquire(t, holder, "lock", "y")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := locksOf(t, holder).AcquireAll(ctx, []string{"x", "y"})
		waiting <- err
	}()
	untilWaiting(t, client, "y", 1)
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	release(t, held)
	free(t, holder, "x", "y")
}

func TestTwoThatWantTheSameNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	const rounds = 20
	url := realserver.Serve(t).URL
	var inside atomic.Int32
	var both sync.WaitGroup
	for _, names := range [][]string{{"left", "right"}, {"right", "left"}} {
		locks := locksOf(t, session(t, clientOf(t, url), names[0]))
		both.Go(func() {
			for range rounds {
				guards, err := locks.AcquireAll(t.Context(), names, solehold.Wait(sharingBound))
				if err != nil {
					t.Errorf("%v: %v", names, err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("both have them")
				}
				inside.Add(-1)
				for _, guard := range guards {
					_ = guard.Close()
				}
			}
		})
	}
	both.Wait()
}

// lossyServer passes everything on, and loses the answers to acquires of several while losses is above 0.
func lossyServer(t *testing.T, to string, losses *atomic.Int32, attempts chan<- string) string {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if !strings.HasSuffix(request.URL.Path, "/leases/batch/acquire") {
			proxy.ServeHTTP(response, request)
			return
		}
		body, _ := io.ReadAll(request.Body)
		attempts <- string(body)
		request.Body = io.NopCloser(strings.NewReader(string(body)))
		if losses.Add(-1) < 0 {
			proxy.ServeHTTP(response, request)
			return
		}
		proxy.ServeHTTP(httptest.NewRecorder(), request)
		cutOff(response, request)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestAnswersOfAnAcquireOfSeveralThatAreLostLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	var losses atomic.Int32
	attempts := make(chan string, 10)
	client := clientOf(t, lossyServer(t, realserver.Serve(t).URL, &losses, attempts))
	holder := session(t, client, "lossy")
	locks := locksOf(t, holder)
	losses.Store(1)
	guards, err := locks.AcquireAll(soon(t), []string{"one", "two"}, solehold.Wait(sharingBound))
	if err != nil {
		t.Fatal(err)
	}
	if first, second := <-attempts, <-attempts; first != second {
		t.Errorf("the repeat is another request: %s, %s", first, second)
	}
	for _, guard := range guards {
		release(t, guard)
	}
	losses.Store(1)
	_, err = locks.AcquireAll(soon(t), []string{"one", "two"}, solehold.Wait(0))
	if !errors.Is(err, solehold.Unavailable) || !strings.Contains(err.Error(), "were cancelled and hold nothing") {
		t.Errorf("given up: %v", err)
	}
	free(t, holder, "one", "two")
}

func TestTokensOfDifferentSlotsDoNotFenceEachOther(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	file := filepath.Join(t.TempDir(), "marks")
	// As a client without slots wrote it.
	former := `{"solehold_gate":1}` + "\n" + `{"epoch":1}` + "\n" +
		`{"mark":{"token":3,"session":null,"tenant":"default","kind":"scene","key":"former"}}` + "\n"
	if err := os.WriteFile(file, []byte(former), 0o666); err != nil {
		t.Fatal(err)
	}
	gate := gateOf(t, client, solehold.GateConfig{Memory: file})
	holder := session(t, client, "holder")
	verdict := func(guard *solehold.Guard) string {
		return gate.Decide(soon(t), "scene", "hall", guard.Token(), "", solehold.OfSlot(guard.Slot())).String()
	}
	expect := func(guard *solehold.Guard, expected string) {
		t.Helper()
		if got := verdict(guard); got != expected {
			t.Errorf("%v in slot %d: %s, not %s", guard, guard.Slot(), got, expected)
		}
	}
	one := acquire(t, holder, "scene", "hall", solehold.Slots(2))
	two := acquire(t, holder, "scene", "hall", solehold.Slots(2))
	expect(one, "admit")
	expect(two, "admit")
	release(t, one)
	heir := acquire(t, holder, "scene", "hall", solehold.Slots(2))
	expect(heir, "admit")
	expect(two, "admit")
	expect(one, fmt.Sprintf("stale %d", heir.Token()))
	other := gate.Decide(soon(t), "scene", "hall", heir.Token(), "", solehold.OfSlot(7))
	if other.Word != "undecidable" || other.MayPass() {
		t.Errorf("a slot that nobody has: %s", other)
	}
	gate.Close()
	gate = gateOf(t, client, solehold.GateConfig{Memory: file})
	if got := gate.Judge("scene", "hall", one.Token(), "", solehold.OfSlot(one.Slot())); got.Word != "stale" {
		t.Errorf("after a restart: %s", got)
	}
	if got := gate.Judge("scene", "former", 2, "").String(); got != "stale 3" {
		t.Errorf("a mark of a former version: %s", got)
	}
	release(t, two)
	release(t, heir)
	expect(acquire(t, holder, "scene", "hall"), "admit")
}

func TestSlotsAndExclusiveHoldersFenceEachOther(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	gate := gateOf(t, client, solehold.GateConfig{})
	if err := gate.Ready(soon(t)); err != nil {
		t.Fatal(err)
	}
	holder := session(t, client, "holder")
	// The store is not read: what is known comes from the watch.
	verdict := func(guard *solehold.Guard) string {
		return gate.Judge("scene", "hall", guard.Token(), "", solehold.OfSlot(guard.Slot())).String()
	}
	until := func(guard *solehold.Guard, expected string) {
		t.Helper()
		waitFor(t, fmt.Sprintf("%s of %v", expected, guard), func() bool { return verdict(guard) == expected })
	}
	sharer := acquire(t, holder, "scene", "hall", solehold.Slots(2))
	until(sharer, "admit")
	release(t, sharer)
	alone := acquire(t, holder, "scene", "hall")
	until(sharer, fmt.Sprintf("stale %d", alone.Token()))
	if got := verdict(alone); got != "admit" {
		t.Errorf("the exclusive holder: %s", got)
	}
	release(t, alone)
	heir := acquire(t, holder, "scene", "hall", solehold.Slots(2))
	until(alone, fmt.Sprintf("stale %d", heir.Token()))
	if got := verdict(heir); got != "admit" {
		t.Errorf("the next sharer: %s", got)
	}
}
