// Package cluster is for many gateways on one database: which of them may start beside others, which of them serves a
// key, and which are alive. It reads the same configuration as the cluster of Solehold's Rust client, and works
// together with it.
//
//	Enabled  AllowMultipleGateways  SessionLocks.Enabled   alone                   a second gateway
//	false    any                    any                    starts                  is refused, and told the other's name
//	true     false                  false                  starts, with a warning  is refused, and told the other's name
//	true     true                   false                  starts, with a warning  starts, with a warning
//	true     any                    true                   starts                  starts
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"solehold.dev/solehold"
)

const (
	// The lock that only one gateway of a database has, where there may be only one.
	gatewayKind = "gateway"
	gatewayKey  = "alone"
	// The group that gateways announce, so that others recognise them among all sessions.
	group = "gateway"
	// The kind that keys are routed as by default.
	routeKind = "session"
	// A gateway that runs alone and dies is missed for this long.
	aloneTTL = 15 * time.Second
	// How long a list of nodes is used before it is read again.
	nodesFresh = time.Second
	// Most pages of nodes that are read, of a thousand each.
	nodePagesMax = 100
	// How long to wait before a session that was lost is opened again while no server answers.
	openAgainAfter = time.Second
)

// AnotherGatewayError says that another gateway runs, and there may be only one.
type AnotherGatewayError struct {
	// Other is its name.
	Other string
	// ForgottenIn is when it is forgotten, if it has died.
	ForgottenIn time.Duration
	isCluster   bool
}

func (e *AnotherGatewayError) Error() string {
	remedy := "stop it, or set cluster.enabled and cluster.session_locks.enabled on all of them"
	if e.isCluster {
		remedy = "nothing would keep the two from working on one session at once; " +
			"set cluster.session_locks.enabled on all of them, " +
			"or cluster.allow_multiple_gateways if that is as it should be"
	}
	seconds := (e.ForgottenIn + time.Second - 1) / time.Second
	return fmt.Sprintf("gateway %s runs on this database already (if it has died, it is forgotten in %d s): %s",
		e.Other, seconds, remedy)
}

// Cluster is a gateway among others, or alone.
type Cluster struct {
	client   *solehold.Client
	config   Config
	log      *slog.Logger
	nodeID   string
	locks    *solehold.Locks
	alone    *solehold.Guard
	warnings []string
	metrics  atomic.Pointer[solehold.Metrics]
	stop     context.CancelFunc
	tasks    sync.WaitGroup

	mu     sync.Mutex
	seen   []Node
	seenAt solehold.Tick
}

