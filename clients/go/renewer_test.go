package solehold

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const testTTL = 30 * time.Second

func at(seconds float64) Tick { return Tick(seconds * float64(time.Second)) }

func opened(ttl, slack time.Duration) *sessionView {
	return &sessionView{sessionID: "s", ttlLeft: ttl, fullTTL: ttl, slack: slack}
}

func testRenewer(policy Policy, chance chance) *renewer {
	return newRenewer(policy, 0, at(100), opened(testTTL, 0), chance)
}

func half() float64 { return 0.5 }

func TestTheMarginIsAsTheRuleSays(t *testing.T) {
	for _, one := range []struct{ ttl, slack, want time.Duration }{
		{30 * time.Second, 0, 600 * time.Millisecond},
		{time.Second, 0, 100 * time.Millisecond},
		{30 * time.Second, 500 * time.Millisecond, 1100 * time.Millisecond},
		{30 * time.Second, -1, 1100 * time.Millisecond}, // not stated counts as the larger
		{time.Second, -1, 500 * time.Millisecond},       // at most half
	} {
		if got := margin(one.ttl, one.slack); got != one.want {
			t.Errorf("margin(%v, %v) = %v, want %v", one.ttl, one.slack, got, one.want)
		}
	}
}

func TestADeadlineIsNeverLaterThanTheStoresByAClockThatDrifts(t *testing.T) {
	chance := rand.New(rand.NewPCG(4, 4))
	for range 5000 {
		ttl := time.Second + time.Duration(chance.Int64N(int64(time.Hour)))
		sent, underWay := Tick(chance.Int64N(1e15)), time.Duration(chance.Int64N(2e9))
		drift := 0.99 + 0.02*chance.Float64()
		// The store's deadline, on a local clock that runs at this rate of the store's.
		store := sent.Add(time.Duration(float64(underWay+ttl) * drift))
		if local := trustUntil(sent, ttl, ttl, 0); local > store {
			t.Fatalf("ttl %v, drift %f: the holder stops %v too late", ttl, drift, local.Sub(store))
		}
	}
}

func TestHeartbeatsGoOutAtAThirdOfTheTTLOrALittleBefore(t *testing.T) {
	for _, chance := range []chance{func() float64 { return 0 }, half, func() float64 { return 0.999 }} {
		action := testRenewer(Deadline, chance).poll(at(100))
		if action.wait < at(108) || action.wait > at(110) {
			t.Errorf("the first heartbeat goes out after %v", action.wait.Sub(at(100)))
		}
	}
}

func TestAnAnswerMovesTheDeadlineFromBeforeItsRequest(t *testing.T) {
	r := testRenewer(Deadline, half)
	if r.deadline != at(129.4) {
		t.Fatalf("the first deadline is %v", r.deadline)
	}
	send := r.poll(at(110)).send
	if send == nil || send.timeout != r.deadline.Sub(at(110)) || send.beside != 0 {
		t.Fatalf("it may use all of the time that is left: %+v", send)
	}
	if wait := r.poll(at(111)).wait; wait != at(110).Add(share(testTTL, besideShare)) {
		t.Errorf("another one is sent beside it after %v", wait.Sub(at(110)))
	}
	r.answered(at(115), at(110), testTTL, 0)
	if r.deadline != at(139.4) {
		t.Errorf("the deadline is %v", r.deadline)
	}
	r.answered(at(116), at(115.5), 3*time.Second, -1)
	if r.deadline != at(139.4) {
		t.Errorf("a deadline moved earlier, to %v", r.deadline)
	}
}

func TestFailuresAreTriedAgainUntilTheDeadlineAndNotAfter(t *testing.T) {
	r, now, sends := testRenewer(Deadline, half), at(100), 0
	for {
		action := r.poll(now)
		if action.stop != nil {
			if now != at(129.4) || action.stop.Why != WhyDeadline || !strings.Contains(action.stop.Detail, "no route") {
				t.Errorf("stopped at %v: %+v", now, action.stop)
			}
			break
		}
		if action.send == nil {
			now = action.wait
			continue
		}
		sends++
		r.failed(action.send.flight, now, "no route", 0)
	}
	if sends < 8 || sends > 40 {
		t.Errorf("%d heartbeats were sent", sends)
	}
}

func TestLostIsForGood(t *testing.T) {
	r := testRenewer(Deadline, half)
	r.poll(at(110))
	// The answer was in time for the store, but the work had to stop before it was read.
	r.answered(at(129.5), at(110), testTTL, 0)
	if r.judge(at(129.5)) == nil || r.poll(at(129.6)).stop == nil {
		t.Error("a late answer revived it")
	}
	r.refused(errors.New("another reason"))
	if r.lost.Why != WhyDeadline {
		t.Errorf("the first reason does not stand: %+v", r.lost)
	}
}

func TestNewsAreFollowedByAHeartbeatAtOnce(t *testing.T) {
	r := testRenewer(Deadline, half)
	r.news(at(101))
	if r.poll(at(101)).send == nil {
		t.Fatal("no heartbeat after news")
	}
	r.news(at(101.1))
	r.answered(at(101.2), at(101), testTTL, 0)
	if r.poll(at(101.2)).send == nil {
		t.Fatal("the first may have been answered before it happened, and no second one follows")
	}
	r.answered(at(101.3), at(101.2), testTTL, 0)
	if wait := r.poll(at(101.3)).wait; wait < at(109.2) {
		t.Errorf("the next one comes at %v", wait)
	}
}

