package solehold

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Wanted is one of several resources that are acquired together.
type Wanted struct {
	Kind, Key string
	// Slots is how many holders may share it at once; 0 for an exclusive lease.
	Slots int
}

// acquireAll is the attempts of several acquires that belong together. Each has a request id of its own, which stays the
// same whether it is asked for with the others or by itself, so that a repeat finds what a lost answer was about.
type acquireAll struct {
	session *Session
	// items are in the caller's order, and guards at the same places; nil while one is not held.
	items  []*acquire
	guards []*Guard
	delays *backoff
}

// AcquireAll acquires all of the resources or none, up to 100 and each once, and returns their guards in the same order.
// If all are free, one request does it. If not, it waits for one after the other, in an order that is the same for all
// clients, so that two that want the same resources never wait for each other. Wait bounds the time for all of them
// together. However it ends without guards, nothing is held.
func (s *Session) AcquireAll(ctx context.Context, wanted []Wanted, options ...AcquireOption) ([]*Guard, error) {
	if err := checkWanted(wanted); err != nil {
		return nil, err
	}
	all := &acquireAll{session: s, delays: newBackoff(s.config.Backoff, s.client.chance)}
	for _, one := range wanted {
		its := slices.Clip(options)
		if one.Slots != 0 {
			its = append(its, Slots(one.Slots))
		}
		item, err := s.newAcquire(one.Kind, one.Key, its)
		if err != nil {
			return nil, err
		}
		all.items = append(all.items, item)
		item.until = all.items[0].until
	}
	all.guards = make([]*Guard, len(wanted))
	return all.run(ctx)
}

func checkWanted(wanted []Wanted) error {
	if len(wanted) < 1 || len(wanted) > acquiredTogetherMax {
		return wrong("%d resources were given: give 1 to %d", len(wanted), acquiredTogetherMax)
	}
	seen := map[resourceKey]bool{}
	for _, one := range wanted {
		key := resourceKey{kind: one.Kind, key: one.Key}
		if seen[key] {
			return wrong("%s/%s was given twice: it would wait for itself", one.Kind, one.Key)
		}
		seen[key] = true
	}
	return nil
}

func (a *acquireAll) run(ctx context.Context) ([]*Guard, error) {
	if err := a.session.checkUnsettled(len(a.items)); err != nil {
		return nil, err
	}
	isDone, err := a.together(ctx)
	if err == nil && !isDone {
		err = a.oneByOne(ctx)
	}
	if err == nil {
		return a.guards, nil
	}
	isUndone := a.undo()
	if told, ok := asError(err); ok && told.Kind == Unknown && isUndone {
		return nil, unavailable("%s; the requests were cancelled and hold nothing", told.Detail)
	}
	return nil, err
}

// together asks for all of them in one step; false if one is in the way and there is time to wait for it.
func (a *acquireAll) together(ctx context.Context) (bool, error) {
	clock := a.session.client.clock
	for {
		err := a.attempt(ctx)
		if err == nil {
			return true, nil
		}
		left := a.items[0].timeLeft()
		var delay time.Duration
		switch {
		case errors.Is(err, Refused):
			if errors.Is(err, NoSession) {
				a.session.refused(err)
			}
			switch {
			case !isPassing(err):
				return false, err
			case !isSpent(err) && left > 0:
				return false, nil
			case isSpent(err):
				a.beginAgain()
			}
			delay = a.delays.delay(0)
		case isUndecided(err):
			delay = a.delays.delay(retryAfter(err))
		default:
			return false, err
		}
		if left <= 0 {
			return false, err
		}
		within, end := a.session.loss.whileLive(ctx, a.session.judge)
		slept := sleepUntil(within, clock, clock.Now().Add(min(delay, left)))
		end()
		if slept != nil {
			return false, slept
		}
	}
}

// attempt asks once, and makes guards of what was granted.
func (a *acquireAll) attempt(ctx context.Context) error {
	within, end := a.session.loss.whileLive(ctx, a.session.judge)
	defer end()
	if within.Err() != nil {
		return context.Cause(within)
	}
	doubts := &doubts{}
	grants, err := a.session.client.acquireTogether(within, a.items, doubts)
	if err == nil || errors.Is(err, Unknown) || within.Err() != nil || doubts.raised() {
		// Until they are guards, a failure gives them back.
		for _, item := range a.items {
			item.doubts.raise()
		}
	}
	if err != nil && within.Err() != nil {
		return context.Cause(within)
	}
	for i := 0; err == nil && i < len(grants); i++ {
		a.guards[i], err = a.session.granted(ctx, a.items[i].kind, a.items[i].key, grants[i])
	}
	return err
}

// beginAgain goes on under other request ids, after one of them got a lease that has ended: the others may have theirs
// still, and are given back, in the background if that takes long.
func (a *acquireAll) beginAgain() {
	a.undo()
	for _, item := range a.items {
		item.requestID = newRequestID()
		item.doubts.clear()
	}
}

// oneByOne waits for one after the other. All clients do so in the same order, so none waits for one that waits for it.
func (a *acquireAll) oneByOne(ctx context.Context) error {
	order := make([]int, len(a.items))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(strings.Compare(a.items[i].kind, a.items[j].kind), strings.Compare(a.items[i].key, a.items[j].key))
	})
	for _, i := range order {
		guard, err := a.items[i].run(ctx)
		if err != nil {
			return err
		}
		a.guards[i] = guard
	}
	return nil
}

// undo releases what was got, spends the request ids that may have got something, and reports whether nothing is known
// to be held.
func (a *acquireAll) undo() bool {
	var settling []<-chan bool
	for i, item := range a.items {
		guard := a.guards[i]
		a.guards[i] = nil
		switch {
		case guard != nil:
			settling = append(settling, a.session.settle(func(ctx context.Context) error {
				_, err := guard.Release(ctx)
				return err
			}))
		case item.doubts.raised():
			settling = append(settling, item.spendSoon())
		}
	}
	return allSettled(settling, leaveMax)
}
