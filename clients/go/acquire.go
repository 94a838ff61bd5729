package solehold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// AcquireOption says how an acquire waits, and what it says about the lease.
type AcquireOption func(*acquire)

// Wait bounds the time in line. When it is up, the acquire returns the last refusal, which names the holder. 0 asks
// once. Without this option an acquire waits until its context ends.
func Wait(d time.Duration) AcquireOption {
	return func(a *acquire) { a.until = a.session.client.tickAfter(max(0, d)) }
}

// Attributes are stored with the lease and shown to others, as any JSON values by name.
func Attributes(attributes Metrics) AcquireOption {
	return func(a *acquire) { a.attributes = attributes }
}

// Slots shares the resource: up to n holders have it at once, each with a token of its own. All of them give the same n;
// the smallest one counts. Without this option a lease is exclusive.
func Slots(n int) AcquireOption {
	return func(a *acquire) { a.slots, a.isShared = n, true }
}

// acquire is the attempts of one acquire, under one request id for as long as that can get anything.
type acquire struct {
	session    *Session
	kind, key  string
	attributes Metrics
	slots      int
	isShared   bool
	// until is the tick until which the caller waits; one that has passed asks once.
	until     Tick
	requestID string
	// doubts says that some attempt may have got the lease, or a place in line, without an answer.
	doubts *doubts
	delays *backoff
	leeway time.Duration
}

// Acquire acquires a resource, and waits in line while another holder has it: first come, first served. However it ends
// without a guard, the line is left and nothing is held.
func (s *Session) Acquire(ctx context.Context, kind, key string, options ...AcquireOption) (*Guard, error) {
	a, err := s.newAcquire(kind, key, options)
	if err != nil {
		return nil, err
	}
	return a.run(ctx)
}

func (s *Session) newAcquire(kind, key string, options []AcquireOption) (*acquire, error) {
	if err := checkName("the kind", kind); err != nil {
		return nil, err
	}
	if err := checkName("the key", key); err != nil {
		return nil, err
	}
	a := &acquire{
		session:   s,
		kind:      kind,
		key:       key,
		until:     never,
		requestID: newRequestID(),
		doubts:    &doubts{},
		delays:    newBackoff(s.config.Backoff, s.client.chance),
	}
	for _, option := range options {
		option(a)
	}
	if a.isShared && (a.slots < 1 || a.slots > slotsMax) {
		return nil, wrong("the slots of %s/%s are %d: give 1 to %d", kind, key, a.slots, slotsMax)
	}
	// A caller that asks once gives the server its usual time; one that waits gives it little more than the wait.
	a.leeway = s.client.config.Timeout
	if a.timeLeft() > 0 {
		a.leeway = min(a.leeway, waitLeeway)
	}
	return a, nil
}

// TryAcquire acquires a free resource, or returns a Refused that names its holder.
func (s *Session) TryAcquire(ctx context.Context, kind, key string, options ...AcquireOption) (*Guard, error) {
	return s.Acquire(ctx, kind, key, append(slices.Clip(options), Wait(0))...)
}

func (a *acquire) timeLeft() time.Duration { return max(0, a.until.Sub(a.session.client.clock.Now())) }

// run attempts until the lease is granted, the time is up, or the authority refuses for a reason that waiting does not
// change.
func (a *acquire) run(ctx context.Context) (*Guard, error) {
	if err := a.session.checkUnsettled(1); err != nil {
		return nil, err
	}
	guard, err := a.attempts(ctx)
	if err == nil {
		return guard, nil
	}
	isSpent := a.spend()
	if told, ok := asError(err); ok && told.Kind == Unknown && isSpent {
		return nil, unavailable("%s; the request was cancelled and holds nothing", told.Detail)
	}
	return nil, err
}

func (a *acquire) attempts(ctx context.Context) (*Guard, error) {
	clock := a.session.client.clock
	for {
		grant, err := a.attempt(ctx)
		if err == nil {
			var guard *Guard
			if guard, err = a.session.granted(ctx, a.kind, a.key, grant); err == nil {
				return guard, nil
			}
			a.doubts.raise() // it was granted, and is not kept
		}
		var delay time.Duration
		switch {
		case errors.Is(err, Refused):
			if delay, err = a.afterRefusal(err); delay < 0 {
				return nil, err
			}
		case isUndecided(err):
			if errors.Is(err, Unknown) {
				a.doubts.raise()
			}
			delay = a.delays.delay(retryAfter(err))
		default:
			return nil, err
		}
		left := a.timeLeft()
		if left <= 0 {
			return nil, err
		}
		// When the time is up there is one more attempt: the resource may have become free.
		within, end := a.session.loss.whileLive(ctx, a.session.judge)
		slept := sleepUntil(within, clock, clock.Now().Add(min(delay, left)))
		end()
		if slept != nil {
			return nil, slept
		}
	}
}

