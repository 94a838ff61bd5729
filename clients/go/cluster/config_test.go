package cluster

import (
	"strings"
	"testing"
	"time"
)

const example = `# A gateway's own file.
server:
  port: 80   # not ours
  hosts: [a, b]
  routes:
  - path: /x
cluster:
  enabled: true
  node_id: "gateway-us-east-1a"   # a name
  allow_multiple_gateways: true
  session_locks:
    enabled: true
    ttl: 2m
    refresh_interval: 30s

    acquire_timeout: 10s
    poll_interval: '200ms'
other: {a: 1}
`

func TestTheSameKeysAreReadFromYAMLAndJSON(t *testing.T) {
	want := DefaultConfig()
	want.Enabled, want.AllowMultipleGateways, want.NodeID = true, true, "gateway-us-east-1a"
	want.SessionLocks.Enabled = true
	read, err := FromYAML(example)
	if err != nil || read != want {
		t.Errorf("YAML: %+v, %v", read, err)
	}
	read, err = FromJSON([]byte(`{"server": {"port": 80}, "cluster": {"enabled": true, "allow_multiple_gateways": true,
		"node_id": "gateway-us-east-1a", "session_locks": {"enabled": true, "ttl": "2m", "poll_interval": "200ms"}}}`))
	if err != nil || read != want {
		t.Errorf("JSON: %+v, %v", read, err)
	}
	want.NodeID = ""
	read, err = FromYAML("cluster: {enabled: true, allow_multiple_gateways: true,}\n")
	if err == nil {
		t.Errorf("a comma at the end: %+v", read)
	}
	read, err = FromYAML("cluster:\n    enabled: true\n    allow_multiple_gateways: true\n" +
		"    session_locks: {enabled: true}")
	if err != nil || read != want {
		t.Errorf("a flow mapping: %+v, %v", read, err)
	}
}

func TestItIsOffByDefault(t *testing.T) {
	for _, text := range []string{
		"", "# nothing\n", "---\n", "server:\n  port: 80\n", "cluster:\n", "cluster: {}\n", "cluster: ~\n",
		"list:\n- a\n- b: c\n",
	} {
		if read, err := FromYAML(text); err != nil || read != DefaultConfig() {
			t.Errorf("%q: %+v, %v", text, read, err)
		}
	}
	for _, text := range []string{"{}", `{"cluster": null}`, `{"cluster": {}}`} {
		if read, err := FromJSON([]byte(text)); err != nil || read != DefaultConfig() {
			t.Errorf("%s: %+v, %v", text, read, err)
		}
	}
}

func TestWhatIsWrongIsNamedWithItsLine(t *testing.T) {
	for text, words := range map[string][]string{
		"cluster:\n  enabled: true\n  nodeid: a\n":                     {"line 3: ", "nodeid", "node_id"},
		"cluster:\n  session_locks:\n    ttl: soon\n":                  {"line 3: ", "write one as in 200ms, 30s, 2m"},
		"cluster:\n  session_locks:\n    enabled: true\n    tll: 2m\n": {"line 4: ", "tll"},
		"a: 1\ncluster:\n  enabled: maybe\n":                           {"line 3: ", "true or false"},
		"cluster:\n  enabled: [\n":                                     {"line 2: "},
		"cluster:\n  enabled: \"true\"\n":                              {"line 2: ", "true or false"},
		"cluster:\n  session_locks: 3\n":                               {"line 2: ", "must be a mapping"},
		"cluster:\n  enabled: true\n  enabled: true\n":                 {"line 3: ", "twice"},
		"cluster:\n  enabled: true\ncluster:\n  enabled: true\n":       {"line 3: ", "twice"},
		"cluster:\n  enabled: true\n    node_id: a\n":                  {"line 3: ", "indented"},
		"cluster:\n    enabled: true\n  node_id: a\n":                  {"line 3: ", "indentation"},
		"cluster:\n\tenabled: true\n":                                  {"line 2: "},
		"cluster:\n  - enabled\n":                                      {"line 2: ", "key: value"},
		"cluster:\n  node_id: |\n    text\n":                           {"line 2: "},
		"cluster:\n  node_id: \"a\n":                                   {"line 2: ", "quoted"},
		"cluster:\n  node_id: *name\n":                                 {"line 2: "},
		"cluster:\n  session_locks: {enabled: true\n":                  {"line 2: ", "does not end"},
		"nonsense\n":                  {"line 1: "},
		"cluster:\n  node_id: \"\"\n": {"cluster.node_id is empty"},
		"cluster:\n  session_locks:\n    ttl: 1m\n    refresh_interval: 30s\n": {"refresh_interval is 30s", "half of the ttl"},
		"cluster:\n  session_locks:\n    ttl: 10ms\n":                          {"it must be 1s to 24h"},
		"cluster:\n  session_locks:\n    acquire_timeout: 0s\n":                {"acquire_timeout is 0s"},
	} {
		_, err := FromYAML(text)
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v, without %q", text, err, word)
			}
		}
	}
	for _, text := range []string{
		"[]", `{"cluster": 1}`, `{"cluster": {"nodeid": "a"}}`, `{"cluster": {"enabled": "true"}}`,
		`{"cluster": {"node_id": []}}`,
	} {
		if _, err := FromJSON([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestDurationsAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"200ms": 200 * time.Millisecond, "30s": 30 * time.Second, "2m": 2 * time.Minute, "2min": 2 * time.Minute,
		"1h 30m": 90 * time.Minute, "1day": 24 * time.Hour, "90secs": 90 * time.Second,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "2", "m", "-2m", "2m!", "99999999999d", "1.5s"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// The parser never panics, whatever the file is.
func FuzzFromYAML(f *testing.F) {
	f.Add(example)
	f.Add("cluster:\n  node_id: 'a\n  x: {a: b, c}\n")
	f.Fuzz(func(t *testing.T, text string) { _, _ = FromYAML(text) })
}
