//! The commands of the lease machine.

use serde::{Deserialize, Serialize};

use crate::{
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::Declaration,
    record::Record,
    request::Requester,
    session::HolderStatus,
    time::{Revision, Token},
};

/// Which lease is meant: by the resource that it is on, or by its own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The lease on this resource.
    Resource(ResourceKey),
    /// The lease with this id, if it belongs to this tenant.
    Lease {
        /// The tenant that the lease must belong to.
        tenant: Name,
        id: LeaseId,
    },
}

/// A lease, and the proof that the caller holds it (rule 6). Everything given must match. A lease id in the target is
/// proof, and so is a token or a session; a holder's name alone is accepted
/// for clients that have nothing else, and is the weaker promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub target: Target,
    pub token: Option<Token>,
    /// The session that the lease is attached to.
    pub session: Option<SessionId>,
    pub holder: Option<Name>,
}

/// What will keep the requested lease alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedTenure {
    /// A session of its own with this time to live.
    Own { ttl_ms: u64 },
    /// This session, which must be live and belong to the holder.
    Session(SessionId),
}

/// What to do if the resource was never declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undeclared {
    /// Refuse: it does not exist.
    Refuse,
    /// Create it for as long as it is held.
    Allow,
}

/// A request to wait in line while a resource is not free (rule 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The waiting room of the replica that the client is connected to.
    pub room: SessionId,
    /// How long to wait at most.
    pub wait_ms: u64,
}

/// A request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    pub key: ResourceKey,
    /// A fresh id, which the grant will have.
    pub lease: LeaseId,
    pub holder: Name,
    pub tenure: AskedTenure,
    /// The client's name for this request.
    pub request: Option<Name>,
    /// Data that the caller's layer keeps with the lease; opaque.
    pub attributes: Document,
    /// Whether an undeclared resource is refused.
    pub undeclared: Undeclared,
    /// Whether to wait in line while it is not free. Without it the command is refused.
    pub wait: Option<Wait>,
    /// Share the resource with others: a lease on one of its slots, unless this many are taken (rule 29). Without it
    /// the lease is exclusive.
    pub slots: Option<u32>,
    /// Refuse a lease with a session of its own if the holder has this many leases already, in whatever session.
    pub holds_at_most: Option<u32>,
}

impl Acquire {
    /// The holder that asks, with its tenant.
    pub fn holder_key(&self) -> HolderKey {
        HolderKey { tenant: self.key.tenant.clone(), name: self.holder.clone() }
    }

    fn asked_ttl_ms(&self) -> Option<u64> {
        match self.tenure {
            AskedTenure::Own { ttl_ms } => Some(ttl_ms),
            AskedTenure::Session(_) => None,
        }
    }

