package solehold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// call is a request for any server.
type call struct {
	method string
	path   string
	// body is sent as JSON unless it is nil.
	body any
	// once says that doing it twice is not the same as doing it once. All other calls are repeated: they are known by
	// their request id, token, lease id or session id.
	once bool
	// opens is the id of the session that it opens.
	opens string
}

// answer is the answer to a call.
type answer struct {
	body []byte
	// sent is the tick before the attempt that was answered.
	sent Tick
}

// doubts remembers for a caller that some attempt may have been done without an answer.
type doubts struct {
	mu  sync.Mutex
	any bool
}

func (d *doubts) raise() { d.set(true) }
func (d *doubts) clear() { d.set(false) }

func (d *doubts) set(any bool) {
	if d != nil {
		d.mu.Lock()
		d.any = any
		d.mu.Unlock()
	}
}

func (d *doubts) raised() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.any
}

// silences are the servers that did not answer last, as the log said. All channels of a client share them.
type silences struct {
	mu  sync.Mutex
	all map[server]bool
}

// begin reports whether this server's silence is new.
func (s *silences) begin(of server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew := !s.all[of]
	s.all[of] = true
	return isNew
}

// end reports whether this server was silent before.
func (s *silences) end(of server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.all[of]
	delete(s.all, of)
	return was
}

// channel asks one server at a time, and stays with the one that answered. It has connections of its own.
type channel struct {
	servers   []server
	transport *transport
	clock     Clock
	chance    chance
	query     string
	backoff   BackoffConfig
	silences  *silences
	log       *slog.Logger

	mu      sync.Mutex
	current int
}

func (c *channel) close() { c.transport.close() }

// terms are how a call is made.
type terms struct {
	// timeout is how long each server has.
	timeout time.Duration
	// until is the tick of the last attempt.
	until Tick
	// beside is how many servers after the present one it begins with.
	beside int
	doubts *doubts
}

// call asks each server in turn, and after a pause again. It returns what the first definite answer says. Without one
// the error is Unknown if it may have been done, else Unavailable.
func (c *channel) call(ctx context.Context, call call, terms terms) (answer, error) {
	request, err := c.request(call, terms.timeout)
	if err != nil {
		return answer{}, err
	}
	return ask(ctx, c, call, terms, func(to server) (answer, error) {
		sent := c.clock.Now()
		status, body, err := c.transport.send(ctx, to, request)
		if err == nil && status >= 300 {
			err = fromAnswer(to.String(), status, body)
		}
		return answer{body: body, sent: sent}, err
	})
}

// stream is the same for an answer that is read while it is being written.
func (c *channel) stream(ctx context.Context, call call, terms terms) (*http.Response, error) {
	request, err := c.request(call, terms.timeout)
	if err != nil {
		return nil, err
	}
	return ask(ctx, c, call, terms, func(to server) (*http.Response, error) {
		response, err := c.transport.stream(ctx, to, request)
		if err != nil || response.StatusCode < 300 {
			return response, err
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(response.Body, problemBytesMax))
		return nil, fromAnswer(to.String(), response.StatusCode, body)
	})
}

func (c *channel) request(call call, timeout time.Duration) (request, error) {
	made := request{method: call.method, target: call.path, timeout: timeout, opens: call.opens}
	if c.query != "" {
		join := "?"
		if strings.Contains(call.path, "?") {
			join = "&"
		}
		made.target += join + c.query
	}
	if call.body != nil {
		body, err := json.Marshal(call.body)
		if err != nil {
			return made, wrong("the body cannot be sent as JSON: %v", err)
		}
		made.body = body
	}
	return made, nil
}

func (c *channel) begin(beside int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.current + beside) % len(c.servers)
}

// ask makes the attempts of a call.
func ask[T any](
	ctx context.Context, c *channel, call call, terms terms, once func(server) (T, error),
) (T, error) {
	var none T
	var unknown error
	delays := newBackoff(c.backoff, c.chance)
	at := c.begin(terms.beside)
	for tried := 1; ; tried++ {
		to := c.servers[at]
		began := c.clock.Now()
		result, err := once(to)
		c.trace(ctx, call, to, began, err)
		if err == nil {
			c.answered(at)
			return result, nil
		}
		switch {
		case errors.Is(err, Unknown):
			terms.doubts.raise()
			if call.once {
				return none, err
			}
			unknown = err
		case errors.Is(err, Unavailable):
		case isAnswer(err):
			c.answered(at)
			return none, err
		default: // the caller gave up
			terms.doubts.raise()
			return none, err
		}
		at = c.leave(at)
		if tried%len(c.servers) != 0 {
			c.failed(to, err, fmt.Sprintf("asking %s instead", c.servers[at]))
			continue
		}
		now := c.clock.Now()
		// Where the server asks for more time than there is, another attempt is of no use.
		if now >= terms.until || now.Add(retryAfter(err)) > terms.until {
			if unknown != nil {
				return none, unknown
			}
			return none, err
		}
		next := "asking again"
		if terms.until != never {
			next = fmt.Sprintf("asking again for %v", terms.until.Sub(now).Round(time.Millisecond))
		}
		c.failed(to, err, next)
		if err := sleepUntil(ctx, c.clock, min(terms.until, now.Add(delays.delay(retryAfter(err))))); err != nil {
			return none, err
		}
	}
}

// leave goes on to the server after one that did not answer.
func (c *channel) leave(at int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	following := (at + 1) % len(c.servers)
	if c.current == at {
		c.current = following
	}
	return following
}

func (c *channel) answered(at int) {
	c.mu.Lock()
	c.current = at
	c.mu.Unlock()
	if c.silences.end(c.servers[at]) {
		c.log.Info("server is answering again", "server", c.servers[at].String())
	}
}

// failed reports a failure that this handles. It is logged once, and not for each of perhaps hundreds of calls.
func (c *channel) failed(to server, err error, next string) {
	if c.silences.begin(to) {
		c.log.Warn("server does not answer", "server", to.String(), "error", err.Error(), "next", next)
	}
}

func (c *channel) trace(ctx context.Context, call call, to server, began Tick, err error) {
	if !c.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	told := "answered"
	if err != nil {
		told = err.Error()
	}
	took := c.clock.Now().Sub(began)
	c.log.DebugContext(ctx, "request",
		"method", call.method, "server", to.String(), "path", call.path, "outcome", told, "took", took)
}
