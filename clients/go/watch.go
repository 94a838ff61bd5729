package solehold

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// WatchConfig says what a watch shows, and from where. All of it is optional.
type WatchConfig struct {
	// Cursor is that of an earlier watch, to continue after it. Without one a watch begins with a snapshot.
	Cursor string
	// Kind shows only resources of one kind.
	Kind string
	// Holder shows only what concerns one holder.
	Holder string
	// Renewals shows lease_renewed as well: live, and never repeated (rule 19).
	Renewals bool
}

// Watch shows who owns what, then every change, in the one order of all changes (rule 18). A connection that is lost is
// made again from the last cursor: there are no gaps and no duplicates. It is for one goroutine at a time; Close and
// Cursor may be called from others.
type Watch struct {
	client *Client
	config WatchConfig
	begun  bool
	closed context.Context
	close  context.CancelFunc
	stream *http.Response
	frames *frames
	quiet  *time.Timer
	parts  []Ownership
	bytes  int64

	mu     sync.Mutex
	cursor string
}

// Watch begins a watch. It asks no server before Next.
func (c *Client) Watch(config WatchConfig) (*Watch, error) {
	if config.Cursor != "" {
		if _, err := parseCursor(config.Cursor); err != nil {
			return nil, err
		}
	}
	for what, name := range map[string]string{"the kind": config.Kind, "the holder": config.Holder} {
		if name != "" {
			if err := checkName(what, name); err != nil {
				return nil, err
			}
		}
	}
	watch := &Watch{client: c, config: config, cursor: config.Cursor}
	watch.closed, watch.close = context.WithCancel(context.Background())
	return watch, nil
}

// ErrWatchClosed is returned by Next after Close.
var ErrWatchClosed = errors.New("the watch was closed")

// Cursor is where the watch stands: give it to another watch to continue from here. Empty before the first snapshot.
func (w *Watch) Cursor() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cursor
}

func (w *Watch) setCursor(cursor string) {
	w.mu.Lock()
	w.cursor = cursor
	w.mu.Unlock()
}

// Close ends the watch. A call of Next returns ErrWatchClosed.
func (w *Watch) Close() { w.close() }

// All shows everything that Next does, until an error, which is its last element.
func (w *Watch) All(ctx context.Context) iter.Seq2[Seen, error] {
	return func(yield func(Seen, error) bool) {
		for {
			seen, err := w.Next(ctx)
			if !yield(seen, err) || err != nil {
				return
			}
		}
	}
}

// Next waits for the snapshot or the next event. It returns Compacted if the server no longer has what came after the
// cursor, and what the server says if it refuses. After an error of ctx, Next may be called again.
func (w *Watch) Next(ctx context.Context) (Seen, error) {
	// The stream ends with ctx: part of what was under way may be lost, and comes again from the cursor.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.closed, func() { cancel(ErrWatchClosed) })()
	if w.closed.Err() != nil {
		w.hangUp()
		return Seen{}, ErrWatchClosed
	}
	for {
		seen, err := w.step(ctx)
		if ctx.Err() != nil {
			w.hangUp()
			return Seen{}, context.Cause(ctx)
		}
		if err != nil {
			w.hangUp()
			return Seen{}, err
		}
		if seen != nil {
			return *seen, nil
		}
	}
}

// step reads one frame; it connects before, if need be.
func (w *Watch) step(ctx context.Context) (*Seen, error) {
	if w.stream == nil {
		if err := w.connect(ctx); err != nil {
			return nil, err
		}
	}
	body := w.stream.Body
	stop := context.AfterFunc(ctx, func() { body.Close() })
	w.quiet.Reset(silenceMax)
	next, err := w.frames.next()
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		if errors.Is(err, Unknown) {
			return nil, err
		}
		why := "the server ended it"
		if err != io.EOF {
			why = err.Error()
		}
		w.interrupted(why)
		return nil, nil
	}
	return w.take(next)
}

