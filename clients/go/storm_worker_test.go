package solehold_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"solehold.dev/solehold"
)

const (
	stormTTL = 2 * time.Second
	stormKey = "storm"
)

// worker works on one resource while it holds it, and says each step: the token, and the tick before Check.
func worker() {
	url, sink, holder := os.Getenv("STORM_SERVER"), os.Getenv("STORM_SINK"), os.Getenv("STORM_WORKER")
	client, err := solehold.NewClient(solehold.Config{Servers: []string{url}})
	if err != nil {
		panic(err)
	}
	config := solehold.SessionConfig{Holder: holder, TTL: stormTTL}
	work := func(ctx context.Context, session *solehold.Session) error {
		for {
			guard, err := session.Acquire(ctx, "scene", stormKey)
			if err != nil {
				return err
			}
			err = guard.Run(ctx, func(ctx context.Context) error { return steps(ctx, client, guard, sink, holder) })
			fmt.Printf("ended %d: %v\n", guard.Token(), err)
			_ = guard.Close()
		}
	}
	fmt.Println("worker ended:", solehold.KeepSession(context.Background(), client, config, work, nil))
}

// steps works until the lease is lost: a check, a little work, and a write that carries the token.
func steps(ctx context.Context, client *solehold.Client, guard *solehold.Guard, sink, holder string) error {
	for number := 0; ; number++ {
		before := client.Clock().Now()
		token, err := guard.Check()
		if err != nil {
			return err
		}
		fmt.Printf("step %d %d\n", token, before)
		time.Sleep(2 * time.Millisecond)
		// On purpose without ctx and without another check: only the sink's fence stops a write after a pause.
		answer, err := http.Post(fmt.Sprintf("%s/?token=%d&worker=%s", sink, token, holder), "text/plain", nil)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode == http.StatusConflict {
			return errors.New("the sink refused the token")
		}
		if number%40 == 39 { // hand it on now and then, so that waiting in line is part of the storm
			return nil
		}
	}
}
