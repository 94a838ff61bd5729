//! The real decisions, over all rows of a small store.

use std::{
    hash::{Hash, Hasher},
    sync::LazyLock,
};

use solehold_core::{
    apply,
    command::{Acquire, AskedTenure, Claim, Command, OpenSession, Target, Undeclared, Wait},
    decide,
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{self, Resource},
    ledger::Ledger,
    limits,
    outcome::{Answer, Grant, Refusal},
    time::{Moment, Revision, StoreTime, Token},
};
use uuid::Uuid;

use crate::{
    authority::{Call, Held},
    message::{Ask, GrantId, Process, Reply, Shown},
    scope::{Scope, Tenure},
    variant::Variant,
};

/// The rows, and the last revision given.
#[derive(Debug, Clone)]
pub struct EngineRows {
    ledger: Ledger,
    revision: Revision,
}

/// The room that waiters wait in.
const ROOM: SessionId = SessionId(Uuid::from_u128(1 << 64));
/// Longer than anything in a scope.
const LATER_MS: u64 = 2 * limits::REQUEST_KEPT_MS;

impl EngineRows {
    pub fn new(scope: &Scope) -> Self {
        let mut rows = Self { ledger: Ledger::default(), revision: Revision(0) };
        if scope.waits {
            let opened = rows.run(Command::OpenRoom { id: ROOM, ttl_ms: limits::TTL_MS_MAX }, 0);
            debug_assert!(opened.is_ok(), "{opened:?}");
        }
        rows
    }

    /// Decides and applies.
    fn run(&mut self, command: Command, now_ms: u64) -> Result<Answer, Refusal> {
        let moment = Moment { now: StoreTime(now_ms), revision: self.revision };
        let decision = decide(&self.ledger, &command.into(), moment);
        let decision =
            decision.unwrap_or_else(|late| unreachable!("all rows are loaded, and {late:?} was missing"));
        for change in &decision.changes {
            apply(&mut self.ledger, change);
        }
        self.ledger.take_dirty();
        self.revision = decision.moment.revision;
        decision.outcome
    }

    pub fn decide(&mut self, call: &Call, now_ms: u64, scope: &Scope, variant: Variant) -> Reply {
        match self.run(command(call, scope, variant), now_ms) {
            Ok(Answer::Granted(grant)) => {
                let lease = &grant.lease.lease;
                Reply::Granted { token: lease.token.0, left_ms: left_ms(&grant), grant: grant_id(lease.id) }
            }
            Ok(Answer::Renewed(grant)) => Reply::Renewed { left_ms: left_ms(&grant) },
            Ok(Answer::Waiting(_)) => Reply::Waiting,
            Ok(Answer::Session(_)) => Reply::Opened,
            Ok(_) => Reply::Done,
            Err(
                Refusal::Lost { .. }
                | Refusal::NoSession { .. }
                | Refusal::NoResource(_)
                | Refusal::NotYours { .. },
            ) => Reply::Lost,
            Err(_) => Reply::Refused,
        }
    }

    fn resource(&self) -> Option<&Resource> {
        self.ledger.resource(&key())
    }

    /// The lease that there is.
    pub fn held(&self) -> Option<Held> {
        let lease = self.resource()?.lease.as_ref()?;
        let deadline = self.ledger.deadline_of(lease);
        let dead_from_ms = deadline.unwrap_or_else(|late| unreachable!("{late:?} is loaded")).0;
        Some(Held { shown: Shown { token: lease.token.0, grant: grant_id(lease.id) }, dead_from_ms })
    }

    pub fn is_held_back(&self, now_ms: u64) -> bool {
        let held_back_until = self.resource().and_then(|resource| resource.held_back_until);
        held_back_until.is_some_and(|until| now_ms < until.0)
    }

    pub fn is_free_in_the_end(&self, now_ms: u64) -> bool {
        let mut later = self.clone();
        let from = Process { client: u8::MAX, life: 0 };
        let ask = Ask::Acquire { request: 1, attempt: 0 };
        let call = Call { from, sent: solehold_clock::BootTime::from_nanos(0), ask };
        let scope = Scope::new(Tenure::Own);
        matches!(later.decide(&call, now_ms + LATER_MS, &scope, Variant::Sound), Reply::Granted { .. })
    }
}

