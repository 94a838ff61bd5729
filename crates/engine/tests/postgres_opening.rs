//! Opening a PostgreSQL store: migrations, what is refused, and which history it is.

#[path = "postgres/common.rs"]
mod common;

use std::{os::unix::fs::chown, path::PathBuf};

use common::*;
use solehold_core::{
    command::{Acquire, Command},
    outcome::{Answer, Refusal},
    time::Revision,
};
use solehold_engine::{
    postgres::{PostgresOptions, PostgresStore, SCHEMA_VERSION},
    store::{Cursor, EventQuery, Store, StoreError},
};
use solehold_testkit::{Postgres, wait_for};
use tokio::task::JoinSet;

async fn refusal(url: &str) -> String {
    match PostgresStore::open(url, PostgresOptions::default()).await {
        Err(StoreError::Unusable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_open_at_once() {
    for isolation in ["read committed", "serializable"] {
        let url = database().await;
        let database = url.rsplit('/').next().expect("a name").to_owned();
        let sql = format!("ALTER DATABASE \"{database}\" SET default_transaction_isolation = '{isolation}'");
        connect(&url).await.batch_execute(&sql).await.expect("a setting");
        let mut tasks = JoinSet::new();
        for n in 0..8 {
            let url = url.clone();
            tasks.spawn(async move {
                let store = open(&url).await;
                grant(store.as_ref(), &key(&format!("job-{n}")), "ann", 60_000).await
            });
        }
        let mut tokens: Vec<_> = tasks.join_all().await.iter().map(|g| g.lease.lease.token.0).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, Vec::from_iter(1..=8), "one clock, one history");
        let client = connect(&url).await;
        let applied = number(&client, "SELECT count(*) FROM solehold.migrations WHERE version > 0").await;
        assert_eq!(applied, i64::from(SCHEMA_VERSION));
    }
}

/// A store of version 3 keeps its history, its time and its floor; a program of version 3 that still runs cannot go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_version_3_goes_on_where_it_stood() {
    let url = database().await;
    let client = connect(&url).await;
    let prepare = "CREATE SCHEMA solehold; \
        CREATE TABLE solehold.migrations (version int PRIMARY KEY, applied_at timestamptz NOT NULL); \
        INSERT INTO solehold.migrations VALUES (0, now()), (1, now()), (2, now()), (3, now())";
    let schema = [
        prepare,
        include_str!("../src/postgres/schema/version_1.sql"),
        include_str!("../src/postgres/schema/version_2.sql"),
        include_str!("../src/postgres/schema/version_3.sql"),
        "UPDATE solehold.clock SET revision = 41, floor_revision = 7, epoch = 3, last_ms = last_ms + 300",
        "INSERT INTO solehold.requests VALUES ('acme', 'job', 'old', 'ann', 'r1', 4000000000000)",
    ];
    for sql in schema {
        client.batch_execute(sql).await.expect("version 3");
    }
    let last = number(&client, "SELECT last_ms FROM solehold.clock").await as u64;
    let store = open(&url).await;
    let loaded = store.load(&Default::default()).await.expect("the store reads");
    assert_eq!(loaded.cursor, Cursor { epoch: 3, revision: Revision(41) });
    assert!(loaded.now.0 >= last, "store time never goes back");
    let page = store.events(&EventQuery { limit: 1, ..Default::default() }).await.expect("the store reads");
    assert_eq!(page.floor, Revision(7));
    assert_eq!(grant(store.as_ref(), &key("job"), "ann", 60_000).await.lease.lease.token.0, 42);
    assert_eq!(number(&client, "SELECT count(*) FROM solehold.live_leases").await, 1);
    let Command::Acquire(ask) = acquire(&key("old"), "ann", 60_000) else { panic!("not an acquire") };
    let ask = Command::Acquire(Acquire { request: Some(name("r1")), ..ask });
    let again = run(store.as_ref(), ask).await.expect("the store answers");
    assert!(matches!(again, Err(Refusal::RequestSpent(_))), "{again:?}");
    let old = "UPDATE solehold.clock SET revision = 42, last_ms = greatest(last_ms, 0), synchronous = false WHERE id = 1";
    client.batch_execute(old).await.expect_err("an older program must not go on with a history of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_refused() {
    let url = database().await;
    open(&url).await.close().await;
    let client = connect(&url).await;
    client.batch_execute("INSERT INTO solehold.migrations VALUES (99, now())").await.expect("a version");
    let why = refusal(&url).await;
    assert!(why.contains("version 99") && why.contains("newer program"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_opens_what_is_there() {
    let url = database().await;
    let user = url.rsplit('/').next().expect("a name").to_owned();
    let client = connect(&url).await;
    client.batch_execute(&format!("CREATE USER \"{user}\"")).await.expect("a user");
    let as_user = url.replace("postgres@", &format!("{user}@"));
    let why = refusal(&as_user).await;
    assert!(why.contains("permission denied"), "{why}");
    open(&url).await.close().await;
    let sql = format!(
        "GRANT USAGE ON SCHEMA solehold TO \"{user}\"; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA solehold TO \"{user}\""
    );
    client.batch_execute(&sql).await.expect("rights");
    let store = open(&as_user).await;
    grant(store.as_ref(), &key("job"), "ann", 60_000).await;
    assert_eq!(number(&client, "SELECT count(*) FROM solehold.clock WHERE timeline IS NOT NULL").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_is_refused() {
    let postgres = Postgres::builder().setting("fsync", "off").start().await.expect("PostgreSQL");
    let why = refusal(&postgres.url()).await;
    assert!(why.contains("fsync = off"), "{why}");
    let options = PostgresOptions { allow_unsafe_durability: true, ..Default::default() };
    PostgresStore::open(&postgres.url(), options).await.expect("asked for").close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_unavailable_and_names_no_password() {
    let port = solehold_testkit::free_port().expect("a port");
    let url = format!("postgres://ann:hunter2@127.0.0.1:{port}/nowhere");
    let error = PostgresStore::open(&url, PostgresOptions::default()).await.expect_err("nobody is there");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

/// Of several hosts, the one that takes writes is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_hosts() {
    let read_only =
        Postgres::builder().setting("default_transaction_read_only", "on").start().await.expect("PostgreSQL");
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let nobody = solehold_testkit::free_port().expect("a port");
    let url =
        format!("postgres://postgres@127.0.0.1:{nobody},{},{}/postgres", read_only.addr(), postgres.addr());
    let store = open(&url).await;
    grant(store.as_ref(), &key("job"), "ann", 60_000).await;
}

async fn head(store: &dyn Store) -> Cursor {
    store.load(&Default::default()).await.expect("the store reads").cursor
}

/// A new timeline, as after a failover or a restore: the epoch is raised, tokens jump, and nothing is granted for as
/// long as a lost lease may still be held, and nothing renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_timeline_is_a_new_epoch() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let options = PostgresOptions { ttl_max_ms: Some(3_000), ..Default::default() };
    let store = PostgresStore::open(&postgres.url(), options).await.expect("a store");
    let job = key("job");
    grant(store.as_ref(), &job, "ann", 1_000).await;
    let session = session(store.as_ref(), "bea", 3_000).await;
    let before = head(store.as_ref()).await;
    let client = postgres.connect().await.expect("a connection");
    let data: String = client.query_one("SHOW data_directory", &[]).await.expect("a row").get(0);
    client.batch_execute("ALTER SYSTEM SET restore_command = 'false'").await.expect("a setting");
    drop(client);
    postgres.stop().await.expect("it stops");
    // Recovery from an archive that has nothing more ends in a timeline of its own.
    let signal = PathBuf::from(&data).join("recovery.signal");
    std::fs::write(&signal, "").expect("a file");
    let owner = std::fs::metadata(&data).expect("the data folder");
    use std::os::unix::fs::MetadataExt;
    chown(&signal, Some(owner.uid()), Some(owner.gid())).expect("its owner");
    postgres.start_again().await.expect("it recovers");
    wait_for("the end of recovery", SOON, || async {
        let client = postgres.connect().await.ok()?;
        let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await.ok()?;
        (!row.get::<_, bool>(0)).then_some(())
    })
    .await
    .expect("it takes writes");
    let refused = wait_for("the store to be reached", SOON, || async {
        match run(store.as_ref(), acquire(&key("other"), "carl", 60_000)).await {
            Err(StoreError::Barred { retry_after_ms }) => Some(retry_after_ms),
            Err(StoreError::Unavailable(_)) => None,
            other => panic!("{other:?}"),
        }
    });
    let refused = refused.await.expect("nothing is granted");
    assert!(
        (1..=3_000).contains(&refused),
        "until the longest possible lease has run out, not for {refused} ms"
    );
    let after = head(store.as_ref()).await;
    assert!(after.epoch > before.epoch);
    assert!(after.revision.0 >= before.revision.0 + (1 << 32));
    // The bar ends after the session, which nothing has renewed.
    let renewed = run(store.as_ref(), heartbeat(session.id)).await;
    assert!(matches!(renewed, Err(StoreError::Barred { .. }) | Ok(Err(_))), "{renewed:?}");
    let granted = wait_for("the lost leases' time to pass", SOON, || async {
        run(store.as_ref(), acquire(&job, "carl", 60_000)).await.ok()?.ok()
    });
    let Answer::Granted(granted) = granted.await.expect("grants again") else { panic!("not a grant") };
    assert!(granted.lease.lease.token.0 > 1 << 32);
    let second = open(&postgres.url()).await;
    assert_eq!(head(second.as_ref()).await.epoch, after.epoch, "raised once");
}
