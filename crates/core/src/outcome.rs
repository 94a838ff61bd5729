//! The answers of the lease machine. A refusal is an outcome, with what the caller needs to continue (rule 8).

use crate::{
    key::{LeaseId, Name, ResourceKey, SessionId},
    lease::{Lease, LeaseStatus, Pending, Resource, StateDocument, Tenure},
    ledger::{FoundLate, Ledger},
    record::Record,
    session::{Holder, Session, SessionOver},
    time::{Revision, StoreTime, Token},
};

/// The answer to a command: done, or refused.
pub type Outcome = Result<Answer, Refusal>;

/// The result of a command that was not refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A lease was granted, or this repeats the grant of the same request.
    Granted(Grant),
    /// All leases of [`Command::AcquireAll`](crate::command::Command::AcquireAll), in its order.
    GrantedAll(Vec<Grant>),
    /// The resource is not free, and the caller is in line for it.
    Waiting(Place),
    Left,
    Renewed(Grant),
    Released(LeaseId),
    /// A lease was revoked, and its resource is held back.
    Revoked {
        lease: LeaseId,
        /// The time until the resource can be acquired.
        held_back_ms: u64,
    },
    /// The resource was free, and is no longer held back.
    HoldBackLifted,
    Spent,
    StateWritten(StateDocument),
    /// A pending lease was created for the next holder.
    Offered(Pending),
    /// A nomination of the sweeper was decided.
    Judged {
        expired: bool,
    },
    Session(SessionView),
    Closed {
        released: usize,
    },
    Holder(Holder),
    /// A holder was removed, and its session ended.
    HolderRemoved {
        released: usize,
        /// Leases of the session that were revoked, whose resources are held back.
        revoked: usize,
    },
    Declared {
        /// As it is now.
        resource: Resource,
        /// Whether it was not declared before.
        created: bool,
    },
    /// Watchers are notified of a change.
    Noted,
    Removed,
    Record(Record),
    /// Revisions continue above this one.
    Raised(Revision),
}

/// A lease as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The lease, its status and the time it has left.
    pub lease: LeaseView,
    /// What the former holder left.
    pub state: Option<StateDocument>,
    /// The revision at which this was true.
    pub revision: Revision,
    /// Whether this repeats an earlier grant of the same request.
    pub repeated: bool,
}

/// A place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The id that the grant will have.
    pub lease: LeaseId,
    /// The place in line; lower is earlier.
    pub arrival: Revision,
    /// The most waiters that can be ahead of it.
    pub ahead: u32,
    /// When the place is given up.
    pub deadline: StoreTime,
    /// The time at which this was true.
    pub now: StoreTime,
}

/// A session as its holder sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    pub session: Session,
    /// Its holder, if the session was just opened.
    pub holder: Option<Holder>,
    /// The time at which this was true.
    pub now: StoreTime,
}

/// A lease, judged at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    pub key: ResourceKey,
    pub site: Option<Name>,
    pub lease: Lease,
    pub status: LeaseStatus,
    /// When it expires unless it is renewed.
    pub deadline: StoreTime,
    /// Its time to live at each renewal.
    pub ttl_ms: u64,
    /// When it was last renewed, by itself or with its session.
    pub renewed_at: Option<StoreTime>,
    /// The pending lease of the next holder, for whom it is asked to be released (rule 16).
    pub next: Option<Box<Pending>>,
    /// The time at which this was true.
    pub now: StoreTime,
}

/// A pending lease, with what its next holder must know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingView {
    pub key: ResourceKey,
    pub pending: Pending,
    /// Who holds the resource now.
    pub present: Option<Name>,
}

impl PendingView {
    /// The pending lease on `resource`, if there is one that has not lapsed at `now`.
    pub fn of(resource: &Resource, now: StoreTime) -> Option<Self> {
        let pending = resource.pending.as_deref().filter(|pending| now < pending.deadline)?.clone();
        let present = resource.lease.as_ref().map(|lease| lease.holder.clone());
        Some(Self { key: resource.key.clone(), pending, present })
    }
}

impl LeaseView {
    /// The lease on `resource` at `now`, if there is one. An expired lease is there until it is swept.
    pub fn of(ledger: &Ledger, resource: &Resource, now: StoreTime) -> Result<Option<Self>, FoundLate> {
        let Some(lease) = &resource.lease else { return Ok(None) };
        let deadline = ledger.deadline_of(lease)?;
        let session = lease.tenure.session().and_then(|id| ledger.session(id));
        let ttl_ms = match lease.tenure {
            Tenure::Own { ttl_ms, .. } => ttl_ms,
            Tenure::Session(_) => session.map_or(0, |s| s.ttl_ms),
        };
        let renewed_at =
            lease.renewed_at.max(session.map(|s| s.renewed_at).filter(|at| *at > lease.acquired_at));
        Ok(Some(Self {
            key: resource.key.clone(),
            site: resource.declared.as_ref().and_then(|d| d.site.clone()),
            lease: lease.clone(),
            status: if now < deadline { LeaseStatus::Active } else { LeaseStatus::Expired },
            deadline,
            ttl_ms,
            renewed_at,
            next: resource.pending.clone().filter(|pending| now < pending.deadline),
            now,
        }))
    }