// connect connects: the first time for as long as a request is repeated, and after that until it succeeds.
func (w *Watch) connect(ctx context.Context) error {
	query := url.Values{}
	for name, value := range map[string]string{"from": w.Cursor(), "kind": w.config.Kind, "holder": w.config.Holder} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if w.config.Renewals {
		query.Set("renewals", "true")
	}
	path := apiPath("watch")
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	w.parts, w.bytes = nil, 0
	delays := newBackoff(w.client.config.Backoff, w.client.chance)
	for {
		terms := terms{timeout: w.client.config.Timeout, until: w.client.tickAfter(w.client.config.RetryFor)}
		// The stream outlives this call of Next.
		stream, err := untilEither(ctx, w.closed, func(ctx context.Context) (*http.Response, error) {
			return w.client.channel.stream(ctx, call{method: http.MethodGet, path: path}, terms)
		})
		if err == nil {
			w.stream = stream
			break
		}
		if !w.begun || !isUndecided(err) || ctx.Err() != nil {
			return err
		}
		until := w.client.tickAfter(delays.delay(retryAfter(err)))
		if err := sleepUntil(ctx, w.client.clock, until); err != nil {
			return err
		}
	}
	w.frames = newFrames(w.stream.Body)
	body := w.stream.Body
	w.quiet = time.AfterFunc(silenceMax, func() { body.Close() })
	if w.begun {
		w.client.log.Info("watch reconnected", "cursor", w.Cursor())
	}
	w.begun = true
	return nil
}

