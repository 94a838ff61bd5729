package solehold

import (
	"context"
	"time"
)

// askAgainShare is the share of a wait after which a place in line is asked for again.
const askAgainShare = 2.0 / 3

type lineAnswer struct {
	grant grant
	err   error
}

// waitInLine waits in line until a tick, by as many requests as it takes. If the server has not ended the wait by then,
// it ends after the leeway.
//
// The server waits, and answers when the resource is granted. One request waits for 30 s at most. Well before it ends
// the next one is made under the same request id, which keeps the place. The former is not cancelled: if it ended
// before the next one has arrived, the place would be lost, and nobody can tell when that is.
func waitInLine(
	ctx context.Context,
	ask func(context.Context, time.Duration) (grant, error),
	clock Clock,
	until Tick,
	leeway time.Duration,
) (grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan lineAnswer)
	underWay := 0
	defer func() {
		cancel()
		for ; underWay > 0; underWay-- {
			<-answers
		}
	}()
	for {
		left := until.Sub(clock.Now())
		if left+leeway <= 0 {
			return grant{}, unknown("no server has answered within %v after the wait was over", leeway)
		}
		wait := min(waitMax, left)
		if wait > 0 {
			underWay++
			go func() {
				granted, err := ask(ctx, wait)
				answers <- lineAnswer{granted, err}
			}()
		}
		next := until.Add(leeway)
		if left > wait {
			next = clock.Now().Add(share(wait, askAgainShare))
		}
		for underWay > 0 {
			answer, isAnswered, err := answeredBefore(ctx, next, clock, answers)
			if err != nil {
				return grant{}, err
			}
			if !isAnswered {
				break
			}
			underWay--
			if answer.err == nil {
				return answer.grant, nil
			}
			if underWay == 0 { // whatever else a former request says, the later one has its place
				return grant{}, answer.err
			}
		}
	}
}

func answeredBefore(
	ctx context.Context, tick Tick, clock Clock, answers <-chan lineAnswer,
) (lineAnswer, bool, error) {
	for {
		left := tick.Sub(clock.Now())
		if left <= 0 {
			return lineAnswer{}, false, nil
		}
		timer := time.NewTimer(min(left, time.Second))
		select {
		case answer := <-answers:
			timer.Stop()
			return answer, true, nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return lineAnswer{}, false, context.Cause(ctx)
		}
	}
}