/// What no decision reads is left out: when a row was made, and what was reported about it.
impl Hash for EngineRows {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.revision.hash(state);
        for resource in self.ledger.resources() {
            resource.last_token.hash(state);
            resource.held_back_until.hash(state);
            resource.queued.hash(state);
            if let Some(lease) = &resource.lease {
                (lease.id, lease.token, lease.confirm_by, &lease.request).hash(state);
                match lease.tenure {
                    lease::Tenure::Own { ttl_ms, deadline } => (ttl_ms, deadline).hash(state),
                    lease::Tenure::Session(id) => id.hash(state),
                }
            }
        }
        for session in self.ledger.sessions() {
            let standing = session.standing as u8;
            (session.id, session.deadline, standing, session.lease_count, session.waiting).hash(state);
        }
        for waiter in self.ledger.waiters() {
            (waiter.arrival, waiter.lease, waiter.deadline, &waiter.request).hash(state);
        }
        for (request, spent) in self.ledger.requests() {
            (&request.holder, &request.request, spent.until, spent.cancelled).hash(state);
        }
    }
}

fn left_ms(grant: &Grant) -> u64 {
    grant.lease.ttl_left_ms()
}

fn command(call: &Call, scope: &Scope, variant: Variant) -> Command {
    let Call { from, ask, .. } = *call;
    let holder = numbered(scope.name_of(from.client));
    let by_token = |token| claim(Some(Token(token)), None);
    match ask {
        Ask::Acquire { request, attempt } => Command::Acquire(Acquire {
            key: key(),
            lease: LeaseId::new(&key(), id(from, request, attempt)),
            holder,
            tenure: match scope.tenure {
                Tenure::Own => AskedTenure::Own { ttl_ms: Scope::TTL_MS },
                Tenure::Session => AskedTenure::Session(session(from)),
            },
            request: Some(request_name(from, request)),
            attributes: Document::default(),
            undeclared: Undeclared::Allow,
            wait: scope.waits.then_some(Wait { room: ROOM, wait_ms: Scope::WAIT_MS }),
            slots: None,
            holds_at_most: None,
        }),
        Ask::Renew(Shown { token, .. }) => {
            Command::Renew { claim: by_token(token), ttl_ms: None, stats: None }
        }
        Ask::Release(_) if variant == Variant::ReleaseByName => {
            Command::Release { claim: claim(None, Some(holder)), state: None }
        }
        Ask::Release(Shown { token, .. }) => Command::Release { claim: by_token(token), state: None },
        Ask::Cancel { request } => Command::CancelRequest(RequestKey {
            resource: key(),
            holder,
            request: request_name(from, request),
        }),
        Ask::OpenSession => Command::OpenSession(OpenSession {
            id: session(from),
            holder: HolderKey { tenant: name("acme"), name: holder },
            ttl_ms: Scope::TTL_MS,
            replace: None,
            fenced: false,
            follows: None,
            registration: None,
            metrics: None,
        }),
        Ask::Revoke => {
            let fenced = variant == Variant::RevokeWithoutHoldBack;
            Command::Revoke { claim: claim(None, None), fenced, reason: None }
        }
        Ask::Expire { .. } => Command::Expire { key: key() },
        Ask::Advance(_) | Ask::LookUp | Ask::Mark => {
            unreachable!("{ask} is a request of another design")
        }
    }
}

fn claim(token: Option<Token>, holder: Option<Name>) -> Claim {
    Claim { target: Target::Resource(key()), token, session: None, holder }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|error| unreachable!("{text} is a name: {error}"))
}

fn key() -> ResourceKey {
    static KEY: LazyLock<ResourceKey> =
        LazyLock::new(|| ResourceKey::new(name("acme"), name("job"), name("nightly")));
    KEY.clone()
}

/// A name for each number, of a holder or of a request.
fn numbered(number: u8) -> Name {
    static NAMES: LazyLock<Vec<Name>> =
        LazyLock::new(|| (0..=u8::MAX).map(|n| name(&format!("number-{n}"))).collect());
    NAMES[usize::from(number)].clone()
}

/// A client's own name for a request, which no other client uses.
fn request_name(from: Process, request: u8) -> Name {
    numbered(from.client.wrapping_mul(16) + request)
}

/// An id of its own for each session and each attempt.
fn id(process: Process, request: u8, attempt: u8) -> Uuid {
    let [client, life] = [process.client, process.life];
    Uuid::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, client, life, request, attempt])
}

/// The part of a lease's id that [`id`] has made.
fn grant_id(lease: LeaseId) -> GrantId {
    let [.., client, life, request, attempt] = *lease.0.as_bytes();
    GrantId::from_be_bytes([client, life, request, attempt])
}

fn session(process: Process) -> SessionId {
    SessionId(id(process, u8::MAX, 0))
}
