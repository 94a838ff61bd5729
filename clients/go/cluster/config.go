package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Config is the section cluster of a gateway's configuration. All of it is optional, and a gateway without it runs
// alone. Begin with DefaultConfig, or read a file with FromYAML or FromJSON.
type Config struct {
	// Enabled says that there may be other gateways on the same database.
	Enabled bool
	// NodeID is the name of this node; the host's name and a random suffix if it is empty.
	NodeID string
	// AllowMultipleGateways allows others even where nothing keeps them from working on one session at once.
	AllowMultipleGateways bool
	SessionLocks          SessionLocks
}

// SessionLocks says how a session is locked while a message of it is processed.
type SessionLocks struct {
	Enabled bool
	// TTL is how long a lock outlives a node that stopped renewing it.
	TTL time.Duration
	// RefreshInterval is how often all locks of a node are renewed, by one heartbeat.
	RefreshInterval time.Duration
	// AcquireTimeout is how long a message waits for its session.
	AcquireTimeout time.Duration
	// PollInterval is how often to ask again where there is no line to wait in.
	PollInterval time.Duration
}

// DefaultConfig is that of a gateway that runs alone.
func DefaultConfig() Config {
	return Config{SessionLocks: SessionLocks{
		TTL: 2 * time.Minute, RefreshInterval: 30 * time.Second, AcquireTimeout: 10 * time.Second,
		PollInterval: 200 * time.Millisecond,
	}}
}

// FromYAML reads the section cluster of a YAML file, and checks it. The file's other sections are its own business.
func FromYAML(text string) (Config, error) {
	section, err := yamlSection(text, "cluster")
	if err != nil {
		return Config{}, err
	}
	return fromSection(section)
}

// FromJSON reads the member cluster of a JSON object, and checks it. Other members are ignored.
func FromJSON(text []byte) (Config, error) {
	section, err := jsonSection(text, "cluster")
	if err != nil {
		return Config{}, err
	}
	return fromSection(section)
}

func fromSection(section *node) (Config, error) {
	config := DefaultConfig()
	locks := &config.SessionLocks
	lockKeys := keys{
		{"enabled", boolInto(&locks.Enabled)},
		{"ttl", durationInto(&locks.TTL)},
		{"refresh_interval", durationInto(&locks.RefreshInterval)},
		{"acquire_timeout", durationInto(&locks.AcquireTimeout)},
		{"poll_interval", durationInto(&locks.PollInterval)},
	}
	hasNodeID := false
	clusterKeys := keys{
		{"enabled", boolInto(&config.Enabled)},
		{"node_id", func(path string, value *node) error {
			hasNodeID = value.isScalar()
			return textInto(&config.NodeID)(path, value)
		}},
		{"allow_multiple_gateways", boolInto(&config.AllowMultipleGateways)},
		{"session_locks", lockKeys.into},
	}
	if section != nil {
		if err := clusterKeys.into("cluster", section); err != nil {
			return Config{}, err
		}
	}
	if hasNodeID && config.NodeID == "" {
		return Config{}, fmt.Errorf("cluster.node_id is empty: leave it out, or give this node a name")
	}
	return config, config.Check()
}

const (
	ttlMin   = time.Second
	ttlMax   = 24 * time.Hour
	nameMax  = 255
	hostMax  = 64
	whatName = "the name of a node is text of 1 to 255 bytes without control characters"
)

// Check says what is wrong with a configuration.
func (c *Config) Check() error {
	if len(c.NodeID) > nameMax || strings.ContainsFunc(c.NodeID, unicode.IsControl) {
		return fmt.Errorf("cluster.node_id is %.40q: %s", c.NodeID, whatName)
	}
	locks := c.SessionLocks
	if locks.TTL < ttlMin || locks.TTL > ttlMax {
		return fmt.Errorf("cluster.session_locks.ttl is %v; it must be %v to %v", locks.TTL, ttlMin, ttlMax)
	}
	if 2*locks.RefreshInterval >= locks.TTL {
		return fmt.Errorf("cluster.session_locks.refresh_interval is %v, which is not below half of the ttl, %v: "+
			"a renewal that fails could not be repeated in time; set it below %v",
			locks.RefreshInterval, locks.TTL, locks.TTL/2)
	}
	for _, one := range []struct {
		name  string
		value time.Duration
	}{
		{"refresh_interval", locks.RefreshInterval},
		{"acquire_timeout", locks.AcquireTimeout},
		{"poll_interval", locks.PollInterval},
	} {
		if one.value <= 0 {
			return fmt.Errorf("cluster.session_locks.%s is %v; it must be longer", one.name, one.value)
		}
	}
	return nil
}

// nodeID is the node's name, or one made of the host's name and a random suffix.
func (c *Config) nodeID() string {
	if c.NodeID != "" {
		return c.NodeID
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "node"
	}
	return fmt.Sprintf("%s-%06x", host[:min(len(host), hostMax)], rand.Uint32()>>8)
}

// keys are those of a mapping, and what to do with the value of each.
type keys []struct {
	name string
	take func(path string, value *node) error
}

func (k keys) into(path string, value *node) error {
	if value.isEmpty() {
		return nil
	}
	if value.isScalar() {
		return value.wrong("%s is %q; it must be a mapping", path, value.text)
	}
	for _, entry := range value.entries {
		if err := k.take(path, entry); err != nil {
			return err
		}
	}
	return nil
}

func (k keys) take(path string, entry entry) error {
	names := make([]string, len(k))
	for i, key := range k {
		if key.name == entry.key {
			return key.take(path+"."+entry.key, entry.value)
		}
		names[i] = key.name
	}
	return entry.value.wrong("%s has no key %q; its keys are %s", path, entry.key, strings.Join(names, ", "))
}

func textInto(into *string) func(string, *node) error {
	return func(path string, value *node) error {
		if !value.isScalar() && !value.isEmpty() {
			return value.wrong("%s must be a text", path)
		}
		*into = value.text
		return nil
	}
}

func boolInto(into *bool) func(string, *node) error {
	return func(path string, value *node) error {
		if value.isQuoted || value.text != "true" && value.text != "false" {
			return value.wrong("%s is %q; it must be true or false", path, value.text)
		}
		*into = value.text == "true"
		return nil
	}
}

func durationInto(into *time.Duration) func(string, *node) error {
	return func(path string, value *node) error {
		parsed, err := parseDuration(value.text)
		if err != nil || !value.isScalar() {
			return value.wrong("%s is %q, which is not a duration: write one as in 200ms, 30s, 2m", path, value.text)
		}
		*into = parsed
		return nil
	}
}

var (
	durationPart = regexp.MustCompile(`^(\d{1,12})` +
		`(millis|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\s*`)
	units = map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
)

// parseDuration reads 200ms, 30s, 2m, 1h 30m, 1day.
func parseDuration(text string) (time.Duration, error) {
	total := time.Duration(0)
	for rest := text; rest != "" || text == ""; {
		part := durationPart.FindStringSubmatch(rest)
		if part == nil {
			return 0, fmt.Errorf("not a duration")
		}
		number, err := strconv.ParseInt(part[1], 10, 64)
		unit := units[part[2][0]]
		if part[2] == "ms" || part[2] == "millis" {
			unit = time.Millisecond
		}
		if err != nil || number > int64(365*24*time.Hour/unit) {
			return 0, fmt.Errorf("too long")
		}
		total += time.Duration(number) * unit
		rest = rest[len(part[0]):]
	}
	return total, nil
}
