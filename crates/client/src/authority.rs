//! The side that decides who holds what: a Solehold server, or the engine in this process. Same guards, same rules.
//!
//! A refusal is an outcome and says what the caller needs to know; an error means that the outcome is unknown, or that
//! the authority was not reached (rule 8).

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
/// A live session, and how its node is doing.
pub use solehold_api::sessions::Node;
use solehold_api::{
    field::FieldError,
    problem::{ErrorCode, Limit, Problem},
    watch::Cursor,
};
use solehold_core::{
    key::{LeaseId, Name, NameError, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

use crate::news::{News, Newsroom};

/// What was answered: done, refused, or unknown.
pub type Reply<T> = Result<Result<T, RefusalReason>, AuthorityError>;

/// The kind of a lock among resources. Locks are not declared.
pub const LOCK_KIND: &str = "lock";

/// A thing that one holder at a time may work on. The authority knows its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName {
    pub kind: Name,
    pub key: Name,
}

impl ResourceName {
    /// Checks both names.
    ///
    /// ```
    /// use solehold_client::ResourceName;
    ///
    /// assert_eq!(ResourceName::new("job", "nightly")?.to_string(), "job/nightly");
    /// assert_eq!(ResourceName::new("job", "").expect_err("empty").to_string(), "the key is empty; a name has 1 to 255 bytes");
    /// # Ok::<(), solehold_client::BadName>(())
    /// ```
    pub fn new(kind: impl AsRef<str>, key: impl AsRef<str>) -> Result<Self, BadName> {
        Ok(Self { kind: checked("kind", kind)?, key: checked("key", key)? })
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.key)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} {why}")]
pub struct BadName {
    what: &'static str,
    why: NameError,
}

pub(crate) fn checked(what: &'static str, text: impl AsRef<str>) -> Result<Name, BadName> {
    Name::new(text).map_err(|why| BadName { what, why })
}

/// An acquire. The lease will be attached to the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    pub resource: ResourceName,
    pub holder: Name,
    /// The session that keeps the lease.
    pub session: SessionId,
    /// The client's own name for this acquire: a repeat gets the same grant, never a second one (rule 7).
    pub request: Name,
    /// Kept with the lease, for people and other programs.
    pub attributes: Attributes,
    /// Share the resource: one of this many slots. None for an exclusive lease (rule 29).
    pub slots: Option<u32>,
}

