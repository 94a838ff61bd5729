//! Helpers of the cases: a bench with a store, and short names for commands.

use std::sync::Arc;

use solehold_core::{
    call::Call,
    command::*,
    decide_all,
    event::{Change, Event, EventName},
    key::*,
    lease::{Declaration, Resource},
    ledger::{FoundLate, Ledger},
    outcome::{Answer, Grant, LeaseView, Outcome, Refusal},
    session::Session,
    time::*,
};
use uuid::Uuid;

use crate::Fixture;
use solehold_engine::{
    Engine, EngineOptions,
    observe::Lane,
    store::{BatchDecision, Decider, EventQuery, Import, ImportReader, LoadedRows, Row, Store, StoreError},
};

/// The ttl of leases that should not run out during a case.
pub const LONG_MS: u64 = 60_000;
/// The ttl of leases that should run out: the shortest that is allowed.
pub const SHORT_MS: u64 = 1_000;

/// A store on the bench.
pub struct Bench<'a> {
    /// Where it came from.
    pub fixture: &'a dyn Fixture,
    /// The store.
    pub store: Arc<dyn Store>,
}

/// Decides calls one after the other, as the driver does.
#[derive(Default)]
pub struct Judge {
    /// What to decide.
    pub calls: Vec<Call>,
    /// What became of each.
    pub outcomes: Vec<Outcome>,
    /// What they changed, in order.
    pub changes: Vec<Change>,
    /// When it was decided.
    pub moment: Option<Moment>,
}

impl Judge {
    /// What decides these.
    pub fn of<C: Into<Call>>(calls: impl IntoIterator<Item = C>) -> Self {
        Self { calls: calls.into_iter().map(Into::into).collect(), ..Default::default() }
    }

    /// Commits the calls as one batch.
    pub async fn commit(&mut self, store: &dyn Store) -> Result<BatchDecision, StoreError> {
        let mut footprint = Footprint::default();
        for call in &self.calls {
            call.command.footprint(&mut footprint);
        }
        let lane = Lane::of(self.calls.iter().map(|call| &call.command));
        store.transact(&footprint, lane, self).await
    }
}

impl Decider for Judge {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decisions = decide_all(ledger, &self.calls, moment)?;
        let events = decisions.events().cloned().collect();
        let decided = BatchDecision { events, revision: decisions.moment.revision };
        (self.outcomes, self.changes) = (decisions.outcomes, decisions.changes);
        self.moment = Some(moment);
        Ok(decided)
    }
}

/// Reads the lines of an export.
pub fn read_export(lines: impl IntoIterator<Item = Row>) -> Result<Import, StoreError> {
    let mut reader = ImportReader::default();
    for line in lines {
        reader.take(line)?;
    }
    reader.finish()
}

/// Commits calls as one batch, without a driver; returns what became of each.
pub async fn commit<C: Into<Call>>(
    store: &dyn Store,
    calls: impl IntoIterator<Item = C>,
) -> Result<Vec<Outcome>, StoreError> {
    let mut judge = Judge::of(calls);
    judge.commit(store).await?;
    Ok(judge.outcomes)
}

impl<'a> Bench<'a> {
    /// Opens the store of a fixture.
    pub async fn new(fixture: &'a dyn Fixture) -> Self {
        Self { fixture, store: fixture.open().await }
    }

    /// All lines of an export.
    pub async fn exported(&self) -> Vec<Row> {
        solehold_engine::flow::export(self.store.clone()).collect().await.expect("the store exports")
    }

    /// Stops the store and opens it again, as after a restart of its process.
    pub async fn reopen(self) -> Self {
        self.store.close().await;
        drop(self.store);
        Self { fixture: self.fixture, store: self.fixture.open().await }
    }

    /// Starts an engine over the store; it sweeps.
    pub fn engine(&self) -> Engine {
        Engine::start(self.store.clone(), EngineOptions::default(), Arc::new(()))
    }

    /// Commits a batch.
    pub async fn all<C: Into<Call>>(&self, calls: Vec<C>) -> Vec<Outcome> {
        let mut judge = Judge::of(calls);
        self.judge(&mut judge).await;
        judge.outcomes
    }

