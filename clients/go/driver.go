package solehold

import (
	"context"
	"fmt"
	"time"
)

// beatMax is how long the heartbeat that follows news may take, before news are asked for again.
const beatMax = time.Second

// drive does what the renewer decides, and never waits for long without reading the clock.
func (s *Session) drive() {
	// Without a driver the deadline would go unnoticed, so its end is the end of the session.
	defer s.stopRenewing()
	for {
		s.mu.Lock()
		action := s.renewer.poll(s.client.clock.Now())
		s.mu.Unlock()
		switch {
		case action.stop != nil:
			return
		case action.send != nil:
			s.tasks.Go(func() { s.beat(action.send) })
		default:
			s.pause(action.wait)
		}
		if s.running.Err() != nil {
			return
		}
	}
}

func (s *Session) stopRenewing() {
	s.mu.Lock()
	s.renewer.closed()
	s.declare()
	s.mu.Unlock()
	s.stop()
}

func (s *Session) pause(until Tick) {
	timer := time.NewTimer(min(max(0, until.Sub(s.client.clock.Now())), stepMax))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wake:
	case <-s.running.Done():
	}
}

// listen sends a heartbeat at once when there is news of the session, instead of at its time (rule 28).
func (s *Session) listen() {
	for {
		s.mu.Lock()
		revision := s.known.revision
		s.mu.Unlock()
		if !s.client.newsroom.wait(s.running, s.id, revision) {
			return
		}
		select {
		case <-s.heard:
		default:
		}
		s.mu.Lock()
		s.renewer.news(s.client.clock.Now())
		s.mu.Unlock()
		notify(s.wake)
		timer := time.NewTimer(beatMax)
		select {
		case <-s.heard:
		case <-timer.C:
		case <-s.running.Done():
		}
		timer.Stop()
	}
}

func (s *Session) beat(beat *heartbeat) {
	defer notify(s.wake)
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	sent, view, err := s.sendBeat(beat, known)
	switch {
	case err == nil:
		s.answered(sent, view)
	case isAnswer(err):
		s.refused(err)
	default: // no answer, or none that can be read; or the session was closed
		s.failed(beat, err)
	}
}

func (s *Session) sendBeat(beat *heartbeat, known *sessionView) (sent Tick, view *sessionView, err error) {
	metrics, err := s.reported()
	if err != nil {
		return 0, nil, err
	}
	return s.client.heartbeat(s.running, s.channel, beat, metrics, known)
}

// reported is what the holder reports. A panic of its function is a failure of this heartbeat, and of nothing else.
func (s *Session) reported() (metrics Metrics, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = unavailable("the holder's Metrics function panicked: %v", panicked)
		}
	}()
	return s.config.metrics(), nil
}

func (s *Session) failed(beat *heartbeat, err error) {
	if s.running.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.client.clock.Now()
	counts := s.renewer.failed(beat.flight, now, err.Error(), retryAfter(err))
	if lost := s.renewer.judge(now); lost != nil {
		s.declare()
	} else if counts && s.failingSince == nil {
		s.failingSince = &now
		left := s.renewer.endsAt().Sub(now).Round(100 * time.Millisecond)
		s.client.log.Warn("session not renewed; it is lost unless a server answers",
			"holder", s.Holder(), "lost_in", left, "error", err.Error())
	}
}

func (s *Session) answered(sent Tick, view *sessionView) {
	history := s.client.history
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch, err := history.follow(view.epoch)
	if err != nil {
		s.renewer.setBack(err)
		s.declare()
		return
	}
	history.keep(view.sealedCursor)
	at := position{epoch, view.revision}
	if !at.before(s.known.position()) {
		s.known = view
	}
	notify(s.heard)
	// The leases that have ended are declared lost before the others are trusted for longer.
	for _, lease := range s.holdings.take(at, view.leases) {
		s.ended(lease, view.leases)
	}
	now := s.client.clock.Now()
	s.renewer.answered(now, sent, view.ttlLeft, view.slack)
	if s.failingSince != nil && s.renewer.judge(now) == nil {
		s.client.log.Info("session renewed again", "holder", s.Holder(), "after", now.Sub(*s.failingSince))
		s.failingSince = nil
	}
}

func (v *sessionView) position() position {
	if v.epoch == nil {
		return position{0, v.revision}
	}
	return position{*v.epoch, v.revision}
}

// ended takes in that another client ended a lease. The caller has locked the session.
func (s *Session) ended(lease identity, set map[identity]bool) {
	hold, isHeld := s.holds[lease.leaseID]
	if !isHeld || hold.grant.identity != lease {
		return
	}
	delete(s.holds, lease.leaseID)
	for other := range set {
		if other.leaseID == lease.leaseID {
			hold.reissued = other.token
		}
	}
	s.client.log.Warn("lease ended by another client", "holder", s.Holder(), "lease", hold.String())
	detail := fmt.Sprintf("the lease on %s/%s was ended by another client", hold.kind, hold.key)
	hold.loss.declare(&LostError{Why: WhyEnded, Detail: detail})
}

// granted takes in a grant that an acquire got.
func (s *Session) granted(ctx context.Context, kind, key string, grant grant) (*Guard, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost := s.renewer.judge(s.client.clock.Now()); lost != nil {
		s.declare()
		return nil, lost
	}
	epoch, err := s.client.history.follow(grant.epoch)
	if err != nil {
		return nil, unknown("%v", err) // what it got is spent
	}
	if !s.holdings.granted(grant.identity, position{epoch, grant.revision}) {
		return nil, &Error{
			Kind: Refused, Code: "lost", Token: grant.token,
			Detail: fmt.Sprintf("the lease on %s/%s was ended before its grant arrived", kind, key),
		}
	}
	hold := &hold{kind: kind, key: key, grant: grant, loss: newLoss(ctx)}
	if state := grant.state; state != nil && state.Token == grant.token {
		hold.sequence = state.Sequence
	}
	s.holds[grant.leaseID] = hold
	s.client.log.Debug("lease acquired", "holder", s.Holder(), "lease", hold.String())
	return &Guard{session: s, hold: hold, state: grant.state}, nil
}
