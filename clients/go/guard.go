package solehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// hold is what a guard and its session share about one lease. The session's mutex guards what changes.
type hold struct {
	kind, key string
	grant     grant
	loss      *loss
	// sequence is that of the last state write under this token.
	sequence uint64
	released bool
	// reissued is another token that the store gave the lease: this one is no longer valid, and no work is done under
	// the new one.
	reissued uint64
}

func (h *hold) String() string { return fmt.Sprintf("%s/%s (token %d)", h.kind, h.key, h.grant.token) }

// Guard is a lease that is held: while it is live, the work may go on. Close releases it.
//
// A guard is for stopping early. What makes a late write harmless is a gate that compares Token (rule 21).
type Guard struct {
	session *Session
	hold    *hold
	// told says that the loss was returned to the user of the guard, who has handled it or passes it on.
	told    atomic.Bool
	writing sync.Mutex
	state   *StateDocument
}

// Kind is the kind of the resource that is held.
func (g *Guard) Kind() string { return g.hold.kind }

// Key is the key of the resource that is held.
func (g *Guard) Key() string { return g.hold.key }

// Token is the fencing token: larger at each change of owner. Send it with everything that leaves the process.
func (g *Guard) Token() uint64 { return g.hold.grant.token }

// LeaseID is the identity of the lease.
func (g *Guard) LeaseID() string { return g.hold.grant.leaseID }

// Slot is which slot of a shared resource is held, from 1 on: a gate judges the token by it. 0 if the lease is exclusive.
func (g *Guard) Slot() int { return g.hold.grant.slot }

// Slots is of how many slots one is held; 0 if the lease is exclusive.
func (g *Guard) Slots() int { return g.hold.grant.slots }

// Session is the session that the lease is attached to.
func (g *Guard) Session() *Session { return g.session }

// Deadline is the tick of the client's clock at which trust ends, unless a heartbeat comes through before.
func (g *Guard) Deadline() Tick { return g.session.Deadline() }

// State is what the former holder left, or what this one wrote last; nil if there is nothing.
func (g *Guard) State() *StateDocument {
	g.writing.Lock()
	defer g.writing.Unlock()
	return g.state
}

// IsLive reports whether the work may go on, by the clock. Once false, it stays false.
func (g *Guard) IsLive() bool { return g.judge() == nil }

// IsInGrace reports whether the deadline has passed, and the work continues by the policy Grace.
func (g *Guard) IsInGrace() bool { return g.IsLive() && g.session.IsInGrace() }

// Check returns the token, or a *LostError. Call it right before every effect: after a long pause of the process the
// lease may be another holder's, and a context is cancelled only by a timer, a little later.
func (g *Guard) Check() (uint64, error) {
	if lost := g.judge(); lost != nil {
		g.told.Store(true)
		return 0, lost
	}
	return g.Token(), nil
}

// Context is cancelled when the lease is lost or released, at the local deadline at the latest. Its cause is a
// *LostError. Its Err reads the clock, as Check does; contexts that are derived from it do not.
func (g *Guard) Context() context.Context { return judgedContext{g.hold.loss.ctx, g.judge} }

// Lost waits until the lease is lost or released, and returns why; nil if ctx ends before.
func (g *Guard) Lost(ctx context.Context) *LostError {
	select {
	case <-g.hold.loss.ctx.Done():
	case <-ctx.Done():
	}
	return g.hold.loss.declared.Load()
}

// Run calls work with a context that ends with ctx and with the lease, and returns what work returned. If the lease was
// lost meanwhile, it returns a *LostError once work has ended, joined with the error of work if that is another one.
func (g *Guard) Run(ctx context.Context, work func(context.Context) error) error {
	within, end := g.hold.loss.whileLive(ctx, g.judge)
	defer end()
	if lost := g.judge(); lost != nil {
		g.told.Store(true)
		return lost
	}
	err := work(within)
	lost := g.judge()
	if lost == nil {
		return err
	}
	g.told.Store(true)
	if err == nil || errors.Is(err, Lost) || errors.Is(err, context.Canceled) {
		return lost
	}
	return errors.Join(lost, err)
}

// WriteState writes the state document, any JSON value: the next holder gets it.
func (g *Guard) WriteState(ctx context.Context, document any) (*StateDocument, error) {
	encoded, err := encodeState(document)
	if err != nil {
		return nil, err
	}
	g.writing.Lock()
	defer g.writing.Unlock()
	if _, err := g.Check(); err != nil {
		return nil, err
	}
	g.session.mu.Lock()
	g.hold.sequence++
	state := lastState{g.hold.sequence, encoded}
	g.session.mu.Unlock()
	written, err := g.session.client.writeState(ctx, g.hold.kind, g.hold.key, g.proof(g.Token()), state)
	if err == nil {
		g.state = written
	}
	return written, err
}

