package solehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
)

// Owner is a *Client or a *Session: with a client, locks and elections have a session of their own, which is opened
// when it is needed and again after a loss; with a session they end with that one.
type Owner interface{ owner() (*Client, *Session) }

func (c *Client) owner() (*Client, *Session)  { return c, nil }
func (s *Session) owner() (*Client, *Session) { return s.client, s }

// keptSession is a session that was given, or one of its own.
//
// A session whose holder has opened another one elsewhere is not opened again: two would end each other in turn.
type keptSession struct {
	client *Client
	isOwn  bool
	config SessionConfig

	// opening has one place, for the goroutine that looks at the session.
	opening chan struct{}
	mu      sync.Mutex
	session *Session
}

func newKeptSession(owner Owner, config SessionConfig) (*keptSession, error) {
	client, session := owner.owner()
	if session != nil {
		if config.Holder != "" {
			return nil, wrong("the session is %s's already: give a holder only with a client", session.Holder())
		}
		return &keptSession{client: client, session: session, opening: make(chan struct{}, 1)}, nil
	}
	if config.Holder == "" {
		config.Holder = ownName()
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	return &keptSession{client: client, isOwn: true, config: config, opening: make(chan struct{}, 1)}, nil
}

// live returns the session, which is opened if it is its own; until a tick while no server answers.
func (k *keptSession) live(ctx context.Context, until Tick) (*Session, error) {
	select {
	case k.opening <- struct{}{}:
		defer func() { <-k.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	session := k.current()
	follows := ""
	if session != nil {
		lost := session.judge()
		if lost == nil || !k.isOwn {
			return session, nil
		}
		if lost.Code == "session_superseded" {
			return nil, lost
		}
		k.client.log.Info("opening a new session: the previous one is over", "holder", k.config.Holder)
		session.Close(ctx)
		follows = session.id
	}
	opened, err := k.open(ctx, follows, until)
	if err != nil {
		return nil, err
	}
	k.config.Replace = "" // it was replaced now
	k.mu.Lock()
	k.session = opened
	k.mu.Unlock()
	return opened, nil
}

func (k *keptSession) current() *Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// open opens the session. An opening of several requests, or one that took too long, may fail before the tick.
func (k *keptSession) open(ctx context.Context, follows string, until Tick) (*Session, error) {
	delays := newBackoff(k.config.Backoff, k.client.chance)
	for {
		session, err := k.client.open(ctx, k.config, follows, until)
		now := k.client.clock.Now()
		switch {
		case err == nil || !isUndecided(err) || now >= until:
			return session, asLost(err)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		k.client.log.Debug("cannot open a session yet; retrying", "holder", k.config.Holder, "error", err.Error())
		if err := sleepUntil(ctx, k.client.clock, min(until, now.Add(delays.delay(retryAfter(err))))); err != nil {
			return nil, err
		}
	}
}

// asLost turns the refusal to open a session after one that was lost into a loss: another process has the name by now
// (rule 13).
func asLost(err error) error {
	if errors.Is(err, Superseded) {
		return &LostError{Why: WhyRefused, Detail: err.Error(), Code: codeOf(err)}
	}
	return err
}

// close closes the session, if it is its own: everything attached to it is released.
func (k *keptSession) close(ctx context.Context) {
	if session := k.current(); k.isOwn && session != nil {
		session.Close(ctx)
	}
}

// KeepSession opens a session and calls work with it. Whenever the session is lost, as in an outage, it opens the next
// one and calls work again, until work returns under a live session; then the session is closed.
//
// When a session is lost, the context of work is cancelled; once work has returned, onLost is called with the loss, if
// it is not nil. While no server answers, opening is tried until ctx ends. KeepSession returns what work returned under
// a live session, what the server says if it refuses to open one, and a *LostError if the holder has opened a session
// elsewhere.
func KeepSession(
	ctx context.Context,
	client *Client,
	config SessionConfig,
	work func(context.Context, *Session) error,
	onLost func(*LostError),
) error {
	kept, err := newKeptSession(client, config)
	if err != nil {
		return err
	}
	defer kept.close(context.WithoutCancel(ctx))
	for {
		session, err := kept.live(ctx, never)
		if err != nil {
			return err
		}
		within, end := session.loss.whileLive(ctx, session.judge)
		err = work(within, session)
		end()
		lost := session.judge()
		if lost == nil || ctx.Err() != nil {
			return err
		}
		if err != nil && !errors.Is(err, Lost) && !errors.Is(err, context.Canceled) {
			client.log.Warn("the work ended with an error after its session was lost",
				"holder", session.Holder(), "error", err.Error())
		}
		if onLost != nil {
			onLost(lost)
		}
	}
}

// ownName is the holder's name where none was given: of this host, process and time.
func ownName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%08x", host[:min(len(host), 200)], os.Getpid(), rand.Uint32())
}
