package solehold_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

func TestALeaseIsHeldRefusedAndHandedOnWithItsState(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	first, second := session(t, client, "first"), session(t, client, "second")
	guard := acquire(t, first, "scene", "hall/7 süd")
	if guard.State() != nil || !guard.IsLive() {
		t.Fatalf("a new guard: %v, %v", guard.State(), guard.IsLive())
	}
	_, err := second.TryAcquire(t.Context(), "scene", "hall/7 süd")
	var refused *solehold.Error
	if !errors.As(err, &refused) || !errors.Is(err, solehold.Refused) {
		t.Fatalf("not a refusal: %v", err)
	}
	if refused.Code != "held" || refused.Holder != "first" || refused.Token != guard.Token() || refused.RetryAfter <= 0 {
		t.Errorf("the refusal does not say who holds it: %+v", refused)
	}
	for n := range 3 {
		if _, err := guard.WriteState(t.Context(), map[string]int{"frames": n}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := guard.WriteState(t.Context(), make(chan int)); !errors.Is(err, solehold.BadRequest) || !guard.IsLive() {
		t.Errorf("a document that is not JSON: %v", err)
	}
	if released, err := guard.ReleaseWith(t.Context(), map[string]int{"frames": 9}); err != nil || !released {
		t.Fatalf("release: %v, %v", released, err)
	}
	if released, err := guard.Release(t.Context()); err != nil || released {
		t.Errorf("a second release: %v, %v", released, err)
	}
	heir := acquire(t, second, "scene", "hall/7 süd")
	var state struct{ Frames int }
	if heir.Token() <= guard.Token() || heir.State() == nil || heir.State().Decode(&state) != nil || state.Frames != 9 {
		t.Errorf("the heir has token %d after %d, and state %v", heir.Token(), guard.Token(), heir.State())
	}
	if err := heir.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	written, err := client.ReadState(t.Context(), "scene", "hall/7 süd")
	if err != nil || written.Token != guard.Token() {
		t.Errorf("the state that is read: %+v, %v", written, err)
	}
}

func TestHeartbeatsKeepASessionFarBeyondItsTTL(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	keeper := openSession(t, client, solehold.SessionConfig{Holder: "keeper", TTL: 3 * time.Second})
	guard := acquire(t, keeper, "scene", "kept")
	left := guard.Deadline().Sub(client.Clock().Now())
	if left > 3*time.Second-100*time.Millisecond {
		t.Errorf("%v are left of 3 s: a deadline comes before the server's", left)
	}
	first := guard.Deadline()
	waitFor(t, "heartbeats for twice the ttl", func() bool { return guard.Deadline().Sub(first) > 6*time.Second })
	if token, err := guard.Check(); err != nil || token != guard.Token() {
		t.Errorf("check: %d, %v", token, err)
	}
}

func TestARevokedLeaseIsLostAtOnceAndTheOthersAreKept(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder := openSession(t, client, solehold.SessionConfig{Holder: "holder", TTL: 10 * time.Minute / 2})
	revoked, kept := acquire(t, holder, "scene", "revoked"), acquire(t, holder, "scene", "kept")
	ask(t, client, "POST", "/api/v1/resources/scene/revoked/lease/revoke", map[string]any{})
	// Long before the next heartbeat, which is due in more than a minute.
	lost := revoked.Lost(soon(t))
	if lost == nil || lost.Why != solehold.WhyEnded {
		t.Fatalf("lost: %+v", lost)
	}
	if cause := context.Cause(revoked.Context()); cause != error(lost) || !errors.Is(cause, solehold.Lost) {
		t.Errorf("the cause is %v", cause)
	}
	if _, err := revoked.Check(); !errors.Is(err, solehold.Lost) {
		t.Errorf("check: %v", err)
	}
	if !kept.IsLive() || kept.Context().Err() != nil || !holder.IsLive() {
		t.Error("the other lease is lost, too")
	}
	if err := revoked.Close(); err != nil {
		t.Errorf("the loss was told before, and is told again: %v", err)
	}
	// The set has changed, so the next one is a full one; then it is known again.
	again := acquire(t, holder, "scene", "again")
	release(t, again)
	release(t, kept)
}

func TestASecondSessionOfAHolderEndsTheFirst(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	client, other := clientOf(t, server.URL), clientOf(t, server.URL)
	first := session(t, client, "twin")
	guard := acquire(t, first, "scene", "twins")
	session(t, other, "twin")
	lost := first.Lost(soon(t))
	if lost == nil || lost.Why != solehold.WhyRefused || lost.Code != "session_superseded" {
		t.Fatalf("lost: %+v", lost)
	}
	if err := guard.Close(); !errors.Is(err, solehold.Lost) {
		t.Errorf("a loss that nobody was told of is not told by Close: %v", err)
	}
	if _, err := first.Acquire(t.Context(), "scene", "other"); !errors.Is(err, solehold.Lost) {
		t.Errorf("an acquire in a lost session: %v", err)
	}
}

func TestClosingASessionReleasesEverything(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	leaving, staying := session(t, client, "leaving"), session(t, client, "staying")
	guard := acquire(t, leaving, "scene", "left")
	leaving.Close(t.Context())
	if lost := guard.Lost(soon(t)); lost.Why != solehold.WhyClosed {
		t.Errorf("lost: %+v", lost)
	}
	release(t, acquire(t, staying, "scene", "left", solehold.Wait(0)))
}

func TestRunEndsTheWorkWithTheLease(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder := session(t, client, "runner")
	guard := acquire(t, holder, "scene", "run")
	if err := guard.Run(t.Context(), func(ctx context.Context) error { return ctx.Err() }); err != nil {
		t.Fatal(err)
	}
	own := errors.New("the work's own")
	if err := guard.Run(t.Context(), func(context.Context) error { return own }); err != own {
		t.Errorf("the work's error: %v", err)
	}
	began := make(chan struct{})
	go func() {
		<-began
		_, _ = client.Request(context.Background(), "POST", "/api/v1/resources/scene/run/lease/revoke", map[string]any{})
	}()
	err := guard.Run(soon(t), func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		return own
	})
	if !errors.Is(err, solehold.Lost) || !errors.Is(err, own) {
		t.Errorf("work that was interrupted: %v", err)
	}
	if err := guard.Close(); err != nil {
		t.Errorf("the loss was told twice: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	again := acquire(t, holder, "scene", "run2")
	cancel()
	err = again.Run(cancelled, func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
	if !errors.Is(err, context.Canceled) || errors.Is(err, solehold.Lost) || !again.IsLive() {
		t.Errorf("work that its caller cancelled: %v", err)
	}
}

func TestKeepSessionOpensTheNextOneAfterALoss(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	client := clientOf(t, server.URL)
	var losses []solehold.Why
	sessions := 0
	config := solehold.SessionConfig{Holder: "kept", TTL: time.Second}
	err := solehold.KeepSession(soon(t), client, config, func(ctx context.Context, s *solehold.Session) error {
		sessions++
		acquire(t, s, "scene", "kept", solehold.Wait(time.Minute))
		if sessions == 1 {
			server.Kill()
			<-ctx.Done()
			server = server.Again(t)
			return ctx.Err()
		}
		return nil
	}, func(lost *solehold.LostError) { losses = append(losses, lost.Why) })
	if err != nil || sessions != 2 || len(losses) != 1 || losses[0] != solehold.WhyDeadline {
		t.Errorf("after %d sessions and losses %v: %v", sessions, losses, err)
	}
}

func TestElectLeadsAgainAfterARevokeAndReleasesTheRole(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	var tokens []uint64
	err := solehold.Elect(soon(t), client, "compactor", solehold.SessionConfig{},
		func(ctx context.Context, guard *solehold.Guard) error {
			tokens = append(tokens, guard.Token())
			if len(tokens) == 1 {
				body := map[string]any{"fenced": true}
				ask(t, client, "POST", "/api/v1/resources/role/compactor/lease/revoke", body)
				<-ctx.Done()
			}
			return nil
		})
	if err != nil || len(tokens) != 2 || tokens[1] <= tokens[0] {
		t.Fatalf("terms %v, %v", tokens, err)
	}
	release(t, acquire(t, session(t, client, "next"), "role", "compactor", solehold.Wait(0)))
}

func TestASessionThatNobodyRenewsIsLostByItsDeadline(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]solehold.Policy{
		"deadline": solehold.Deadline, "immediate": solehold.Immediate, "grace": solehold.Grace(700 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			server := realserver.Serve(t)
			client := clientOf(t, server.URL)
			config := solehold.SessionConfig{Holder: "cut-off", TTL: 1500 * time.Millisecond, Policy: policy}
			guard := acquire(t, openSession(t, client, config), "scene", "cut-off")
			server.Kill()
			lost := guard.Lost(soon(t))
			now, deadline := client.Clock().Now(), guard.Deadline()
			switch {
			case name == "immediate" && lost.Why != solehold.WhyFailed,
				name != "immediate" && lost.Why != solehold.WhyDeadline:
				t.Errorf("lost: %+v", lost)
			case name == "deadline" && now < deadline, name == "grace" && now < deadline.Add(700*time.Millisecond):
				t.Errorf("lost %v before its time", deadline.Sub(now))
			}
		})
	}
}
