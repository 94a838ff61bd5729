package solehold

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const apiBase = "/api/v1"

// apiPath is a path below the base. Names are escaped, so a slash within one is %2F.
func apiPath(names ...string) string {
	var path strings.Builder
	path.WriteString(apiBase)
	for _, name := range names {
		path.WriteString("/" + url.PathEscape(name))
	}
	return path.String()
}

func millis(ms uint64) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond
}

// slackOf is negative where the server does not state a slack.
func slackOf(ms *uint64) time.Duration {
	if ms == nil {
		return -1
	}
	return millis(*ms)
}

// StateDocument is the state document of a resource, as it was written under Token.
type StateDocument struct {
	Token    uint64
	Sequence uint64
	// Document is JSON. Decode reads it into a value.
	Document  json.RawMessage
	WrittenAt string
}

// Decode reads the document into a value, as json.Unmarshal does.
func (s *StateDocument) Decode(into any) error { return json.Unmarshal(s.Document, into) }

// identity is the id of a lease and its token: under another token it is another grant.
type identity struct {
	leaseID string
	token   uint64
}

// position is where something stands in the store's history.
type position struct{ epoch, revision uint64 }

func (p position) before(other position) bool {
	return p.epoch < other.epoch || p.epoch == other.epoch && p.revision < other.revision
}

// grant is a lease as an acquire or a renewal got it.
type grant struct {
	identity
	epoch    *uint64
	revision uint64
	state    *StateDocument
	// confirmWithin is for a grant that was waited for: it lapses unless it is renewed within this time (rule 15).
	confirmWithin *time.Duration
	// slot is which slot of a shared resource, and slots of how many; 0 if the lease is exclusive (rule 29).
	slot, slots int
}

// sessionView is a session, and everything attached to it as of a revision.
type sessionView struct {
	sessionID    string
	ttlLeft      time.Duration
	fullTTL      time.Duration
	slack        time.Duration
	epoch        *uint64
	revision     uint64
	sealedCursor string
	leases       map[identity]bool
	// setCursor is the name of the set, for the next heartbeat; empty while it may change as time passes.
	setCursor string
}

// read decodes an answer. An incomplete answer counts as none: the outcome is then unknown.
func read(body []byte, what string, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return unknown("the answer is not %s: %v", what, err)
	}
	return nil
}

func missing(what, field string) error {
	return unknown("the answer is not %s: `%s` is missing", what, field)
}

type wireLease struct {
	LeaseID *string `json:"lease_id"`
	Token   *uint64 `json:"token"`
}

func (l wireLease) identity(what string) (identity, error) {
	if l.LeaseID == nil || l.Token == nil {
		return identity{}, missing(what, "lease_id` or `token")
	}
	return identity{*l.LeaseID, *l.Token}, nil
}

type wireState struct {
	Token     *uint64         `json:"token"`
	Sequence  *uint64         `json:"sequence"`
	Document  json.RawMessage `json:"document"`
	WrittenAt string          `json:"written_at"`
}

func (s wireState) state() (*StateDocument, error) {
	if s.Token == nil || s.Sequence == nil {
		return nil, missing("a state document", "token` or `sequence")
	}
	return &StateDocument{*s.Token, *s.Sequence, s.Document, s.WrittenAt}, nil
}

func readState(body []byte) (*StateDocument, error) {
	var state wireState
	if err := read(body, "a state document", &state); err != nil {
		return nil, err
	}
	return state.state()
}

func readGrant(body []byte) (grant, error) {
	var wire struct {
		wireLease
		Epoch           *uint64    `json:"epoch"`
		Revision        *uint64    `json:"revision"`
		State           *wireState `json:"state"`
		ConfirmWithinMs *uint64    `json:"confirm_within_ms"`
		Slot            int        `json:"slot"`
		Slots           int        `json:"slots"`
	}
	if err := read(body, "a grant", &wire); err != nil {
		return grant{}, err
	}
	granted := grant{epoch: wire.Epoch, slot: wire.Slot, slots: wire.Slots}
	var err error
	if granted.identity, err = wire.identity("a grant"); err != nil {
		return grant{}, err
	}
	if wire.Revision == nil {
		return grant{}, missing("a grant", "revision")
	}
	granted.revision = *wire.Revision
	if wire.State != nil {
		if granted.state, err = wire.State.state(); err != nil {
			return grant{}, err
		}
	}
	if wire.ConfirmWithinMs != nil {
		within := millis(*wire.ConfirmWithinMs)
		granted.confirmWithin = &within
	}
	return granted, nil
}

