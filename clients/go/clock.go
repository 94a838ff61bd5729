package solehold

import (
	"context"
	"time"
)

// Tick is a reading of a clock that never goes back and keeps counting while the machine sleeps. It has nothing to do
// with the time of day, and ticks of two machines cannot be compared.
type Tick int64

// Never is later than every other tick.
const never = Tick(1<<63 - 1)

// Add returns the tick that is d later. It stops at the end of time.
func (t Tick) Add(d time.Duration) Tick {
	if d > 0 && t > never-Tick(d) {
		return never
	}
	return t + Tick(d)
}

// Sub returns the time from u to t.
func (t Tick) Sub(u Tick) time.Duration { return time.Duration(t - u) }

// Clock reads the tick. It can be replaced, so that time can be simulated.
type Clock interface{ Now() Tick }

// BootClock is CLOCK_BOOTTIME on Linux. Elsewhere it is the monotonic clock, which on some systems stands still while
// the machine sleeps.
type BootClock struct{}

// Now reads the clock.
func (BootClock) Now() Tick { return bootTime() }

// sleepUntil sleeps until the tick or the end of ctx, in bounded steps: Go's own timers stand still while the machine
// sleeps.
func sleepUntil(ctx context.Context, clock Clock, tick Tick) error {
	for {
		left := tick.Sub(clock.Now())
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(min(left, stepMax))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}
