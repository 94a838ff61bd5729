package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/cluster"
)

const (
	// A message that is unanswered for this long was left behind by a node that died.
	leftBehindAfter = 2 * time.Second
	lookEvery       = time.Second
	// Sessions taken over per scan.
	takeUpMax = 8
	// How often to try to record that a session was left.
	leaveTries = 5
	// How often this node publishes its metrics.
	tellEvery = time.Second
)

// gateway answers messages: of one session one at a time, in order, whichever node they came in at.
type gateway struct {
	store   *store
	cluster *cluster.Cluster
	// work is how long answering takes: a language model would think here.
	work     time.Duration
	answered atomic.Int64
	busy     atomic.Int64
	// Without locks among nodes there is one process, and its requests exclude each other by these.
	local localLocks
}

// answer answers all waiting messages of a session. If the client has disconnected, it leaves the line; work that has
// begun goes on.
func (g *gateway) answer(ctx context.Context, session string) error {
	guard, err := g.cluster.LockSession(ctx, session)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if guard != nil {
		return g.answerUnder(ctx, session, guard)
	}
	defer g.local.lock(session)()
	// There are no tokens without locks: the fence stays where it is, and holds back nothing.
	token, err := g.store.fenceOf(ctx, session)
	if err != nil {
		return err
	}
	return g.answerAll(ctx, fence{session, token, g.cluster.NodeID()})
}

// answerUnder answers under the lock. The work ends when the lock is lost, and the fence refuses writes that were
// already under way.
func (g *gateway) answerUnder(ctx context.Context, session string, guard *solehold.Guard) error {
	defer func() {
		if err := guard.Close(); err != nil && !errors.Is(err, solehold.Lost) {
			slog.Debug("cannot release the session lock; it expires after its ttl", "session", session, "error", err)
		}
	}()
	by := fence{session, guard.Token(), g.cluster.NodeID()}
	err := guard.Run(ctx, func(ctx context.Context) error { return g.store.visit(ctx, by, "entered") })
	if err != nil {
		// The write may still arrive after this node has lost the session.
		g.leave(ctx, by, "overdue")
		return err
	}
	g.busy.Add(1)
	err = guard.Run(ctx, func(ctx context.Context) error { return g.answerAll(ctx, by) })
	g.busy.Add(-1)
	g.leave(ctx, by, "left")
	// A note written after the deadline, as on an overloaded machine, may follow the next node's entry. That is no
	// violation of the lock.
	var lost *solehold.LostError
	if _, late := guard.Check(); errors.As(late, &lost) && lost.Why == solehold.WhyDeadline {
		g.leave(ctx, by, "overdue")
	}
	return err
}

// leave records that this node has left the session, before another node can enter.
func (g *gateway) leave(ctx context.Context, by fence, how string) {
	for range leaveTries {
		err := g.store.visit(ctx, by, how)
		if err == nil {
			return
		}
		slog.Warn("cannot record that this node left a session", "error", err)
	}
}

func (g *gateway) answerAll(ctx context.Context, by fence) error {
	for {
		position, text, found, err := g.store.nextUnanswered(ctx, by.session)
		if err != nil || !found {
			return err
		}
		if err := g.store.begin(ctx, by, position); err != nil {
			return err
		}
		reply, err := g.think(ctx, text)
		if err != nil {
			return err
		}
		if err := g.store.answer(ctx, by, position, reply); err != nil {
			return err
		}
		g.answered.Add(1)
	}
}

func (g *gateway) think(ctx context.Context, text string) (string, error) {
	select {
	case <-time.After(g.work):
		return "you said: " + text, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// answerAbandoned answers messages that other nodes left unanswered, until ctx ends.
func (g *gateway) answerAbandoned(ctx context.Context) {
	for sleep(ctx, lookEvery) {
		sessions, err := g.store.leftBehind(ctx, leftBehindAfter, takeUpMax)
		if err != nil && ctx.Err() == nil {
			slog.Warn("cannot look for unanswered messages; retrying", "error", err)
		}
		for _, session := range sessions {
			if err := g.answer(ctx, session); err != nil {
				slog.Debug("another node is answering this session", "session", session, "error", err)
			}
		}
	}
}

// publishMetrics publishes this node's metrics, until ctx ends.
func (g *gateway) publishMetrics(ctx context.Context) {
	for {
		g.cluster.SetMetrics(solehold.Metrics{"answered": g.answered.Load(), "busy": g.busy.Load()})
		if !sleep(ctx, tellEvery) {
			return
		}
	}
}

// sleep reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// health is this node, and all live nodes.
func (g *gateway) health(ctx context.Context) map[string]any {
	health := g.cluster.Health()
	health["answered"], health["busy"] = g.answered.Load(), g.busy.Load()
	health["warnings"] = append([]string{}, g.cluster.Warnings()...)
	nodes, err := g.cluster.Nodes(ctx)
	if err != nil { // health is answered even while no server is
		health["nodes"] = map[string]string{"error": err.Error()}
		return health
	}
	shown := []map[string]any{}
	for _, node := range nodes {
		shown = append(shown, map[string]any{"node_id": node.NodeID, "metrics": node.Metrics})
	}
	health["nodes"] = shown
	return health
}

// localLocks are locks within this process, by session.
type localLocks struct {
	mu  sync.Mutex
	all map[string]*localLock
}

type localLock struct {
	mu    sync.Mutex
	users int
}

// lock locks a session, and returns a function that unlocks it.
func (l *localLocks) lock(session string) func() {
	l.mu.Lock()
	if l.all == nil {
		l.all = map[string]*localLock{}
	}
	one := l.all[session]
	if one == nil {
		one = &localLock{}
		l.all[session] = one
	}
	one.users++
	l.mu.Unlock()
	one.mu.Lock()
	return func() {
		one.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(l.all, session)
		}
	}
}
