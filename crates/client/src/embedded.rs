//! The engine in this process, straight on PostgreSQL, a folder or memory: a service can scale with its database alone.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_api::{
    document::{to_document, to_value},
    problem::Problem,
    watch::Cursor,
};
use solehold_core::{
    call::{Actor, Call},
    command::{self, Acquire, AskedTenure, Claim, Command, OpenSession, Target, Undeclared},
    event::Event,
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease,
    limits::WAIT_MS_MAX,
    outcome::{self, Answer, Outcome, SessionView},
    time::{Revision, Token},
};
use solehold_engine::{
    Engine, EngineError, EngineOptions, open,
    store::{self, EventQuery, HolderQuery, StoreError},
};
use uuid::Uuid;

use crate::{
    authority::{
        AcquireRequest, Attributes, Authority, AuthorityError, Beat, Completion, EVENTS_BEFORE_GRANT_MAX,
        GrantedLease, HandOver, HeartbeatAttempt, HeldLease, Metrics, Node, Opening, Operation,
        RefusalReason, Reply, ResourceName, StateDocument, StateWrite,
    },
    news::{News, Newsroom},
};

/// The tenant of those who name none, as a server without keys has it.
const TENANT_DEFAULT: &str = "default";
const PAGE: usize = 1_000;

/// The engine in this process.
///
/// ```
/// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
/// use std::sync::Arc;
/// use solehold_client::{Embedded, ClientSession, SessionConfig};
///
/// // In real life `postgres://...` or a folder: what is in memory is gone with the process.
/// let authority = Arc::new(Embedded::open("memory:").await?);
/// let session = ClientSession::open(authority, SessionConfig::new("worker-1")).await?;
/// let guard = session.acquire("job", "nightly").await?;
/// assert!(guard.is_live());
/// guard.release().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).expect("it runs");
/// ```
pub struct Embedded {
    engine: Engine,
    tenant: Name,
    actor: Actor,
    newsroom: Newsroom,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").field("engine", &self.engine).field("tenant", &self.tenant).finish()
    }
}

impl Embedded {
    /// Opens `postgres://...` (with the feature `postgres`), a folder (`embedded`), or `memory:`, in the current
    /// runtime.
    pub async fn open(place: &str) -> Result<Self, StoreError> {
        let store = open(place).await?;
        Ok(Self::over(Engine::start(store, EngineOptions::default(), Arc::new(()))))
    }

    /// Over an engine that runs already: a store that needs options is opened by itself.
    pub fn over(engine: Engine) -> Self {
        let tenant = Name::new(TENANT_DEFAULT).expect("a short name");
        Self { engine, tenant, actor: Actor::Unnamed, newsroom: Newsroom::default() }
    }

    /// The same for another tenant.
    #[must_use]
    pub fn tenant(self, tenant: Name) -> Self {
        Self { tenant, ..self }
    }

