package solehold

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// Sessions that come within this time go into one request.
const newsGather = 20 * time.Millisecond

var newsBackoff = BackoffConfig{First: 200 * time.Millisecond, Cap: 10 * time.Second}

// newsroom waits at a server for news of all sessions of a client, by one request (rule 28). The word is no proof: it
// only makes a session send its heartbeat now rather than later. Where the servers cannot tell, or cannot be reached,
// the heartbeat at its time does the same.
type newsroom struct {
	client *Client

	mu      sync.Mutex
	waiting map[string]*reader
	// changed says that sessions came or went: the request has to be made anew.
	changed  chan struct{}
	asking   bool
	cannot   bool
	cursor   string
	stopping context.Context
	stop     context.CancelFunc
	tasks    sync.WaitGroup
}

type reader struct {
	revision uint64
	told     chan bool
}

func newNewsroom(client *Client) *newsroom {
	n := &newsroom{client: client, waiting: map[string]*reader{}, changed: make(chan struct{}, 1)}
	n.stopping, n.stop = context.WithCancel(context.Background())
	return n
}

// wait waits until something has happened to a session whose leases are known as of a revision. False if the servers
// cannot tell, or ctx has ended.
func (n *newsroom) wait(ctx context.Context, sessionID string, revision uint64) bool {
	mine := &reader{revision: revision, told: make(chan bool, 1)}
	n.mu.Lock()
	if n.cannot {
		n.mu.Unlock()
		return false
	}
	n.waiting[sessionID] = mine
	notify(n.changed)
	if !n.asking {
		n.asking = true
		n.tasks.Go(n.ask)
	}
	n.mu.Unlock()
	select {
	case told := <-mine.told:
		return told
	case <-ctx.Done():
		n.mu.Lock()
		if n.waiting[sessionID] == mine {
			delete(n.waiting, sessionID)
			notify(n.changed)
		}
		n.mu.Unlock()
		return false
	}
}

// close ends the request, if there is one. No session waits from now on.
func (n *newsroom) close() {
	n.mu.Lock()
	n.cannot = true
	n.mu.Unlock()
	n.stop()
	n.tasks.Wait()
}

// ask asks for all sessions that wait, until none does.
func (n *newsroom) ask() {
	channel := n.client.newChannel()
	defer channel.close()
	delays := newBackoff(newsBackoff, n.client.chance)
	for n.isNeeded() {
		answer, isAnswered, err := n.askOnce(channel)
		if isAnswered {
			err = n.tell(answer)
		}
		switch {
		case err == nil:
			delays.reset()
		case n.stopping.Err() != nil:
			n.end()
			return
		case isUndecided(err):
			n.client.log.Debug("cannot wait for lease changes; retrying", "error", err.Error())
			until := n.client.tickAfter(delays.delay(retryAfter(err)))
			_ = sleepUntil(n.stopping, n.client.clock, until)
		default:
			n.client.log.Debug("the server sends no notifications; changes are noticed at the next heartbeat",
				"error", err.Error())
			n.end()
			return
		}
	}
}

// isNeeded reports whether a session waits. If none does, asking is over: the next one to wait begins it again.
func (n *newsroom) isNeeded() bool {
	timer := time.NewTimer(newsGather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.stopping.Done():
		n.end()
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.changed:
	default:
	}
	n.asking = len(n.waiting) > 0
	return n.asking
}

// end ends the waiting of all sessions, for good: no server can tell.
func (n *newsroom) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asking, n.cannot = false, true
	for _, reader := range n.waiting {
		reader.told <- false
	}
	clear(n.waiting)
}

// askOnce makes the request; without an answer and without an error it has to be made anew.
func (n *newsroom) askOnce(channel *channel) (answer, bool, error) {
	type known struct {
		SessionID string `json:"session_id"`
		Revision  uint64 `json:"revision"`
	}
	body := struct {
		Sessions []known `json:"sessions"`
		From     string  `json:"from,omitempty"`
		WaitMs   int64   `json:"wait_ms"`
	}{WaitMs: waitMax.Milliseconds()}
	n.mu.Lock()
	body.From = n.cursor
	for sessionID, reader := range n.waiting {
		if len(body.Sessions) == newsSessionsMax {
			break
		}
		body.Sessions = append(body.Sessions, known{sessionID, reader.revision})
	}
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(n.stopping)
	defer cancel()
	type asked struct {
		answer answer
		err    error
	}
	answered := make(chan asked, 1)
	go func() {
		asking := call{method: http.MethodPost, path: apiPath("sessions", "news"), body: body}
		terms := terms{timeout: waitMax + n.client.config.Timeout, until: n.client.clock.Now()}
		answer, err := channel.call(ctx, asking, terms)
		answered <- asked{answer, err}
	}()
	select {
	case got := <-answered:
		return got.answer, got.err == nil, got.err
	case <-n.changed:
		notify(n.changed) // another look after the sessions that come at the same time
		cancel()
		<-answered
		return answer{}, false, nil
	}
}

// tell notifies the sessions that something has happened to.
func (n *newsroom) tell(answer answer) error {
	var news struct {
		Sessions []string `json:"sessions"`
		Cursor   string   `json:"cursor"`
	}
	if err := read(answer.body, "news", &news); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cursor = news.Cursor
	for _, sessionID := range news.Sessions {
		if reader, isWaiting := n.waiting[sessionID]; isWaiting {
			delete(n.waiting, sessionID)
			reader.told <- true
		}
	}
	return nil
}
