package solehold

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
)

// Metrics are what a heartbeat reports about a holder, and the attributes of a lease: any JSON values by name.
type Metrics = map[string]any

// SessionConfig is the holder of a session, and how the session is kept. Only Holder is required.
type SessionConfig struct {
	// Holder is the name of this process. A second session of a holder ends the first, so give each process its own.
	Holder string
	// TTL is how long a heartbeat keeps the session; 30 s by default.
	TTL time.Duration
	// Every is how often heartbeats are sent; a third of the ttl by default, and at most half of it.
	Every time.Duration
	// Policy says what to do while renewals fail; Deadline by default.
	Policy Policy
	// Replace is a former session of this holder, to be ended at once.
	Replace string
	// Metrics returns what heartbeats report about the holder. It must not block.
	Metrics func() Metrics
	// Backoff says how often an acquire asks again.
	Backoff BackoffConfig
}

func (c *SessionConfig) complete() error {
	if err := checkName("the holder", c.Holder); err != nil {
		return err
	}
	if c.TTL == 0 {
		c.TTL = 30 * time.Second
	}
	if err := checkTTL(c.TTL); err != nil {
		return err
	}
	if c.Every < 0 || c.Every > c.TTL/2 {
		return wrong("Every is %v: give at most half of the ttl of %v, or nothing for a third of it", c.Every, c.TTL)
	}
	if c.Policy.grace < 0 {
		return wrong("the grace is %v: give a time above 0", c.Policy.grace)
	}
	var err error
	if c.Backoff, err = c.Backoff.orDefault(); err != nil {
		return wrong("%v", err)
	}
	return nil
}

func (c *SessionConfig) metrics() Metrics {
	if c.Metrics == nil {
		return nil
	}
	return c.Metrics()
}

// Session is one incarnation of a holder. Heartbeats on a connection of its own keep everything attached to it. A
// session that is lost stays lost; KeepSession opens the next one.
type Session struct {
	client  *Client
	config  SessionConfig
	id      string
	channel *channel
	loss    *loss
	// running ends with the session, and with it everything that the session does in the background.
	running context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	// wake is for the driver: something has happened.
	wake chan struct{}
	// heard is for the listener: a heartbeat was answered.
	heard  chan struct{}
	closed sync.Once
	done   chan struct{}

	// mu guards everything below. Clock, chance and answers are passed in.
	mu       sync.Mutex
	renewer  *renewer
	holdings *holdings
	holds    map[string]*hold
	// known is the newest answer, with the set of leases that the next heartbeat names.
	known        *sessionView
	failingSince *Tick
	unsettled    int
	isClosed     bool
}

// OpenSession opens a session. While no server answers, this is tried for the client's RetryFor.
func (c *Client) OpenSession(ctx context.Context, config SessionConfig) (*Session, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	return c.open(ctx, config, "", 0)
}

func (c *Client) open(ctx context.Context, config SessionConfig, follows string, until Tick) (*Session, error) {
	sent, view, err := c.openSession(ctx, &config, follows, until)
	if err != nil {
		return nil, err
	}
	s := &Session{
		client:   c,
		config:   config,
		id:       view.sessionID,
		channel:  c.newChannel(),
		loss:     newLoss(context.Background()),
		wake:     make(chan struct{}, 1),
		heard:    make(chan struct{}, 1),
		done:     make(chan struct{}),
		renewer:  newRenewer(config.Policy, config.Every, sent, view, c.chance),
		holdings: newHoldings(),
		holds:    map[string]*hold{},
		known:    view,
	}
	s.running, s.stop = context.WithCancel(context.Background())
	s.tasks.Go(s.drive)
	s.tasks.Go(s.listen)
	if lost := s.judge(); lost != nil {
		s.Close(ctx)
		return nil, unavailable("the session was over before its opening was answered: %s", lost.Detail)
	}
	c.log.Info("opened session", "holder", config.Holder, "session_id", s.id, "ttl", view.fullTTL)
	return s, nil
}

// ID is the identity of the session.
func (s *Session) ID() string { return s.id }

// Holder is the name of its holder.
func (s *Session) Holder() string { return s.config.Holder }

// Client is the client that opened it.
func (s *Session) Client() *Client { return s.client }

// Deadline is the tick of the client's clock at which trust ends, unless a heartbeat comes through before.
func (s *Session) Deadline() Tick {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewer.deadline
}

// IsLive reports whether work under the session may go on, by the clock. Once false, it stays false.
func (s *Session) IsLive() bool { return s.judge() == nil }

// IsInGrace reports whether the deadline has passed, and work continues by the policy Grace.
func (s *Session) IsInGrace() bool { return s.IsLive() && s.client.clock.Now() >= s.Deadline() }

// Context is cancelled when the session is lost or closed. Its cause is a *LostError.
func (s *Session) Context() context.Context { return judgedContext{s.loss.ctx, s.judge} }