    fn footprint(&self, to: &mut Footprint) {
        to.resources.push(self.key.clone());
        if let AskedTenure::Session(id) = self.tenure {
            to.sessions.push(id);
        } else if self.holds_at_most.is_some() {
            to.holdings.push(self.holder_key());
        }
        if let Some(wait) = self.wait {
            to.sessions.push(wait.room);
            to.waiters.push((self.key.clone(), self.lease));
        }
        if let Some(request) = &self.request {
            let request = request.clone();
            to.requests.push(RequestKey { resource: self.key.clone(), holder: self.holder.clone(), request });
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// Must be greater than the stored one under the same token.
    pub sequence: u64,
    pub document: Document,
}

/// A hand-over of a held resource to its next holder (rule 16).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    pub key: ResourceKey,
    /// A fresh id, which the grant will have.
    pub lease: LeaseId,
    /// The next holder's session.
    pub to: SessionId,
    /// The pending lease lapses after this time.
    pub within_ms: u64,
    /// Data that the caller's layer keeps with the lease; opaque.
    pub attributes: Document,
    /// The most resources of this tenant and kind that may be pending at a time, this one included: the move budget.
    pub budget: Option<u32>,
    /// The token of the lease that placement says should move there: as long as that is the present one, its key need
    /// not agree.
    pub planned: Option<Token>,
}

impl HandOver {
    /// A hand-over requested by a caller that may act for the present holder.
    pub fn new(key: ResourceKey, lease: LeaseId, to: SessionId, within_ms: u64) -> Self {
        Self { key, lease, to, within_ms, attributes: Document::default(), budget: None, planned: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    pub site: Option<Name>,
    /// The most leases that it may hold.
    pub capacity: Option<u32>,
    /// What it says about itself; opaque.
    pub attributes: Document,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// A fresh id, which the session will have.
    pub id: SessionId,
    pub holder: HolderKey,
    /// How long a heartbeat keeps it alive.
    pub ttl_ms: u64,
    /// A former session of the same holder to close at once.
    pub replace: Option<SessionId>,
    /// Whether the replaced session is known to be fenced off (rule 12).
    pub fenced: bool,
    /// The last session of the process that asks, which comes back: refused if its holder has another live one by now.
    pub follows: Option<SessionId>,
    /// Also registers the holder.
    pub registration: Option<Registration>,
    /// What it reports about itself; opaque.
    pub metrics: Option<Document>,
}

/// Whose wish a status is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusBy {
    Operator,
    /// The holder's own: of its present session, if it names one. It does not end its maintenance.
    Itself(Option<SessionId>),
}

/// What a written record may replace, so that a read-modify-write cannot undo a concurrent write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Anything, or nothing.
    Anything,
    /// Nothing: refused if the record exists.
    Nothing,
    /// Exactly this document: refused if another one was written in the meantime.
    Document(Document),
}

/// One command. Every command is decided by [`crate::decide()`], expiry included (rule 11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Acquire(Acquire),
    /// Acquire several resources: all of them, or none. None is waited for.
    AcquireAll(Vec<Acquire>),
    /// Renew a lease, by renewing the session that it is attached to (rule 9).
    Renew {
        claim: Claim,
        /// A new time to live, for a lease with a session of its own.
        ttl_ms: Option<u64>,
        /// Statistics from the holder; opaque.
        stats: Option<Document>,
    },
    Release {
        claim: Claim,
        /// The final state for the next holder.
        state: Option<StateWrite>,
    },
    /// End another holder's lease. If the resource is free and the old holder is fenced off, end its hold-back.
    Revoke {
        claim: Claim,
        /// Whether the old holder is known to be fenced off, so that there is no need to wait for its deadline (rule
        /// 12).
        fenced: bool,
        reason: Option<String>,
    },
    /// Spend a request id, whether or not it was seen before (rule 7). If it has a live grant, that is released. A key
    /// may cancel a bounded number of requests that were not seen.
    CancelRequest(RequestKey),
    /// Leave the line for a resource. If the grant was already made, the answer is the grant, and it stands.
    LeaveQueue {
        key: ResourceKey,
        /// The id that the grant would have had.
        lease: LeaseId,
    },
    /// Write the state document under a live token.
    WriteState {
        claim: Claim,
        write: StateWrite,
    },
    /// Offer a held resource to the next holder's session (rule 16).
    HandOver(HandOver),
    /// The sweeper's nomination: this grant, or a pending lease, seems to have expired.
    Expire {
        key: ResourceKey,
    },
    /// Open a session: its holder's former one is superseded (rule 13).
    OpenSession(OpenSession),
    /// Open a waiting room: a replica's own session, to which its clients' places in line are attached (rule 15).
    OpenRoom {
        /// A fresh id, which the room will have.
        id: SessionId,
        /// How long a heartbeat keeps it alive.
        ttl_ms: u64,
    },
    /// Keep a session and everything that is attached to it alive.
    Heartbeat {
        /// The tenant that the session must belong to.
        tenant: Name,
        session: SessionId,
        /// The name of its holder, if that is to be checked.
        holder: Option<Name>,
        /// What it reports about itself; opaque.
        metrics: Option<Document>,
    },
    /// Close a session: every lease that is attached to it is released.
    CloseSession {
        /// The tenant that the session must belong to.
        tenant: Name,
        session: SessionId,
    },
    /// The sweeper's nomination: this session seems to have expired with nothing attached to it.
    ExpireSession(SessionId),
    /// A heartbeat by name updates the registry only (rule 6).
    HeardOf {
        holder: HolderKey,
        /// What it reports about itself; opaque.
        metrics: Option<Document>,
    },
    SetStatus {
        holder: HolderKey,
        status: HolderStatus,
        by: StatusBy,
    },
    /// Remove a holder and end its session. What is attached to the session is released if the session is named; by the
    /// holder's name alone, which is no proof (rule 6), it is revoked and held back (rule 12).
    RemoveHolder {
        holder: HolderKey,
        /// Its present session, as proof that the holder itself asks.
        session: Option<SessionId>,
    },
    Declare {
        key: ResourceKey,
        declaration: Declaration,
        /// Refuse if it is already declared.
        only_new: bool,
    },
    Delete {
        key: ResourceKey,
        /// Delete it even if it is held: the lease is revoked.
        force: bool,
        /// Whether the old holder is known to be fenced off: nothing is held back then, also if it was before.
        fenced: bool,
    },
    /// Tell the watchers of a resource that something beside it has changed that applies to it. No row changes.
    NoteConfig {
        key: ResourceKey,
        /// What has changed; opaque.
        details: Document,
    },
    PutRecord {
        record: Record,
        over: Over,
    },
    RemoveRecord {
        collection: Name,
        id: Name,
    },
    /// Continue revisions, and so tokens, above this one.
    RaiseRevision {
        /// The next event gets a greater revision than this.
        above: Revision,
    },
}

