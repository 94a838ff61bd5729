//! What can be asked of the lease machine.

use serde::{Deserialize, Serialize};

use crate::{
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::Declaration,
    record::Record,
    session::HolderStatus,
    time::{Revision, Token},
};

/// Which lease is meant: by the resource that it is on, or by its own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The lease on this resource.
    Resource(ResourceKey),
    /// The lease of this id, if it is one of this tenant's.
    Lease {
        /// Whose lease it must be.
        tenant: Name,
        /// Its id.
        id: LeaseId,
    },
}

/// A lease, and what its holder shows to prove that it is the one meant (rule 6). All that is given must match. A lease
/// id in the target is proof; so is a token or a session; a holder's name alone is the weaker promise of the seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Which lease.
    pub target: Target,
    /// Its token.
    pub token: Option<Token>,
    /// The session that it hangs on.
    pub session: Option<SessionId>,
    /// The name of its holder.
    pub holder: Option<Name>,
}

/// What keeps a lease that is asked for alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedTenure {
    /// A session of its own with this time to live.
    Own {
        /// Its time to live.
        ttl_ms: u64,
    },
    /// This session, which must be the holder's and live.
    Session(SessionId),
}

/// What to do with a resource that nobody declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undeclared {
    /// It does not exist.
    Refuse,
    /// It exists for as long as someone holds it.
    Allow,
}

/// A wish to wait in line while a resource is not free (rule 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The waiting room of the replica that the client is connected to.
    pub room: SessionId,
    /// For how long.
    pub wait_ms: u64,
}

/// An acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquire {
    /// The resource.
    pub key: ResourceKey,
    /// The id that the grant gets, if it is granted; fresh.
    pub lease: LeaseId,
    /// Who asks.
    pub holder: Name,
    /// What will keep it alive.
    pub tenure: AskedTenure,
    /// The client's name for this request.
    pub request: Option<Name>,
    /// What the adapter keeps with the lease.
    pub attributes: Document,
    /// Whether an undeclared resource is refused.
    pub undeclared: Undeclared,
    /// Whether to wait in line while it is not free; refused otherwise.
    pub wait: Option<Wait>,
}

/// A write of the hand-over document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateWrite {
    /// Must be above the stored one under the same token.
    pub sequence: u64,
    /// The document.
    pub document: Document,
}

/// A holder's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Where it is.
    pub site: Option<Name>,
    /// How many leases it may hold.
    pub capacity: Option<u32>,
    /// What it says of itself.
    pub attributes: Document,
}

/// An opening of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSession {
    /// The id that the session gets; fresh.
    pub id: SessionId,
    /// Whose session.
    pub holder: HolderKey,
    /// How long a heartbeat keeps it.
    pub ttl_ms: u64,
    /// Close this former session of the same holder at once.
    pub replace: Option<SessionId>,
    /// Whether what the replaced session held is known to be fenced off (rule 12).
    pub fenced: bool,
    /// Register the holder, too.
    pub registration: Option<Registration>,
    /// What it tells of itself.
    pub metrics: Option<Document>,
}

/// What a record that is written may take the place of: a reader that changes what it read must not undo what another
/// has written meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Whatever is there, or nothing.
    Anything,
    /// Nothing: refused if it exists already.
    Nothing,
    /// Just this document: refused if another one was written meanwhile.
    Document(Document),
}

