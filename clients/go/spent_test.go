package solehold_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

// lossy is a network that delivers every request, and loses the answers to acquires while it is told to.
type lossy struct {
	http.RoundTripper
	loses *atomic.Bool
	// onLoss is called when an answer was lost, before the client learns of it.
	onLoss func()
}

func (l lossy) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(request)
	if err != nil || !strings.HasSuffix(request.URL.Path, "/lease") || request.Method != http.MethodPost || !l.loses.Load() {
		return response, err
	}
	response.Body.Close()
	l.onLoss()
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	return nil, io.ErrUnexpectedEOF
}

// The lease was granted, and the client never heard of it: while its session lives, only spending the request id frees
// it.
func TestAGrantWhoseAnswerWasLostIsGivenBack(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	var loses atomic.Bool
	onLoss := func() {}
	client := newClient(t, solehold.Config{
		Servers: []string{server.URL}, RetryFor: -1,
		RoundTripper: func() http.RoundTripper {
			return lossy{http.DefaultTransport.(*http.Transport).Clone(), &loses, func() { onLoss() }}
		},
	})
	unlucky, other := session(t, client, "unlucky"), session(t, clientOf(t, server.URL), "other")
	taken := func(key string) {
		t.Helper()
		release(t, acquire(t, other, "scene", key, solehold.Wait(0)))
		if !unlucky.IsLive() {
			t.Fatal("the session is lost, which would have freed it as well")
		}
	}
	loses.Store(true)
	_, err := unlucky.TryAcquire(t.Context(), "scene", "lost")
	if !errors.Is(err, solehold.Unavailable) || !strings.Contains(err.Error(), "holds nothing") {
		t.Errorf("an acquire whose answer was lost: %v", err)
	}
	taken("lost")

	ctx, cancel := context.WithCancel(t.Context())
	onLoss = cancel
	if _, err := unlucky.TryAcquire(ctx, "scene", "cancelled"); !errors.Is(err, context.Canceled) {
		t.Errorf("an acquire that was cancelled after it was granted: %v", err)
	}
	taken("cancelled")

	onLoss = func() { loses.Store(false) }
	loses.Store(true)
	guard := acquire(t, unlucky, "scene", "repeated", solehold.Wait(realserver.Bound))
	if holder := get(t, client, "/api/v1/resources/scene/repeated/lease")["token"]; holder != float64(guard.Token()) {
		t.Errorf("a repeat got token %d, and the store has %v", guard.Token(), holder)
	}
}
