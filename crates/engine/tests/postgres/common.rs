//! Short names for what the tests of the PostgreSQL store ask for.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{sync::Arc, time::Duration};

use solehold_core::{
    call::Call,
    command::*,
    decide_all,
    key::*,
    lease::LeaseStatus,
    ledger::{FoundLate, Ledger},
    outcome::{Answer, Grant, LeaseView, Outcome},
    session::Session,
    time::Moment,
};
use solehold_engine::{
    observe::Lane,
    postgres::{PostgresOptions, PostgresStore},
    store::{BatchDecision, Decider, Store, StoreError},
};
use solehold_testkit::Postgres;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

/// Long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

pub async fn open(url: &str) -> Arc<PostgresStore> {
    PostgresStore::open(url, PostgresOptions::default()).await.expect("a store")
}

/// A new database on the server that the tests of this file share.
pub async fn database() -> String {
    Postgres::shared().await.expect("PostgreSQL").create_database("store").await.expect("a database")
}

/// A connection of the test's own, past any proxy.
pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

pub async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("a row").get(0)
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn key(text: &str) -> ResourceKey {
    ResourceKey::new(name("acme"), name("job"), name(text))
}

pub fn acquire(key: &ResourceKey, holder: &str, ttl_ms: u64) -> Command {
    Command::Acquire(Acquire {
        key: key.clone(),
        lease: LeaseId::new(key, Uuid::new_v4()),
        holder: name(holder),
        tenure: AskedTenure::Own { ttl_ms },
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    })
}

pub fn acquire_on(key: &ResourceKey, session: &Session) -> Command {
    Command::Acquire(Acquire {
        key: key.clone(),
        lease: LeaseId::new(key, Uuid::new_v4()),
        holder: session.holder.name.clone(),
        tenure: AskedTenure::Session(session.id),
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    })
}

pub fn open_session(holder: &str, ttl_ms: u64) -> Command {
    Command::OpenSession(OpenSession {
        id: SessionId(Uuid::now_v7()),
        holder: HolderKey { tenant: name("acme"), name: name(holder) },
        ttl_ms,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    })
}

pub fn heartbeat(session: SessionId) -> Command {
    Command::Heartbeat { tenant: name("acme"), session, holder: None, metrics: None }
}

pub fn claim(grant: &Grant) -> Claim {
    let target = Target::Resource(grant.lease.key.clone());
    Claim { target, token: Some(grant.lease.lease.token), session: None, holder: None }
}

pub fn release(grant: &Grant) -> Command {
    Command::Release { claim: claim(grant), state: None }
}

pub fn renew(grant: &Grant) -> Command {
    Command::Renew { claim: claim(grant), ttl_ms: None, stats: None }
}

/// Decides a batch as the driver does; `meanwhile` is called after each time, when the locks are held and nothing is
/// written.
pub struct Batch<F> {
    pub calls: Vec<Call>,
    pub outcomes: Vec<Outcome>,
    pub decided: usize,
    pub meanwhile: F,
}

impl<F: FnMut(usize) + Send> Decider for Batch<F> {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let decisions = decide_all(ledger, &self.calls, moment)?;
        let events = decisions.events().cloned().collect();
        let decided = BatchDecision { events, revision: decisions.moment.revision };
        self.outcomes = decisions.outcomes;
        self.decided += 1;
        (self.meanwhile)(self.decided);
        Ok(decided)
    }
}

pub async fn run_batch<F: FnMut(usize) + Send>(
    store: &dyn Store,
    commands: Vec<Command>,
    meanwhile: F,
) -> (Result<BatchDecision, StoreError>, Batch<F>) {
    let mut footprint = Footprint::default();
    commands.iter().for_each(|command| command.footprint(&mut footprint));
    let lane = Lane::of(&commands);
    let calls = commands.into_iter().map(Into::into).collect();
    let mut batch = Batch { calls, outcomes: Vec::new(), decided: 0, meanwhile };
    let result = store.transact(&footprint, lane, &mut batch).await;
    (result, batch)
}

pub async fn run(store: &dyn Store, command: Command) -> Result<Outcome, StoreError> {
    let (result, mut batch) = run_batch(store, vec![command], |_| ()).await;
    result.map(|_| batch.outcomes.remove(0))
}

pub async fn done(store: &dyn Store, command: Command) -> Answer {
    run(store, command).await.expect("the store answers").expect("not refused")
}

pub async fn grant(store: &dyn Store, key: &ResourceKey, holder: &str, ttl_ms: u64) -> Grant {
    match done(store, acquire(key, holder, ttl_ms)).await {
        Answer::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

pub async fn session(store: &dyn Store, holder: &str, ttl_ms: u64) -> Session {
    match done(store, open_session(holder, ttl_ms)).await {
        Answer::Session(view) => view.session,
        other => panic!("{other:?}"),
    }
}

/// The lease on a resource, judged by the store's time.
pub async fn lease(store: &dyn Store, key: &ResourceKey) -> Option<LeaseView> {
    let footprint = Footprint { resources: vec![key.clone()], ..Default::default() };
    let loaded = store.load(&footprint).await.expect("the store reads");
    let resource = loaded.state.resource(key)?;
    LeaseView::of(&loaded.state, resource, loaded.now).expect("its session is loaded")
}

pub fn is_live(view: &Option<LeaseView>) -> bool {
    view.as_ref().is_some_and(|view| view.status == LeaseStatus::Active)
}
