package solehold

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// request is what is sent to one server.
type request struct {
	method string
	// target is path and query, escaped, below the server's base.
	target string
	body   []byte
	// timeout is the time after which the answer counts as lost.
	timeout time.Duration
	// opens is the id of the session that it opens, by which any server recognises a repeat.
	opens string
}

// transport sends requests to servers. A failure says whether anything may have been done.
type transport struct {
	http     http.RoundTripper
	header   http.Header
	bytesMax int64
	// traceparent is nil without traces.
	traceparent func(context.Context) string
}

// aTraceparent is a header as W3C Trace Context has it.
var aTraceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// newHTTP makes connections for one channel. Proxies, redirects and HTTP/2 have no part in it.
func newHTTP(config *tls.Config) http.RoundTripper {
	if config != nil {
		config = config.Clone()
	}
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectMax}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    connectMax,
		MaxIdleConns:           idleConnectionsMax,
		MaxIdleConnsPerHost:    idleConnectionsMax,
		IdleConnTimeout:        idleMax,
		MaxResponseHeaderBytes: headerBytesMax,
		DisableCompression:     true,
	}
}

func (t *transport) close() {
	if closer, ok := t.http.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// send sends a request and reads the whole answer.
func (t *transport) send(ctx context.Context, to server, request request) (int, []byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, request.timeout, errTimeout)
	defer cancel()
	var left atomic.Bool
	response, err := t.begin(ctx, to, request, &left)
	if err != nil {
		return 0, nil, failure(ctx, to, request, left.Load(), err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, t.bytesMax+1))
	if err == nil && int64(len(body)) > t.bytesMax {
		err = fmt.Errorf("the answer is larger than %d bytes", t.bytesMax)
	}
	if err != nil {
		return 0, nil, failure(ctx, to, request, true, err)
	}
	return response.StatusCode, body, nil
}

// stream sends a request and reads the head of the answer, within the timeout. The body ends with ctx.
func (t *transport) stream(ctx context.Context, to server, request request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(request.timeout, func() { cancel(errTimeout) })
	defer timer.Stop()
	var left atomic.Bool
	response, err := t.begin(ctx, to, request, &left)
	if err != nil {
		defer cancel(nil)
		return nil, failure(ctx, to, request, left.Load(), err)
	}
	response.Body = &streamBody{ReadCloser: response.Body, cancel: cancel}
	return response, nil
}

// streamBody ends the request of a stream when it is closed.
type streamBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *streamBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// begin sends a request. left is set as soon as anything of it may have left.
func (t *transport) begin(
	ctx context.Context, to server, request request, left *atomic.Bool,
) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { left.Store(true) }}
	var body io.Reader
	if request.body != nil {
		body = bytes.NewReader(request.body)
	}
	traced := httptrace.WithClientTrace(ctx, trace)
	message, err := http.NewRequestWithContext(traced, request.method, to.base+request.target, body)
	if err != nil {
		return nil, err
	}
	message.Header = t.header.Clone()
	if request.body != nil {
		message.Header.Set("Content-Type", "application/json")
	}
	if request.opens != "" {
		message.Header.Set("Idempotency-Key", request.opens)
	}
	if t.traceparent != nil {
		if span := t.traceparent(ctx); aTraceparent.MatchString(span) {
			message.Header.Set("Traceparent", span)
		}
	}
	return t.http.RoundTrip(message)
}

var errTimeout = errors.New("no answer in time")

// failure says what a failed exchange means: the caller gave up, nothing was done, or nobody knows.
func failure(ctx context.Context, to server, request request, left bool, err error) error {
	cause := context.Cause(ctx)
	isTimeout := errors.Is(cause, errTimeout)
	if cause != nil && !isTimeout {
		return cause
	}
	if told := notUnderstood(to, err); told != "" {
		return unavailable("%s", told)
	}
	switch {
	case left && isTimeout:
		return unknown("no answer from %s within %v", to, request.timeout)
	case left && isCut(err):
		return unknown("the connection to %s was closed before the answer was whole", to)
	case left:
		return unknown("%s: %v", to, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return unavailable("no server at %s (connection refused)", to)
	case isTimeout:
		return unavailable("no server at %s (no connection within %v)", to, request.timeout)
	}
	return unavailable("no server at %s (%v)", to, err)
}

func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// notUnderstood says what is wrong with a connection that both ends have not agreed on: nothing was done by it.
func notUnderstood(to server, err error) string {
	var untrusted *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var plain tls.RecordHeaderError
	switch text := err.Error(); {
	case errors.As(err, &untrusted), errors.As(err, &authority):
		return fmt.Sprintf("the certificate of %s is not trusted (%v): give a TLS that trusts it", to, err)
	case errors.As(err, &plain), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return fmt.Sprintf("%s: this port speaks plain HTTP; write http://%s", to, to.authority)
	case !to.secure && strings.Contains(text, `malformed HTTP response "\x15\x03`):
		return fmt.Sprintf("%s: this port speaks TLS; write https://%s", to, to.authority)
	}
	return ""
}