/// A lease that is held, as its holder proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    pub resource: ResourceName,
    /// The identity of the grant.
    pub lease: LeaseId,
    pub token: Token,
    /// Which of the slots of a shared resource it is on; none for an exclusive lease.
    pub slot: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StateWrite {
    /// Above the stored one under the same token (rule 17).
    pub sequence: u64,
    /// What the next holder gets.
    pub document: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StateDocument {
    pub document: Value,
    /// The token that it was written under.
    pub token: Token,
    /// Grows with each write under one token.
    pub sequence: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Opening {
    /// The caller's choice: a repeat, even one that arrives after others, finds the session instead of opening another
    /// that supersedes it.
    pub id: SessionId,
    pub holder: Name,
    /// How long a heartbeat keeps it alive.
    pub ttl: Duration,
    /// What it reports about itself.
    pub metrics: Metrics,
    /// The last session that this process had under the name; none at its start. If another one is live by now, the
    /// opening is refused instead of superseding it (rule 13).
    pub follows: Option<SessionId>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    Acquire(AcquireRequest),
    /// Renew a lease, and with it the session that it is attached to.
    Renew(HeldLease),
    Release {
        held: HeldLease,
        /// The last state document, for the next holder.
        state: Option<StateWrite>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Completion {
    /// A lease was granted or renewed.
    Held(GrantedLease),
    Released,
}

/// A lease as its holder learns of it.
#[derive(Debug, Clone, PartialEq)]
pub struct GrantedLease {
    pub held: HeldLease,
    /// How long it has left, by the authority.
    pub ttl_left: Duration,
    /// How far the store's clock may run ahead of the holder's unnoticed.
    pub slack: Duration,
    /// The epoch of the store's history that it belongs to, if the authority says.
    pub epoch: Option<u64>,
    /// What the former holder left.
    pub state: Option<StateDocument>,
    /// It was granted to a waiter and lapses unless it is renewed within this time (rule 15).
    pub confirm_within: Option<Duration>,
}

/// The holder of a lease is asked to release it, for the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOver {
    pub to: String,
    /// How long the next holder waits. After that the present one keeps the lease.
    pub within: Duration,
}

/// The answer when a session was opened or renewed: everything attached to it, as of a revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    pub session: SessionId,
    /// How long it has left, by the authority.
    pub ttl_left: Duration,
    /// How far the store's clock may run ahead of the holder's unnoticed.
    pub slack: Duration,
    /// The epoch of the store's history that the set belongs to, if the authority says.
    pub epoch: Option<u64>,
    /// The revision of the set: it is never applied over a newer grant (rule 9).
    pub revision: Revision,
    /// Where the store's history stands, sealed by the store, to be shown with the next heartbeat: a store that is
    /// behind it knows that it was set back.
    pub sealed_cursor: Option<String>,
    /// The name of the set, which the next heartbeat may show instead of being given it again; none while it may change
    /// as time passes, and from an authority that names no sets.
    pub set_cursor: Option<Cursor>,
    /// Everything attached to it. It holds nothing else.
    pub leases: Arc<[HeldLease]>,
    /// Which of the leases are asked for by their next holders.
    pub hand_overs: Arc<[(LeaseId, HandOver)]>,
    /// The leases that it will have as soon as their present holders release them.
    pub pending: Arc<[(LeaseId, ResourceName)]>,
}

impl Beat {
    /// This answer to a heartbeat that named the set of `known`, which has not changed: the same leases. None of them
    /// is asked for and nothing is pending, or the set would have had no name.
    pub(crate) fn with_set_of(self, known: &Self) -> Self {
        Self { leases: known.leases.clone(), hand_overs: Arc::from([]), pending: Arc::from([]), ..self }
    }
}

/// Most events that are read to find out which lease came before a grant; only the newest that names a token counts.
pub(crate) const EVENTS_BEFORE_GRANT_MAX: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatAttempt {
    /// How long it may take in all.
    pub within: Duration,
    /// How many heartbeats of the session were sent before it and are not answered.
    pub beside: u32,
    /// No other one will be sent beside it, so it must not depend on one server.
    pub is_alone: bool,
}

impl HeartbeatAttempt {
    /// The only one.
    pub fn within(within: Duration) -> Self {
        Self { within, beside: 0, is_alone: true }
    }
}

/// What a session reports about itself: presence, and how its node is doing.
pub type Metrics = serde_json::Map<String, Value>;
/// Any JSON that is kept with a lease.
pub type Attributes = serde_json::Map<String, Value>;

/// Why the authority refused. Nothing was changed by what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct RefusalReason {
    pub code: ErrorCode,
    /// What happened, to what, and what to do.
    pub detail: String,
    pub holder: Option<Box<str>>,
    /// The token of the present or last grant.
    pub token: Option<Token>,
    /// Asking again before this time has passed is of no use, unless the holder releases it.
    pub retry_after: Option<Duration>,
    pub wrong: Option<Box<WrongRequest>>,
}

/// What was wrong with a request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongRequest {
    pub errors: Vec<FieldError>,
    pub limit: Option<Limit>,
}

impl RefusalReason {
    /// Whether a field of the request was refused.
    pub(crate) fn is_about(&self, field: &str) -> bool {
        self.wrong.as_ref().is_some_and(|wrong| wrong.errors.iter().any(|error| error.field == field))
    }

    /// Whether the session is over: unknown, expired, closed or superseded.
    pub fn ends_session(&self) -> bool {
        matches!(self.code, ErrorCode::NoSession | ErrorCode::SessionSuperseded)
    }

    /// Whether the session is over because someone opened another one under the same name.
    pub fn is_superseded(&self) -> bool {
        self.code == ErrorCode::SessionSuperseded
    }

    /// Whether the lease that was named is not held, or no longer.
    pub fn ends_lease(&self) -> bool {
        matches!(self.code, ErrorCode::Lost | ErrorCode::NotFound | ErrorCode::NotYours)
    }

    /// Whether the same acquire may succeed later.
    pub fn is_worth_another_try(&self) -> bool {
        matches!(self.code, ErrorCode::Held | ErrorCode::HeldBack) || self.ends_session()
    }
}

impl From<Problem> for RefusalReason {
    fn from(problem: Problem) -> Self {
        let is_wrong = !problem.errors.is_empty() || problem.limit.is_some();
        let wrong = WrongRequest { errors: problem.errors, limit: problem.limit };
        Self {
            code: problem.code,
            detail: problem.detail,
            holder: problem.holder.map(String::into_boxed_str),
            token: problem.token.map(Token),
            retry_after: problem.retry_after_ms.map(Duration::from_millis),
            wrong: is_wrong.then(|| Box::new(wrong)),
        }
    }
}