func TestPoliciesAreAsTheySay(t *testing.T) {
	immediate := testRenewer(Immediate, half)
	sent := immediate.poll(at(110)).send
	if immediate.poll(at(119)).send != nil {
		t.Error("something is sent beside the one heartbeat that counts")
	}
	immediate.failed(sent.flight, at(110.2), "no route", 0)
	if stop := immediate.poll(at(110.2)).stop; stop == nil || stop.Why != WhyFailed {
		t.Errorf("immediate: %+v", stop)
	}
	grace := testRenewer(Grace(5*time.Minute), half)
	sent = grace.poll(at(110)).send
	grace.failed(sent.flight, at(110.2), "no route", 0)
	if grace.judge(at(429.3)) != nil {
		t.Error("grace ended early")
	}
	grace.answered(at(429.3), at(429.2), testTTL, 0)
	if want := at(429.2).Add(testTTL - 600*time.Millisecond + 5*time.Minute); grace.endsAt() != want {
		t.Errorf("after an answer it ends at %v, want %v", grace.endsAt(), want)
	}
	if grace.judge(grace.endsAt()) == nil {
		t.Error("grace has no end")
	}
}

// An answer that is late costs nothing, with any policy, as long as it comes within three tenths of the ttl.
func TestSlownessAloneCostsNoSession(t *testing.T) {
	chance := rand.New(rand.NewPCG(7, 7))
	type flight struct{ sent, arrives Tick }
	for range 500 {
		ttl := time.Second + time.Duration(chance.Int64N(int64(2*time.Minute)))
		delay := time.Duration(chance.Float64() * 0.3 * float64(ttl))
		policy := []Policy{Immediate, Deadline, Grace(ttl)}[chance.IntN(3)]
		r := newRenewer(policy, 0, 0, opened(ttl, 0), chance.Float64)
		var flights []flight
		for now := Tick(0); now < Tick(20*ttl); {
			if len(flights) > 0 && flights[0].arrives <= now {
				r.answered(now, flights[0].sent, ttl, 0)
				flights = flights[1:]
				continue
			}
			action := r.poll(now)
			if action.stop != nil {
				t.Fatalf("ttl %v, delay %v: lost: %v", ttl, delay, action.stop)
			}
			if action.send != nil {
				flights = append(flights, flight{now, now.Add(delay)})
				continue
			}
			now = max(now+1, action.wait)
			if len(flights) > 0 {
				now = min(now, flights[0].arrives)
			}
		}
	}
}

func TestAnOlderSetIsNeverAppliedOverANewerGrant(t *testing.T) {
	h := newHoldings()
	a, b := identity{"a", 5}, identity{"b", 9}
	if !h.granted(a, position{1, 5}) || !h.granted(b, position{1, 9}) {
		t.Fatal("grants were refused")
	}
	if ended := h.take(position{1, 7}, map[identity]bool{a: true}); len(ended) != 0 {
		t.Errorf("a set that is older than the grant ended %v", ended)
	}
	if ended := h.take(position{1, 12}, map[identity]bool{a: true}); len(ended) != 1 || ended[0] != b {
		t.Errorf("ended: %v", ended)
	}
	if h.granted(identity{"c", 11}, position{1, 11}) {
		t.Error("a grant that a newer set does not have was taken in")
	}
	if ended := h.take(position{1, 8}, nil); len(ended) != 0 {
		t.Errorf("an older set ended %v", ended)
	}
	if ended := h.take(position{2, 1}, nil); len(ended) != 1 {
		t.Errorf("a newer history ended %v", ended)
	}
}

func TestAnAnswerWithoutASetMustNameTheKnownOne(t *testing.T) {
	epoch := uint64(1)
	known := &sessionView{
		sessionID: "s", epoch: &epoch, revision: 7, setCursor: "1.7", leases: map[identity]bool{{"a", 5}: true},
	}
	answer := func(rest string) []byte {
		return []byte(`{"session_id":"s","ttl_ms":1000,"full_ttl_ms":1000,"slack_ms":0,"epoch":1` + rest + `}`)
	}
	view, err := readSession(answer(`,"revision":7,"set_cursor":"1.7"`), known)
	if err != nil || !view.leases[identity{"a", 5}] {
		t.Errorf("the set that was named: %+v, %v", view, err)
	}
	for _, rest := range []string{
		`,"revision":8,"set_cursor":"1.7"`, `,"revision":7`, `,"revision":7,"set_cursor":"1.8"`,
		`,"revision":7,"set_cursor":"1.7","epoch":2`, `,"revision":7,"set_cursor":"1.7","session_id":"other"`,
	} {
		if _, err := readSession(answer(rest), known); !errors.Is(err, Unknown) {
			t.Errorf("%s was taken for an answer: %v", rest, err)
		}
	}
	if _, err := readSession(answer(`,"revision":7,"set_cursor":"1.7"`), nil); !errors.Is(err, Unknown) {
		t.Errorf("without a known set: %v", err)
	}
}