    /// Commits what a judge has to decide.
    pub async fn judge(&self, judge: &mut Judge) -> BatchDecision {
        judge.commit(&*self.store).await.expect("the store commits")
    }

    /// Commits one command.
    pub async fn run(&self, command: impl IntoCommand) -> Outcome {
        self.all(vec![command.command()]).await.remove(0)
    }

    /// Commits one command that must not be refused.
    pub async fn done(&self, command: impl IntoCommand) -> Answer {
        self.run(command).await.expect("not refused")
    }

    /// Commits one command that must be refused.
    pub async fn refused(&self, command: impl IntoCommand) -> Refusal {
        self.run(command).await.expect_err("refused")
    }

    /// Acquires.
    pub async fn grant(&self, ask: Acquire) -> Grant {
        granted(self.run(ask).await)
    }

    /// Opens a session.
    pub async fn session(&self, holder: &str, ttl_ms: u64) -> Session {
        match self.done(open(holder, ttl_ms)).await {
            Answer::Session(view) => view.session,
            other => panic!("{other:?}"),
        }
    }

    /// Reads rows.
    pub async fn load(&self, footprint: Footprint) -> LoadedRows {
        self.store.load(&footprint).await.expect("the store reads")
    }

    /// Store time.
    pub async fn now(&self) -> StoreTime {
        self.load(Footprint::default()).await.now
    }

    /// Where the history stands.
    pub async fn head(&self) -> solehold_engine::store::Cursor {
        self.load(Footprint::default()).await.cursor
    }

    /// One resource as it is stored.
    pub async fn resource(&self, key: &ResourceKey) -> Option<Resource> {
        let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
        self.load(footprint).await.state.resource(key).cloned()
    }

    /// The lease on a resource, judged by time.
    pub async fn lease(&self, key: &ResourceKey) -> Option<LeaseView> {
        let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
        let LoadedRows { state, now, .. } = self.load(footprint).await;
        LeaseView::of(&state, state.resource(key)?, now).expect("the session is loaded beside it")
    }

    /// Lets time pass.
    pub async fn pass(&self, ms: u64) {
        let until = self.now().await.plus_ms(ms);
        self.fixture.pass_until(&*self.store, until).await;
    }

    /// Lets time pass until then.
    pub async fn pass_until(&self, until: StoreTime) {
        self.fixture.pass_until(&*self.store, until).await;
    }

    /// All events after a revision.
    pub async fn events(&self, after: Revision) -> Vec<Event> {
        let query = EventQuery { after, limit: 100_000, ..Default::default() };
        self.store.events(&query).await.expect("events").events
    }

    /// The names of the events of one resource, the oldest first.
    pub async fn names(&self, key: &ResourceKey) -> Vec<EventName> {
        let query = EventQuery { resource: Some(key.clone()), limit: 1_000, ..Default::default() };
        let page = self.store.events(&query).await.expect("events");
        page.events.iter().map(Event::name).collect()
    }
}

/// A name.
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A document.
pub fn text(text: &str) -> Document {
    Document::new(text).expect("a short document")
}

/// A job of the tenant `acme`.
pub fn key(text: &str) -> ResourceKey {
    ResourceKey::new(name("acme"), name("job"), name(text))
}

/// A holder of the tenant `acme`.
pub fn holder(text: &str) -> HolderKey {
    HolderKey { tenant: name("acme"), name: name(text) }
}

/// An acquire of anything, with a long time of its own.
pub fn ask(key: &ResourceKey, holder: &str) -> Acquire {
    Acquire {
        key: key.clone(),
        lease: LeaseId::new(key, Uuid::new_v4()),
        holder: name(holder),
        tenure: AskedTenure::Own { ttl_ms: LONG_MS },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    }
}

/// An acquire with a time of its own.
pub fn ask_for(key: &ResourceKey, holder: &str, ttl_ms: u64) -> Acquire {
    Acquire { tenure: AskedTenure::Own { ttl_ms }, ..ask(key, holder) }
}

/// An acquire attached to a session.
pub fn ask_on(key: &ResourceKey, session: &Session) -> Acquire {
    Acquire { tenure: AskedTenure::Session(session.id), ..ask(key, session.holder.name.as_str()) }
}

/// An acquire with a request id.
pub fn ask_as(key: &ResourceKey, holder: &str, request: &str) -> Acquire {
    Acquire { request: Some(name(request)), ..ask(key, holder) }
}

