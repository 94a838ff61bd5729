package solehold

import (
	"context"
	"sync/atomic"
)

// loss is the loss of a session or of one lease: it is declared once, and never taken back.
type loss struct {
	declared atomic.Pointer[LostError]
	ctx      context.Context
	cancel   context.CancelCauseFunc
}

// newLoss begins live, with the values of parent but not its end.
func newLoss(parent context.Context) *loss {
	l := &loss{}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	return l
}

// declare declares it lost. The first reason stands.
func (l *loss) declare(lost *LostError) bool {
	isFirst := l.declared.CompareAndSwap(nil, lost)
	if isFirst {
		l.cancel(lost)
	}
	return isFirst
}

// judgedContext is cancelled at a loss. Its Err reads the clock: right after a long pause of the process, which no
// timer has noticed yet, it is cancelled all the same.
type judgedContext struct {
	context.Context
	judge func() *LostError
}

func (c judgedContext) Err() error {
	c.judge() // what it finds is declared, which cancels the context
	return c.Context.Err()
}

// whileLive returns a context that ends with ctx and with a loss, whichever is first, and a function that releases it.
func (l *loss) whileLive(ctx context.Context, judge func() *LostError) (context.Context, func()) {
	merged, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	judged := judgedContext{merged, func() *LostError {
		lost := judge()
		if lost != nil {
			cancel(lost)
		}
		return lost
	}}
	return judged, func() {
		stop()
		cancel(context.Canceled)
	}
}
