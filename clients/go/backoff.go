package solehold

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// BackoffConfig says how long to wait before another attempt: delays double from First to Cap.
type BackoffConfig struct {
	First, Cap time.Duration
}

func (c BackoffConfig) orDefault() (BackoffConfig, error) {
	if c == (BackoffConfig{}) {
		return BackoffConfig{First: 50 * time.Millisecond, Cap: 2 * time.Second}, nil
	}
	if c.First <= 0 || c.Cap < c.First {
		return c, fmt.Errorf("a backoff from %v to %v makes no sense: 0 < First <= Cap", c.First, c.Cap)
	}
	return c, nil
}

// chance returns a number from 0 to below 1. It is an argument, so that it can be chosen in tests.
type chance func() float64

// anyChance differs from process to process.
func anyChance() float64 { return rand.Float64() }

// backoff gives the delays of one series of attempts. Each is half fixed and half random, so that many clients do not
// come back at the same time.
type backoff struct {
	config BackoffConfig
	chance chance
	next   time.Duration
}

func newBackoff(config BackoffConfig, chance chance) *backoff {
	return &backoff{config: config, chance: chance, next: config.First}
}

// reset begins anew, after a success.
func (b *backoff) reset() { b.next = b.config.First }

// delay is the next delay; least is what the server asked for.
func (b *backoff) delay(least time.Duration) time.Duration {
	whole := b.next
	b.next = min(b.config.Cap, 2*whole)
	return max(least, time.Duration(float64(whole)*(0.5+b.chance()/2)))
}
