//! The lease engine's tables: what replicas do by themselves, and what a grant and a heartbeat read.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, anyhow, ensure};
use solehold_conformance::kit::commit;
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, Command, OpenSession, Target, Undeclared},
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
    lease::Declaration,
    time::Revision,
};
use solehold_engine::{
    postgres::{PostgresOptions, PostgresStore},
    store::{EventQuery, HolderQuery, ResourceQuery, Retention, Store},
};
use solehold_testkit::wait_for;
use uuid::Uuid;

use crate::Watch;

/// How long PostgreSQL may be too busy to be opened; a server waits as long.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
const HOUR_MS: u64 = 60 * 60 * 1_000;
/// How many the sweeper nominates at once.
const SWEEP: usize = 1_000;
const PAGE: usize = 100;

/// Sessions that live, each with a holder and a lease; their events; requests that were spent; commits of late. All are
/// made after the one row that the engine itself has written, so that they are as its own.
const FILL: [&str; 7] = [
    "INSERT INTO solehold.sessions SELECT made.* FROM solehold.sessions AS first, generate_series(1, $1::bigint) AS n, \
     jsonb_populate_record(first, jsonb_build_object('id', lpad(to_hex(n), 32, '0'), 'holder', 'holder-' || n)) AS made",
    "INSERT INTO solehold.holders SELECT made.* FROM solehold.holders AS first, generate_series(1, $1::bigint) AS n, \
     jsonb_populate_record(first, jsonb_build_object('session_id', lpad(to_hex(n), 32, '0'), 'name', 'holder-' || n)) \
     AS made",
    "INSERT INTO solehold.resources SELECT made.* FROM solehold.resources AS first, generate_series(1, $1::bigint) AS n, \
     jsonb_populate_record(first, jsonb_build_object('id', n + 1000, 'key', 'job-' || n, 'mark', n)) AS made",
    "INSERT INTO solehold.leases SELECT made.* FROM solehold.leases AS first, generate_series(1, $1::bigint) AS n, \
     jsonb_populate_record(first, jsonb_build_object('resource_id', n + 1000, 'holder', 'holder-' || n, \
     'lease_id', lpad(to_hex(n), 32, '0'), 'session_id', lpad(to_hex(n), 32, '0'))) AS made",
    "INSERT INTO solehold.lease_events SELECT made.* FROM (SELECT * FROM solehold.lease_events LIMIT 1) AS first, \
     generate_series(1, $1::bigint) AS n, jsonb_populate_record(first::solehold.lease_events, \
     jsonb_build_object('revision', n + 1000, 'resource_hash', n, 'key', 'job-' || n, 'at_ms', first.at_ms)) AS made",
    "INSERT INTO solehold.requests (tenant, kind, key, holder, request, until_ms) \
     SELECT 'bench', 'job', 'job-' || n, 'holder-' || n, 'request-' || n, at_ms + 3600000 \
     FROM (SELECT max(at_ms) AS at_ms FROM solehold.commits) AS last, generate_series(1, $1::bigint) AS n",
    "INSERT INTO solehold.commits (batch_id, at_ms, committed) SELECT lpad(to_hex(n), 32, '0')::uuid, at_ms - n % 1000, true \
     FROM (SELECT max(at_ms) AS at_ms FROM solehold.commits) AS last, generate_series(1, $1::bigint) AS n",
];
/// Revisions go on above those of the rows that were filled in.
const GO_ON: &str = "UPDATE solehold.commits SET revision = revision + $1::bigint + 2000 \
    WHERE number = (SELECT max(number) FROM solehold.commits)";

async fn transact(store: &PostgresStore, command: Command) -> Result<()> {
    for outcome in commit(store, [command]).await? {
        outcome?;
    }
    Ok(())
}

fn name(text: &str) -> Result<Name> {
    Name::new(text).map_err(|error| anyhow!("{error:?}"))
}

fn key(text: &str) -> Result<ResourceKey> {
    Ok(ResourceKey::new(name("bench")?, name("job")?, name(text)?))
}

fn open_session(id: SessionId, holder: &str) -> Result<Command> {
    let holder = HolderKey { tenant: name("bench")?, name: name(holder)? };
    Ok(Command::OpenSession(OpenSession {
        id,
        holder,
        ttl_ms: 24 * HOUR_MS,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    }))
}

