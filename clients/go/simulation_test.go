package solehold_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"solehold.dev/solehold"
)

// authority is one store and one resource, by the virtual time of a test. It grants, renews and expires as the rules
// say; the network between it and its clients delays and loses whatever it likes.
type authority struct {
	chance *rand.Rand
	// loss is the share of messages that get lost, each way; delay is the longest that one takes.
	loss  float64
	delay time.Duration

	mu       sync.Mutex
	began    time.Time
	revision uint64
	sessions map[string]*simulated
	// The lease on the one resource.
	token   uint64
	lease   string
	session string
	request string
	spent   map[string]bool
	granted map[uint64]time.Duration
	cutOff  map[string]bool
}

type simulated struct {
	holder string
	ttl    time.Duration
	ends   time.Duration
}

func newAuthority(seed uint64, loss float64, delay time.Duration) *authority {
	return &authority{
		chance: rand.New(rand.NewPCG(seed, 9)), loss: loss, delay: delay, began: time.Now(), revision: 1,
		sessions: map[string]*simulated{}, spent: map[string]bool{}, granted: map[uint64]time.Duration{},
		cutOff: map[string]bool{},
	}
}

func (a *authority) now() time.Duration { return time.Since(a.began) }

// Now is the clock of all clients. It is the store's as well: only trust is simulated here, not drift.
func (a *authority) Now() solehold.Tick { return solehold.Tick(a.now()) + 1 }

func (a *authority) client(t *testing.T) *solehold.Client {
	return newClient(t, solehold.Config{
		Servers: []string{"simulated:1"}, Clock: a, Timeout: 2 * time.Second, RetryFor: 3 * time.Second,
		RoundTripper: func() http.RoundTripper { return a },
	})
}

// RoundTrip is the network.
func (a *authority) RoundTrip(request *http.Request) (*http.Response, error) {
	httptrace.ContextClientTrace(request.Context()).GotConn(httptrace.GotConnInfo{})
	var body map[string]any
	if request.Body != nil {
		text, _ := io.ReadAll(request.Body)
		_ = json.Unmarshal(text, &body)
	}
	if err := a.travel(request.Context()); err != nil {
		return nil, err
	}
	status, answer := a.answer(request, body)
	if err := a.travel(request.Context()); err != nil {
		return nil, err
	}
	text, _ := json.Marshal(answer)
	return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(text)), Request: request}, nil
}

