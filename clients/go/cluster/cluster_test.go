package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/cluster"
	"solehold.dev/solehold/internal/realserver"
)

var quiet = slog.New(slog.DiscardHandler)

func clientOf(t *testing.T, url string) *solehold.Client {
	t.Helper()
	client, err := solehold.NewClient(solehold.Config{Servers: []string{url}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func start(t *testing.T, client *solehold.Client, config cluster.Config) (*cluster.Cluster, error) {
	t.Helper()
	started, err := cluster.Start(t.Context(), client, config, quiet)
	if err == nil {
		t.Cleanup(func() { started.Leave(context.Background()) })
	}
	return started, err
}

func many(nodeID string) cluster.Config {
	config := cluster.DefaultConfig()
	config.Enabled, config.SessionLocks.Enabled, config.NodeID = true, true, nodeID
	return config
}

// Every combination, alone and beside another gateway of the same configuration, as the guide's table says.
func TestWhichNodesMayRunTogether(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		config := cluster.DefaultConfig()
		config.Enabled, config.AllowMultipleGateways, config.SessionLocks.Enabled = n&4 != 0, n&2 != 0, n&1 != 0
		t.Run(fmt.Sprintf("enabled %v, allow %v, locks %v", n&4 != 0, n&2 != 0, n&1 != 0), func(t *testing.T) {
			t.Parallel()
			client := clientOf(t, realserver.Serve(t, "--engine", "memory:").URL)
			first, err := start(t, client, config)
			if err != nil {
				t.Fatal(err)
			}
			wantsWarning := !config.Enabled && n != 0 || config.Enabled && !config.SessionLocks.Enabled
			if (len(first.Warnings()) > 0) != wantsWarning {
				t.Errorf("warnings: %v", first.Warnings())
			}
			second, err := start(t, client, config)
			maySecond := config.Enabled && (config.AllowMultipleGateways || config.SessionLocks.Enabled)
			var another *cluster.AnotherGatewayError
			switch {
			case maySecond && err != nil:
				t.Errorf("a second one is refused: %v", err)
			case !maySecond && !errors.As(err, &another):
				t.Errorf("a second one starts: %v, %v", second, err)
			case !maySecond && (another.Other != first.NodeID() || !strings.Contains(err.Error(), "cluster.")):
				t.Errorf("the refusal: %v", err)
			case !maySecond:
				first.Leave(t.Context())
				if lost := first.Lost(t.Context()); lost == nil {
					t.Error("a gateway that has left does not know it")
				}
				if _, err := start(t, client, config); err != nil {
					t.Errorf("after the first has left: %v", err)
				}
			}
		})
	}
}

func TestNodesSeeEachOtherRouteAlikeAndLockSessions(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	var nodes []*cluster.Cluster
	for _, name := range []string{"gw-a", "gw-b"} {
		node, err := start(t, clientOf(t, server.URL), many(name))
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	a, b := nodes[0], nodes[1]
	seen, err := b.Nodes(t.Context())
	if err != nil || len(seen) != 2 || seen[0].NodeID != "gw-a" || string(seen[0].Metrics["weight"]) != "1" {
		t.Fatalf("seen: %+v, %v", seen, err)
	}
	served := map[string]int{}
	for n := range 40 {
		key := fmt.Sprintf("chat/%d", n)
		one, err := a.Route(t.Context(), key)
		other, otherErr := b.Route(t.Context(), key)
		if err != nil || otherErr != nil || one != other {
			t.Fatalf("%s is routed to %q and %q: %v, %v", key, one, other, err, otherErr)
		}
		served[one]++
	}
	if served["gw-a"] == 0 || served["gw-b"] == 0 || len(served) != 2 {
		t.Errorf("the routes: %v", served)
	}
	guard, err := a.LockSession(t.Context(), "chat/7")
	if err != nil || guard == nil {
		t.Fatalf("the lock: %v, %v", guard, err)
	}
	waiting := make(chan uint64)
	go func() {
		heir, err := b.LockSession(t.Context(), "chat/7")
		if err != nil {
			t.Errorf("the second: %v", err)
			close(waiting)
			return
		}
		waiting <- heir.Token()
	}()
	if err := guard.Close(); err != nil {
		t.Error(err)
	}
	if token := <-waiting; token <= guard.Token() {
		t.Errorf("token %d after %d", token, guard.Token())
	}
	health := a.Health()
	if health["node_id"] != "gw-a" || health["is_live"] != true || health["session_locks"] != true {
		t.Errorf("health: %v", health)
	}
}

func TestANodeIsPresentAgainAfterAnOutage(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	config := many("gw-a")
	config.SessionLocks.TTL, config.SessionLocks.RefreshInterval = 1500*time.Millisecond, 500*time.Millisecond
	node, err := start(t, clientOf(t, server.URL), config)
	if err != nil {
		t.Fatal(err)
	}
	before := node.Health()["session_id"]
	server.Kill()
	realserver.WaitFor(t, "the loss of the session", func() bool { return node.Health()["is_live"] == false })
	server.Again(t)
	realserver.WaitFor(t, "another session", func() bool {
		return node.Health()["is_live"] == true && node.Health()["session_id"] != before
	})
	guard, err := node.LockSession(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Close(); err != nil {
		t.Error(err)
	}
}
