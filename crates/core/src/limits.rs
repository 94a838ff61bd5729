//! Every bound of the system, in one place and by name (rule 25).
//!
//! Past a bound the answer is an error that names it; nothing is cut off silently.

/// Longest name of a tenant, kind, key, holder, site or request, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest opaque document (attributes, labels, stats, hand-over state), in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024;
/// Shortest time that a lease or session may be asked for.
pub const TTL_MS_MIN: u64 = 1_000;
/// Longest time that a lease or session may be asked for.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Longest lock-delay of a resource.
pub const LOCK_DELAY_MS_MAX: u64 = 5 * 60 * 1_000;
/// Longest time that a pending lease may wait for the present holder.
pub const PENDING_MS_MAX: u64 = 60 * 60 * 1_000;
/// Leases that may hang on one session.
pub const SESSION_LEASES_MAX: u32 = 10_000;
/// Waiters that may stand in line for one resource.
pub const WAITERS_MAX: u32 = 10_000;
/// Waiters that may hang on one session: a client's own, or the waiting room of a replica.
pub const SESSION_WAITERS_MAX: u32 = 10_000;
/// Longest time that anyone may wait in line.
pub const WAIT_MS_MAX: u64 = 60 * 60 * 1_000;
/// Waiters that are loaded from the head of a line at first; more are asked for when they turn out to be needed.
pub const WAITERS_LOADED: usize = 8;
/// Waiters that are loaded with a session that everything is to be let go of, at first.
pub const SESSION_WAITERS_LOADED: usize = 1_000;
/// A waited grant that nobody confirms lapses after this time (rule 15).
pub const CONFIRM_MS: u64 = 2_000;
/// How long a heartbeat keeps a replica's waiting room, and so everyone in it (rule 15): longer than a store is usually
/// away, so that a stall lets nobody pass those who stand in line. A client that goes away leaves the line at once; only a
/// replica that dies leaves its waiters behind for this long.
pub const ROOM_TTL_MS: u64 = 10_000;
/// A spent request id is remembered for this long after its lease ended (rule 7).
pub const REQUEST_KEPT_MS: u64 = 60 * 60 * 1_000;
/// Spent requests of one holder for one resource that are remembered for sure; beyond it the oldest may be forgotten before
/// its time. A client that repeats a request after its holder has had this many later ones of the same resource end may
/// be granted anew.
pub const SPENT_REQUESTS_MAX: usize = 64;
/// Least time that a live session gets after a restart of an embedded store (rule 3).
pub const RESTART_GRACE_MS: u64 = 5_000;
/// Furthest that the revision may be raised in one step: epochs jump by 2^32 (rule 23).
pub const REVISION_RAISE_MAX: u64 = 1 << 40;
/// The largest revision, and so the largest token: what a signed 64-bit column and a JavaScript-safe reader can bear.
pub const REVISION_MAX: u64 = (1 << 53) - 1;
