package solehold

import (
	"fmt"
	"sync"
)

// olderHistory says that an answer comes from an older history than one that was seen before (rule 23).
type olderHistory struct{ seen, told uint64 }

func (e olderHistory) Error() string {
	return fmt.Sprintf("the store answered from an older history (epoch %d, but epoch %d was seen before): "+
		"it was restored, or an old server came back after a failover", e.told, e.seen)
}

// history is what a client remembers of the store's history: the highest epoch that it has seen, and the last cursor
// that the store sealed for it. It outlives sessions. A store that was set back answers from an older history, of which
// nothing is used. Where a restore has brought the epoch back as well, the sealed cursor shows it to the store.
type history struct {
	mu     sync.Mutex
	epoch  uint64
	sealed string
}

// follow judges an answer and returns its epoch. One without an epoch counts as of the present one.
func (h *history) follow(told *uint64) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if told == nil {
		return h.epoch, nil
	}
	if *told < h.epoch {
		return 0, olderHistory{seen: h.epoch, told: *told}
	}
	h.epoch = *told
	return h.epoch, nil
}

// keep keeps the sealed cursor of an answer. The store was shown the previous one, so the new one is not behind it.
func (h *history) keep(sealed string) {
	if sealed != "" {
		h.mu.Lock()
		h.sealed = sealed
		h.mu.Unlock()
	}
}

// sealedCursor is what to show with the next heartbeat.
func (h *history) sealedCursor() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sealed
}