    /// The time left to confirm it by a renewal, if it was granted from the line and is not confirmed yet (rule 15).
    pub fn confirm_within_ms(&self) -> Option<u64> {
        self.lease.confirm_by.map(|by| by.ms_after(self.now))
    }

    pub fn ttl_left_ms(&self) -> u64 {
        self.deadline.ms_after(self.now)
    }
}

/// Why a command was refused. It changed nothing; what had already expired may have been ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller's key is limited to other resources (rule 26).
    #[error("your key does not cover resource {0}")]
    OutOfScope(ResourceKey),
    /// It belongs to another key (rule 26).
    #[error("the {what} belongs to key {key}; use that key, or an admin key")]
    OtherKeys {
        /// "session", "lease" or "place in line".
        what: &'static str,
        key: Name,
    },
    /// There is no such resource, or none of this tenant's.
    #[error("resource {0} does not exist")]
    NoResource(ResourceKey),
    #[error("held by {holder} with token {token}, for another {retry_after_ms} ms unless it is renewed")]
    Held {
        holder: Name,
        token: Token,
        /// When the present grant expires, unless it is renewed.
        retry_after_ms: u64,
    },
    /// It is free but held back (rule 12).
    #[error("held back for another {retry_after_ms} ms after token {token}")]
    HeldBack { token: Token, retry_after_ms: u64 },
    /// The claimed lease is not the live one: it expired, ended, or never existed.
    #[error("the lease is not active; the resource's last token is {last_token}")]
    Lost { holder: Option<Name>, last_token: Token },
    /// There is no such lease, or none of this tenant's.
    #[error("lease {0} does not exist or has ended")]
    NoLease(LeaseId),
    #[error("the {what} does not match the lease, which {holder} holds with token {token}")]
    NotYours { what: &'static str, holder: Name, token: Token },
    #[error("no proof of the lease: give its token, lease id, session or holder")]
    NoProof,
    /// The request id cannot be granted anything more (rule 7).
    #[error("request {0} is spent: it was cancelled, or its lease has ended or belongs to a former session")]
    RequestSpent(Name),
    /// The caller's key has cancelled too many requests that were not seen (rule 7).
    #[error(
        "your key has cancelled {} unseen requests of {holder} for this resource, the limit per hour; \
         try again in {retry_after_ms} ms",
        crate::limits::CANCELLED_REQUESTS_MAX
    )]
    TooManyCancelled {
        holder: Name,
        /// When the first of them is forgotten.
        retry_after_ms: u64,
    },
    /// The session is over, or was never opened.
    #[error("session {session} {why}")]
    NoSession { session: SessionId, why: SessionOver },
    #[error("session {session} does not belong to {holder}")]
    NotYourSession { session: SessionId, holder: Name },
    /// The holder is draining or under maintenance.
    #[error("holder {0} is draining and accepts no more leases")]
    Draining(Name),
    #[error("session {session} is at its capacity of {capacity} leases")]
    AtCapacity { session: SessionId, capacity: u32 },
    /// The holder has as many leases as its capacity allows, by its name and in sessions.
    #[error("holder {holder} is at its capacity of {capacity} leases")]
    HolderAtCapacity { holder: Name, capacity: u32 },
    #[error("the queue is full: {waiting} clients are already waiting {where_}")]
    QueueFull {
        waiting: u32,
        /// The queue, such as "at this replica".
        where_: &'static str,
    },
    /// The state document already has a later write (rule 17).
    #[error("state sequence {given} is not above the stored {stored}")]
    StaleSequence {
        given: u64,
        /// The sequence stored under the same token.
        stored: u64,
    },
    /// One of several resources could not be acquired, so none was.
    #[error("none was acquired: {key} is in the way: {why}")]
    NotAll { key: ResourceKey, why: Box<Refusal> },
    /// Each of those who share a resource would overwrite the others' (rule 29).
    #[error("a shared hold has no state document; acquire the resource exclusively to write one")]
    SharedState,
    #[error("the resource is already being handed over to {holder}")]
    AlreadyPending { holder: Name },
    #[error(
        "the move budget is used up: {budget} resources of kind {kind} are already being handed over; \
         try again when one of them has moved"
    )]
    OverBudget {
        /// The most that may be pending at a time.
        budget: u32,
        kind: Name,
    },
    #[error("the resource is held by {holder} with token {token}; delete it with force, or release it first")]
    InUse { holder: Name, token: Token },
    #[error("already exists")]
    Exists,
    /// There is no such holder, or none of this tenant's.
    #[error("holder {0} does not exist")]
    NoHolder(Name),
    #[error("{collection} {id} does not exist")]
    NoRecord { collection: Name, id: Name },
    #[error("{collection} {id} was changed concurrently; read it again")]
    RecordChanged { collection: Name, id: Name },
    /// A number is outside its bounds (rule 25).
    #[error("{what} is {given}; it must be {least} to {most}")]
    OutOfBounds { what: &'static str, given: u64, least: u64, most: u64 },
}

/// Refuses a number outside its bounds.
pub(crate) fn within(what: &'static str, given: u64, least: u64, most: u64) -> Result<(), Refusal> {
    if (least..=most).contains(&given) {
        Ok(())
    } else {
        Err(Refusal::OutOfBounds { what, given, least, most })
    }
}
