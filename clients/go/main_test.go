package solehold_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

// A worker of the storm is this program again. The examples have a server of their own.
func TestMain(m *testing.M) {
	if os.Getenv("STORM_WORKER") != "" {
		worker()
		return
	}
	url, stop, err := realserver.ForExamples()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("EXAMPLE_SERVER", url)
	code := m.Run()
	stop()
	os.Exit(code)
}

var waitFor = realserver.WaitFor

func newClient(t testing.TB, config solehold.Config) *solehold.Client {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := solehold.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func clientOf(t testing.TB, urls ...string) *solehold.Client {
	t.Helper()
	return newClient(t, solehold.Config{Servers: urls})
}

func openSession(t testing.TB, client *solehold.Client, config solehold.SessionConfig) *solehold.Session {
	t.Helper()
	session, err := client.OpenSession(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close(context.Background()) })
	return session
}

func session(t testing.TB, client *solehold.Client, holder string) *solehold.Session {
	t.Helper()
	return openSession(t, client, solehold.SessionConfig{Holder: holder})
}

func acquire(
	t testing.TB, session *solehold.Session, kind, key string, options ...solehold.AcquireOption,
) *solehold.Guard {
	t.Helper()
	guard, err := session.Acquire(t.Context(), kind, key, options...)
	if err != nil {
		t.Fatalf("%s does not get %s/%s: %v", session.Holder(), kind, key, err)
	}
	return guard
}

// acquireSoon acquires in the background. The guard is nil if that failed.
func acquireSoon(t testing.TB, session *solehold.Session, kind, key string) <-chan *solehold.Guard {
	acquired := make(chan *solehold.Guard, 1)
	go func() {
		guard, err := session.Acquire(soon(t), kind, key)
		if err != nil {
			t.Errorf("%s does not get %s/%s: %v", session.Holder(), kind, key, err)
		}
		acquired <- guard
	}()
	return acquired
}

func release(t testing.TB, guard *solehold.Guard) {
	t.Helper()
	if released, err := guard.Release(t.Context()); err != nil || !released {
		t.Fatalf("release: %v, %v", released, err)
	}
}

// get reads something of the API.
func get(t testing.TB, client *solehold.Client, path string) map[string]any {
	t.Helper()
	body, err := client.Request(t.Context(), "GET", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	var value map[string]any
	if err := json.Unmarshal(body, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// lockOf is what the server says about a lock.
func lockOf(t testing.TB, client *solehold.Client, name string) (holder string, waiting int) {
	t.Helper()
	body, err := client.Request(t.Context(), "GET", "/api/v1/locks/"+url.PathEscape(name), nil)
	if errors.Is(err, solehold.NotFound) {
		return "", 0 // a lock exists while it is held or waited for
	}
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Holder  string
		Waiting int
	}
	if err := json.Unmarshal(body, &lock); err != nil {
		t.Fatal(err)
	}
	return lock.Holder, lock.Waiting
}

func ask(t testing.TB, client *solehold.Client, method, path string, body any) {
	t.Helper()
	if _, err := client.Request(t.Context(), method, path, body); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

// soon is a context for what should not take long.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, fmt.Errorf("not within a minute"))
	t.Cleanup(cancel)
	return ctx
}
