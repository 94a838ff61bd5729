package solehold

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// How often the store is asked how far it is.
	headEvery = time.Second
	// How long the store counts as away after it was not reached, besides the time that the next question may take.
	awayFor = 2 * time.Second
	// How often a refusal of the gate is logged while it lasts.
	denialLogEvery = time.Minute
)

var gateBackoff = BackoffConfig{First: 100 * time.Millisecond, Cap: 5 * time.Second}

// GateConfig says what a gate is for, and how it judges. Only Kinds is required.
type GateConfig struct {
	// Kinds are the kinds of the resources whose tokens it judges.
	Kinds []string
	// Tenant is that of the resources; "default" by default.
	Tenant string
	// CacheTTL is how old knowledge may be that admits; 30 s by default.
	CacheTTL time.Duration
	// FailOpen admits a token that is not below the mark while the store is away. By default a gate fails closed.
	FailOpen bool
	// Strict reads the store before a new token is admitted, even if the watch has shown it.
	Strict bool
	// Memory is a file in which marks are kept across restarts; none by default.
	Memory string
	// MarksMax is how many marks are kept in memory; a million by default.
	MarksMax int
	// RefreshWithin is how long Decide waits for the store; 5 s by default.
	RefreshWithin time.Duration
}

func (c *GateConfig) complete() error {
	if len(c.Kinds) < 1 || len(c.Kinds) > gateKindsMax {
		return wrong("%d kinds were given: give 1 to %d", len(c.Kinds), gateKindsMax)
	}
	for _, kind := range c.Kinds {
		if err := checkName("a kind", kind); err != nil {
			return err
		}
	}
	if c.CacheTTL < 0 || c.RefreshWithin < 0 || c.MarksMax < 0 {
		return wrong("CacheTTL, RefreshWithin and MarksMax of a gate must not be negative")
	}
	if c.Tenant == "" {
		c.Tenant = "default"
	}
	if c.CacheTTL == 0 {
		c.CacheTTL = 30 * time.Second
	}
	if c.RefreshWithin == 0 {
		c.RefreshWithin = 5 * time.Second
	}
	if c.MarksMax == 0 {
		c.MarksMax = 1_000_000
	}
	return checkName("the tenant", c.Tenant)
}

// Gate refuses work that carries an old token (rule 21). Decide settles what it can with a question to the store; what
// stays undecidable is held back by a transport that can wait, and refused by one that cannot. The watch pushes every
// grant, so the store is read only for a token that comes before its event, and while the watch is away.
type Gate struct {
	client    *Client
	config    GateConfig
	channel   *channel
	memory    *memory
	refreshes *refreshes
	running   context.Context
	stop      context.CancelFunc
	tasks     sync.WaitGroup
	closed    sync.Once
	toSave    chan struct{}

	// mu guards everything below.
	mu      sync.Mutex
	fence   *fence
	watch   *Watch
	changed chan struct{}
	denial  string
	logged  *Tick
}

// OpenGate opens a gate. It fails closed: before its first snapshot it admits nothing by itself.
func OpenGate(client *Client, config GateConfig) (*Gate, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	rules := fenceRules{config.CacheTTL, config.FailOpen, config.Strict, config.Memory != "", config.MarksMax}
	g := &Gate{
		client:  client,
		config:  config,
		channel: client.newChannel(),
		fence:   newFence(rules),
		changed: make(chan struct{}),
		toSave:  make(chan struct{}, 1),
	}
	g.refreshes = newRefreshes(g.newest)
	g.running, g.stop = context.WithCancel(context.Background())
	if config.Memory != "" {
		var err error
		if g.memory, err = openMemory(config.Memory, config.Tenant, g.fence); err != nil {
			g.stop()
			return nil, err
		}
		g.tasks.Go(g.keep)
	}
	g.tasks.Go(g.follow)
	g.tasks.Go(g.askForHeads)
	return g, nil
}

// Close ends the watch, and lets another gate have the memory.
func (g *Gate) Close() {
	g.closed.Do(func() {
		g.stop()
		g.tasks.Wait()
		g.channel.close()
		if g.memory != nil {
			g.memory.close()
		}
	})
}

