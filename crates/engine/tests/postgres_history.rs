//! A history that goes back, forks or cannot be told: tokens are never given again, and nobody gets what another may
//! hold.

#[path = "postgres/common.rs"]
mod common;

use std::{path::Path, process::Command, sync::Arc};

use common::*;
use solehold_core::outcome::Answer;
use solehold_engine::{
    history::Bar,
    postgres::{Failover, PostgresOptions, PostgresStore},
    store::{Cursor, Retention, Store, StoreError},
};
use solehold_testkit::{Postgres, wait_for};

/// The longest ttl in these tests, and so how long nothing is granted.
const TTL_MAX_MS: u64 = 2_000;

async fn open_with(url: &str, options: PostgresOptions) -> Arc<PostgresStore> {
    PostgresStore::open(url, options).await.expect("a store")
}

async fn open_short(url: &str) -> Arc<PostgresStore> {
    open_with(url, PostgresOptions { ttl_max_ms: Some(TTL_MAX_MS), ..Default::default() }).await
}

async fn head(store: &dyn Store) -> Cursor {
    store.load(&Default::default()).await.expect("the store reads").cursor
}

/// Grants until the token is at least `least`; the last token.
async fn grant_up_to(store: &dyn Store, least: u64) -> u64 {
    loop {
        let fresh = key(&uuid::Uuid::new_v4().to_string());
        let token = grant(store, &fresh, "ann", TTL_MAX_MS).await.lease.lease.token.0;
        if token >= least {
            return token;
        }
    }
}

/// The first answer of the store to an acquire, once it can be reached.
async fn first_answer(store: &dyn Store, text: &str) -> Result<u64, StoreError> {
    let answer = wait_for("the store to be reached", SOON, || async {
        match run(store, acquire(&key(text), "carl", TTL_MAX_MS)).await {
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
            Err(other) => Some(Err(other)),
            Ok(Ok(Answer::Granted(grant))) => Some(Ok(grant.lease.lease.token.0)),
            Ok(other) => panic!("{other:?}"),
        }
    });
    answer.await.expect("an answer")
}

/// Asserts that nothing is granted at first, and that what is granted later lies above `last`.
async fn assert_barred_then_above(store: &dyn Store, last: u64) {
    let first = first_answer(store, "after").await;
    assert!(matches!(first, Err(StoreError::Barred { retry_after_ms: 1.. })), "{first:?}");
    let token = wait_for("the bar to be over", SOON, || async { first_answer(store, "after").await.ok() });
    let token = token.await.expect("grants again");
    assert!(token > last, "{token} is not above {last}, which was given before");
}

fn tool(postgres: &Postgres, name: &str) -> Command {
    let mut command = Command::new(postgres.tool(name));
    let addr = postgres.addr();
    command.args(["-h", &addr.ip().to_string(), "-p", &addr.port().to_string(), "-U", "postgres"]);
    command
}