// Release releases the lease; false if it was lost before, and then nothing has changed.
//
// If no server answers (Unknown, Unavailable), or ctx ends, the session goes on with it in the background.
func (g *Guard) Release(ctx context.Context) (bool, error) {
	return g.session.release(ctx, g, nil, 0)
}

// ReleaseWith is Release with a last state document, any JSON value: the next holder gets it.
func (g *Guard) ReleaseWith(ctx context.Context, document any) (bool, error) {
	encoded, err := encodeState(document)
	if err != nil {
		return false, err
	}
	return g.session.release(ctx, g, encoded, 0)
}

// Close releases the lease if it was not released, for defer. It waits for a server for at most 2 s, and the release
// continues in the background. It returns a *LostError if the lease was lost, unless Check or Run returned that before:
// then the caller has handled it.
func (g *Guard) Close() error {
	g.session.mu.Lock()
	wasReleased := g.hold.released
	g.session.mu.Unlock()
	var lost *LostError
	if !wasReleased && !g.told.Load() {
		lost = g.judge()
	}
	_, err := g.session.release(context.Background(), g, nil, leaveMax)
	if lost != nil {
		return lost
	}
	if isUndecided(err) {
		return nil // the session continues, and the ttl is the net
	}
	return err
}

// String is for logs.
func (g *Guard) String() string { return "guard of " + g.hold.String() }

func (g *Guard) judge() *LostError {
	if lost := g.hold.loss.declared.Load(); lost != nil {
		return lost
	}
	if lost := g.session.judge(); lost != nil {
		g.hold.loss.declare(lost)
		return lost
	}
	return nil
}

func encodeState(document any) (json.RawMessage, error) {
	encoded, err := json.Marshal(document)
	if err != nil {
		return nil, wrong("the state document cannot be sent as JSON: %v", err)
	}
	return encoded, nil
}

func (g *Guard) proof(token uint64) proof {
	return proof{Token: token, LeaseID: g.LeaseID(), SessionID: g.session.id}
}

// release releases the lease of a guard. Within bounds the time that the caller waits, if it is not 0.
func (s *Session) release(ctx context.Context, g *Guard, document json.RawMessage, within time.Duration) (bool, error) {
	hold := g.hold
	lost := g.judge()
	s.mu.Lock()
	if hold.released {
		s.mu.Unlock()
		return false, nil
	}
	hold.released = true
	delete(s.holds, hold.grant.leaseID)
	s.holdings.release(hold.grant.identity)
	reissued := hold.reissued
	var state *lastState
	if document != nil {
		state = &lastState{hold.sequence + 1, document}
	}
	s.mu.Unlock()
	hold.loss.declare(&LostError{Why: WhyReleased, Detail: fmt.Sprintf("%s/%s was released", hold.kind, hold.key)})
	if reissued != 0 {
		// No work is done under the new token, and the session would keep the lease for as long as it lives.
		s.settle(func(ctx context.Context) error { return s.sendRelease(ctx, g, reissued, nil, 0) })
		return false, nil
	}
	if lost != nil && lost.Why != WhyDeadline && lost.Why != WhyFailed {
		return false, nil
	}
	released, err := s.releaseOnce(ctx, g, g.Token(), state, within)
	if err == nil || isAnswer(err) {
		s.client.log.Debug("lease released", "holder", s.Holder(), "lease", hold.String(), "was_held", released)
		return released, err
	}
	// It would stay held for as long as the session lives.
	if s.IsLive() {
		s.client.log.Warn("lease not released yet; retrying",
			"holder", s.Holder(), "lease", hold.String(), "error", err.Error())
		s.settle(func(ctx context.Context) error { return s.sendRelease(ctx, g, g.Token(), state, 0) })
	}
	return false, err
}

func (s *Session) sendRelease(
	ctx context.Context, g *Guard, token uint64, state *lastState, within time.Duration,
) error {
	_, err := s.releaseOnce(ctx, g, token, state, within)
	return err
}

func (s *Session) releaseOnce(
	ctx context.Context, g *Guard, token uint64, state *lastState, within time.Duration,
) (bool, error) {
	patience := within
	if within == 0 {
		patience = s.client.config.RetryFor
	}
	s.mu.Lock()
	until := min(s.client.tickAfter(patience), s.renewer.endsAt())
	s.mu.Unlock()
	return s.client.release(ctx, g.hold.kind, g.hold.key, g.proof(token), state, terms{until: until, timeout: within})
}