// Lag says how old the gate's knowledge is: it knows everything that was decided longer ago. False before the first
// snapshot.
func (g *Gate) Lag() (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fence.proven == nil {
		return 0, false
	}
	return g.client.clock.Now().Sub(*g.fence.proven), true
}

// Denied is what the server said when it refused the gate, such as for its key; empty if it does not refuse it. Until
// that is resolved, nothing is admitted that needs the server, even if the gate fails open.
func (g *Gate) Denied() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.fence.isDenied {
		return ""
	}
	return g.denial
}

// JudgeOption says which lease of a resource a token is judged by.
type JudgeOption func(*resourceKey)

// OfSlot judges work under a shared hold, by its slot: that of the guard, 0 for an exclusive lease.
func OfSlot(slot int) JudgeOption {
	return func(key *resourceKey) { key.slot = max(0, slot) }
}

func judged(kind, key string, options []JudgeOption) resourceKey {
	resource := resourceKey{kind: kind, key: key}
	for _, option := range options {
		option(&resource)
	}
	return resource
}

// Judge judges by what is known, at once. The session may be empty.
func (g *Gate) Judge(kind, key string, token uint64, session string, options ...JudgeOption) Verdict {
	return g.judgeNow(judged(kind, key, options), token, session)
}

func (g *Gate) judgeNow(key resourceKey, token uint64, session string) Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.judge(key, token, session)
}

func (g *Gate) judge(key resourceKey, token uint64, session string) Verdict {
	before := len(g.fence.marks)
	verdict := g.fence.judge(key, token, session, g.client.clock.Now())
	if verdict.Why == "unsaved" || len(g.fence.marks) != before {
		notify(g.toSave)
	}
	return verdict
}

// Decide judges, and asks the store where that settles it: one question serves all decisions that waited for it. The
// session may be empty. If ctx ends, the verdict is by what is known.
func (g *Gate) Decide(
	ctx context.Context, kind, key string, token uint64, session string, options ...JudgeOption,
) Verdict {
	resource := judged(kind, key, options)
	arrived := g.client.clock.Now()
	g.mu.Lock()
	verdict := g.judge(resource, token, session)
	asks := verdict.needsRead() && !g.fence.isAway(arrived)
	g.mu.Unlock()
	if asks {
		verdict = g.askAbout(ctx, resource, arrived, token, session)
	}
	if verdict.Why == "unsaved" {
		isSaved := func() bool { return g.judge(resource, token, session).Why != "unsaved" }
		g.until(ctx, isSaved)
		verdict = g.judgeNow(resource, token, session)
	}
	return verdict
}

func (g *Gate) askAbout(
	ctx context.Context, key resourceKey, arrived Tick, token uint64, session string,
) Verdict {
	within, cancel := context.WithTimeoutCause(ctx, g.config.RefreshWithin, errTimeout)
	defer cancel()
	told, err := g.refreshes.ask(within, key, arrived)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if ctx.Err() == nil {
			g.failed(err)
		}
		return g.judge(key, token, session)
	}
	if told.mark == nil && !told.hidden && g.hasWatch() {
		// The store knows an undeclared resource, and a slot, only while it is held. The watch knows it for longer.
		isProven := func() bool { return g.fence.proven != nil && *g.fence.proven >= told.asked }
		if !g.until(ctx, isProven) {
			return g.judgeNow(key, token, session)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	verdict, isFollowed := g.fence.conclude(key, token, session, told, g.client.clock.Now())
	g.hasChanged()
	if !isFollowed {
		return g.judge(key, token, session)
	}
	return verdict
}

func (g *Gate) hasWatch() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fence.told != nil
}