// attempt asks once, or waits in line, until the session is lost.
func (a *acquire) attempt(ctx context.Context) (grant, error) {
	within, end := a.session.loss.whileLive(ctx, a.session.judge)
	defer end()
	if err := within.Err(); err != nil {
		return grant{}, context.Cause(within)
	}
	granted, err := a.askOrWait(within)
	if err != nil && within.Err() != nil {
		a.doubts.raise() // it was under way
		return grant{}, context.Cause(within)
	}
	return granted, err
}

func (a *acquire) askOrWait(ctx context.Context) (grant, error) {
	client := a.session.client
	if a.timeLeft() <= 0 {
		return a.ask(ctx, 0)
	}
	select {
	case client.waiters <- struct{}{}:
		defer func() { <-client.waiters }()
	default:
		return grant{}, unavailable("%d goroutines of this client wait in line already: ask again later",
			waitersAtOnceMax)
	}
	// Until it is granted or spent, the request may have a place in line.
	a.doubts.raise()
	granted, err := waitInLine(ctx, a.ask, client.clock, a.until, a.leeway)
	if err != nil || granted.confirmWithin == nil {
		return granted, err
	}
	return granted, a.confirm(ctx, granted)
}

// ask asks for the resource, and waits in line for at most wait. Without a wait each server is asked once.
func (a *acquire) ask(ctx context.Context, wait time.Duration) (grant, error) {
	client := a.session.client
	now := client.clock.Now()
	var answer answer
	var err error
	if wait <= 0 {
		answer, err = client.ask(ctx, a.call(0), terms{until: now, timeout: a.leeway, doubts: a.doubts})
	} else {
		// Repeated for no longer than the wait itself: the caller comes back for as long as it wants.
		until := now.Add(min(wait, client.config.RetryFor))
		terms := terms{until: until, timeout: wait + client.config.Timeout, doubts: a.doubts}
		answer, err = client.channel.call(ctx, a.call(wait), terms)
	}
	if err != nil {
		return grant{}, err
	}
	return readGrant(answer.body)
}

// confirm renews a grant that was waited for, which is trusted only after that (rule 15).
func (a *acquire) confirm(ctx context.Context, granted grant) error {
	client := a.session.client
	proof := proof{Token: granted.token, LeaseID: granted.leaseID, SessionID: a.session.id}
	renewed, err := client.renew(ctx, a.kind, a.key, proof, client.tickAfter(*granted.confirmWithin))
	lapsed := func(token uint64, detail string) error {
		return &Error{Kind: Refused, Code: "lost", Token: token, Detail: detail}
	}
	switch {
	case errors.Is(err, NotFound):
		return lapsed(0, fmt.Sprintf("the lease on %s/%s lapsed before it was confirmed: %v", a.kind, a.key, err))
	case err == nil && renewed.token != granted.token:
		return lapsed(renewed.token, fmt.Sprintf("%s/%s changed hands before it was confirmed", a.kind, a.key))
	}
	return err
}

// afterRefusal says how long to wait after a refusal; negative if waiting does not change it.
func (a *acquire) afterRefusal(err error) (time.Duration, error) {
	if errors.Is(err, NoSession) {
		a.session.refused(err)
	}
	if !isPassing(err) {
		return -1, err
	}
	if isSpent(err) {
		// Continue under another request id.
		a.requestID = newRequestID()
		a.doubts.clear()
	}
	return a.delays.delay(0), err
}

// isPassing reports whether waiting may change a refusal.
func isPassing(err error) bool {
	return isSpent(err) || slices.Contains([]string{"held", "held_back", "already_pending"}, codeOf(err))
}

// isSpent reports whether a refusal says that the request id is spent.
func isSpent(err error) bool { return codeOf(err) == "request_spent" || codeOf(err) == "lost" }

// spend spends the request id if it may have got something, and reports whether it is known to hold nothing.
func (a *acquire) spend() bool {
	if !a.doubts.raised() {
		return true
	}
	return allSettled([]<-chan bool{a.spendSoon()}, spendMax)
}

// spendSoon begins to spend the request id.
func (a *acquire) spendSoon() <-chan bool {
	s, requestID := a.session, a.requestID
	return s.settle(func(ctx context.Context) error {
		return s.client.cancel(ctx, a.kind, a.key, s.Holder(), requestID)
	})
}

// allSettled reports whether all outcomes are known within a time.
func allSettled(all []<-chan bool, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	isKnown := true
	for _, settled := range all {
		select {
		case isSettled := <-settled:
			isKnown = isKnown && isSettled
		case <-timer.C:
			return false
		}
	}
	return isKnown
}