    /// The same under a key: what it opens and takes belongs to that key (rule 26).
    #[must_use]
    pub fn under(self, actor: Actor) -> Self {
        Self { actor, ..self }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn call(&self, command: Command) -> Call {
        Call::new(command, self.actor.clone())
    }

    /// Stops the engine: what was asked is answered, then the store is closed.
    pub async fn stop(&self) {
        self.engine.stop().await;
    }

    /// How far the store's clock may run ahead of ours unnoticed.
    fn slack(&self) -> Duration {
        Duration::from_millis(self.engine.clock_slack_ms())
    }

    fn key(&self, resource: &ResourceName) -> ResourceKey {
        ResourceKey::new(self.tenant.clone(), resource.kind.clone(), resource.key.clone())
    }

    fn claim(&self, held: &HeldLease) -> Claim {
        let target = Target::Resource(self.key(&held.resource));
        Claim { target, token: Some(held.token), session: None, holder: None }
    }

    fn acquire(&self, ask: &AcquireRequest) -> Result<Acquire, RefusalReason> {
        let key = self.key(&ask.resource);
        Ok(Acquire {
            lease: LeaseId::new(&key, Uuid::new_v4()),
            key,
            holder: ask.holder.clone(),
            tenure: AskedTenure::Session(ask.session),
            request: Some(ask.request.clone()),
            attributes: document("attributes", &ask.attributes)?,
            undeclared: Undeclared::Allow,
            wait: None,
            slots: ask.slots,
            holds_at_most: None,
        })
    }

    fn command(&self, operation: &Operation) -> Result<Command, RefusalReason> {
        Ok(match operation {
            Operation::Acquire(ask) => Command::Acquire(self.acquire(ask)?),
            Operation::Renew(held) => Command::Renew { claim: self.claim(held), ttl_ms: None, stats: None },
            Operation::Release { held, state } => {
                let state = state.as_ref().map(write).transpose()?;
                Command::Release { claim: self.claim(held), state }
            }
        })
    }

    async fn ask(&self, command: Command) -> Reply<Answer> {
        outcome(self.engine.submit(self.call(command)).await)
    }

    /// Everything attached to a session that was just opened or renewed, read unless it is known.
    async fn beat(&self, view: SessionView, known: Option<&Beat>) -> Reply<Beat> {
        let session = &view.session;
        let ttl_left = Duration::from_millis(session.deadline.ms_after(view.now));
        let slack = self.slack();
        let cursor = self.engine.cursor();
        let named = known.and_then(|known| known.set_cursor).map(store_cursor);
        let set = match self.engine.changed_lease_set(&view, named).await.map_err(failed)? {
            Ok(set) => set,
            // It ended in between: an empty set of a live session would be of no moment.
            Err(why) => {
                let over = outcome::Refusal::NoSession { session: session.id, why };
                return Ok(Err(Problem::from_refusal(&over).into()));
            }
        };
        let asked = |lease: outcome::LeaseView| {
            let next = lease.next?;
            let within = Duration::from_millis(next.deadline.ms_after(lease.now));
            Some((lease.lease.id, HandOver { to: next.holder.to_string(), within }))
        };
        let (revision, set_cursor) = match &set {
            Some(set) => (set.revision, set.cursor(cursor.epoch).map(wire_cursor)),
            None => (session.lease_revision, known.and_then(|known| known.set_cursor)),
        };
        let beat = Beat {
            session: session.id,
            ttl_left,
            slack,
            epoch: Some(cursor.epoch),
            revision,
            sealed_cursor: self.engine.seal(cursor),
            set_cursor,
            leases: set.iter().flat_map(|set| set.leases.iter().cloned()).map(held).collect(),
            hand_overs: set.iter().flat_map(|set| set.lasting(&view)).filter_map(asked).collect(),
            pending: set.iter().flat_map(|set| set.lasting_pending(&view)).map(pending).collect(),
        };
        Ok(Ok(match known.filter(|_| set.is_none()) {
            Some(known) => beat.with_set_of(known),
            None => beat,
        }))
    }

    async fn session(&self, command: Command, known: Option<&Beat>) -> Reply<Beat> {
        match self.ask(command).await? {
            Ok(Answer::Session(view)) => self.beat(view, known).await,
            Ok(other) => Err(odd(&other)),
            Err(refusal) => Ok(Err(refusal)),
        }
    }
}

/// A document as core keeps it.
fn document(field: &'static str, value: &impl serde::Serialize) -> Result<Document, RefusalReason> {
    to_document(field, value).map_err(|fault| Problem::from(fault).into())
}

fn write(write: &StateWrite) -> Result<command::StateWrite, RefusalReason> {
    Ok(command::StateWrite { sequence: write.sequence, document: document("state", &write.document)? })
}

fn outcome(answered: Result<Outcome, EngineError>) -> Reply<Answer> {
    match answered {
        Ok(Ok(answer)) => Ok(Ok(answer)),
        Ok(Err(refusal)) => Ok(Err(Problem::from_refusal(&refusal).into())),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: EngineError) -> AuthorityError {
    match error {
        EngineError::Store(StoreError::Unknown(why)) => AuthorityError::Unknown(why),
        EngineError::Store(ref barred @ StoreError::Barred { retry_after_ms }) => {
            AuthorityError::Unreachable {
                why: barred.to_string(),
                retry_after: Some(Duration::from_millis(retry_after_ms)),
                obstacle: None,
            }
        }
        other => AuthorityError::unreachable(other.to_string()),
    }
}

/// The machine answers what it was asked; anything else is a fault of ours, and its outcome unknown.
fn odd(answer: &Answer) -> AuthorityError {
    AuthorityError::Unknown(format!("the engine answered something else: {answer:?}"))
}

fn store_cursor(cursor: Cursor) -> store::Cursor {
    store::Cursor { epoch: cursor.epoch, revision: Revision(cursor.revision) }
}

fn wire_cursor(cursor: store::Cursor) -> Cursor {
    Cursor { epoch: cursor.epoch, revision: cursor.revision.0 }
}

fn held(view: outcome::LeaseView) -> HeldLease {
    let slot = view.key.is_slot().then_some(view.key.slot);
    let resource = ResourceName { kind: view.key.kind, key: view.key.key };
    HeldLease { resource, lease: view.lease.id, token: view.lease.token, slot }
}

fn pending(view: &outcome::PendingView) -> (LeaseId, ResourceName) {
    let kind = view.key.kind.clone();
    let key = view.key.key.clone();
    (view.pending.id, ResourceName { kind, key })
}

fn state(state: lease::StateDocument) -> StateDocument {
    StateDocument { document: to_value(&state.document), token: state.token, sequence: state.sequence }
}

fn granted(grant: outcome::Grant, slack: Duration) -> GrantedLease {
    GrantedLease {
        ttl_left: Duration::from_millis(grant.lease.ttl_left_ms()),
        slack,
        epoch: None,
        state: grant.state.map(state),
        confirm_within: grant.lease.confirm_within_ms().map(Duration::from_millis),
        held: held(grant.lease),
    }
}

fn done(answer: Answer, slack: Duration) -> Result<Completion, AuthorityError> {
    match answer {
        Answer::Granted(grant) | Answer::Renewed(grant) => Ok(Completion::Held(granted(grant, slack))),
        Answer::Released(_) => Ok(Completion::Released),
        other => Err(odd(&other)),
    }
}

#[async_trait]
impl Authority for Embedded {
    async fn open(&self, opening: &Opening) -> Reply<Beat> {
        let metrics = match document("metrics", &opening.metrics) {
            Ok(metrics) => metrics,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let command = Command::OpenSession(OpenSession {
            id: opening.id,
            holder: HolderKey { tenant: self.tenant.clone(), name: opening.holder.clone() },
            ttl_ms: opening.ttl.as_millis() as u64,
            replace: None,
            fenced: false,
            follows: opening.follows,
            registration: None,
            metrics: Some(metrics),
        });
        self.session(command, None).await
    }

    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        let metrics = match document("metrics", metrics) {
            Ok(metrics) => metrics,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let command =
            Command::Heartbeat { tenant: self.tenant.clone(), session, holder: None, metrics: Some(metrics) };
        let slow = |_| AuthorityError::Unknown("no answer in time".to_owned());
        let beat = async {
            if let Some(sealed) = sealed_cursor {
                self.engine.witness(sealed).await.map_err(failed)?;
            }
            self.session(command, known).await
        };
        tokio::time::timeout(attempt.within, beat).await.map_err(slow)?
    }

    async fn close(&self, session: SessionId) -> Reply<()> {
        let command = Command::CloseSession { tenant: self.tenant.clone(), session };
        Ok(self.ask(command).await?.map(|_| ()))
    }

    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        let commands: Vec<_> = operations.iter().map(|operation| self.command(operation)).collect();
        let good = commands.iter().filter_map(|command| command.as_ref().ok().cloned());
        let good: Vec<Call> = good.map(|command| self.call(command)).collect();
        let mut answered = self.engine.submit_all(good).await.into_iter();
        let each = commands.into_iter().map(|command| match command {
            Err(refusal) => Ok(Err(refusal)),
            Ok(_) => {
                let missing = || Err(EngineError::Stopping);
                match outcome(answered.next().unwrap_or_else(missing))? {
                    Ok(answer) => done(answer, self.slack()).map(Ok),
                    Err(refusal) => Ok(Err(refusal)),
                }
            }
        });
        each.collect()
    }

    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>> {
        let wait = wait.min(self.wait_max());
        let ask = self.acquire(ask);
        let ask = match ask {
            Ok(ask) => ask,
            Err(refusal) => return Some(Ok(Err(refusal))),
        };
        Some(match outcome(self.engine.acquire_waiting(ask, self.actor.clone(), wait).await) {
            Ok(Ok(Answer::Granted(grant))) => Ok(Ok(granted(grant, self.slack()))),
            Ok(Ok(other)) => Err(odd(&other)),
            Ok(Err(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        })
    }

    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        let holder = holder.clone();
        let request = request.clone();
        let request = RequestKey { resource: self.key(resource), holder, request };
        Ok(self.ask(Command::CancelRequest(request)).await?.map(|_| ()))
    }

    async fn write_state(&self, held: &HeldLease, state: &StateWrite) -> Reply<()> {
        match write(state) {
            Err(refusal) => Ok(Err(refusal)),
            Ok(write) => {
                let command = Command::WriteState { claim: self.claim(held), write };
                Ok(self.ask(command).await?.map(|_| ()))
            }
        }
    }

    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        let key = self.key(resource);
        let loaded = self.engine.resource(&key).await.map_err(failed)?;
        Ok(Ok(loaded.state.resource(&key).and_then(|resource| resource.state.clone()).map(state)))
    }

    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        let query = EventQuery {
            resource: Some(self.key(resource)),
            newest_before: Some(Revision(grant.0)),
            limit: EVENTS_BEFORE_GRANT_MAX,
            ..Default::default()
        };
        let page = self.engine.events(&query).await.map_err(failed)?;
        Ok(Ok(page.events.iter().find_map(Event::token)))
    }

    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        about: &Attributes,
    ) -> Reply<LeaseId> {
        let key = self.key(resource);
        let lease = LeaseId::new(&key, request);
        let attributes = match document("attributes", about) {
            Ok(attributes) => attributes,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let within_ms = within.as_millis() as u64;
        let ask = command::HandOver { attributes, ..command::HandOver::new(key, lease, to, within_ms) };
        Ok(self.ask(Command::HandOver(ask)).await?.map(|_| lease))
    }

    async fn call_off(&self, _: &ResourceName, pending: LeaseId) -> Reply<()> {
        let target = Target::Lease { tenant: self.tenant.clone(), id: pending };
        let claim = Claim { target, token: None, session: None, holder: None };
        Ok(self.ask(Command::Release { claim, state: None }).await?.map(|_| ()))
    }

    async fn news(
        &self,
        known: &[(SessionId, Revision)],
        from: Option<Cursor>,
        wait: Duration,
    ) -> Option<Result<News, AuthorityError>> {
        let from = from.map(store_cursor);
        let news = self.engine.session_news(known, Some(&self.tenant), from, wait).await.map_err(failed);
        Some(news.map(|news| News { sessions: news.sessions, cursor: news.cursor.map(wire_cursor) }))
    }

    fn newsroom(&self) -> Option<&Newsroom> {
        Some(&self.newsroom)
    }

    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        let mut query = HolderQuery { tenant: Some(self.tenant.clone()), limit: PAGE, ..Default::default() };
        let mut nodes = Vec::new();
        loop {
            let found = self.engine.find_holders(&query).await.map_err(failed)?;
            let state = &found.loaded.state;
            let now = found.loaded.now;
            let sessions = found.keys.iter().filter_map(|key| state.session(state.holder(key)?.session?));
            nodes.extend(
                sessions.filter(|session| session.is_live(now)).map(|session| Node::of(session, now)),
            );
            match found.keys.last().filter(|_| found.more) {
                Some(last) => query.after = Some(last.clone()),
                None => return Ok(nodes),
            }
        }
    }

    fn wait_max(&self) -> Duration {
        Duration::from_millis(WAIT_MS_MAX)
    }
}
