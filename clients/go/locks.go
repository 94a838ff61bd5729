package solehold

import (
	"context"
	"slices"
)

// LockKind is the kind of a lock. Locks are not declared.
const LockKind = "lock"

// Locks are named locks: first come, first served, across all processes.
type Locks struct{ kept *keptSession }

// NewLocks makes locks that are attached to the session given, or to one of their own, as config says.
func NewLocks(owner Owner, config SessionConfig) (*Locks, error) {
	kept, err := newKeptSession(owner, config)
	if err != nil {
		return nil, err
	}
	return &Locks{kept}, nil
}

// Acquire waits in line for a lock, as Session.Acquire does.
func (l *Locks) Acquire(ctx context.Context, name string, options ...AcquireOption) (*Guard, error) {
	if err := checkName("the name of the lock", name); err != nil {
		return nil, err
	}
	session, err := l.Session(ctx)
	if err != nil {
		return nil, err
	}
	return session.Acquire(ctx, LockKind, name, options...)
}

// Session returns the session of the locks. One of their own is opened first if it is not open, or was lost.
func (l *Locks) Session(ctx context.Context) (*Session, error) {
	return l.kept.live(ctx, l.kept.client.tickAfter(l.kept.client.config.RetryFor))
}

// Current is the session of the locks as it is, which may be lost; nil before the first one is open.
func (l *Locks) Current() *Session { return l.kept.current() }

// TryAcquire takes a free lock, or returns a Refused that names its holder.
func (l *Locks) TryAcquire(ctx context.Context, name string, options ...AcquireOption) (*Guard, error) {
	return l.Acquire(ctx, name, append(slices.Clip(options), Wait(0))...)
}

// AcquireAll acquires all of the locks or none, as Session.AcquireAll does. With Slots, each of them is shared; for some
// of them only, ask the session for resources of LockKind.
func (l *Locks) AcquireAll(ctx context.Context, names []string, options ...AcquireOption) ([]*Guard, error) {
	wanted := make([]Wanted, 0, len(names))
	for _, name := range names {
		wanted = append(wanted, Wanted{Kind: LockKind, Key: name})
	}
	if err := checkWanted(wanted); err != nil {
		return nil, err
	}
	session, err := l.Session(ctx)
	if err != nil {
		return nil, err
	}
	return session.AcquireAll(ctx, wanted, options...)
}

// Close closes the session of the locks, if it is their own: the locks are released.
func (l *Locks) Close(ctx context.Context) { l.kept.close(ctx) }
