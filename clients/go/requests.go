package solehold

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// proof shows a lease: every part of it must match (rule 6).
type proof struct {
	Token     uint64 `json:"token"`
	LeaseID   string `json:"lease_id"`
	SessionID string `json:"session_id"`
}

// openSession opens a session, and returns the tick before the answered request was sent.
//
// A repeat finds the session that a lost answer was about, by its id. A client that remembers the store's history shows
// it before it acquires anything: a store that was set back learns of it first.
func (c *Client) openSession(
	ctx context.Context, config *SessionConfig, follows string, until Tick,
) (Tick, *sessionView, error) {
	body := struct {
		Holder  string  `json:"holder"`
		TTLMs   int64   `json:"ttl_ms"`
		Replace string  `json:"replace,omitempty"`
		Follows string  `json:"follows,omitempty"`
		Metrics Metrics `json:"metrics,omitempty"`
	}{config.Holder, config.TTL.Milliseconds(), config.Replace, follows, config.metrics()}
	opening := call{method: http.MethodPost, path: apiPath("sessions"), body: body, opens: newUUID()}
	answer, err := c.ask(ctx, opening, terms{until: until})
	if err != nil {
		return 0, nil, err
	}
	view, err := readSession(answer.body, nil)
	if err == nil && c.history.sealedCursor() != "" {
		answer, err = c.ask(ctx, c.heartbeatCall(view.sessionID, config.metrics(), ""), terms{})
		if err == nil {
			view, err = readSession(answer.body, nil)
		}
	}
	if err != nil {
		return 0, nil, err
	}
	if _, err := c.history.follow(view.epoch); err != nil {
		return 0, nil, unavailable("%v", err)
	}
	c.history.keep(view.sealedCursor)
	return answer.sent, view, nil
}

func (c *Client) heartbeatCall(sessionID string, metrics Metrics, knownSet string) call {
	body := struct {
		Metrics      Metrics `json:"metrics,omitempty"`
		SealedCursor string  `json:"sealed_cursor,omitempty"`
		KnownSet     string  `json:"known_set,omitempty"`
	}{metrics, c.history.sealedCursor(), knownSet}
	return call{method: http.MethodPut, path: apiPath("sessions", sessionID, "heartbeat"), body: body}
}

// heartbeat renews a session over the session's own connections: each server is asked once. The answer has the set of
// known if the server says that it is still the same.
func (c *Client) heartbeat(
	ctx context.Context, channel *channel, beat *heartbeat, metrics Metrics, known *sessionView,
) (Tick, *sessionView, error) {
	ask := func(knownSet string) (answer, error) {
		terms := terms{timeout: beat.timeout, until: c.clock.Now(), beside: beat.beside}
		return channel.call(ctx, c.heartbeatCall(known.sessionID, metrics, knownSet), terms)
	}
	answer, err := ask(known.setCursor)
	if known.setCursor != "" && refusesField(err, "known_set") {
		// An older server than the one that named the set, as while servers are replaced one by one.
		answer, err = ask("")
	}
	if err != nil {
		return 0, nil, err
	}
	view, err := readSession(answer.body, known)
	return answer.sent, view, err
}

func refusesField(err error, field string) bool {
	told, ok := asError(err)
	if !ok || told.Kind != BadRequest {
		return false
	}
	for _, fault := range told.Fields {
		if fault.Field == field {
			return true
		}
	}
	return false
}

// closeSession closes a session: everything attached to it is released.
func (c *Client) closeSession(ctx context.Context, sessionID string, until Tick) error {
	closing := call{method: http.MethodDelete, path: apiPath("sessions", sessionID)}
	_, err := c.ask(ctx, closing, terms{until: until, timeout: leaveMax})
	return err
}

// call asks for a resource, and waits in line for it; a repeat under the same request id keeps its place.
func (a *acquire) call(wait time.Duration) call {
	body := struct {
		Holder     string  `json:"holder"`
		SessionID  string  `json:"session_id"`
		RequestID  string  `json:"request_id"`
		Attributes Metrics `json:"attributes,omitempty"`
		Slots      int     `json:"slots,omitempty"`
		WaitMs     int64   `json:"wait_ms,omitempty"`
	}{
		a.session.Holder(), a.session.id, a.requestID, a.attributes, a.slots,
		(wait + time.Millisecond - 1).Milliseconds(),
	}
	return call{method: http.MethodPost, path: apiPath("resources", a.kind, a.key, "lease"), body: body}
}

// acquireTogether asks for all of the resources or none, without waiting; each server is asked once. A repeat under the
// same request ids finds what a lost answer was about.
func (c *Client) acquireTogether(ctx context.Context, items []*acquire, doubts *doubts) ([]grant, error) {
	type item struct {
		Kind       string  `json:"kind"`
		Key        string  `json:"key"`
		Holder     string  `json:"holder"`
		SessionID  string  `json:"session_id"`
		RequestID  string  `json:"request_id"`
		Slots      int     `json:"slots,omitempty"`
		Attributes Metrics `json:"attributes,omitempty"`
	}
	body := struct {
		Items     []item `json:"items"`
		AllOrNone bool   `json:"all_or_none"`
	}{AllOrNone: true}
	for _, a := range items {
		asked := item{a.kind, a.key, a.session.Holder(), a.session.id, a.requestID, a.slots, a.attributes}
		body.Items = append(body.Items, asked)
	}
	asking := call{method: http.MethodPost, path: apiPath("leases", "batch", "acquire"), body: body}
	answer, err := c.ask(ctx, asking, terms{until: c.clock.Now(), timeout: c.config.Timeout, doubts: doubts})
	if err != nil {
		return nil, err
	}
	return readGrants(answer.body, len(items))
}