// Start starts as the configuration says. The logger may be nil.
func Start(ctx context.Context, client *solehold.Client, config Config, log *slog.Logger) (*Cluster, error) {
	if err := config.Check(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	c := &Cluster{client: client, config: config, log: log, nodeID: config.nodeID(), warnings: warnings(&config)}
	for _, warning := range c.warnings {
		log.Warn(warning, "node_id", c.nodeID)
	}
	c.SetMetrics(nil)
	session := solehold.SessionConfig{
		Holder: c.nodeID, TTL: aloneTTL, Metrics: func() solehold.Metrics { return *c.metrics.Load() },
	}
	if c.hasSessionLocks() {
		locks := config.SessionLocks
		session.TTL, session.Every = locks.TTL, locks.RefreshInterval
		session.Backoff = solehold.BackoffConfig{First: locks.PollInterval, Cap: locks.PollInterval}
	}
	if c.mayBeOnlyOne() {
		if err := c.refuseBeside(ctx); err != nil {
			return nil, err
		}
	}
	var err error
	if c.locks, err = solehold.NewLocks(client, session); err != nil {
		return nil, err
	}
	opened, err := c.locks.Session(ctx)
	if err != nil {
		return nil, err
	}
	if c.mayBeOnlyOne() {
		if c.alone, err = c.takeGatewayLock(ctx, opened); err != nil {
			c.locks.Close(context.WithoutCancel(ctx))
			return nil, err
		}
	} else {
		running, stop := context.WithCancel(context.Background())
		c.stop = stop
		c.tasks.Go(func() { c.stayPresent(running, opened) })
	}
	log.Info("gateway started", "node_id", c.nodeID, "cluster", config.Enabled, "session_locks", c.hasSessionLocks())
	return c, nil
}

func (c *Cluster) hasSessionLocks() bool { return c.config.Enabled && c.config.SessionLocks.Enabled }

// mayBeOnlyOne reports whether another gateway must not run beside this one.
func (c *Cluster) mayBeOnlyOne() bool {
	return !c.config.Enabled || !c.config.SessionLocks.Enabled && !c.config.AllowMultipleGateways
}

func warnings(config *Config) []string {
	switch locks := config.SessionLocks.Enabled; {
	case config.Enabled && !locks:
		beside := "refused"
		if config.AllowMultipleGateways {
			beside = "allowed"
		}
		return []string{"cluster.enabled without cluster.session_locks.enabled: nothing keeps two gateways from " +
			"working on one session at once, and others are " + beside}
	case !config.Enabled && (config.AllowMultipleGateways || locks):
		return []string{"cluster.allow_multiple_gateways and cluster.session_locks have no effect without " +
			"cluster.enabled"}
	}
	return nil
}

// refuseBeside: a gateway that must be the only one does not start beside any other, not even one that allows others. A
// former self of the same name is no other: its session ends when this one's begins.
func (c *Cluster) refuseBeside(ctx context.Context) error {
	nodes, err := c.readNodes(ctx)
	if err != nil {
		return fmt.Errorf("cannot tell whether another gateway runs on this database: %w", err)
	}
	for _, node := range nodes {
		if node.NodeID != c.nodeID {
			return &AnotherGatewayError{Other: node.NodeID, ForgottenIn: node.TTLLeft, isCluster: c.config.Enabled}
		}
	}
	return nil
}

// takeGatewayLock takes the lock that only one gateway has. What a former self of the same name left of it is waited
// for.
func (c *Cluster) takeGatewayLock(ctx context.Context, session *solehold.Session) (*solehold.Guard, error) {
	guard, err := session.TryAcquire(ctx, gatewayKind, gatewayKey)
	if err == nil {
		return guard, nil
	}
	var refused *solehold.Error
	if errors.As(err, &refused) && refused.Code == "held" {
		if refused.Holder != "" && refused.Holder != c.nodeID {
			return nil, &AnotherGatewayError{
				Other: refused.Holder, ForgottenIn: refused.RetryAfter, isCluster: c.config.Enabled,
			}
		}
		if guard, err = session.Acquire(ctx, gatewayKind, gatewayKey); err == nil {
			return guard, nil
		}
	}
	return nil, fmt.Errorf("cannot tell whether another gateway runs on this database: %w", err)
}

// stayPresent opens the next session whenever one is lost, so that others see this node without a message to answer.
func (c *Cluster) stayPresent(ctx context.Context, session *solehold.Session) {
	for {
		select {
		case <-session.Context().Done():
		case <-ctx.Done():
			return
		}
		for {
			next, err := c.locks.Session(ctx)
			if err == nil {
				session = next
				break
			}
			if errors.Is(err, solehold.Lost) {
				c.log.Error("another process has this node's name; give each node its own node_id",
					"node_id", c.nodeID, "error", err.Error())
				return
			}
			select {
			case <-time.After(openAgainAfter):
			case <-ctx.Done():
				return
			}
		}
	}
}

// NodeID is the name of this node: for health and logs.
func (c *Cluster) NodeID() string { return c.nodeID }

// Warnings are what is doubtful about the configuration.
func (c *Cluster) Warnings() []string { return c.warnings }

// LockSession locks a session while a message of it is processed, and waits in line for AcquireTimeout. The guard is
// nil where session locks are not enabled: then this process is the only one, or is allowed not to care.
func (c *Cluster) LockSession(ctx context.Context, sessionID string) (*solehold.Guard, error) {
	if !c.hasSessionLocks() {
		return nil, nil
	}
	return c.locks.Acquire(ctx, sessionID, solehold.Wait(c.config.SessionLocks.AcquireTimeout))
}

// Lost waits until this gateway must stop: it may run only alone, and no longer knows that it does. It returns nil when
// ctx ends, which is all that happens where there may be others.
func (c *Cluster) Lost(ctx context.Context) *solehold.LostError {
	if c.alone == nil {
		<-ctx.Done()
		return nil
	}
	return c.alone.Lost(ctx)
}

// Leave leaves, when the work has stopped: another gateway may start at once.
func (c *Cluster) Leave(ctx context.Context) {
	if c.stop != nil {
		c.stop()
		c.tasks.Wait()
	}
	if c.alone != nil {
		if err := c.alone.Close(); err != nil {
			c.log.Debug("cannot release the gateway lock; it expires after its ttl", "error", err.Error())
		}
	}
	c.locks.Close(ctx)
}

// SetMetrics says what others see of this node, from its next heartbeat on. "weight" (1 if not given) says how much is
// routed here, against the others.
func (c *Cluster) SetMetrics(metrics solehold.Metrics) {
	announced := solehold.Metrics{"weight": 1}
	maps.Copy(announced, metrics)
	announced["group"] = group
	c.metrics.Store(&announced)
}

// Node is a live gateway.
type Node struct {
	NodeID    string
	SessionID string
	// Metrics are what it last reported about itself.
	Metrics map[string]json.RawMessage
	// TTLLeft is the time until it is forgotten, unless it reports again.
	TTLLeft time.Duration
}

// Nodes are all live gateways by name, this one among them. About a second old at most.
func (c *Cluster) Nodes(ctx context.Context) ([]Node, error) {
	now := c.client.Clock().Now()
	c.mu.Lock()
	seen, isFresh := c.seen, c.seen != nil && now.Sub(c.seenAt) < nodesFresh
	c.mu.Unlock()
	if isFresh {
		return seen, nil
	}
	nodes, err := c.readNodes(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.seen, c.seenAt = nodes, now
	c.mu.Unlock()
	return nodes, nil
}

func (c *Cluster) readNodes(ctx context.Context) ([]Node, error) {
	nodes := []Node{}
	cursor := ""
	for range nodePagesMax {
		path := "/api/v1/nodes?limit=1000"
		if cursor != "" {
			path += "&cursor=" + url.QueryEscape(cursor)
		}
		body, err := c.client.Request(ctx, "GET", path, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Next  string `json:"next"`
			Nodes []struct {
				NodeID    string                     `json:"node_id"`
				SessionID string                     `json:"session_id"`
				Group     string                     `json:"group"`
				Metrics   map[string]json.RawMessage `json:"metrics"`
				TTLMs     int64                      `json:"ttl_ms"`
			} `json:"nodes"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, fmt.Errorf("the list of nodes cannot be read: %w", err)
		}
		for _, node := range page.Nodes {
			if node.Group == group {
				left := time.Duration(node.TTLMs) * time.Millisecond
				nodes = append(nodes, Node{node.NodeID, node.SessionID, node.Metrics, left})
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].NodeID < nodes[j].NodeID })
	return nodes, nil
}

// Route names the live node that should serve a session, empty if there is none. All nodes give the same answer; a node
// that leaves moves only its own sessions, and one that joins takes only its share. Routing saves waiting; the lock is
// what excludes.
func (c *Cluster) Route(ctx context.Context, key string) (string, error) {
	return c.RouteAs(ctx, routeKind, key)
}

// RouteAs is Route for keys of another kind.
func (c *Cluster) RouteAs(ctx context.Context, kind, key string) (string, error) {
	path := fmt.Sprintf("/api/v1/route/%s/%s?group=%s", url.PathEscape(kind), url.PathEscape(key), group)
	body, err := c.client.Request(ctx, "GET", path, nil)
	if errors.Is(err, solehold.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var route struct {
		Node struct {
			NodeID string `json:"node_id"`
		} `json:"node"`
	}
	if err := json.Unmarshal(body, &route); err != nil {
		return "", fmt.Errorf("the route cannot be read: %w", err)
	}
	return route.Node.NodeID, nil
}

// Health is what this node says of itself when asked for its health.
func (c *Cluster) Health() map[string]any {
	health := map[string]any{
		"node_id": c.nodeID, "cluster": c.config.Enabled, "session_locks": c.hasSessionLocks(),
		"session_id": nil, "is_live": false,
	}
	if session := c.locks.Current(); session != nil {
		health["session_id"], health["is_live"] = session.ID(), session.IsLive()
	}
	return health
}
