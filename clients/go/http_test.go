package solehold_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

// oddServer answers everything by one function, and counts.
func oddServer(t *testing.T, answer http.HandlerFunc) (string, *atomic.Int32) {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		asked.Add(1)
		answer(response, request)
	}))
	t.Cleanup(server.Close)
	return server.URL, &asked
}

func answered(status int, body string) http.HandlerFunc {
	return func(response http.ResponseWriter, _ *http.Request) {
		response.WriteHeader(status)
		fmt.Fprint(response, body)
	}
}

func cutOff(response http.ResponseWriter, _ *http.Request) {
	connection, _, err := response.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}

func TestOnlyWhatIsSafeIsSentTwice(t *testing.T) {
	t.Parallel()
	url, asked := oddServer(t, cutOff)
	client := newClient(t, solehold.Config{Servers: []string{url, url}, RetryFor: -1})
	_, err := client.Request(t.Context(), "POST", "/api/v1/odd", nil)
	if !errors.Is(err, solehold.Unknown) {
		t.Errorf("no answer: %v", err)
	}
	if asked.Load() != 1 {
		t.Errorf("a request that may have been done was sent %d times", asked.Load())
	}
	asked.Store(0)
	_, err = client.Repeat(t.Context(), "POST", "/api/v1/odd", nil)
	if !errors.Is(err, solehold.Unknown) {
		t.Errorf("no answer: %v", err)
	}
	if asked.Load() != 2 {
		t.Errorf("a request that may be repeated was sent %d times to two servers", asked.Load())
	}
}

func TestWhatWasNotDoneIsAskedOfTheNextServer(t *testing.T) {
	t.Parallel()
	busy, _ := oddServer(t, func(response http.ResponseWriter, _ *http.Request) {
		response.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(response, `{"code":"overloaded","detail":"busy","retry_after_ms":5}`)
	})
	good, asked := oddServer(t, func(response http.ResponseWriter, _ *http.Request) { fmt.Fprint(response, `{}`) })
	nobody := fmt.Sprintf("127.0.0.1:%d", realserver.FreePort(t))
	client := newClient(t, solehold.Config{Servers: []string{nobody + "," + busy, good}, RetryFor: -1})
	if _, err := client.Request(t.Context(), "POST", "/api/v1/odd", nil); err != nil || asked.Load() != 1 {
		t.Errorf("after %d requests: %v", asked.Load(), err)
	}
	alone := newClient(t, solehold.Config{Servers: []string{nobody}, RetryFor: -1})
	_, err := alone.Request(t.Context(), "GET", "/api/v1/odd", nil)
	if !errors.Is(err, solehold.Unavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("no server: %v", err)
	}
}

func TestBrokenAnswersLeaveTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"no answer":  cutOff,
		"not ours":   answered(http.StatusBadGateway, ""),
		"a redirect": http.RedirectHandler("/elsewhere", http.StatusFound).ServeHTTP,
		"not JSON":   answered(http.StatusOK, "hello"),
		"no session": answered(http.StatusOK, `{"session_id":"a"}`),
		"too large":  answered(http.StatusOK, strings.Repeat(" ", 2000)),
		"cut in half": func(response http.ResponseWriter, _ *http.Request) {
			response.Header().Set("Content-Length", "99")
			fmt.Fprint(response, "{")
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"no HTTP": func(response http.ResponseWriter, _ *http.Request) {
			connection, _, _ := response.(http.Hijacker).Hijack()
			fmt.Fprint(connection, "hello\r\n\r\n")
			connection.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := oddServer(t, answer)
			client := newClient(t, solehold.Config{
				Servers: []string{url}, RetryFor: -1, Timeout: 300 * time.Millisecond, ResponseBytesMax: 1000,
			})
			_, err := client.OpenSession(soon(t), solehold.SessionConfig{Holder: "odd"})
			if !errors.Is(err, solehold.Unknown) {
				t.Errorf("the outcome is not unknown: %v", err)
			}
		})
	}
}

func TestArgumentsThatAreWrongAreNamed(t *testing.T) {
	t.Parallel()
	for text, words := range map[string]string{
		"":                           "a server is empty",
		"localhost":                  "has no port",
		"ftp://a:1":                  "is not http or https",
		"http://me:secret@host:1":    "has a user, query or fragment",
		"http://host:1/?key=secret2": "has a user, query or fragment",
		"http://ho st:1":             "is not a URL",
	} {
		_, err := solehold.NewClient(solehold.Config{Servers: []string{text}})
		if !errors.Is(err, solehold.BadRequest) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", text, err)
		} else if strings.Contains(err.Error(), ":secret") {
			t.Errorf("%q: the password is shown", text)
		}
	}
	if _, err := solehold.NewClient(solehold.Config{}); err == nil {
		t.Error("no server is accepted")
	}
	_, err := solehold.NewClient(solehold.Config{Servers: []string{"a:1"}, Key: "shk_secret\n"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a key with a newline: %v", err)
	}
	client := clientOf(t, "127.0.0.1:1")
	for _, config := range []solehold.SessionConfig{
		{}, {Holder: strings.Repeat("x", 256)}, {Holder: "a", TTL: time.Millisecond},
		{Holder: "a", Every: 20 * time.Second},
		{Holder: "a", Policy: solehold.Grace(-1)},
	} {
		if _, err := client.OpenSession(t.Context(), config); !errors.Is(err, solehold.BadRequest) {
			t.Errorf("%+v: %v", config, err)
		}
	}
	if _, err := solehold.OpenGate(client, solehold.GateConfig{}); !errors.Is(err, solehold.BadRequest) {
		t.Errorf("a gate for nothing: %v", err)
	}
}