// readGrants reads the answer to an acquire of several, all or none: a grant for each.
func readGrants(body []byte, count int) ([]grant, error) {
	var wire struct {
		Results []struct {
			Status string          `json:"status"`
			Lease  json.RawMessage `json:"lease"`
		} `json:"results"`
	}
	if err := read(body, "a list of grants", &wire); err != nil {
		return nil, err
	}
	if len(wire.Results) != count {
		return nil, unknown("the answer is not a list of grants: it has %d results for %d resources",
			len(wire.Results), count)
	}
	grants := make([]grant, 0, count)
	for _, result := range wire.Results {
		if result.Status != "granted" {
			return nil, unknown("the answer is not a list of grants: not all of them were granted")
		}
		granted, err := readGrant(result.Lease)
		if err != nil {
			return nil, err
		}
		grants = append(grants, granted)
	}
	return grants, nil
}

// readSession reads the answer to an opening, or to a heartbeat that named the set of known. Without a set it says
// that this is still the set, and must name it as well: nothing else is taken for it.
func readSession(body []byte, known *sessionView) (*sessionView, error) {
	var wire struct {
		SessionID    string       `json:"session_id"`
		TTLMs        *uint64      `json:"ttl_ms"`
		FullTTLMs    *uint64      `json:"full_ttl_ms"`
		SlackMs      *uint64      `json:"slack_ms"`
		Epoch        *uint64      `json:"epoch"`
		Revision     *uint64      `json:"revision"`
		SealedCursor string       `json:"sealed_cursor"`
		SetCursor    string       `json:"set_cursor"`
		Leases       *[]wireLease `json:"leases"`
	}
	if err := read(body, "a session", &wire); err != nil {
		return nil, err
	}
	if wire.SessionID == "" || wire.TTLMs == nil || wire.FullTTLMs == nil || wire.Revision == nil {
		return nil, missing("a session", "session_id`, `ttl_ms`, `full_ttl_ms` or `revision")
	}
	view := &sessionView{
		sessionID:    wire.SessionID,
		ttlLeft:      millis(*wire.TTLMs),
		fullTTL:      millis(*wire.FullTTLMs),
		slack:        slackOf(wire.SlackMs),
		epoch:        wire.Epoch,
		revision:     *wire.Revision,
		sealedCursor: wire.SealedCursor,
		setCursor:    wire.SetCursor,
	}
	if wire.Leases == nil {
		if known == nil || known.setCursor == "" || !view.namesSetOf(known) {
			return nil, unknown("the answer is not a session: `leases` is missing, " +
				"and it is not about the set that was named")
		}
		view.leases = known.leases
		return view, nil
	}
	view.leases = make(map[identity]bool, len(*wire.Leases))
	for _, lease := range *wire.Leases {
		held, err := lease.identity("a lease")
		if err != nil {
			return nil, err
		}
		view.leases[held] = true
	}
	return view, nil
}

func (v *sessionView) namesSetOf(known *sessionView) bool {
	sameEpoch := v.epoch == nil && known.epoch == nil ||
		v.epoch != nil && known.epoch != nil && *v.epoch == *known.epoch
	return v.sessionID == known.sessionID && sameEpoch && v.revision == known.revision && v.setCursor == known.setCursor
}

// parseCursor reads a cursor as an epoch and a revision.
func parseCursor(cursor string) (position, error) {
	epoch, revision, _ := strings.Cut(cursor, ".")
	at := position{}
	var err error
	if at.epoch, err = strconv.ParseUint(epoch, 10, 64); err == nil {
		at.revision, err = strconv.ParseUint(revision, 10, 64)
	}
	if err != nil {
		shown := cursor[:min(len(cursor), 64)]
		return position{}, wrong("the cursor is %q: give one that a watch has returned, such as \"1.42\"", shown)
	}
	return at, nil
}
