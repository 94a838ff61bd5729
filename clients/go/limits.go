package solehold

import "time"

// Every bound of this client, by name (rule 25).
const (
	// What the server accepts.
	nameBytesMax = 255
	ttlMin       = time.Second
	ttlMax       = 24 * time.Hour
	// The longest time that one request waits in line; to wait longer, the request is repeated under its request id.
	waitMax = 30 * time.Second
	// Most sessions whose news one request covers.
	newsSessionsMax = 1_000
	// Most holders at once that share one resource, and most resources that one request acquires together.
	slotsMax            = 1_000
	acquiredTogetherMax = 100
	// Most kinds of one gate.
	gateKindsMax = 32
	// A wait that the server should have ended by now is ended by the client.
	waitLeeway = time.Second
	// A watch is never silent for long: the server sends a comment every 10 s.
	silenceMax    = 30 * time.Second
	frameBytesMax = 4 * 1024 * 1024

	// The trust window (rule 4).
	marginShare    = 0.02
	marginMin      = 100 * time.Millisecond
	marginShareMax = 0.5
	// Subtracted where the server does not state how far the store's clock may run ahead.
	slackUnknown = 500 * time.Millisecond

	// Go's timers stand still while the machine sleeps, so nothing waits longer than this without reading the clock.
	stepMax = 100 * time.Millisecond

	responseBytesMax = 64 * 1024 * 1024
	headerBytesMax   = 64 * 1024
	problemBytesMax  = 64 * 1024

	// Short requests of one client, and requests that wait in line. Each has its own share, so that waiting for a lock
	// never prevents its release.
	requestsAtOnceMax  = 64
	waitersAtOnceMax   = 512
	idleConnectionsMax = 16
	serversMax         = 64
	connectMax         = 3 * time.Second
	idleMax            = 30 * time.Second

	// Requests of a session whose outcome is still unknown.
	unsettledMax = 1024
	// How long an acquire that failed waits until its request id is spent, before that continues in the background.
	spendMax = time.Second
	// How long Guard.Close and Session.Close wait for an answer.
	leaveMax = 2 * time.Second
)