/// The rows that commands may read or change, which an engine locks and loads for them.
///
/// With a resource an engine loads all of its slots that are taken, and with a slot its resource (rule 29). Then it
/// loads, for each of them, the sessions that its lease and its pending lease are attached to,
/// and for each holder its present session. For each resource that has a line it loads the first
/// [`WAITERS_LOADED`](crate::limits::WAITERS_LOADED) waiters, and those of the named requests; with each waiter its
/// room and its session. More of a line is loaded when [`FoundLate`](crate::ledger::FoundLate) asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    pub resources: Vec<ResourceKey>,
    /// Resources by a lease that is on them.
    pub leases: Vec<LeaseId>,
    pub sessions: Vec<SessionId>,
    /// Sessions by id, with their holders, all resources that are attached to them, and the first
    /// [`SESSION_WAITERS_LOADED`](crate::limits::SESSION_WAITERS_LOADED) waiters on them with their resources.
    pub whole_sessions: Vec<SessionId>,
    /// Holders by name, with their present sessions.
    pub holders: Vec<HolderKey>,
    /// Holders by name, with their present sessions as [`Self::whole_sessions`].
    pub whole_holders: Vec<HolderKey>,
    /// Holders by name, with all resources that they hold. Only for commands that may make events.
    pub holdings: Vec<HolderKey>,
    /// Spent requests.
    pub requests: Vec<RequestKey>,
    /// All requests of a holder for a resource that were cancelled before they were seen.
    pub cancelled: Vec<Requester>,
    /// Waiters by the resource that they wait for and the id that their grant will have.
    pub waiters: Vec<(ResourceKey, LeaseId)>,
    /// Records by collection and id.
    pub records: Vec<(Name, Name)>,
    /// Tenants and kinds whose pending leases are counted (rule 16).
    pub moves: Vec<(Name, Name)>,
}

impl Footprint {
    fn target(&mut self, target: &Target) {
        match target {
            Target::Resource(key) => self.resources.push(key.clone()),
            Target::Lease { id, .. } => self.leases.push(*id),
        }
    }
}