func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	folder := t.TempDir()
	cert, key = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	made := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
		"-days", "2", "-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
	if output, err := made.CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s", err, output)
	}
	return cert, key
}

func TestTLSAndKeysAndALogWithoutThem(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	server, plain := realserver.Serve(t, "--tls-cert", cert, "--tls-key", key), realserver.Serve(t)
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	config := &tls.Config{RootCAs: trusted}
	open := newClient(t, solehold.Config{Servers: []string{server.URL}, TLS: config})
	body := map[string]string{"name": "test", "role": "admin"}
	made, err := open.Request(t.Context(), "POST", "/api/v1/admin/keys", body)
	if err != nil {
		t.Fatal(err)
	}
	secret := between(t, string(made), `"key":"`, `"`)
	log := &logged{}
	client := newClient(t, solehold.Config{
		Servers: []string{server.URL}, TLS: config, Key: secret, Logger: log.logger(),
	})
	release(t, acquire(t, session(t, client, "secured"), "scene", "secured"))
	contains(t, log.String(), "opened session", "lease acquired", "outcome=answered")
	if strings.Contains(log.String()+client.String()+fmt.Sprintf("%v", client), secret) {
		t.Error("the key is in the log")
	}
	for _, wrong := range []string{"", "wrong"} {
		stranger := newClient(t, solehold.Config{Servers: []string{server.URL}, TLS: config, Key: wrong})
		_, err := stranger.OpenSession(t.Context(), solehold.SessionConfig{Holder: "x"})
		if !errors.Is(err, solehold.Unauthorized) {
			t.Errorf("with key %q: %v", wrong, err)
		}
	}
	for url, told := range map[string]string{
		server.URL: "is not trusted",
		strings.Replace(server.URL, "https:", "http:", 1): "this port speaks TLS; write https://127.0.0.1:",
		strings.Replace(plain.URL, "http:", "https:", 1):  "this port speaks plain HTTP; write http://127.0.0.1:",
	} {
		confused := newClient(t, solehold.Config{Servers: []string{url}, RetryFor: -1})
		_, err := confused.OpenSession(t.Context(), solehold.SessionConfig{Holder: "x"})
		if !errors.Is(err, solehold.Unavailable) || !strings.Contains(err.Error(), told) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestAnOutageIsLoggedOnceWhenItBeginsAndWhenItIsOver(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	log := &logged{}
	client := newClient(t, solehold.Config{Servers: []string{server.URL}, Logger: log.logger()})
	openSession(t, client, solehold.SessionConfig{Holder: "outage", TTL: time.Minute, Every: time.Second})
	server.Kill()
	waitFor(t, "a warning", func() bool { return strings.Contains(log.String(), "session not renewed") })
	server.Again(t)
	waitFor(t, "a recovery", func() bool { return strings.Contains(log.String(), "session renewed again") })
	warnings := strings.Count(log.String(), "level="+slog.LevelWarn.String())
	if warnings > 2 {
		t.Errorf("%d warnings:\n%s", warnings, log)
	}
}

func between(t *testing.T, text, before, after string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, before)
	middle, _, closed := strings.Cut(rest, after)
	if !found || !closed {
		t.Fatalf("no %s in %s", before, text)
	}
	return middle
}

// A server that a load balancer has taken away without a word: nothing answers at all.
func TestAServerThatIsSilentCostsNoSessionBesideOneThatAnswers(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	server := realserver.Serve(t)
	client := newClient(t, solehold.Config{
		Servers: []string{silent.Addr().String(), server.URL}, Timeout: 200 * time.Millisecond,
	})
	kept := openSession(t, client, solehold.SessionConfig{Holder: "kept", TTL: 3 * time.Second})
	first := kept.Deadline()
	waitFor(t, "heartbeats", func() bool { return kept.Deadline().Sub(first) > 4*time.Second })
	if !kept.IsLive() {
		t.Error("it is lost")
	}
}

func TestARequestSaysWhichSpanItBelongsTo(t *testing.T) {
	t.Parallel()
	const span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	type spanKey struct{}
	var seen atomic.Value
	url, _ := oddServer(t, func(response http.ResponseWriter, request *http.Request) {
		seen.Store(request.Header.Get("traceparent"))
		fmt.Fprint(response, "{}")
	})
	client := newClient(t, solehold.Config{Servers: []string{url}, Traceparent: func(ctx context.Context) string {
		span, _ := ctx.Value(spanKey{}).(string)
		return span
	}})
	for given, sent := range map[string]string{span: span, "": "", "no span\r\nX-Odd: 1": ""} {
		ctx := context.WithValue(t.Context(), spanKey{}, given)
		if _, err := client.Request(ctx, "GET", "/api/v1/odd", nil); err != nil {
			t.Fatal(err)
		}
		if seen.Load() != sent {
			t.Errorf("%q was sent for %q", seen.Load(), given)
		}
	}
}