/// One thing asked. Every one is decided by [`crate::decide()`], expiry included (rule 11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Hold a resource.
    Acquire(Acquire),
    /// Keep a lease, by renewing the session that it hangs on (rule 9).
    Renew {
        /// Which lease.
        claim: Claim,
        /// A new time to live, for a lease with a session of its own.
        ttl_ms: Option<u64>,
        /// What the holder tells.
        stats: Option<Document>,
    },
    /// Let go.
    Release {
        /// Which lease.
        claim: Claim,
        /// The last word for the next holder.
        state: Option<StateWrite>,
    },
    /// End someone's lease.
    Revoke {
        /// Which lease.
        claim: Claim,
        /// Whether the old holder is known to be fenced off, so that nobody need wait for its deadline (rule 12).
        fenced: bool,
        /// Why, in words.
        reason: Option<String>,
    },
    /// Spend a request id, seen or not (rule 7). A live grant that it got is released.
    CancelRequest(RequestKey),
    /// Leave the line for a resource. Whoever has got it already is told so, and keeps it.
    LeaveQueue {
        /// The resource.
        key: ResourceKey,
        /// The id that the grant would have.
        lease: LeaseId,
    },
    /// Write the hand-over document under a live token.
    WriteState {
        /// Which lease.
        claim: Claim,
        /// What to write.
        write: StateWrite,
    },
    /// Offer a held resource to the next holder's session (rule 16).
    HandOver {
        /// The resource.
        key: ResourceKey,
        /// The id that the grant gets; fresh.
        lease: LeaseId,
        /// The next holder's session.
        to: SessionId,
        /// The pending lease lapses after this time.
        within_ms: u64,
        /// What the adapter keeps with the lease.
        attributes: Document,
    },
    /// The sweeper's nomination: the time of this grant, or of a pending lease, seems to have run out.
    Expire {
        /// The resource.
        key: ResourceKey,
    },
    /// Open a session: its holder's former one is superseded (rule 13).
    OpenSession(OpenSession),
    /// Open a waiting room: a replica's own session, on which its clients' places in line hang (rule 15).
    OpenRoom {
        /// The id that the room gets; fresh.
        id: SessionId,
        /// How long a heartbeat keeps it.
        ttl_ms: u64,
    },
    /// Keep a session and everything that hangs on it.
    Heartbeat {
        /// Whose session it must be, or one of that tenant's.
        tenant: Name,
        /// Which session.
        session: SessionId,
        /// The name that its holder goes by, when it is to be checked.
        holder: Option<Name>,
        /// What it tells of itself.
        metrics: Option<Document>,
    },
    /// Close a session: everything that hangs on it is released.
    CloseSession {
        /// Whose session it must be.
        tenant: Name,
        /// Which session.
        session: SessionId,
    },
    /// The sweeper's nomination: this session is dead and nothing hangs on it.
    ExpireSession(SessionId),
    /// A heartbeat by name updates the registry only (rule 6).
    HeardOf {
        /// Who.
        holder: HolderKey,
        /// What it tells of itself.
        metrics: Option<Document>,
    },
    /// Say what is wanted of a registered holder.
    SetStatus {
        /// Who.
        holder: HolderKey,
        /// What is wanted.
        status: HolderStatus,
    },
    /// Remove a holder and end its session. What is attached to the session is released if the session is named; by the
    /// holder's name alone, which is no proof (rule 6), it is revoked and held back (rule 12).
    RemoveHolder {
        /// Who.
        holder: HolderKey,
        /// Its present session, as proof that this is the holder's own word.
        session: Option<SessionId>,
    },
    /// Declare a resource.
    Declare {
        /// The resource.
        key: ResourceKey,
        /// What is said of it.
        declaration: Declaration,
        /// Refuse if it is declared already.
        only_new: bool,
    },
    /// Remove a resource.
    Delete {
        /// The resource.
        key: ResourceKey,
        /// Even if it is held: the lease is revoked.
        force: bool,
        /// Whether the old holder is known to be fenced off.
        fenced: bool,
    },
    /// Write a record.
    PutRecord {
        /// The record.
        record: Record,
        /// What it may take the place of.
        over: Over,
    },
    /// Remove a record.
    RemoveRecord {
        /// Its collection.
        collection: Name,
        /// Its name there.
        id: Name,
    },
    /// Let revisions, and so tokens, go on from above this one.
    RaiseRevision {
        /// The next event gets a revision above this.
        above: Revision,
    },
}

