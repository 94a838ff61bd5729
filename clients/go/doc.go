// Package solehold is Solehold's client for Go: one owner for each piece of work, with a fencing token that proves it.
//
// A [Session] is one incarnation of a holder, usually one per process. Its heartbeats keep every lease that is attached
// to it. A [Guard] is one such lease: it knows its token and its local deadline, and its context is cancelled when the
// lease is lost. [Locks], [Elect] and [KeepSession] are built on them. [Client.Watch] shows every change in order, and
// [OpenGate] makes a gate, which refuses work that carries an old token.
//
// The deadline of a session counts from before a heartbeat was sent, on a clock that keeps counting while the machine
// sleeps, minus a margin: the work has stopped before the server gives the lease to another holder (rule 4 of
// Solehold's protocol). After a long pause of the process a context is cancelled only when a timer runs again, so call
// [Guard.Check] right before every effect. Only a gate makes a late effect harmless.
//
// Errors are asked for by kind, as in errors.Is(err, solehold.Refused); an [*Error] has the details, and a [*LostError]
// says why a lease was lost.
package solehold
