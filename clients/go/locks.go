package solehold

import "context"

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
	session, err := l.kept.live(ctx, l.kept.client.tickAfter(l.kept.client.config.RetryFor))
	if err != nil {
		return nil, err
	}
	return session.Acquire(ctx, LockKind, name, options...)
}

// TryAcquire takes a free lock, or returns a Refused that names its holder.
func (l *Locks) TryAcquire(ctx context.Context, name string) (*Guard, error) {
	return l.Acquire(ctx, name, Wait(0))
}

// Close closes the session of the locks, if it is their own: the locks are released.
func (l *Locks) Close(ctx context.Context) { l.kept.close(ctx) }
