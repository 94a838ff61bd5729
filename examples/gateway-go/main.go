// Gateway is a chat gateway that runs on many nodes, in Go. Sessions and messages are in PostgreSQL; the locks are
// leases of Solehold servers.
//
//	client ── POST /sessions/{id}/messages ──> any node ── stores the message
//	                                             ├── waits in line for the session's lock
//	                                             └── answers all that waits, in order, under the lock's token
//
// A node that dies leaves its messages in the database, and another takes them up when the lock has run out. A node
// that was paused past its ttl finds its lock lost; what it still writes carries an old token, and the session's fence
// refuses it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/cluster"
)

// shutdownWithin is how long requests that are being answered have after a signal.
const shutdownWithin = 10 * time.Second

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:8080", "where to listen")
	database := flag.String("database", os.Getenv("GATEWAY_DATABASE"), "the PostgreSQL of the messages, as a URL")
	servers := flag.String("servers", os.Getenv("SOLEHOLD_SERVER"), "the Solehold servers, with commas between")
	configFile := flag.String("config", "", "a YAML file with the section `cluster`")
	work := flag.Duration("work", 100*time.Millisecond, "how long it takes to answer a message")
	flag.Parse()
	config := cluster.DefaultConfig()
	if *configFile != "" {
		text, err := os.ReadFile(*configFile)
		if err == nil {
			config, err = cluster.FromYAML(string(text))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", *configFile, err)
		}
	}
	if *servers == "" || *database == "" {
		return fmt.Errorf("give --servers and --database, or set SOLEHOLD_SERVER and GATEWAY_DATABASE")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	client, err := solehold.NewClient(solehold.Config{Servers: []string{*servers}, Key: os.Getenv("SOLEHOLD_API_KEY")})
	if err != nil {
		return err
	}
	defer client.Close()
	joined, err := cluster.Start(ctx, client, config, nil)
	if err != nil {
		return err
	}
	defer joined.Leave(context.Background())
	store, err := openStore(ctx, *database)
	if err != nil {
		return err
	}
	defer store.close()
	return serve(ctx, &gateway{store: store, cluster: joined, work: *work}, *listen)
}

// serve serves until a signal, or the loss of the gateway lock: a gateway that must be the only one shuts down when it
// can no longer be sure that it is.
func serve(ctx context.Context, g *gateway, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var tasks sync.WaitGroup
	tasks.Go(func() { g.answerAbandoned(ctx) })
	tasks.Go(func() { g.publishMetrics(ctx) })
	tasks.Go(func() {
		if lost := g.cluster.Lost(ctx); lost != nil && ctx.Err() == nil {
			slog.Error("lost the gateway lock: another gateway may be running; shutting down", "error", lost)
			stop()
		}
	})
	server := &http.Server{Handler: router(g), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Printf("gateway listening on http://%s as %s\n", listener.Addr(), g.cluster.NodeID())
	select {
	case err = <-served:
	case <-ctx.Done():
		slog.Info("shutting down")
		within, cancel := context.WithTimeout(context.Background(), shutdownWithin)
		defer cancel()
		err = server.Shutdown(within)
	}
	stop()
	tasks.Wait()
	return err
}
