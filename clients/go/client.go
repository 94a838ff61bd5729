package solehold

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Config says which servers a client asks, and how. Only Servers is required.
type Config struct {
	// Servers are several servers over one store: each is HOST:PORT for plain HTTP, or a URL. One entry may be several
	// with commas between, as in SOLEHOLD_SERVER.
	Servers []string
	// Key is the API key. It is never logged.
	Key string
	// Tenant is needed only with a key for all tenants.
	Tenant string
	// TLS is for a certificate authority or a client certificate of your own.
	TLS *tls.Config
	// Timeout is how long one server has for one request; 5 s by default.
	Timeout time.Duration
	// RetryFor is how long a request is repeated while no server answers; 15 s by default, negative for no repeats.
	RetryFor time.Duration
	// Backoff says how long to wait before a request is repeated.
	Backoff BackoffConfig
	// ResponseBytesMax bounds an answer; 64 MiB by default.
	ResponseBytesMax int64
	// Logger is slog.Default() if it is nil.
	Logger *slog.Logger
	// Clock is BootClock if it is nil.
	Clock Clock
	// Traceparent returns the traceparent header (W3C Trace Context) of the span that a request belongs to, or "". With
	// OpenTelemetry it reads the span of ctx, which is the caller's.
	Traceparent func(ctx context.Context) string
	// RoundTripper makes the connections of one channel; a session has a channel of its own, so that nothing delays its
	// heartbeats. It is for tests and unusual networks.
	RoundTripper func() http.RoundTripper
}

// Client asks the servers of one Solehold, any of which may answer. It may be used by many goroutines.
type Client struct {
	config   Config
	servers  []server
	clock    Clock
	log      *slog.Logger
	chance   chance
	header   http.Header
	silences *silences
	channel  *channel
	history  *history
	newsroom *newsroom
	// short has a slot for each short request, waiters one for each request that waits in line.
	short   chan struct{}
	waiters chan struct{}
	// leaving are sessions and gates that are being closed.
	leaving sync.WaitGroup
}

// NewClient checks the configuration. It asks no server yet.
func NewClient(config Config) (*Client, error) {
	servers, err := parseServers(config.Servers)
	if err != nil {
		return nil, err
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	client := &Client{
		config:   config,
		servers:  servers,
		clock:    config.Clock,
		log:      config.Logger,
		chance:   anyChance,
		header:   http.Header{"Accept": {"application/json"}, "User-Agent": {"solehold-client-go"}},
		silences: &silences{all: map[server]bool{}},
		history:  &history{},
		short:    make(chan struct{}, requestsAtOnceMax),
		waiters:  make(chan struct{}, waitersAtOnceMax),
	}
	if config.Key != "" {
		client.header.Set("Authorization", "Bearer "+config.Key)
	}
	client.channel = client.newChannel()
	client.newsroom = newNewsroom(client)
	return client, nil
}

// complete sets the defaults, and checks the rest.
func (c *Config) complete() error {
	if strings.ContainsFunc(c.Key, func(char rune) bool { return char <= ' ' || char > '~' }) {
		return wrong("the key has characters that no key has: check for a stray newline")
	}
	if c.Tenant != "" {
		if err := checkName("the tenant", c.Tenant); err != nil {
			return err
		}
	}
	if c.Timeout < 0 {
		return wrong("the timeout is %v: give a time above 0", c.Timeout)
	}
	var err error
	if c.Backoff, err = c.Backoff.orDefault(); err != nil {
		return wrong("%v", err)
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.RetryFor == 0 {
		c.RetryFor = 15 * time.Second
	}
	c.RetryFor = max(0, c.RetryFor)
	if c.ResponseBytesMax <= 0 {
		c.ResponseBytesMax = responseBytesMax
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = BootClock{}
	}
	if c.RoundTripper == nil {
		config := c.TLS
		c.RoundTripper = func() http.RoundTripper { return newHTTP(config) }
	}
	return nil
}

// newChannel makes another channel to the servers, with connections of its own.
func (c *Client) newChannel() *channel {
	made := &channel{
		servers:   c.servers,
		transport: &transport{c.config.RoundTripper(), c.header, c.config.ResponseBytesMax, c.config.Traceparent},
		clock:     c.clock,
		chance:    c.chance,
		backoff:   c.config.Backoff,
		silences:  c.silences,
		log:       c.log,
	}
	if c.config.Tenant != "" {
		made.query = "tenant=" + url.QueryEscape(c.config.Tenant)
	}
	return made
}

// Clock is the clock by which deadlines are judged.
func (c *Client) Clock() Clock { return c.clock }

// Close closes the connections. Close sessions, locks and gates before; those that are being closed are waited for.
func (c *Client) Close() {
	c.leaving.Wait()
	c.newsroom.close()
	c.channel.close()
}

// String names the servers, and no key.
func (c *Client) String() string {
	names := make([]string, len(c.servers))
	for i, server := range c.servers {
		names[i] = server.String()
	}
	return fmt.Sprintf("solehold client of %s", strings.Join(names, ", "))
}

func (c *Client) tickAfter(d time.Duration) Tick { return c.clock.Now().Add(d) }

// newRequestID is a new name for a request.
func newRequestID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// newUUID is a new id for a session.
func newUUID() string {
	var id [16]byte
	rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// Request asks a server anything, such as PUT /api/v1/resources/job/a with an empty object, and returns its JSON.
// Without an answer a GET is asked again, anything else is not: see Repeat.
func (c *Client) Request(ctx context.Context, method, path string, body any) ([]byte, error) {
	return c.requestAny(ctx, call{method: method, path: path, body: body, once: method != http.MethodGet})
}

// Repeat is Request for what may be done twice with the same result as once: it is repeated until a server answers.
func (c *Client) Repeat(ctx context.Context, method, path string, body any) ([]byte, error) {
	return c.requestAny(ctx, call{method: method, path: path, body: body})
}

func (c *Client) requestAny(ctx context.Context, call call) ([]byte, error) {
	special := func(char rune) bool { return char <= ' ' || char > '~' }
	if !strings.HasPrefix(call.path, "/") || strings.ContainsFunc(call.path, special) {
		return nil, wrong("the path %q must begin with / and have its special characters escaped", call.path)
	}
	answer, err := c.ask(ctx, call, terms{})
	return answer.body, err
}

// ask asks among the short requests. The zero terms mean the client's own; a timeout can only shorten that of the
// client.
func (c *Client) ask(ctx context.Context, call call, terms terms) (answer, error) {
	if terms.until == 0 {
		terms.until = c.tickAfter(c.config.RetryFor)
	}
	if terms.timeout == 0 || terms.timeout > c.config.Timeout {
		terms.timeout = c.config.Timeout
	}
	select {
	case c.short <- struct{}{}:
		defer func() { <-c.short }()
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
	return c.channel.call(ctx, call, terms)
}