/// What keeps a server from being asked. Of several servers, the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The port speaks TLS and plain HTTP was asked for, or the other way round.
    WrongScheme,
    /// No authority that is known here vouches for the server's certificate.
    Untrusted,
    NoServer,
}

impl Obstacle {
    /// Whether it may pass by itself.
    pub fn may_pass(self) -> bool {
        self == Self::NoServer
    }
}

/// Why there is no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Nothing was done: the authority was not reached.
    #[error("the authority cannot be reached: {why}")]
    Unreachable {
        /// Which servers were asked, and what happened.
        why: String,
        /// Asking again before this time has passed is of no use.
        retry_after: Option<Duration>,
        /// What keeps requests from being answered, where that is known.
        obstacle: Option<Obstacle>,
    },
    /// Nothing was done: the authority was reached, and refuses this client, such as for its key.
    #[error("the authority refuses this client: {why}")]
    Denied {
        why: String,
        /// Asking again before this time has passed is of no use.
        retry_after: Option<Duration>,
    },
    /// It may have been done or not.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

impl AuthorityError {
    /// Nothing was done, and nobody said when to ask again.
    pub(crate) fn unreachable(why: impl Into<String>) -> Self {
        Self::Unreachable { why: why.into(), retry_after: None, obstacle: None }
    }

    /// What keeps requests from being answered, where that is known.
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Unreachable { obstacle, .. } => *obstacle,
            Self::Denied { .. } | Self::Unknown(_) => None,
        }
    }

    pub fn why(&self) -> &str {
        match self {
            Self::Unreachable { why, .. } | Self::Denied { why, .. } | Self::Unknown(why) => why,
        }
    }

    /// How long to wait at least before asking again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unreachable { retry_after, .. } | Self::Denied { retry_after, .. } => *retry_after,
            Self::Unknown(_) => None,
        }
    }
}

/// The side that decides who holds what.
///
/// Every method may be called again after an error: a repeat changes nothing that the first call has changed. A
/// repeated release or [`write_state`](Self::write_state) is refused if the first was done, so neither is repeated by
/// the authority itself where an answer was lost: only the caller that counts its attempts knows what a refusal means.
#[async_trait]
pub trait Authority: Send + Sync + 'static {
    /// Opens a session under that name; the name's former one is superseded.
    async fn open(&self, opening: &Opening) -> Reply<Beat>;

    /// Renews a session, over connections of its own, so that nothing else can delay it. It shows the last cursor that
    /// the store has sealed for this holder. One that is sent beside others that are not answered yet begins with
    /// another server than they did.
    ///
    /// `known` is the newest answer that the holder has taken up. If the set in it is the set still, the authority need
    /// not send it again; the answer that is returned has it either way.
    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat>;

    /// Closes a session: everything attached to it is released.
    async fn close(&self, session: SessionId) -> Reply<()>;

    /// Does many things at once, each decided by itself; one outcome for each, in order.
    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>>;

    /// Acquires, and waits in line for at most `wait`. Asked again with the same request it keeps its place. `None`
    /// means that this authority has no line to wait in.
    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>>;

    /// Spends a request, seen or not: it gets nothing from now on, and what it got is released.
    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()>;

    /// Writes the state document under a lease.
    async fn write_state(&self, held: &HeldLease, write: &StateWrite) -> Reply<()>;

    /// The state document of a resource, if there is one.
    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>>;

    /// The token of the lease that came before the grant with this token, by the history of the resource; none if that
    /// part of the history is no longer kept.
    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>>;

    /// Asks the holder of a resource to hand it over to a session. The answer is the id of the pending lease, which
    /// becomes active, or lapses after `within` (rule 16). A repeat of the same request gets the same.
    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        attributes: &Attributes,
    ) -> Reply<LeaseId>;

    /// Calls a hand-over off, by the id of the pending lease.
    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()>;

    /// Waits until something has happened to one of the sessions, whose sets of leases are known as of these revisions.
    /// `None` means that this authority cannot tell.
    async fn news(
        &self,
        _known: &[(SessionId, Revision)],
        _from: Option<Cursor>,
        _wait: Duration,
    ) -> Option<Result<News, AuthorityError>> {
        None
    }

    /// Where its sessions wait for news together, if it can tell any.
    fn newsroom(&self) -> Option<&Newsroom> {
        None
    }

    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError>;

    /// The longest that one call of [`acquire_waiting`](Self::acquire_waiting) may wait.
    fn wait_max(&self) -> Duration;
}