fn acquire(key: ResourceKey, holder: &str, session: SessionId) -> Result<Command> {
    Ok(Command::Acquire(Acquire {
        lease: LeaseId::new(&key, Uuid::new_v4()),
        key,
        holder: name(holder)?,
        tenure: AskedTenure::Session(session),
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Refuse,
        wait: None,
        slots: None,
        holds_at_most: None,
    }))
}

fn declare(key: ResourceKey) -> Command {
    Command::Declare { key, declaration: Declaration::default(), only_new: false }
}

pub async fn run(watch: &mut Watch, rows: i64) -> Result<()> {
    let database = watch.server.database("engine").await?;
    let url = database.watch_all().await?;
    let options = PostgresOptions { allow_unsafe_durability: true, ..Default::default() };
    let open = async || {
        let opened = async || PostgresStore::open(&url, options).await.ok();
        wait_for("PostgreSQL to be opened", OPENED_WITHIN, opened).await
    };
    let store = open().await?;
    let first = SessionId(Uuid::from_u128(u128::MAX));
    transact(&store, open_session(first, "first")?).await?;
    transact(&store, declare(key("first")?)).await?;
    transact(&store, acquire(key("first")?, "first", first)?).await?;
    store.close().await;
    for fill in FILL {
        database.quiet.execute(fill, &[&rows]).await?;
    }
    database.quiet.execute(GO_ON, &[&rows]).await?;
    database.quiet.batch_execute("VACUUM ANALYZE").await?;
    let store = open().await?;
    commands(watch, &store).await?;
    reads(watch, &store).await?;
    store.close().await;
    Ok(())
}

/// What clients ask for.
async fn commands(watch: &mut Watch, store: &Arc<PostgresStore>) -> Result<()> {
    let new = SessionId(Uuid::new_v4());
    watch.step("open a session", transact(store, open_session(new, "new")?)).await?;
    watch.step("declare a resource", transact(store, declare(key("new")?))).await?;
    watch.step("acquire a lease", transact(store, acquire(key("new")?, "new", new)?)).await?;
    let beat = Command::Heartbeat {
        tenant: name("bench")?,
        session: SessionId(Uuid::from_u128(77)),
        holder: None,
        metrics: None,
    };
    watch.step("a heartbeat", transact(store, beat)).await?;
    let target = Target::Resource(key("new")?);
    let claim = Claim { target, token: None, session: Some(new), holder: None };
    watch.step("release a lease", transact(store, Command::Release { claim, state: None })).await?;
    Ok(())
}

/// What replicas do by themselves, relays read, and operators look at.
async fn reads(watch: &mut Watch, store: &Arc<PostgresStore>) -> Result<()> {
    let due = async { Ok(store.due(SWEEP).await?) };
    ensure!(watch.step("sweep leases", due).await?.commands.is_empty(), "something has run out");
    let kept = Retention { events_ms: 24 * HOUR_MS, events_max: u64::MAX >> 1, unsent_after: None };
    watch.step("forget what is over", async { Ok(store.maintain(&kept).await?) }).await?;
    watch.step("look for news", async { Ok(store.head().await?) }).await?;
    for after in [0, 500_000] {
        let query = EventQuery { after: Revision(after), limit: PAGE, ..Default::default() };
        watch.step("read events", async { Ok(store.events(&query).await?) }).await?;
    }
    let query = EventQuery { resource: Some(key("new")?), limit: PAGE, ..Default::default() };
    watch.step("events of a resource", async { Ok(store.events(&query.newest()).await?) }).await?;
    let query = ResourceQuery { tenant: Some(name("bench")?), limit: PAGE, ..Default::default() };
    watch.step("list resources", async { Ok(store.find_resources(&query).await?) }).await?;
    let query = ResourceQuery { holder: Some(name("holder-77")?), ..query };
    watch.step("resources of a holder", async { Ok(store.find_resources(&query).await?) }).await?;
    let query = HolderQuery { tenant: Some(name("bench")?), limit: PAGE, ..Default::default() };
    watch.step("list holders", async { Ok(store.find_holders(&query).await?) }).await?;
    Ok(())
}
