//! Every bound of the system, in one place and by name (rule 25).
//!
//! Past a bound the answer is an error that names it; nothing is cut off silently.

/// Longest name of a tenant, kind, key, holder, site or request, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest opaque document (attributes, labels, statistics, state document), in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 64 * 1024;
/// Shortest time that a lease or session may be asked for.
pub const TTL_MS_MIN: u64 = 1_000;
/// Longest time that a lease or session may be asked for.
pub const TTL_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Longest lock-delay of a resource.
pub const LOCK_DELAY_MS_MAX: u64 = 5 * 60 * 1_000;
/// Longest time that a pending lease may wait for the present holder.
pub const PENDING_MS_MAX: u64 = 60 * 60 * 1_000;
/// Leases per session.
pub const SESSION_LEASES_MAX: u32 = 10_000;
/// Waiters in line per resource.
pub const WAITERS_MAX: u32 = 10_000;
/// Waiters per session: a client's own, or the waiting room of a replica.
pub const SESSION_WAITERS_MAX: u32 = 10_000;
/// The most shared holds of a resource at a time (rule 29).
pub const SLOTS_MAX: u32 = 1_000;
/// Resources that are acquired together, all or none.
pub const ACQUIRED_TOGETHER_MAX: usize = 100;
/// Longest wait in line.
pub const WAIT_MS_MAX: u64 = 60 * 60 * 1_000;
/// Waiters that are loaded from the head of a line at first; more are loaded when they turn out to be needed.
pub const WAITERS_LOADED: usize = 8;
/// Waiters that are loaded at first with a session that is about to end.
pub const SESSION_WAITERS_LOADED: usize = 1_000;
/// A grant from the line lapses after this time unless it is confirmed (rule 15).
pub const CONFIRM_MS: u64 = 2_000;
/// How long a heartbeat keeps a replica's waiting room and its waiters alive (rule 15): longer than a store is usually
/// away, so that a stall does not cost waiters their place. A client that disconnects leaves the line at once; only a
/// replica that dies leaves its waiters behind for this long.
pub const ROOM_TTL_MS: u64 = 10_000;
/// A spent request id is remembered for this long after its lease ended (rule 7).
pub const REQUEST_KEPT_MS: u64 = 60 * 60 * 1_000;
/// Requests spent by leases and places in line that are remembered for certain per key, holder and resource; beyond it
/// the oldest may be forgotten early. A client that repeats a request after this many later requests of its key and
/// holder for the same resource have ended may be granted a new lease. What other keys do displaces nothing.
pub const SPENT_REQUESTS_MAX: usize = 64;
/// Requests that may be cancelled before they were seen, per key, holder and resource within [`REQUEST_KEPT_MS`]. They
/// are remembered for all of that time, so one more is refused.
pub const CANCELLED_REQUESTS_MAX: usize = 256;
/// Least time that a live session gets after a restart of an embedded store (rule 3).
pub const RESTART_GRACE_MS: u64 = 5_000;
/// The most that the revision may be raised in one step: epochs jump by 2^32 (rule 23).
pub const REVISION_RAISE_MAX: u64 = 1 << 40;
/// The largest revision, and so the largest token: what a signed 64-bit column and a JavaScript number can hold.
pub const REVISION_MAX: u64 = (1 << 53) - 1;