impl Command {
    /// Its name in snake case, the same in metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::AcquireAll(_) => "acquire_all",
            Self::Renew { .. } => "renew",
            Self::Release { .. } => "release",
            Self::Revoke { .. } => "revoke",
            Self::CancelRequest(_) => "cancel_request",
            Self::LeaveQueue { .. } => "leave_queue",
            Self::WriteState { .. } => "write_state",
            Self::HandOver(_) => "hand_over",
            Self::Expire { .. } => "expire",
            Self::OpenSession(_) => "open_session",
            Self::OpenRoom { .. } => "open_room",
            Self::Heartbeat { .. } => "heartbeat",
            Self::CloseSession { .. } => "close_session",
            Self::ExpireSession(_) => "expire_session",
            Self::HeardOf { .. } => "heard_of",
            Self::SetStatus { .. } => "set_status",
            Self::RemoveHolder { .. } => "remove_holder",
            Self::Declare { .. } => "declare",
            Self::Delete { .. } => "delete",
            Self::NoteConfig { .. } => "note_config",
            Self::PutRecord { .. } => "put_record",
            Self::RemoveRecord { .. } => "remove_record",
            Self::RaiseRevision { .. } => "raise_revision",
        }
    }

    /// Whether it may make events. A command that cannot is decided without taking the clock's row: renewals are most
    /// of the traffic, and no event (rule 19).
    pub fn may_make_news(&self) -> bool {
        !matches!(self, Self::Renew { .. } | Self::Heartbeat { .. } | Self::HeardOf { .. })
    }

    /// The ttl that it asks for, if any.
    pub fn asked_ttl_ms(&self) -> Option<u64> {
        match self {
            Self::AcquireAll(all) => all.iter().filter_map(Acquire::asked_ttl_ms).max(),
            Self::Acquire(ask) => ask.asked_ttl_ms(),
            Self::OpenSession(OpenSession { ttl_ms, .. }) => Some(*ttl_ms),
            Self::Renew { ttl_ms, .. } => *ttl_ms,
            _ => None,
        }
    }

    /// Adds the rows that it may read or change to `to`.
    pub fn footprint(&self, to: &mut Footprint) {
        match self {
            Self::Acquire(ask) => ask.footprint(to),
            Self::AcquireAll(all) => all.iter().for_each(|ask| ask.footprint(to)),
            Self::Renew { claim, .. }
            | Self::Release { claim, .. }
            | Self::Revoke { claim, .. }
            | Self::WriteState { claim, .. } => to.target(&claim.target),
            Self::CancelRequest(request) => {
                to.resources.push(request.resource.clone());
                to.requests.push(request.clone());
                to.cancelled.push(Requester::of(request));
            }
            Self::LeaveQueue { key, lease } => {
                to.resources.push(key.clone());
                to.waiters.push((key.clone(), *lease));
            }
            Self::HandOver(ask) => {
                to.resources.push(ask.key.clone());
                to.sessions.push(ask.to);
                to.moves.push((ask.key.tenant.clone(), ask.key.kind.clone()));
            }
            Self::Expire { key }
            | Self::Declare { key, .. }
            | Self::Delete { key, .. }
            | Self::NoteConfig { key, .. } => to.resources.push(key.clone()),
            Self::OpenSession(OpenSession { id, holder, replace, .. }) => {
                to.sessions.push(*id);
                to.holders.push(holder.clone());
                to.whole_sessions.extend(*replace);
            }
            Self::OpenRoom { id, .. } => to.sessions.push(*id),
            Self::Heartbeat { session, .. } => to.sessions.push(*session),
            Self::CloseSession { session, .. } | Self::ExpireSession(session) => {
                to.whole_sessions.push(*session)
            }
            Self::HeardOf { holder, .. } | Self::SetStatus { holder, .. } => to.holders.push(holder.clone()),
            Self::RemoveHolder { holder, session } => {
                to.whole_holders.push(holder.clone());
                to.sessions.extend(*session);
            }
            Self::PutRecord { record, .. } => to.records.push(record.key()),
            Self::RemoveRecord { collection, id } => to.records.push((collection.clone(), id.clone())),
            Self::RaiseRevision { .. } => {}
        }
    }
}