func (a *authority) travel(ctx context.Context) error {
	a.mu.Lock()
	isLost := a.chance.Float64() < a.loss
	delay := time.Duration(a.chance.Float64() * float64(a.delay))
	a.mu.Unlock()
	if isLost {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type object = map[string]any

func refusal(status int, code string) (int, any) {
	return status, object{"code": code, "detail": "simulated"}
}

// answer decides one request.
func (a *authority) answer(request *http.Request, body object) (int, any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := strings.Split(strings.TrimPrefix(request.URL.Path, "/api/v1/"), "/")
	text := func(name string) string { text, _ := body[name].(string); return text }
	switch route := request.Method + " " + path[len(path)-1]; {
	case route == "POST sessions":
		id := request.Header.Get("Idempotency-Key")
		if a.sessions[id] == nil {
			ttl := time.Duration(body["ttl_ms"].(float64)) * time.Millisecond
			a.sessions[id] = &simulated{holder: text("holder"), ttl: ttl, ends: a.now() + ttl}
		}
		return 201, a.view(id)
	case route == "PUT heartbeat":
		id := path[1]
		if !a.isLive(id) {
			return refusal(409, "no_session")
		}
		a.sessions[id].ends = a.now() + a.sessions[id].ttl
		return 200, a.view(id)
	case route == "POST lease":
		return a.acquire(text("session_id"), text("request_id"))
	case route == "POST cancel":
		a.spent[text("request_id")] = true
		if a.request == text("request_id") {
			a.release()
		}
		return 200, object{}
	case route == "DELETE lease":
		if a.lease != text("lease_id") || a.session != text("session_id") || !a.isLive(a.session) {
			return refusal(409, "lost")
		}
		a.release()
		return 204, nil
	case request.Method == "DELETE" && path[0] == "sessions":
		if a.session == path[1] {
			a.release()
		}
		delete(a.sessions, path[1])
		return 204, nil
	}
	return refusal(404, "no_such_route")
}

func (a *authority) isLive(id string) bool {
	session := a.sessions[id]
	return session != nil && a.now() < session.ends && !a.cutOff[session.holder]
}

func (a *authority) release() { a.session, a.request, a.lease = "", "", "" }

func (a *authority) acquire(session, request string) (int, any) {
	switch {
	case !a.isLive(session):
		return refusal(409, "no_session")
	case a.request == request && a.isLive(a.session):
		return 200, a.grant() // a repeat
	case a.spent[request]:
		return refusal(409, "request_spent")
	case a.isLive(a.session):
		return refusal(409, "held")
	}
	a.revision++
	a.token, a.session, a.request, a.lease = a.revision, session, request, fmt.Sprintf("lease-%d", a.revision)
	a.granted[a.token] = a.now()
	a.spent[request] = true
	return 200, a.grant()
}

func (a *authority) grant() any {
	left := a.sessions[a.session].ends - a.now()
	return object{"lease_id": a.lease, "token": a.token, "ttl_ms": left.Milliseconds(), "revision": a.token, "epoch": 1}
}

func (a *authority) view(id string) any {
	session, leases := a.sessions[id], []object{}
	if a.session == id {
		leases = append(leases, object{"lease_id": a.lease, "token": a.token})
	}
	return object{
		"session_id": id, "ttl_ms": (session.ends - a.now()).Milliseconds(), "full_ttl_ms": session.ttl.Milliseconds(),
		"slack_ms": 0, "epoch": 1, "revision": a.revision, "leases": leases,
	}
}

// Workers that lose the authority, and each other's answers, for minutes of virtual time.
func TestSimulationNoTokenWorksAfterANewerOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 3))
			delay := time.Duration(chance.Int64N(int64(1500 * time.Millisecond)))
			world := newAuthority(seed, 0.15*chance.Float64(), delay)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			steps := 0
			var mu sync.Mutex
			check := func(token uint64, at time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				world.mu.Lock()
				defer world.mu.Unlock()
				steps++
				for newer, granted := range world.granted {
					if newer > token && granted <= at {
						t.Errorf("seed %d: a step under token %d at %v, and token %d was granted at %v",
							seed, token, at, newer, granted)
					}
				}
			}
			var all sync.WaitGroup
			for n := range 3 {
				all.Go(func() { simulatedWorker(ctx, t, world, fmt.Sprintf("worker-%d", n), check) })
			}
			all.Wait()
			if len(world.granted) < 3 || steps < 50 {
				t.Errorf("seed %d: only %d grants and %d steps", seed, len(world.granted), steps)
			}
		})
	}
}

func simulatedWorker(
	ctx context.Context, t *testing.T, world *authority, holder string, check func(uint64, time.Duration),
) {
	client := world.client(t)
	config := solehold.SessionConfig{Holder: holder, TTL: 10 * time.Second}
	err := solehold.KeepSession(ctx, client, config, func(ctx context.Context, session *solehold.Session) error {
		for ctx.Err() == nil {
			guard, err := session.Acquire(ctx, "scene", "one")
			if err != nil {
				return err
			}
			for range 100 {
				at := world.now()
				if _, err := guard.Check(); err != nil {
					break
				}
				check(guard.Token(), at)
				time.Sleep(200 * time.Millisecond)
			}
			_ = guard.Close()
		}
		return ctx.Err()
	}, nil)
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, solehold.Unavailable) {
		t.Errorf("%s ended: %v", holder, err)
	}
	client.Close()
}

// A machine that sleeps for longer than the ttl: its clock has counted on, and its timers have not.
func TestSimulationASuspendedMachineFindsItsGuardDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := newAuthority(1, 0, 0)
		sleepy := &sleepyClock{authority: world}
		client := newClient(t, solehold.Config{
			Servers: []string{"simulated:1"}, Clock: sleepy, RoundTripper: func() http.RoundTripper { return world },
		})
		session := session(t, client, "sleepy")
		guard := acquire(t, session, "scene", "one")
		ctx := guard.Context()
		sleepy.sleep(time.Minute)
		// No timer has run since.
		if err := ctx.Err(); err == nil || !errors.Is(context.Cause(ctx), solehold.Lost) {
			t.Errorf("the context is not cancelled: %v", err)
		}
		if _, err := guard.Check(); !errors.Is(err, solehold.Lost) {
			t.Errorf("check: %v", err)
		}
	})
}

type sleepyClock struct {
	*authority
	mu    sync.Mutex
	slept time.Duration
}

func (c *sleepyClock) sleep(d time.Duration) {
	c.mu.Lock()
	c.slept += d
	c.mu.Unlock()
}

func (c *sleepyClock) Now() solehold.Tick {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.authority.Now().Add(c.slept)
}