/// Anything that a case can commit: a command, or a part that becomes one.
pub trait IntoCommand {
    /// As a command.
    fn command(self) -> Command;
}

impl IntoCommand for Command {
    fn command(self) -> Command {
        self
    }
}

impl IntoCommand for Acquire {
    fn command(self) -> Command {
        Command::Acquire(self)
    }
}

/// The grant that an acquire must have got.
pub fn granted(outcome: Outcome) -> Grant {
    match outcome {
        Ok(Answer::Granted(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// The grant that a renewal must have got.
pub fn renewed(outcome: Outcome) -> Grant {
    match outcome {
        Ok(Answer::Renewed(grant)) => grant,
        other => panic!("not renewed: {other:?}"),
    }
}

/// The claim of a caller that has this token.
pub fn by_token(key: &ResourceKey, token: Token) -> Claim {
    Claim { target: Target::Resource(key.clone()), token: Some(token), session: None, holder: None }
}

/// The claim of a caller by its name.
pub fn by_holder(key: &ResourceKey, holder: &str) -> Claim {
    Claim { target: Target::Resource(key.clone()), token: None, session: None, holder: Some(name(holder)) }
}

/// The claim of that session.
pub fn by_session(key: &ResourceKey, session: SessionId) -> Claim {
    Claim { target: Target::Resource(key.clone()), token: None, session: Some(session), holder: None }
}

/// The claim of a caller that knows the lease id.
pub fn by_id(tenant: &str, id: LeaseId) -> Claim {
    Claim { target: Target::Lease { tenant: name(tenant), id }, token: None, session: None, holder: None }
}

/// The claim of the holder that got this grant.
pub fn its(grant: &Grant) -> Claim {
    by_token(&grant.lease.key, grant.lease.lease.token)
}

/// A renewal.
pub fn renew(claim: Claim) -> Command {
    Command::Renew { claim, ttl_ms: None, stats: None }
}

/// A release.
pub fn release(claim: Claim) -> Command {
    Command::Release { claim, state: None }
}

/// A revocation.
pub fn revoke(claim: Claim, fenced: bool) -> Command {
    Command::Revoke { claim, fenced, reason: Some("a test".to_owned()) }
}

/// A declaration.
pub fn declare(key: &ResourceKey, declaration: Declaration) -> Command {
    Command::Declare { key: key.clone(), declaration, only_new: false }
}

/// A new session of a holder of `acme`.
pub fn open(holder_name: &str, ttl_ms: u64) -> Command {
    Command::OpenSession(opening(holder_name, ttl_ms))
}

fn opening(holder_name: &str, ttl_ms: u64) -> OpenSession {
    OpenSession {
        id: SessionId(Uuid::new_v4()),
        holder: holder(holder_name),
        ttl_ms,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    }
}

/// A new session of a holder that registers.
pub fn register(holder_name: &str, ttl_ms: u64, capacity: Option<u32>) -> Command {
    let registration = Some(Registration { site: None, capacity, attributes: Document::default() });
    Command::OpenSession(OpenSession { registration, ..opening(holder_name, ttl_ms) })
}

/// A heartbeat.
pub fn heartbeat(session: SessionId) -> Command {
    Command::Heartbeat { tenant: name("acme"), session, holder: None, metrics: None }
}

/// The close of a session.
pub fn close(session: SessionId) -> Command {
    Command::CloseSession { tenant: name("acme"), session }
}

/// A hand-over to a session.
pub fn hand_over(key: &ResourceKey, to: SessionId, within_ms: u64) -> Command {
    let lease = LeaseId::new(key, Uuid::new_v4());
    Command::HandOver(HandOver::new(key.clone(), lease, to, within_ms))
}

/// The token of a grant.
pub fn token(grant: &Grant) -> Token {
    grant.lease.lease.token
}

/// Checks that a refusal is of the sort that is expected.
#[macro_export]
#[doc(hidden)]
macro_rules! is {
    ($value:expr, $($pattern:tt)+) => {
        match $value {
            ref value => assert!(matches!(value, $($pattern)+), "{value:?} is not {}", stringify!($($pattern)+)),
        }
    };
}
pub use crate::is;