// untilEither calls connect with a context that ends with ctx while it is being made, and with lasting afterwards.
func untilEither(
	ctx, lasting context.Context, connect func(context.Context) (*http.Response, error),
) (*http.Response, error) {
	during, cancel := context.WithCancelCause(lasting)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	response, err := connect(during)
	if !stop() && err == nil {
		response.Body.Close()
		cancel(nil)
		return nil, context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	response.Body = &streamBody{ReadCloser: response.Body, cancel: cancel}
	return response, nil
}

func (w *Watch) interrupted(why string) {
	w.hangUp()
	w.client.log.Warn("watch interrupted; reconnecting", "why", why, "cursor", w.Cursor())
}

func (w *Watch) hangUp() {
	if w.stream != nil {
		w.quiet.Stop()
		w.stream.Body.Close()
		w.stream, w.frames = nil, nil
	}
}

// take says what a frame shows that is new. Kinds of frames that are newer than this client show nothing.
func (w *Watch) take(next frame) (*Seen, error) {
	switch next.event {
	case "event":
		return w.takeEvent(next.data)
	case "snapshot":
		return w.takeSnapshot(next.data)
	case "progress":
		var progress struct {
			Cursor string `json:"cursor"`
		}
		isNew, err := w.readCursor(next.data, &progress, &progress.Cursor)
		if err == nil && isNew {
			w.setCursor(progress.Cursor)
		}
		return nil, err
	case "compacted":
		var compacted struct {
			Floor string `json:"floor"`
		}
		if _, err := w.readCursor(next.data, &compacted, &compacted.Floor); err != nil {
			return nil, err
		}
		detail := "the events after " + w.Cursor() + " are no longer kept, only those after " + compacted.Floor +
			": begin without a cursor"
		return nil, &Error{Kind: Compacted, Code: "compacted", Detail: detail}
	case "resync":
		w.interrupted("this reader fell behind")
	}
	return nil, nil
}

// readCursor reads a frame, and reports whether its cursor is after what was seen.
func (w *Watch) readCursor(data []byte, into any, cursor *string) (bool, error) {
	if err := read(data, "a frame of a watch", into); err != nil {
		return false, err
	}
	told, err := parseCursor(*cursor)
	if err != nil {
		return false, unknown("a frame of the watch has a wrong cursor: %v", err)
	}
	seen := w.Cursor()
	if seen == "" {
		return true, nil
	}
	at, err := parseCursor(seen)
	return at.before(told), err
}

func (w *Watch) takeEvent(data []byte) (*Seen, error) {
	var event Event
	isNew, err := w.readCursor(data, &event, &event.Cursor)
	if err != nil {
		return nil, err
	}
	if event.IsRenewal() { // it has the cursor of the change before it, and is never repeated
		return &Seen{Event: &event}, nil
	}
	if !isNew {
		return nil, nil // seen before the connection was lost
	}
	w.setCursor(event.Cursor)
	return &Seen{Event: &event}, nil
}

func (w *Watch) takeSnapshot(data []byte) (*Seen, error) {
	var part struct {
		Cursor    string          `json:"cursor"`
		Resources []wireOwnership `json:"resources"`
		More      bool            `json:"more"`
	}
	if _, err := w.readCursor(data, &part, &part.Cursor); err != nil {
		return nil, err
	}
	if w.bytes += int64(len(data)); w.bytes > w.client.config.ResponseBytesMax {
		return nil, unknown("the snapshot is larger than %d bytes: watch one kind of resource",
			w.client.config.ResponseBytesMax)
	}
	for _, resource := range part.Resources {
		w.parts = append(w.parts, resource.ownership())
	}
	if part.More {
		return nil, nil
	}
	w.setCursor(part.Cursor)
	snapshot := &Snapshot{Cursor: part.Cursor, Resources: w.parts}
	w.parts = nil
	return &Seen{Snapshot: snapshot}, nil
}

// Seen is what a watch shows: a snapshot or an event.
type Seen struct {
	Snapshot *Snapshot
	Event    *Event
}

// Snapshot is who owns what, as of one moment.
type Snapshot struct {
	Cursor    string
	Resources []Ownership
}

// Ownership is who owns a resource, as of a snapshot.
type Ownership struct {
	Tenant, Kind, Key string
	// Token is that of the present grant, or of the last one: a gate admits none below it.
	Token uint64
	// Holder is empty if the resource is free.
	Holder, LeaseID, SessionID string
	// TTLLeft is the time until the lease expires, unless it is renewed.
	TTLLeft time.Duration
	// Slot is which of its slots this is, if it is shared; 0 if not.
	Slot int
}

type wireOwnership struct {
	Tenant    string `json:"tenant"`
	Kind      string `json:"kind"`
	Key       string `json:"key"`
	Token     uint64 `json:"token"`
	Holder    string `json:"holder"`
	LeaseID   string `json:"lease_id"`
	SessionID string `json:"session_id"`
	TTLMs     uint64 `json:"ttl_ms"`
	Slot      int    `json:"slot"`
}

func (o wireOwnership) ownership() Ownership {
	return Ownership{o.Tenant, o.Kind, o.Key, o.Token, o.Holder, o.LeaseID, o.SessionID, millis(o.TTLMs), o.Slot}
}

// Event is one change of a resource or of the lease on it.
type Event struct {
	// Type is lease_acquired, lease_released, lease_expired, lease_revoked, ...
	Type string `json:"event_type"`
	// Cursor is the point to continue from, after this change.
	Cursor   string `json:"cursor"`
	Revision uint64 `json:"revision"`
	// Timestamp is when it was decided, by the store's clock.
	Timestamp string `json:"timestamp"`
	Tenant    string `json:"tenant"`
	Kind      string `json:"kind"`
	Key       string `json:"key"`
	// Slot is which of its slots it is about, if it is shared; 0 if not.
	Slot   int    `json:"slot"`
	Holder string `json:"holder"`
	// Token is 0 if the event has none.
	Token     uint64 `json:"token"`
	LeaseID   string `json:"lease_id"`
	SessionID string `json:"session_id"`
	// By is the id of the API key that requested it, if there was one.
	By string `json:"by"`
	// Details are what else is known, depending on Type.
	Details map[string]json.RawMessage `json:"details"`
}

// IsRenewal reports whether it is a renewal, which has no place in the order of changes (rule 19).
func (e *Event) IsRenewal() bool { return e.Type == "lease_renewed" }
