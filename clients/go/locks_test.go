package solehold_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

func locksOf(t testing.TB, owner solehold.Owner) *solehold.Locks {
	t.Helper()
	locks, err := solehold.NewLocks(owner, solehold.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(context.Background()) })
	return locks
}

func TestManyWaitersAreHandedTheLockInOrder(t *testing.T) {
	t.Parallel()
	const waiters = 60
	client := clientOf(t, realserver.Serve(t).URL)
	locks := locksOf(t, session(t, client, "waiters"))
	first, err := locks.Acquire(t.Context(), "printer")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []int
	var tokens []uint64
	inside := 0
	var all sync.WaitGroup
	for n := range waiters {
		all.Go(func() {
			guard, err := locks.Acquire(soon(t), "printer")
			if err != nil {
				t.Errorf("waiter %d: %v", n, err)
				return
			}
			mu.Lock()
			if inside++; inside > 1 {
				t.Error("two have the lock")
			}
			order, tokens = append(order, n), append(tokens, guard.Token())
			mu.Unlock()
			mu.Lock()
			inside--
			mu.Unlock()
			if err := guard.Close(); err != nil {
				t.Errorf("waiter %d: %v", n, err)
			}
		})
		waitFor(t, "a place in line", func() bool { _, waiting := lockOf(t, client, "printer"); return waiting == n+1 })
	}
	release(t, first)
	all.Wait()
	for n, got := range order {
		if got != n || n > 0 && tokens[n] <= tokens[n-1] {
			t.Fatalf("the order is %v, the tokens are %v", order, tokens)
		}
	}
	if len(order) != waiters {
		t.Errorf("%d of %d had the lock", len(order), waiters)
	}
}

func TestALockThatIsHeldIsRefusedWhenTheWaitIsOver(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder, other := locksOf(t, session(t, client, "holder")), locksOf(t, client)
	if _, err := holder.Acquire(t.Context(), "busy"); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
		_, err := other.Acquire(soon(t), "busy", solehold.Wait(wait))
		var refused *solehold.Error
		if !errors.As(err, &refused) || refused.Code != "held" || refused.Holder != "holder" {
			t.Errorf("after %v: %v", wait, err)
		}
	}
	if _, waiting := lockOf(t, client, "busy"); waiting != 0 {
		t.Errorf("%d still wait", waiting)
	}
}

func TestAnAcquireThatEndsWithoutAGuardLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	holder, other := locksOf(t, session(t, client, "holder")), locksOf(t, session(t, client, "other"))
	for round := range 20 {
		name := fmt.Sprintf("given up %d", round)
		guard, err := holder.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() {
			late, err := other.Acquire(ctx, name)
			if err == nil { // it was granted before the cancellation arrived
				err = late.Close()
			}
			gaveUp <- err
		}()
		waitFor(t, "a place in line", func() bool { _, waiting := lockOf(t, client, name); return waiting == 1 })
		if round%2 == 0 { // cancelled at the same moment as it may be granted
			go guard.Release(context.Background())
		}
		cancel()
		if err := <-gaveUp; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("round %d: %v", round, err)
		}
		if round%2 == 1 {
			release(t, guard)
		}
		waitFor(t, "an empty line and a free lock", func() bool {
			holder, waiting := lockOf(t, client, name)
			return holder == "" && waiting == 0
		})
	}
}

func TestLocksOfTheirOwnSessionAreReleasedWithIt(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	locks, err := solehold.NewLocks(client, solehold.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.TryAcquire(t.Context(), "own"); err != nil {
		t.Fatal(err)
	}
	locks.Close(t.Context())
	if holder, _ := lockOf(t, client, "own"); holder != "" {
		t.Errorf("%s still holds it", holder)
	}
	if _, err := solehold.NewLocks(session(t, client, "given"), solehold.SessionConfig{Holder: "x"}); err == nil {
		t.Error("a session has a holder already")
	}
}

// A grant that was waited for lapses after 2 s unless it is confirmed (rule 15).
func TestAGrantThatWasWaitedForIsConfirmed(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	first, heir, third := session(t, client, "first"), session(t, client, "heir"), session(t, client, "third")
	guard := acquire(t, first, "lock", "confirmed")
	waiting := acquireSoon(t, heir, "lock", "confirmed")
	waitFor(t, "a place in line", func() bool { _, waiting := lockOf(t, client, "confirmed"); return waiting == 1 })
	release(t, guard)
	held := <-waiting
	_, err := third.Acquire(soon(t), "lock", "confirmed", solehold.Wait(3*time.Second))
	var refused *solehold.Error
	if !errors.As(err, &refused) || refused.Holder != "heir" || refused.Token != held.Token() {
		t.Errorf("a third one: %v", err)
	}
	if !held.IsLive() {
		t.Error("the heir has lost it")
	}
}
