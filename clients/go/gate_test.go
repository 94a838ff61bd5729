package solehold_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"solehold.dev/solehold"
	"solehold.dev/solehold/internal/realserver"
)

func gateOf(t testing.TB, client *solehold.Client, config solehold.GateConfig) *solehold.Gate {
	t.Helper()
	config.Kinds = []string{"scene"}
	gate, err := solehold.OpenGate(client, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	return gate
}

func verdict(t testing.TB, gate *solehold.Gate, token uint64) string {
	t.Helper()
	return gate.Decide(soon(t), "scene", "hall", token, "").String()
}

func TestAHolderThatWasSucceededIsRefusedByTheGate(t *testing.T) {
	t.Parallel()
	client := clientOf(t, realserver.Serve(t).URL)
	for name, config := range map[string]solehold.GateConfig{"watching": {}, "strict": {Strict: true}} {
		gate := gateOf(t, client, config)
		if err := gate.Ready(soon(t)); err != nil {
			t.Fatal(err)
		}
		holder := session(t, client, "holder-"+name)
		first := acquire(t, holder, "scene", "hall")
		if got := verdict(t, gate, first.Token()); got != "admit" {
			t.Fatalf("%s: the holder: %s", name, got)
		}
		if got := verdict(t, gate, first.Token()+100); !strings.HasPrefix(got, "undecidable never_given") {
			t.Errorf("%s: a token that nobody gave: %s", name, got)
		}
		release(t, first)
		second := acquire(t, holder, "scene", "hall")
		if got := verdict(t, gate, second.Token()); got != "admit" {
			t.Errorf("%s: the successor: %s", name, got)
		}
		if got := gate.Judge("scene", "hall", first.Token(), ""); got.Word != "stale" || got.Newest != second.Token() {
			t.Errorf("%s: the former holder: %s", name, got)
		}
		release(t, second)
		if lag, isKnown := gate.Lag(); !isKnown || lag < 0 {
			t.Errorf("%s: lag %v", name, lag)
		}
		if got := gate.Decide(soon(t), "scene", "nowhere", 5, "").Why; got != "no_such_resource" {
			t.Errorf("%s: a resource that does not exist: %s", name, got)
		}
	}
}

func TestAGateFailsClosedUnlessItIsToldOtherwise(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	client := clientOf(t, server.URL)
	closed := gateOf(t, client, solehold.GateConfig{CacheTTL: time.Second, RefreshWithin: time.Second})
	open := gateOf(t, client, solehold.GateConfig{CacheTTL: time.Second, RefreshWithin: time.Second, FailOpen: true})
	guard := acquire(t, session(t, client, "holder"), "scene", "hall")
	for _, gate := range []*solehold.Gate{closed, open} {
		if got := verdict(t, gate, guard.Token()); got != "admit" {
			t.Fatalf("before: %s", got)
		}
	}
	server.Kill()
	waitFor(t, "knowledge that is too old", func() bool {
		return verdict(t, closed, guard.Token()) == "undecidable expired"
	})
	waitFor(t, "a store that is away", func() bool { return verdict(t, open, guard.Token()) == "admit" })
	if got := verdict(t, open, guard.Token()-1); !strings.HasPrefix(got, "stale") {
		t.Errorf("failing open goes below the mark: %s", got)
	}
}

func TestAGateThatRestartsRemembers(t *testing.T) {
	t.Parallel()
	server := realserver.Serve(t)
	client := clientOf(t, server.URL)
	file := filepath.Join(t.TempDir(), "marks")
	holder := session(t, client, "holder")
	first := acquire(t, holder, "scene", "hall")
	release(t, first)
	second := acquire(t, holder, "scene", "hall")
	gate := gateOf(t, client, solehold.GateConfig{Memory: file})
	if got := verdict(t, gate, second.Token()); got != "admit" {
		t.Fatalf("the holder: %s", got)
	}
	if _, err := solehold.OpenGate(client, solehold.GateConfig{Kinds: []string{"scene"}, Memory: file}); err == nil {
		t.Fatal("two gates have one file")
	}
	gate.Close()
	server.Kill()
	// A line that was cut off was never relied on.
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, `{"mark":{"tok`...), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := gateOf(t, client, solehold.GateConfig{Memory: file})
	if got := again.Judge("scene", "hall", first.Token(), ""); got.Word != "stale" || got.Newest != second.Token() {
		t.Errorf("after a restart without a server: %s", got)
	}
	again.Close()
	if err := os.WriteFile(file, []byte("{\"solehold_gate\":1}\nnonsense\n{\"floor\":1}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = solehold.OpenGate(client, solehold.GateConfig{Kinds: []string{"scene"}, Memory: file})
	if err == nil || !strings.Contains(err.Error(), "line 2 of the gate's memory") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestAGateWhoseKeyIsRefusedDoesNotFailOpen(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	key := realserver.Run(t, "admin", "key", "create", "--name", "first", "--role", "admin", "--data-dir", data)
	server := realserver.Serve(t, "--data-dir", data)
	client := newClient(t, solehold.Config{Servers: []string{server.URL}, Key: key})
	guard := acquire(t, session(t, client, "holder"), "scene", "hall")
	stranger := newClient(t, solehold.Config{Servers: []string{server.URL}, Key: "sk_wrong"})
	gate := gateOf(t, stranger, solehold.GateConfig{FailOpen: true})
	waitFor(t, "a denial", func() bool { return verdict(t, gate, guard.Token()) == "undecidable denied" })
	if gate.Denied() == "" {
		t.Error("the gate does not say that it is denied")
	}
	if got := verdict(t, gateOf(t, client, solehold.GateConfig{}), guard.Token()); got != "admit" {
		t.Errorf("with the right key: %s", got)
	}
}
