package solehold

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Kind is what an error means for the caller. Ask with errors.Is(err, solehold.Refused).
type Kind string

const (
	// BadRequest: the request is wrong. Error.Fields says where.
	BadRequest Kind = "bad request"
	// Unauthorized: there was no key, or it is unknown, expired or revoked.
	Unauthorized Kind = "unauthorized"
	// Forbidden: the key may not do this, or a quota is used up (then Error.Code is quota_exceeded).
	Forbidden Kind = "forbidden"
	// NotFound: there is no such thing, or the key may not see it.
	NotFound Kind = "not found"
	// Refused: nothing was granted. Error.Code is held, held_back, lost, not_yours, request_spent, ...
	Refused Kind = "refused"
	// NoSession: the session does not exist or has ended. It is a Refused as well.
	NoSession Kind = "no session"
	// Superseded: the session is over because its holder has opened another one. It is a NoSession as well.
	Superseded Kind = "superseded"
	// Compacted: the events after the cursor of a watch are no longer kept; begin without a cursor, with a snapshot.
	Compacted Kind = "compacted"
	// Unavailable: no server could be reached, or it did nothing. It is safe to ask again.
	Unavailable Kind = "unavailable"
	// Unknown: it may or may not have been done (rule 8).
	Unknown Kind = "unknown"
	// Lost: the lease is no longer held, or not known to be. The error is a *LostError.
	Lost Kind = "lost"
)

// Error makes a kind something to compare with by errors.Is.
func (k Kind) Error() string { return string(k) }

// is reports whether an error of this kind is also one of the other.
func (k Kind) is(other Kind) bool {
	switch other {
	case Refused:
		return k == Refused || k == NoSession || k == Superseded
	case NoSession:
		return k == NoSession || k == Superseded
	}
	return k == other
}

// FieldError is what is wrong with one field of a request.
type FieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Error is what a server answered, or why none did.
type Error struct {
	Kind Kind
	// Detail says what happened, to what, and what to do.
	Detail string
	// Code is the server's word for it; empty if it did not come from a server.
	Code string
	// Status is the HTTP status, 0 if no server answered.
	Status int
	// Holder has the resource now, or gets it next; empty if that is not known.
	Holder string
	// Token is that of the present or last grant, 0 if it is not known.
	Token uint64
	// RetryAfter is the time before which another attempt is of no use.
	RetryAfter time.Duration
	// Fields is all that is wrong with the request.
	Fields []FieldError
	// RequestID is the server's name for the request, as in its log.
	RequestID string
}

// Error shows the code and the detail.
func (e *Error) Error() string {
	if e.Code == "" {
		return e.Detail
	}
	return e.Code + ": " + e.Detail
}

// Is compares with a Kind.
func (e *Error) Is(target error) bool {
	kind, ok := target.(Kind)
	return ok && e.Kind.is(kind)
}

// Why is the reason of a loss.
type Why string

const (
	// WhyDeadline: no renewal was answered in time.
	WhyDeadline Why = "deadline"
	// WhyFailed: a renewal failed, under the policy Immediate.
	WhyFailed Why = "failed"
	// WhyRefused: the authority refused to renew.
	WhyRefused Why = "refused"
	// WhyEnded: another client ended this lease.
	WhyEnded Why = "ended"
	// WhyHistory: the store was set back to an older history.
	WhyHistory Why = "history"
	// WhyReleased: this process released the lease.
	WhyReleased Why = "released"
	// WhyClosed: this process closed the session.
	WhyClosed Why = "closed"
)

// LostError says that a session or lease is no longer held, or not known to be. It is the cause of a guard's context.
type LostError struct {
	Why    Why
	Detail string
	// Code is the server's word, where it refused.
	Code string
}

// Error shows the detail.
func (e *LostError) Error() string { return e.Detail }

// Is compares with the kind Lost.
func (e *LostError) Is(target error) bool { return target == Lost }

func unavailable(format string, args ...any) *Error {
	return &Error{Kind: Unavailable, Detail: fmt.Sprintf(format, args...)}
}

func unknown(format string, args ...any) *Error {
	return &Error{Kind: Unknown, Detail: fmt.Sprintf(format, args...)}
}

// isUndecided reports whether an error is no answer, so that another attempt may bring one.
func isUndecided(err error) bool { return errors.Is(err, Unavailable) || errors.Is(err, Unknown) }

// isAnswer reports whether an error is the definite answer of a server.
func isAnswer(err error) bool {
	told, ok := asError(err)
	return ok && told.Code != "" && !isUndecided(err)
}

func asError(err error) (*Error, bool) {
	var told *Error
	ok := errors.As(err, &told)
	return told, ok
}

func codeOf(err error) string {
	if told, ok := asError(err); ok {
		return told.Code
	}
	return ""
}

func retryAfter(err error) time.Duration {
	if told, ok := asError(err); ok {
		return told.RetryAfter
	}
	return 0
}

var kindByCode = map[string]Kind{
	"no_session":         NoSession,
	"session_superseded": Superseded,
	"lost":               Refused,
	"compacted":          Compacted,
	"request_timeout":    Unavailable,
	"overloaded":         Unavailable,
	"unavailable":        Unavailable,
}

var kindByStatus = map[int]Kind{
	401: Unauthorized,
	403: Forbidden,
	404: NotFound,
	409: Refused,
	429: Unavailable,
}

// fromAnswer reads the problem document of an answer. Any other body proves nothing.
func fromAnswer(server string, status int, body []byte) *Error {
	var problem struct {
		Code         string       `json:"code"`
		Title        string       `json:"title"`
		Detail       string       `json:"detail"`
		Holder       string       `json:"holder"`
		Token        uint64       `json:"token"`
		RetryAfterMs uint64       `json:"retry_after_ms"`
		Errors       []FieldError `json:"errors"`
		RequestID    string       `json:"request_id"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Code == "" {
		told := unknown("%s answered %d without a problem document: is it a Solehold server?", server, status)
		told.Status = status
		return told
	}
	kind, known := kindByCode[problem.Code]
	if !known {
		kind, known = kindByStatus[status]
	}
	if !known {
		kind = Unknown
		if status < 500 {
			kind = BadRequest
		}
	}
	detail := problem.Detail
	if detail == "" {
		detail = problem.Title
	}
	if detail == "" {
		detail = fmt.Sprintf("%s answered %d", server, status)
	}
	return &Error{
		Kind:       kind,
		Detail:     detail,
		Code:       problem.Code,
		Status:     status,
		Holder:     problem.Holder,
		Token:      problem.Token,
		RetryAfter: millis(problem.RetryAfterMs),
		Fields:     problem.Errors,
		RequestID:  problem.RequestID,
	}
}
