package solehold

// holdings are the leases that a session has, from grants and lease sets that may arrive in any order (rule 9). Grants
// and sets both have a position; a set says nothing about a grant that is newer than itself.
type holdings struct {
	held map[identity]position
	// at is the position of the newest set, once there is one.
	at     position
	hasSet bool
	set    map[identity]bool
}

func newHoldings() *holdings { return &holdings{held: map[identity]position{}} }

// granted takes in a grant; false if a newer set shows that it has ended since.
func (h *holdings) granted(lease identity, at position) bool {
	if h.hasSet && !h.at.before(at) && !h.set[lease] {
		return false
	}
	h.held[lease] = at
	return true
}

// release forgets a lease that its holder released.
func (h *holdings) release(lease identity) { delete(h.held, lease) }

// take takes in a set, unless a newer one came before, and returns the leases that it shows to have ended.
func (h *holdings) take(at position, leases map[identity]bool) []identity {
	if h.hasSet && at.before(h.at) {
		return nil
	}
	h.at, h.set, h.hasSet = at, leases, true
	var ended []identity
	for lease, granted := range h.held {
		if !at.before(granted) && !leases[lease] {
			ended = append(ended, lease)
			delete(h.held, lease)
		}
	}
	return ended
}
