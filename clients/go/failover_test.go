package solehold_test

import (
	"encoding/json"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

func TestTwoServersOverPostgreSQLEitherMayGo(t *testing.T) {
	t.Parallel()
	postgres := realserver.Postgres(t)
	first, second := realserver.Serve(t, "--engine", postgres), realserver.Serve(t, "--engine", postgres)

	t.Run("waiting at one server for what is held at the other", func(t *testing.T) {
		one, other := session(t, clientOf(t, first.URL), "one"), session(t, clientOf(t, second.URL), "other")
		guard := acquire(t, one, "scene", "across")
		waiting := acquireSoon(t, other, "scene", "across")
		release(t, guard)
		heir := <-waiting
		if heir.Token() <= guard.Token() {
			t.Errorf("token %d after %d", heir.Token(), guard.Token())
		}
		release(t, heir)
	})

	t.Run("a session survives the loss of its server, and so does a place in line", func(t *testing.T) {
		client := clientOf(t, first.URL+","+second.URL)
		survivor := openSession(t, client, solehold.SessionConfig{Holder: "survivor", TTL: 6 * time.Second})
		if left := survivor.Deadline().Sub(client.Clock().Now()); left > 6*time.Second-620*time.Millisecond {
			t.Errorf("%v are left: PostgreSQL's clock may run ahead by half a second unnoticed", left)
		}
		guard := acquire(t, survivor, "scene", "failover")
		blocker := acquire(t, session(t, clientOf(t, second.URL), "blocker"), "lock", "shared")
		waiting := acquireSoon(t, survivor, "lock", "shared")
		observer := clientOf(t, second.URL)
		waitFor(t, "a place in line", func() bool { _, waiting := lockOf(t, observer, "shared"); return waiting == 1 })
		before := guard.Deadline()
		first.Kill()
		waitFor(t, "two heartbeats at the second server", func() bool {
			if !guard.IsLive() {
				t.Fatal("it is lost")
			}
			return guard.Deadline().Sub(before) > 3*time.Second
		})
		release(t, blocker)
		if heir := <-waiting; heir.Token() <= blocker.Token() {
			t.Errorf("token %d after %d", heir.Token(), blocker.Token())
		}
		if _, err := guard.WriteState(t.Context(), json.RawMessage(`{"kept":true}`)); err != nil {
			t.Error(err)
		}
		release(t, guard)
	})
}