/// The rows that commands may read or change, which an engine locks and loads for them.
///
/// Beside what is named here an engine loads, for each resource, the sessions that its lease and its pending lease hang
/// on, and for each holder its present session. For each resource that has a line it loads the first
/// [`WAITERS_LOADED`](crate::limits::WAITERS_LOADED) waiters, and those of the named requests; with each waiter its room
/// and its session. More of a line is loaded when [`FoundLate`](crate::ledger::FoundLate) asks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Resources by key.
    pub resources: Vec<ResourceKey>,
    /// Resources by a lease that is on them.
    pub leases: Vec<LeaseId>,
    /// Sessions by id.
    pub sessions: Vec<SessionId>,
    /// Sessions by id, with their holders, all resources that hang on them, and the first
    /// [`SESSION_WAITERS_LOADED`](crate::limits::SESSION_WAITERS_LOADED) waiters on them with their resources.
    pub whole_sessions: Vec<SessionId>,
    /// Holders by name, with their present sessions.
    pub holders: Vec<HolderKey>,
    /// Holders by name, with their present sessions as [`Self::whole_sessions`].
    pub whole_holders: Vec<HolderKey>,
    /// Spent requests.
    pub requests: Vec<RequestKey>,
    /// Waiters by the resource that they wait for and the id that their grant will have.
    pub waiters: Vec<(ResourceKey, LeaseId)>,
    /// Records by collection and id.
    pub records: Vec<(Name, Name)>,
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
            Self::Renew { .. } => "renew",
            Self::Release { .. } => "release",
            Self::Revoke { .. } => "revoke",
            Self::CancelRequest(_) => "cancel_request",
            Self::LeaveQueue { .. } => "leave_queue",
            Self::WriteState { .. } => "write_state",
            Self::HandOver { .. } => "hand_over",
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
            Self::PutRecord { .. } => "put_record",
            Self::RemoveRecord { .. } => "remove_record",
            Self::RaiseRevision { .. } => "raise_revision",
        }
    }

    /// Whether it may make events. One that cannot is decided without taking the clock's row: renewals are most of the
    /// traffic and nobody's news (rule 19).
    pub fn may_make_news(&self) -> bool {
        !matches!(self, Self::Renew { .. } | Self::Heartbeat { .. } | Self::HeardOf { .. })
    }

    /// The ttl that it asks for, if it asks for one.
    pub fn asked_ttl_ms(&self) -> Option<u64> {
        match self {
            Self::Acquire(Acquire { tenure: AskedTenure::Own { ttl_ms }, .. })
            | Self::OpenSession(OpenSession { ttl_ms, .. }) => Some(*ttl_ms),
            Self::Renew { ttl_ms, .. } => *ttl_ms,
            _ => None,
        }
    }

    /// Adds the rows that it may read or change to `to`.
    pub fn footprint(&self, to: &mut Footprint) {
        match self {
            Self::Acquire(a) => {
                to.resources.push(a.key.clone());
                if let AskedTenure::Session(id) = a.tenure {
                    to.sessions.push(id);
                }
                if let Some(wait) = a.wait {
                    to.sessions.push(wait.room);
                    to.waiters.push((a.key.clone(), a.lease));
                }
                if let Some(request) = &a.request {
                    let request = request.clone();
                    to.requests.push(RequestKey {
                        resource: a.key.clone(),
                        holder: a.holder.clone(),
                        request,
                    });
                }
            }
            Self::Renew { claim, .. }
            | Self::Release { claim, .. }
            | Self::Revoke { claim, .. }
            | Self::WriteState { claim, .. } => to.target(&claim.target),
            Self::CancelRequest(request) => {
                to.resources.push(request.resource.clone());
                to.requests.push(request.clone());
            }
            Self::LeaveQueue { key, lease } => {
                to.resources.push(key.clone());
                to.waiters.push((key.clone(), *lease));
            }
            Self::HandOver { key, to: session, .. } => {
                to.resources.push(key.clone());
                to.sessions.push(*session);
            }
            Self::Expire { key } | Self::Declare { key, .. } | Self::Delete { key, .. } => {
                to.resources.push(key.clone());
            }
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
