package solehold_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"solehold.dev/solehold"
)

// A job that must not run twice: the lock is taken or refused, and a refusal names its holder.
func ExampleLocks() {
	ctx := context.Background()
	client, err := solehold.NewClient(solehold.Config{Servers: []string{os.Getenv("EXAMPLE_SERVER")}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	first, err := solehold.NewLocks(client, solehold.SessionConfig{Holder: "host-1"})
	if err != nil {
		panic(err)
	}
	defer first.Close(ctx)
	second, err := solehold.NewLocks(client, solehold.SessionConfig{Holder: "host-2"})
	if err != nil {
		panic(err)
	}
	defer second.Close(ctx)

	guard, err := first.TryAcquire(ctx, "nightly")
	if err != nil {
		panic(err)
	}
	_, err = second.TryAcquire(ctx, "nightly")
	var refused *solehold.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Code, "by", refused.Holder)
	}
	if err := guard.Close(); err != nil {
		panic(err)
	}
	guard, err = second.Acquire(ctx, "nightly", solehold.Wait(10*time.Second))
	fmt.Println(guard.IsLive(), err)
	// Output:
	// held by host-1
	// true <nil>
}

// One of many processes leads at a time. The token fences what it does.
func ExampleElect() {
	ctx := context.Background()
	client, err := solehold.NewClient(solehold.Config{Servers: []string{os.Getenv("EXAMPLE_SERVER")}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	config := solehold.SessionConfig{TTL: 10 * time.Second}
	err = solehold.Elect(ctx, client, "compactor", config, func(ctx context.Context, guard *solehold.Guard) error {
		token, err := guard.Check()
		fmt.Println("leading:", token > 0)
		return err
	})
	fmt.Println(err)
	// Output:
	// leading: true
	// <nil>
}

// On the side where the work takes effect, a gate refuses a token that is no longer the newest.
func ExampleGate() {
	ctx := context.Background()
	client, err := solehold.NewClient(solehold.Config{Servers: []string{os.Getenv("EXAMPLE_SERVER")}})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	gate, err := solehold.OpenGate(client, solehold.GateConfig{Kinds: []string{"document"}})
	if err != nil {
		panic(err)
	}
	defer gate.Close()
	session, err := client.OpenSession(ctx, solehold.SessionConfig{Holder: "editor"})
	if err != nil {
		panic(err)
	}
	defer session.Close(ctx)
	var tokens []uint64
	for range 2 {
		guard, err := session.Acquire(ctx, "document", "report")
		if err != nil {
			panic(err)
		}
		tokens = append(tokens, guard.Token())
		defer guard.Close()
		if len(tokens) == 1 {
			guard.Close()
		}
	}
	fmt.Println(gate.Decide(ctx, "document", "report", tokens[1], "").Word)
	fmt.Println(gate.Decide(ctx, "document", "report", tokens[0], "").Word)
	// Output:
	// admit
	// stale
}