fn succeed(command: &mut Command) -> Vec<u8> {
    let done = command.output().expect("it runs");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// A dump of the schema, and what restores it in the place of the one that is there.
struct Dump(tempfile::NamedTempFile);

impl Dump {
    fn of(postgres: &Postgres) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let dump = succeed(tool(postgres, "pg_dump").args(["-n", "solehold", "postgres"]));
        std::fs::write(file.path(), dump).expect("written");
        Self(file)
    }

    async fn restore(&self, postgres: &Postgres) {
        let client = postgres.connect().await.expect("a connection");
        client.batch_execute("DROP SCHEMA solehold CASCADE").await.expect("dropped");
        let file = self.0.path().to_str().expect("a path");
        succeed(tool(postgres, "psql").args(["-q", "-v", "ON_ERROR_STOP=1", "-f", file, "postgres"]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_gives_no_token_again_though_nobody_remembers() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open_short(&postgres.url()).await;
    grant_up_to(store.as_ref(), 2).await;
    let dump = Dump::of(&postgres);
    let last = grant_up_to(store.as_ref(), 8).await;
    let before = head(store.as_ref()).await;
    store.close().await;
    drop(store);
    dump.restore(&postgres).await;
    let store = open_short(&postgres.url()).await;
    assert_barred_then_above(store.as_ref(), last).await;
    assert!(head(store.as_ref()).await > before, "cursors of before lie behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_dump_is_not_adopted_by_a_replica_that_kept_running() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open_short(&postgres.url()).await;
    let other = open_short(&postgres.url()).await;
    grant_up_to(store.as_ref(), 2).await;
    let held = grant(store.as_ref(), &key("held"), "ann", TTL_MAX_MS).await;
    let dump = Dump::of(&postgres);
    let last = grant_up_to(store.as_ref(), 11).await;
    dump.restore(&postgres).await;
    let renewed = wait_for("an answer", SOON, || async {
        match run(store.as_ref(), renew(&held)).await {
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => None,
            other => Some(other),
        }
    });
    let renewed = renewed.await.expect("an answer");
    assert!(matches!(renewed, Err(StoreError::Barred { .. })), "nothing is revived: {renewed:?}");
    assert_barred_then_above(store.as_ref(), last).await;
    let epoch = head(store.as_ref()).await.epoch;
    assert!(first_answer(other.as_ref(), "other").await.is_ok_and(|token| token > last));
    assert_eq!(head(other.as_ref()).await.epoch, epoch, "raised once");
}

/// No event is missing, only renewals: whose lease they kept must not go to another early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_lost_only_renewals_is_not_followed() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open_short(&postgres.url()).await;
    let held = grant(store.as_ref(), &key("held"), "ann", TTL_MAX_MS).await;
    let dump = Dump::of(&postgres);
    let client = postgres.connect().await.expect("a connection");
    let marked = "SELECT max(at_ms) FROM solehold.commits";
    let before = number(&client, marked).await;
    let retention = Retention { events_ms: 1_000_000, events_max: 1_000_000, unsent_after: None };
    wait_for("a mark after a renewal", SOON, || async {
        done(store.as_ref(), renew(&held)).await;
        store.maintain(&retention).await.expect("marked");
        number(&client, marked).await > before
    })
    .await
    .expect("a mark");
    let before = head(store.as_ref()).await;
    dump.restore(&postgres).await;
    let stolen = first_answer(store.as_ref(), "held").await;
    assert!(matches!(stolen, Err(StoreError::Barred { .. })), "{stolen:?}");
    assert!(head(store.as_ref()).await.epoch > before.epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_database_gives_no_token_again() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let url = postgres.create_database("original").await.expect("a database");
    let store = open_short(&url).await;
    let last = grant_up_to(store.as_ref(), 3).await;
    store.close().await;
    drop(store);
    let name = url.rsplit('/').next().expect("a name");
    let client = postgres.connect().await.expect("a connection");
    wait_for("the original to be unused", SOON, || async {
        client.batch_execute(&format!("CREATE DATABASE copied TEMPLATE \"{name}\"")).await.is_ok()
    })
    .await
    .expect("a copy");
    let copy = open_short(&postgres.url_for("copied")).await;
    assert_barred_then_above(copy.as_ref(), last).await;
    let original = open_short(&url).await;
    assert_eq!(first_answer(original.as_ref(), "on").await.expect("it goes on"), last + 1);
}

/// The files of a stopped PostgreSQL, to be put back later: nothing in it tells that they were.
struct Files(tempfile::TempDir);

impl Files {
    fn of(data: &Path) -> Self {
        let kept = tempfile::tempdir().expect("a folder");
        succeed(Command::new("cp").arg("-a").arg(data).arg(kept.path().join("data")));
        Self(kept)
    }

    fn put_back(&self, data: &Path) {
        std::fs::remove_dir_all(data).expect("removed");
        succeed(Command::new("cp").arg("-a").arg(self.0.path().join("data")).arg(data));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_saw_more_than_the_store_has_keeps_tokens_from_being_given_again() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open_short(&postgres.url()).await;
    grant_up_to(store.as_ref(), 2).await;
    let client = postgres.connect().await.expect("a connection");
    let data: String = client.query_one("SHOW data_directory", &[]).await.expect("a row").get(0);
    drop(client);
    postgres.stop().await.expect("it stops");
    let files = Files::of(data.as_ref());
    postgres.start_again().await.expect("it starts");
    wait_for("the store to be reached", SOON, || async { store.load(&Default::default()).await.ok() })
        .await
        .expect("it is reached");
    let last = grant_up_to(store.as_ref(), 9).await;
    let sealed = store.seal(head(store.as_ref()).await).expect("sealed");
    store.close().await;
    drop(store);
    postgres.stop().await.expect("it stops");
    files.put_back(data.as_ref());
    postgres.start_again().await.expect("it starts");
    let store = open_short(&postgres.url()).await;
    assert!(head(store.as_ref()).await.revision.0 < last, "nothing else tells");
    store.witness("1.ff.1.0123").await.expect("what anyone can make up is ignored");
    assert!(head(store.as_ref()).await.revision.0 < last);
    store.witness(&sealed).await.expect("believed");
    assert_barred_then_above(store.as_ref(), last).await;
    let epoch = head(store.as_ref()).await.epoch;
    store.witness(&sealed).await.expect("known");
    assert_eq!(head(store.as_ref()).await.epoch, epoch, "raised once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_who_says_so_gets_another_history_with_or_without_a_bar() {
    let url = database().await;
    let store = open_short(&url).await;
    let last = grant_up_to(store.as_ref(), 3).await;
    store.set_back(None, Bar::LongestTtl).await.expect("told");
    let refused = first_answer(store.as_ref(), "job").await;
    assert!(matches!(refused, Err(StoreError::Barred { .. })), "{refused:?}");
    store.set_back(None, Bar::None).await.expect("all holders were stopped");
    assert!(first_answer(store.as_ref(), "job").await.expect("granted at once") > last + (1 << 33));
}

/// A server allows a minute; whoever notices the failover was told two seconds, or nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_ttl_of_any_server_is_waited_out() {
    let url = database().await;
    let long = open_with(&url, PostgresOptions { ttl_max_ms: Some(60_000), ..Default::default() }).await;
    for options in
        [PostgresOptions { ttl_max_ms: Some(TTL_MAX_MS), ..Default::default() }, Default::default()]
    {
        let store = open_with(&url, options).await;
        assert_eq!(store.ttl_max_ms(), options.ttl_max_ms.unwrap_or(60_000));
        store.set_back(None, Bar::LongestTtl).await.expect("told");
        let refused = first_answer(long.as_ref(), "job").await;
        let Err(StoreError::Barred { retry_after_ms }) = refused else { panic!("{refused:?}") };
        assert!(retry_after_ms > 30_000, "{retry_after_ms} ms");
    }
}

/// A primary and a standby that follows it.
struct Pair {
    primary: Postgres,
    standby: Postgres,
}

impl Pair {
    async fn start() -> Self {
        let primary = Postgres::start().await.expect("a primary");
        let standby = Postgres::builder().standby_of(&primary).start().await.expect("a standby");
        let pair = Self { primary, standby };
        pair.catch_up().await;
        pair
    }

    fn url(&self) -> String {
        format!("postgres://postgres@{},{}/postgres", self.primary.addr(), self.standby.addr())
    }

    async fn catch_up(&self) {
        let client = self.primary.connect().await.expect("a connection");
        let lsn: String =
            client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.expect("a row").get(0);
        let standby = self.standby.connect().await.expect("a connection");
        let sql = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
        wait_for("the standby to catch up", SOON, || async {
            standby.query_one(sql, &[&lsn]).await.is_ok_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
        })
        .await
        .expect("it does");
    }

    /// From now on the standby gets nothing.
    async fn cut_off(&self) {
        let standby = self.standby.connect().await.expect("a connection");
        standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.expect("a setting");
        standby.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
        let sql = "SELECT count(*) FROM pg_stat_wal_receiver";
        wait_for("the standby to be cut off", SOON, || async { number(&standby, sql).await == 0 })
            .await
            .expect("it is");
    }

    async fn fail_over(&self) {
        self.primary.kill9().await.expect("it dies");
        self.standby.promote().await.expect("promoted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_primary_that_comes_back_is_not_followed() {
    let pair = Pair::start().await;
    let store = open_short(&pair.url()).await;
    grant_up_to(store.as_ref(), 2).await;
    pair.catch_up().await;
    pair.fail_over().await;
    assert_barred_then_above(store.as_ref(), 2).await;
    let last = grant_up_to(store.as_ref(), 1 << 32).await;
    // Nobody fenced it, it stands first in the connection string, and the store's connections break.
    pair.primary.start_again().await.expect("the old primary is back");
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'solehold'";
    pair.standby.connect().await.expect("a connection").batch_execute(cut).await.expect("cut");
    let token = first_answer(store.as_ref(), "again").await.expect("the new primary is found again");
    assert!(token > last, "{token} after {last}");
    let fresh = open_short(&pair.url()).await;
    assert!(
        first_answer(fresh.as_ref(), "fresh").await.expect("granted") > token,
        "one that has just begun, too"
    );
    pair.standby.kill9().await.expect("only the old one is left");
    let refused = wait_for("a word about the old primary", SOON, || async {
        match run(store.as_ref(), acquire(&key("old"), "carl", TTL_MAX_MS)).await {
            Err(StoreError::Unavailable(why)) if why.contains("timeline") => Some(why),
            Err(_) => None,
            Ok(granted) => panic!("the old primary was followed: {granted:?}"),
        }
    });
    let why = refused.await.expect("refused");
    assert!(why.contains("was replaced"), "{why}");
}

/// The standby lacks that ann's lease went to bea, for a minute: ann must not get it back, and nobody may get it early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_that_lost_a_grant_nothing_is_granted_early_or_revived() {
    const MINUTE_MS: u64 = 60_000;
    let pair = Pair::start().await;
    let options = PostgresOptions { ttl_max_ms: Some(MINUTE_MS), ..Default::default() };
    let store = open_with(&pair.url(), options).await;
    let anns = grant(store.as_ref(), &key("job"), "ann", 1_000).await;
    let session = session(store.as_ref(), "ann", 5_000).await;
    pair.catch_up().await;
    pair.cut_off().await;
    done(store.as_ref(), release(&anns)).await;
    grant(store.as_ref(), &key("job"), "bea", MINUTE_MS).await;
    pair.fail_over().await;
    let refused = first_answer(store.as_ref(), "job").await;
    let Err(StoreError::Barred { retry_after_ms }) = refused else { panic!("{refused:?}") };
    assert!(retry_after_ms > MINUTE_MS / 2, "bea may hold it for a minute, and not for {retry_after_ms} ms");
    for command in [renew(&anns), heartbeat(session.id)] {
        let revived = run(store.as_ref(), command).await;
        assert!(matches!(revived, Err(StoreError::Barred { .. })), "{revived:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossless_failover_needs_no_bar_only_if_the_configuration_says_so() {
    let pair = Pair::start().await;
    let lossless =
        PostgresOptions { failover: Failover::Lossless, ttl_max_ms: Some(60_000), ..Default::default() };
    let store = open_with(&pair.url(), lossless).await;
    let held = grant(store.as_ref(), &key("job"), "ann", 60_000).await;
    pair.catch_up().await;
    pair.fail_over().await;
    let token = first_answer(store.as_ref(), "other").await.expect("granted at once");
    assert!(token > held.lease.lease.token.0 + (1 << 32), "tokens jump all the same");
    done(store.as_ref(), renew(&held)).await;
    let refused = run(store.as_ref(), acquire(&key("job"), "bea", 1_000)).await.expect("an answer");
    assert!(refused.is_err(), "ann holds it: {refused:?}");
}

/// With a lossless failover configured, commits were lost all the same, and a process knows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_was_said_to_lose_nothing_and_did_is_barred() {
    let pair = Pair::start().await;
    let lossless =
        PostgresOptions { failover: Failover::Lossless, ttl_max_ms: Some(TTL_MAX_MS), ..Default::default() };
    let store = open_with(&pair.url(), lossless).await;
    grant_up_to(store.as_ref(), 2).await;
    pair.catch_up().await;
    pair.cut_off().await;
    let last = grant_up_to(store.as_ref(), 5).await;
    pair.fail_over().await;
    assert_barred_then_above(store.as_ref(), last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_that_cannot_be_seen_is_a_refusal() {
    let url = database().await;
    let user = url.rsplit('/').next().expect("a name").to_owned();
    open(&url).await.close().await;
    let client = connect(&url).await;
    let sql = format!(
        "CREATE USER \"{user}\"; GRANT USAGE ON SCHEMA solehold TO \"{user}\"; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA solehold TO \"{user}\"; \
         REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"
    );
    client.batch_execute(&sql).await.expect("rights");
    let as_user = url.replace("postgres@", &format!("{user}@"));
    let refused = PostgresStore::open(&as_user, PostgresOptions::default()).await;
    let Err(StoreError::Unusable(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("GRANT EXECUTE ON FUNCTION pg_control_system()"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answered_grant_survives_a_crash_whatever_a_reload_turned_off() {
    let postgres = Postgres::builder().setting("wal_writer_delay", "10s").start().await.expect("PostgreSQL");
    let store = open(&postgres.url()).await;
    grant(store.as_ref(), &key("before"), "ann", 60_000).await;
    let client = postgres.connect().await.expect("a connection");
    client.batch_execute("ALTER SYSTEM SET synchronous_commit = off").await.expect("a setting");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("reloaded");
    wait_for("the reload", SOON, || async {
        let row = client.query_one("SHOW synchronous_commit", &[]).await.expect("a row");
        row.get::<_, String>(0) == "off"
    })
    .await
    .expect("reloaded");
    let answered = grant(store.as_ref(), &key("after"), "ann", 60_000).await;
    postgres.kill9().await.expect("it crashes");
    postgres.start_again().await.expect("it recovers");
    let held = wait_for("the store to be reached", SOON, || async {
        store.load(&Default::default()).await.ok()?;
        Some(lease(store.as_ref(), &key("after")).await)
    });
    let held = held.await.expect("reached").expect("the grant is there");
    assert_eq!(held.lease.token, answered.lease.lease.token);
}
