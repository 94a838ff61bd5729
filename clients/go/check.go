package solehold

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// checkName checks a name as the server accepts it; what says which argument it is.
func checkName(what, name string) error {
	size := len(name)
	if size >= 1 && size <= nameBytesMax && name != "." && name != ".." && utf8.ValidString(name) {
		return nil
	}
	shown := name
	if size > nameBytesMax {
		shown = name[:32] + "..."
	}
	rule := fmt.Sprintf("a name is UTF-8 text of 1 to %d bytes, and not %q or %q", nameBytesMax, ".", "..")
	return wrong("%s is %q, which has %d bytes: %s", what, shown, size, rule)
}

func checkTTL(ttl time.Duration) error {
	if ttl < ttlMin || ttl > ttlMax {
		return wrong("the ttl is %v: give %v to %v", ttl, ttlMin, ttlMax)
	}
	return nil
}

// wrong is an argument that no server was asked about.
func wrong(format string, args ...any) *Error {
	return &Error{Kind: BadRequest, Detail: fmt.Sprintf(format, args...)}
}
