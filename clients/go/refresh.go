package solehold

import (
	"context"
	"sync"
)

// refreshes are the questions about resources that are under way: one per resource at a time, and not too many at once.
// One question serves all callers that had come before it was sent; a caller that comes later needs the next one, since
// an answer is as old as its question.
type refreshes struct {
	newest func(context.Context, resourceKey) (answerOf, error)
	atOnce chan struct{}

	mu     sync.Mutex
	places map[resourceKey]*refreshPlace
}

// refreshPlace is for the callers that want to know of one resource. The one that has the turn asks.
type refreshPlace struct {
	turn    chan struct{}
	callers int
	last    *answerOf
}

func newRefreshes(newest func(context.Context, resourceKey) (answerOf, error)) *refreshes {
	return &refreshes{
		newest: newest, atOnce: make(chan struct{}, requestsAtOnceMax), places: map[resourceKey]*refreshPlace{},
	}
}

// ask returns the store's answer to a question that was sent at the tick arrived or later.
func (r *refreshes) ask(ctx context.Context, key resourceKey, arrived Tick) (answerOf, error) {
	place := r.enter(key)
	defer r.leave(key, place)
	select {
	case place.turn <- struct{}{}:
		defer func() { <-place.turn }()
	case <-ctx.Done():
		return answerOf{}, context.Cause(ctx)
	}
	if place.last != nil && place.last.asked >= arrived {
		return *place.last, nil
	}
	select {
	case r.atOnce <- struct{}{}:
		defer func() { <-r.atOnce }()
	case <-ctx.Done():
		return answerOf{}, context.Cause(ctx)
	}
	told, err := r.newest(ctx, key)
	if err == nil {
		place.last = &told
	}
	return told, err
}

func (r *refreshes) enter(key resourceKey) *refreshPlace {
	r.mu.Lock()
	defer r.mu.Unlock()
	place, isThere := r.places[key]
	if !isThere {
		place = &refreshPlace{turn: make(chan struct{}, 1)}
		r.places[key] = place
	}
	place.callers++
	return place
}

func (r *refreshes) leave(key resourceKey, place *refreshPlace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if place.callers--; place.callers == 0 {
		delete(r.places, key)
	}
}