// renew renews a lease, and with it its session.
func (c *Client) renew(ctx context.Context, kind, key string, proof proof, until Tick) (grant, error) {
	renewing := call{method: http.MethodPost, path: apiPath("resources", kind, key, "lease", "renew"), body: proof}
	answer, err := c.ask(ctx, renewing, terms{until: until})
	if err != nil {
		return grant{}, err
	}
	return readGrant(answer.body)
}

// cancel spends a request id: it gets nothing from now on, and what it got is released.
func (c *Client) cancel(ctx context.Context, kind, key, holder, requestID string) error {
	body := struct {
		Holder    string `json:"holder"`
		RequestID string `json:"request_id"`
	}{holder, requestID}
	spending := call{method: http.MethodPost, path: apiPath("resources", kind, key, "lease", "cancel"), body: body}
	_, err := c.ask(ctx, spending, terms{})
	return err
}

// lastState is a state document that is written with a release.
type lastState struct {
	Sequence uint64          `json:"sequence"`
	Document json.RawMessage `json:"document"`
}

// release releases a lease, with a last document if given. False if it was lost before: nothing has changed.
//
// Where answers were lost, and what has happened since hides how it went, it is Unknown.
func (c *Client) release(
	ctx context.Context, kind, key string, proof proof, state *lastState, terms terms,
) (bool, error) {
	body := struct {
		Token     uint64     `json:"token"`
		LeaseID   string     `json:"lease_id"`
		SessionID string     `json:"session_id"`
		State     *lastState `json:"state,omitempty"`
	}{proof.Token, proof.LeaseID, proof.SessionID, state}
	terms.doubts = &doubts{}
	releasing := call{method: http.MethodDelete, path: apiPath("resources", kind, key, "lease"), body: body}
	_, err := c.ask(ctx, releasing, terms)
	if err == nil {
		return true, nil
	}
	code := codeOf(err)
	isGone := errors.Is(err, NotFound) || errors.Is(err, NoSession) || code == "lost" || code == "not_yours"
	if !isGone {
		return false, err
	}
	if !terms.doubts.raised() {
		return false, nil
	}
	// A repeat finds the lease gone, perhaps by our own first attempt: how it ended is kept, and so is the last
	// document.
	if state == nil {
		return c.wasReleased(ctx, proof.LeaseID)
	}
	written, err := c.ReadState(ctx, kind, key)
	if err != nil {
		return false, err
	}
	if written == nil || written.Token > proof.Token ||
		written.Token == proof.Token && written.Sequence > state.Sequence {
		return false, unknown("%s/%s may have been released with its last document: it has been overwritten since",
			kind, key)
	}
	return written.Token == proof.Token && written.Sequence == state.Sequence, nil
}

func (c *Client) wasReleased(ctx context.Context, leaseID string) (bool, error) {
	answer, err := c.ask(ctx, call{method: http.MethodGet, path: apiPath("leases", leaseID)}, terms{})
	if errors.Is(err, NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var lease struct {
		Success bool   `json:"success"`
		Status  string `json:"status"`
	}
	if err := read(answer.body, "an answer about a lease", &lease); err != nil {
		return false, err
	}
	return !lease.Success && lease.Status == "released", nil
}

// writeState writes the state document under a live lease.
func (c *Client) writeState(
	ctx context.Context, kind, key string, proof proof, state lastState,
) (*StateDocument, error) {
	body := struct {
		Token     uint64 `json:"token"`
		LeaseID   string `json:"lease_id"`
		SessionID string `json:"session_id"`
		lastState
	}{proof.Token, proof.LeaseID, proof.SessionID, state}
	path := apiPath("resources", kind, key, "state")
	doubts := &doubts{}
	answer, err := c.ask(ctx, call{method: http.MethodPut, path: path, body: body}, terms{doubts: doubts})
	if err == nil {
		return readState(answer.body)
	}
	if !doubts.raised() || codeOf(err) != "stale_sequence" {
		return nil, err
	}
	written, readErr := c.ReadState(ctx, kind, key)
	if readErr != nil || written == nil || written.Token != proof.Token || written.Sequence != state.Sequence {
		return nil, err
	}
	return written, nil // by an attempt whose answer was lost
}

// ReadState reads the state document of a resource; nil if none was written.
func (c *Client) ReadState(ctx context.Context, kind, key string) (*StateDocument, error) {
	answer, err := c.ask(ctx, call{method: http.MethodGet, path: apiPath("resources", kind, key, "state")}, terms{})
	if errors.Is(err, NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return readState(answer.body)
}