// Changed is closed at the next change of what is known, from this call on. Take it before Judge, so that nothing is
// missed in between.
func (g *Gate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// Ready waits until the first snapshot is whole and saved.
func (g *Gate) Ready(ctx context.Context) error {
	for {
		g.mu.Lock()
		changed, isReady := g.changed, g.fence.isReady()
		g.mu.Unlock()
		if isReady {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// until waits for something that changes only with what is known, but not for ever, and reports whether it holds. The
// condition is called while the gate is locked.
func (g *Gate) until(ctx context.Context, holds func() bool) bool {
	timer := time.NewTimer(g.config.RefreshWithin)
	defer timer.Stop()
	for {
		g.mu.Lock()
		changed, isSo := g.changed, holds()
		g.mu.Unlock()
		if isSo {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		case <-g.running.Done():
			return false
		}
	}
}

// hasChanged wakes everyone who waits for a change. The caller has locked the gate.
func (g *Gate) hasChanged() {
	notify(g.toSave)
	close(g.changed)
	g.changed = make(chan struct{})
}

// newest asks the store for one resource.
func (g *Gate) newest(ctx context.Context, key resourceKey) (answerOf, error) {
	asked := g.client.clock.Now()
	terms := terms{timeout: g.config.RefreshWithin, until: asked}
	reading := call{method: http.MethodGet, path: apiPath("resources", key.kind, key.key)}
	answer, err := g.channel.call(ctx, reading, terms)
	switch {
	case errors.Is(err, NotFound):
		return answerOf{asked: asked}, nil
	case errors.Is(err, Forbidden):
		return answerOf{asked: asked, hidden: true}, nil
	case err != nil:
		return answerOf{}, err
	}
	var resource struct {
		LastToken *uint64 `json:"last_token"`
		Epoch     *uint64 `json:"epoch"`
		Lease     *struct {
			SessionID string `json:"session_id"`
		} `json:"lease"`
		Shared []struct {
			Slot      int    `json:"slot"`
			Token     uint64 `json:"token"`
			SessionID string `json:"session_id"`
		} `json:"shared"`
	}
	if err := read(answer.body, "a resource", &resource); err != nil {
		return answerOf{}, err
	}
	if resource.LastToken == nil {
		return answerOf{}, missing("a resource", "last_token")
	}
	told := answerOf{asked: answer.sent, epoch: resource.Epoch}
	if key.slot > 0 {
		for _, lease := range resource.Shared {
			if lease.Slot == key.slot {
				told.mark = &mark{lease.Token, lease.SessionID}
			}
		}
		return told, nil
	}
	told.mark = &mark{token: *resource.LastToken}
	if resource.Lease != nil {
		told.mark.session = resource.Lease.SessionID
	}
	return told, nil
}

// failed: the store refuses the gate, or was not reached. The caller has locked the gate.
func (g *Gate) failed(err error) {
	now := g.client.clock.Now()
	if !isDenial(err) {
		g.client.log.Debug("the gate cannot reach the store", "error", err.Error())
		g.fence.storeIsAway(now.Add(awayFor + g.config.RefreshWithin))
		return
	}
	g.denial = err.Error()
	g.fence.storeDenies()
	if g.logged == nil || now.Sub(*g.logged) >= denialLogEvery {
		g.logged = &now
		g.client.log.Error("the server refuses the gate; check its API key; refusing tokens that it cannot judge",
			"error", g.denial)
	}
}

// isDenial reports whether a server, or something in front of it, answered and refuses the gate.
func isDenial(err error) bool {
	told, ok := asError(err)
	return ok && (!isUndecided(err) || told.Status == http.StatusUnauthorized || told.Status == http.StatusForbidden)
}

// follow watches, however often the connection is lost.
func (g *Gate) follow() {
	delays := newBackoff(gateBackoff, g.client.chance)
	for g.running.Err() == nil {
		err := g.followOnce(delays)
		g.mu.Lock()
		g.watch = nil
		if err != nil && isDenial(err) && !errors.Is(err, Compacted) {
			g.failed(err)
		}
		g.mu.Unlock()
		if err != nil && g.running.Err() == nil {
			g.client.log.Debug("gate watch interrupted; reconnecting", "error", err.Error())
		}
		if errors.Is(err, Compacted) {
			continue
		}
		_ = sleepUntil(g.running, g.client.clock, g.client.tickAfter(delays.delay(0)))
	}
}

func (g *Gate) followOnce(delays *backoff) error {
	config := WatchConfig{}
	if len(g.config.Kinds) == 1 {
		config.Kind = g.config.Kinds[0]
	}
	asked := g.client.clock.Now()
	watch, err := g.client.Watch(config)
	if err != nil {
		return err
	}
	defer watch.Close()
	for {
		seen, err := watch.Next(g.running)
		if err != nil {
			return err
		}
		delays.reset()
		if !g.take(watch, seen, asked) {
			return nil
		}
	}
}

// take takes in what the watch shows; false if it is from another history than was begun.
func (g *Gate) take(watch *Watch, seen Seen, asked Tick) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if snapshot := seen.Snapshot; snapshot != nil {
		at, err := parseCursor(snapshot.Cursor)
		if err != nil || !g.fence.snapshotBegins(at.epoch) {
			return false
		}
		for _, owned := range snapshot.Resources {
			if g.isOurs(owned.Tenant, owned.Kind) {
				g.fence.learn(resourceKey{owned.Kind, owned.Key, owned.Slot}, mark{owned.Token, owned.SessionID})
			}
		}
		g.fence.snapshotEnds(at.revision, asked)
		g.watch = watch
	} else {
		event := seen.Event
		at, err := parseCursor(event.Cursor)
		if err != nil || at.epoch != g.fence.epoch || g.fence.told == nil {
			return false
		}
		key := resourceKey{event.Kind, event.Key, event.Slot}
		if event.Type == "resource_deleted" {
			g.fence.deleted(key)
		} else if event.Token != 0 && g.isOurs(event.Tenant, event.Kind) {
			g.fence.granted(key, mark{event.Token, event.SessionID})
		}
		g.fence.toldUpTo(at.revision)
	}
	g.hasChanged()
	return true
}

func (g *Gate) isOurs(tenant, kind string) bool {
	return tenant == g.config.Tenant && slices.Contains(g.config.Kinds, kind)
}

// askForHeads asks how far the store is: when the watch has shown everything up to there, everything before the
// question is known.
func (g *Gate) askForHeads() {
	for g.running.Err() == nil {
		now := g.client.clock.Now()
		terms := terms{timeout: g.config.RefreshWithin, until: now}
		answer, err := g.channel.call(g.running, call{method: http.MethodGet, path: "/readyz"}, terms)
		g.mu.Lock()
		if err == nil {
			err = g.headWas(answer, now)
		}
		if err != nil && g.running.Err() == nil {
			g.failed(err)
		}
		g.hasChanged()
		g.mu.Unlock()
		_ = sleepUntil(g.running, g.client.clock, g.client.tickAfter(headEvery))
	}
}

func (g *Gate) headWas(answer answer, now Tick) error {
	var ready struct {
		Cursor string `json:"cursor"`
	}
	if err := read(answer.body, "an answer about readiness", &ready); err != nil {
		return err
	}
	head, err := parseCursor(ready.Cursor)
	if err != nil {
		return unknown("the store's position cannot be read: %v", err)
	}
	if !g.fence.headWas(head.epoch, head.revision, answer.sent) {
		g.client.log.Warn("gate ignores the store: it answers from an older history")
		g.fence.storeIsAway(now.Add(awayFor + g.config.RefreshWithin))
	}
	if g.watch == nil {
		return nil
	}
	// Marks of progress move the cursor of the watch, and are not shown.
	at, err := parseCursor(g.watch.Cursor())
	if err == nil && at.epoch == g.fence.epoch && g.fence.told != nil {
		g.fence.toldUpTo(at.revision)
	}
	return nil
}

// keep saves what there is to save.
func (g *Gate) keep() {
	delays := newBackoff(gateBackoff, g.client.chance)
	var waiting []record
	for {
		select {
		case <-g.toSave:
		case <-g.running.Done():
			return
		}
		g.mu.Lock()
		records, number := g.fence.unsaved()
		waiting = append(waiting, records...)
		var everything []record
		if len(waiting) > 0 && g.memory.isLong(len(g.fence.marks)) {
			everything = g.fence.everything()
		}
		g.mu.Unlock()
		if len(waiting) == 0 {
			continue
		}
		if err := g.memory.save(waiting, everything); err != nil {
			g.client.log.Error("cannot save the gate's marks; refusing new tokens until it works", "error", err.Error())
			notify(g.toSave)
			_ = sleepUntil(g.running, g.client.clock, g.client.tickAfter(delays.delay(0)))
			continue
		}
		delays.reset()
		waiting = nil
		g.mu.Lock()
		g.fence.savedUpTo(number)
		g.hasChanged()
		g.mu.Unlock()
	}
}
