package solehold

import (
	"context"
	"errors"
)

// RoleKind is the kind of a role.
const RoleKind = "role"

// Elect is for a job that exactly one of many processes must do. It waits to be elected, calls lead, and stands again
// whenever it lost the role, until lead returns by itself; then the role is released, and its result returned.
//
// lead gets the guard of its term, whose token fences what it does, and a context that is cancelled when the role is
// lost. With a session as owner, Elect ends with that session.
func Elect(
	ctx context.Context,
	owner Owner,
	role string,
	config SessionConfig,
	lead func(context.Context, *Guard) error,
) error {
	if err := checkName("the role", role); err != nil {
		return err
	}
	kept, err := newKeptSession(owner, config)
	if err != nil {
		return err
	}
	defer kept.close(context.WithoutCancel(ctx))
	log := kept.client.log
	for {
		guard, err := stand(ctx, kept, role)
		if err != nil {
			return err
		}
		err = guard.Run(ctx, func(ctx context.Context) error { return lead(ctx, guard) })
		lost := guard.judge()
		_ = guard.Close() // the loss was returned by Run
		if lost == nil || ctx.Err() != nil || !errors.Is(err, Lost) {
			return err
		}
		log.Warn("lost the role; standing for election again",
			"role", role, "token", guard.Token(), "why", string(lost.Why), "error", err.Error())
	}
}

// stand waits in line for the role.
func stand(ctx context.Context, kept *keptSession, role string) (*Guard, error) {
	for {
		session, err := kept.live(ctx, never)
		if err != nil {
			return nil, err
		}
		guard, err := session.Acquire(ctx, RoleKind, role)
		if err == nil {
			kept.client.log.Info("elected", "holder", session.Holder(), "role", role, "token", guard.Token())
			return guard, nil
		}
		isOver := kept.isOwn && (errors.Is(err, Lost) || errors.Is(err, NoSession)) && ctx.Err() == nil
		if !isOver {
			return nil, err
		}
		kept.client.log.Info("standing for election again",
			"holder", session.Holder(), "role", role, "error", err.Error())
	}
}