// Lost waits until the session is lost or closed, and returns why; nil if ctx ends before.
func (s *Session) Lost(ctx context.Context) *LostError {
	select {
	case <-s.loss.ctx.Done():
	case <-ctx.Done():
	}
	return s.loss.declared.Load()
}

// Close closes the session: all its guards are lost, and everything attached to it is released. It waits for a server
// for at most 2 s, after which the ttl does the rest. If ctx ends, it goes on in the background.
func (s *Session) Close(ctx context.Context) {
	s.closed.Do(func() {
		s.mu.Lock()
		lost := s.renewer.judge(s.client.clock.Now())
		s.renewer.closed()
		s.declare()
		ends := s.renewer.endsAt()
		s.isClosed = true
		s.mu.Unlock()
		s.stop()
		s.client.leaving.Go(func() {
			defer close(s.done)
			s.tasks.Wait()
			s.sendClose(lost, ends)
			s.channel.close()
		})
	})
	select {
	case <-s.done:
	case <-ctx.Done():
	}
}

func (s *Session) sendClose(lost *LostError, ends Tick) {
	if lost != nil && lost.Why != WhyDeadline && lost.Why != WhyFailed {
		return
	}
	until := min(s.client.tickAfter(leaveMax), ends)
	switch err := s.client.closeSession(context.Background(), s.id, until); {
	case err == nil:
		s.client.log.Info("closed session", "holder", s.Holder(), "session_id", s.id)
	case isUndecided(err):
		level := slog.LevelDebug
		if lost == nil {
			level = slog.LevelWarn
		}
		s.client.log.Log(context.Background(), level, "cannot close the session; it ends when its ttl is over",
			"holder", s.Holder(), "error", err.Error())
	default:
		s.client.log.Debug("the session had ended before it was closed", "holder", s.Holder(), "error", err.Error())
	}
}

// String is for logs.
func (s *Session) String() string { return fmt.Sprintf("session %s of %s", s.id, s.Holder()) }

// judge reads the clock. A loss that it finds is declared.
func (s *Session) judge() *LostError {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.renewer.judge(s.client.clock.Now())
	if lost != nil {
		s.declare()
	}
	return lost
}

// declare cancels the contexts of a session that is lost. The caller has locked it.
func (s *Session) declare() {
	lost := s.renewer.lost
	if lost == nil {
		return
	}
	if s.loss.declare(lost) {
		if lost.Why != WhyClosed {
			s.client.log.Warn("session lost",
				"holder", s.Holder(), "leases", shownHolds(s.holds), "why", string(lost.Why), "error", lost.Detail)
		}
		notify(s.wake)
	}
	for _, hold := range s.holds {
		hold.loss.declare(lost)
	}
	clear(s.holds)
}

// refused takes in that the authority says that the session is over. If the deadline has passed before, that is why.
func (s *Session) refused(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewer.judge(s.client.clock.Now())
	s.renewer.refused(err)
	s.declare()
}

// settle finds out the outcome of something in the background, until the session ends. The channel gets the result:
// whether the outcome is known.
func (s *Session) settle(work func(context.Context) error) <-chan bool {
	settled := make(chan bool, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed { // which has released everything
		settled <- false
		return settled
	}
	s.unsettled++
	s.tasks.Go(func() {
		settled <- s.untilSettled(work)
		s.mu.Lock()
		s.unsettled--
		s.mu.Unlock()
	})
	return settled
}

// checkUnsettled refuses to send so many more requests while too many have an outcome that is still unknown.
func (s *Session) checkUnsettled(asked int) error {
	s.mu.Lock()
	unsettled := s.unsettled
	s.mu.Unlock()
	if unsettled+asked <= unsettledMax {
		return nil
	}
	return unavailable(
		"%d requests of this session have no known outcome: no new one is sent until some of these are settled",
		unsettled)
}

func (s *Session) untilSettled(work func(context.Context) error) bool {
	delays := newBackoff(s.config.Backoff, s.client.chance)
	for s.IsLive() { // what is attached to a session that is not renewed expires by itself
		err := work(s.running)
		if err == nil || isAnswer(err) {
			return true
		}
		if sleepUntil(s.running, s.client.clock, s.client.tickAfter(delays.delay(0))) != nil {
			return false
		}
	}
	return false
}

// notify leaves a word in a channel of one place.
func notify(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// shownHolds names what was held, in not more than fits into a line.
func shownHolds(holds map[string]*hold) string {
	const most = 5
	var shown []string
	for hold := range maps.Values(holds) {
		if len(shown) == most {
			shown = append(shown, fmt.Sprintf("%d more", len(holds)-most))
			break
		}
		shown = append(shown, hold.String())
	}
	if len(shown) == 0 {
		return "none"
	}
	return strings.Join(shown, ", ")
}
