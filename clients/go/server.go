package solehold

import (
	"net/url"
	"strings"
)

const serverRule = "give HOST:PORT or a URL, as in 127.0.0.1:7070 or https://solehold.example:7070"

// server is one of several servers over one store.
type server struct {
	// base is the URL before /api/v1, without a slash at its end.
	base string
	// authority is host and port.
	authority string
	secure    bool
}

// parseServers reads lists of servers, each of which may be several with commas between, as in SOLEHOLD_SERVER.
func parseServers(lists []string) ([]server, error) {
	var servers []server
	for _, several := range lists {
		for one := range strings.SplitSeq(several, ",") {
			parsed, err := parseServer(strings.TrimSpace(one))
			if err != nil {
				return nil, err
			}
			servers = append(servers, parsed)
		}
	}
	if len(servers) < 1 || len(servers) > serversMax {
		return nil, wrong("%d servers were given: give 1 to %d", len(servers), serversMax)
	}
	return servers, nil
}

// parseServer accepts HOST:PORT for plain HTTP, or a URL, which may have a path that stands before /api/v1.
func parseServer(text string) (server, error) {
	if text == "" {
		return server{}, wrong("a server is empty: %s, with commas between several", serverRule)
	}
	isBare := !strings.Contains(text, "://")
	full := text
	if isBare {
		full = "http://" + text
	}
	parsed, err := url.Parse(full)
	switch {
	case err != nil:
		return server{}, wrong("the server %q is not a URL: %s", shownURL(text), serverRule)
	case parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Hostname() == "":
		return server{}, wrong("the server %q is not http or https with a host: %s", shownURL(text), serverRule)
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return server{}, wrong("the server %q has a user, query or fragment: %s; the key is given as Key",
			shownURL(text), serverRule)
	case isBare && parsed.Port() == "":
		return server{}, wrong("the server %q has no port: %s", shownURL(text), serverRule)
	}
	base := parsed.Scheme + "://" + parsed.Host + strings.TrimRight(parsed.EscapedPath(), "/")
	return server{base: base, authority: parsed.Host, secure: parsed.Scheme == "https"}, nil
}

func (s server) String() string { return s.base }

// shownURL is a URL without what may be a password.
func shownURL(text string) string {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	if !hasScheme {
		scheme, rest = "", text
	}
	rest = rest[strings.LastIndex(rest, "@")+1:]
	if !hasScheme {
		return rest
	}
	return scheme + "://" + rest
}
