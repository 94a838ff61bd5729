//! What becomes of a batch when PostgreSQL, or the way to it, fails at the worst moment.

#[path = "postgres/common.rs"]
mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::*;
use solehold_core::{command::Footprint, outcome::Answer};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    store::{EventQuery, Store, StoreError},
};
use solehold_testkit::{Postgres, Proxy, wait_for};
use tokio::task::JoinSet;

/// A server, a proxy before it, and the connection strings past and through the proxy.
struct Hurt {
    _postgres: Postgres,
    proxy: Arc<Proxy>,
    straight: String,
    through: String,
}

impl Hurt {
    async fn new() -> Self {
        let postgres = Postgres::start().await.expect("PostgreSQL");
        let proxy = Arc::new(Proxy::start(postgres.addr()).await.expect("a proxy"));
        let through = format!("postgres://postgres@{}/postgres", proxy.addr());
        Self { straight: postgres.url(), through, proxy, _postgres: postgres }
    }

    /// Ends the faults once the store's connections are gone from the server.
    fn restore_when_cut_off(&self) -> tokio::task::JoinHandle<()> {
        let proxy = self.proxy.clone();
        let straight = self.straight.clone();
        tokio::spawn(async move {
            let client = connect(&straight).await;
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'solehold' AND state <> 'idle'";
            wait_for("the store to be cut off", SOON, || async { number(&client, sql).await == 0 })
                .await
                .expect("it is cut off");
            proxy.restore().await.expect("the proxy goes on");
        })
    }

    /// Cuts the store off as soon as what it has written is there to be counted, and ends the faults.
    fn cut_when_committed(&self, sql: &'static str) -> tokio::task::JoinHandle<()> {
        let proxy = self.proxy.clone();
        let straight = self.straight.clone();
        tokio::spawn(async move {
            let client = connect(&straight).await;
            wait_for("the commit", SOON, || async { number(&client, sql).await == 1 })
                .await
                .expect("it commits");
            proxy.cut().await;
            proxy.restore().await.expect("the proxy goes on");
        })
    }

    async fn grants(&self) -> i64 {
        let sql = "SELECT count(*) FROM solehold.lease_events WHERE event_type = 'lease_acquired'";
        number(&connect(&self.straight).await, sql).await
    }
}

/// The COMMIT was done and its answer lost: the store finds that out, and decides nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_commit_is_found_out() {
    let hurt = Hurt::new().await;
    let store = open(&hurt.through).await;
    let job = key("once");
    let proxy = hurt.proxy.clone();
    let (result, batch) = run_batch(store.as_ref(), vec![acquire(&job, "ann", 60_000)], |times| {
        if times == 1 {
            // Slow enough that the way can be cut after the commit and before its answer has come through.
            proxy.latency(Duration::from_millis(500));
            hurt.cut_when_committed("SELECT count(*) FROM solehold.lease_events");
        }
    })
    .await;
    result.expect("it is known what became of it");
    assert_eq!(batch.decided, 1, "decided once");
    let [Ok(Answer::Granted(grant))] = &batch.outcomes[..] else { panic!("{:?}", batch.outcomes) };
    let held = lease(store.as_ref(), &job).await.expect("it is held");
    assert_eq!((held.lease.id, held.lease.token), (grant.lease.lease.id, grant.lease.lease.token));
    assert_eq!(hurt.grants().await, 1);
    done(store.as_ref(), release(grant)).await;
}

/// The COMMIT was not done: the store finds that out, too, and decides again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_never_arrived_is_decided_again() {
    let hurt = Hurt::new().await;
    let store = open(&hurt.through).await;
    let job = key("again");
    let proxy = hurt.proxy.clone();
    let (result, batch) = run_batch(store.as_ref(), vec![acquire(&job, "ann", 60_000)], |times| {
        if times == 1 {
            let cut = async { proxy.cut().await };
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(cut));
            hurt.restore_when_cut_off();
        }
    })
    .await;
    result.expect("it is known what became of it");
    assert_eq!(batch.decided, 2, "decided again");
    assert!(matches!(&batch.outcomes[..], [Ok(Answer::Granted(_))]));
    assert_eq!(hurt.grants().await, 1);
}

/// The COMMIT is held up on its way until long after the store has given up on it: there is one grant, whoever comes
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_late_changes_nothing() {
    let hurt = Hurt::new().await;
    let store = open(&hurt.through).await;
    let job = key("late");
    let proxy = hurt.proxy.clone();
    let is_stalled = AtomicBool::new(false);
    let batch = run_batch(store.as_ref(), vec![acquire(&job, "ann", 60_000)], |times| {
        if times == 1 {
            proxy.stall();
            is_stalled.store(true, Ordering::SeqCst);
        }
    });
    let (result, batch) = batch.await;
    assert!(is_stalled.load(Ordering::SeqCst));
    assert!(matches!(result, Err(StoreError::Unknown(_))), "{result:?}");
    assert_eq!(batch.decided, 1);
    hurt.proxy.unstall();
    let answer = wait_for("the store to answer again", SOON, || async {
        run(store.as_ref(), acquire(&job, "bea", 60_000)).await.ok()
    });
    let is_anns = answer.await.expect("it answers").is_err();
    let client = connect(&hurt.straight).await;
    let nobody =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'solehold' AND state <> 'idle'";
    wait_for("everything to come to rest", SOON, || async { number(&client, nobody).await == 0 })
        .await
        .expect("rest");
    assert_eq!(hurt.grants().await, 1);
    let holder = lease(store.as_ref(), &job).await.expect("it is held").lease.holder;
    assert_eq!(holder.as_str(), if is_anns { "ann" } else { "bea" });
}

/// A renewal that was committed and whose answer was lost is run again, and the caller sees one renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_renewal_is_run_again() {
    let hurt = Hurt::new().await;
    let store = open(&hurt.through).await;
    let session = session(store.as_ref(), "ann", 60_000).await;
    let client = connect(&hurt.straight).await;
    let renewed = "SELECT count(*) FROM solehold.sessions WHERE renewed_at_ms > opened_at_ms";
    assert_eq!(number(&client, renewed).await, 0);
    let mut committed_before = 0;
    let (result, batch) = run_batch(store.as_ref(), vec![heartbeat(session.id)], |times| {
        if times == 1 {
            return hurt.proxy.lose_answer("COMMIT", "COMMIT");
        }
        let restore = async {
            committed_before = number(&client, renewed).await;
            hurt.proxy.restore().await.expect("the proxy goes on");
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(restore));
    })
    .await;
    let outcomes = batch.outcomes;
    let decided = batch.decided;
    result.expect("it is renewed");
    assert_eq!(decided, 2, "it was not run again");
    assert_eq!(committed_before, 1, "the first one was not committed");
    let [Ok(Answer::Session(view))] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(view.session.deadline > session.deadline);
}

/// A server that is there and does not answer is unavailable before anyone loses patience, and back as soon as it is
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_unavailable() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open(&postgres.url()).await;
    let job = key("hung");
    grant(store.as_ref(), &job, "ann", 60_000).await;
    postgres.pause().await.expect("it stops");
    let began = tokio::time::Instant::now();
    let error = run(store.as_ref(), acquire(&key("other"), "ann", 60_000)).await.expect_err("it hangs");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    postgres.resume().expect("it goes on");
    wait_for("the store to answer", SOON, || async { store.load(&Footprint::default()).await.is_ok() })
        .await
        .expect("it answers");
    assert!(is_live(&lease(store.as_ref(), &job).await));
}

/// Stopped, and killed, and started again under load: whatever was granted is there, and nothing was granted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_and_started_under_load() {
    let postgres = Arc::new(Postgres::start().await.expect("PostgreSQL"));
    let store = open(&postgres.url()).await;
    let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
    let mut tasks = JoinSet::new();
    let is_over = Arc::new(AtomicBool::new(false));
    for worker in 0..8 {
        let engine = engine.clone();
        let is_over = is_over.clone();
        tasks.spawn(async move {
            let mut granted = Vec::new();
            for n in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let job = key(&format!("{worker}-{n}"));
                match engine.submit(acquire(&job, "ann", 300_000)).await {
                    Ok(outcome) => {
                        assert!(outcome.is_ok(), "{outcome:?}");
                        granted.push(job);
                    }
                    Err(EngineError::Store(_)) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
            granted
        });
    }
    let has_grants = async |more_than: i64| {
        let count = "SELECT count(*) FROM solehold.lease_events";
        let url = postgres.url();
        wait_for("grants", SOON, || async { number(&connect(&url).await, count).await > more_than })
            .await
            .expect("work goes on");
    };
    has_grants(100).await;
    postgres.stop().await.expect("it stops");
    postgres.start_again().await.expect("it starts");
    let before = number(&connect(&postgres.url()).await, "SELECT count(*) FROM solehold.lease_events").await;
    has_grants(before + 100).await;
    postgres.kill9().await.expect("it is killed");
    postgres.start_again().await.expect("it starts");
    let before = number(&connect(&postgres.url()).await, "SELECT count(*) FROM solehold.lease_events").await;
    has_grants(before + 100).await;
    is_over.store(true, Ordering::SeqCst);
    let granted: Vec<_> = tasks.join_all().await.concat();
    for job in granted {
        assert!(is_live(&lease(store.as_ref(), &job).await), "{job} was granted");
    }
    let sql = "SELECT count(*) - count(DISTINCT (kind, key)) FROM solehold.lease_events";
    assert_eq!(number(&connect(&postgres.url()).await, sql).await, 0, "nothing was granted twice");
    engine.stop().await;
}

/// A commit that was told to wait for a standby that is not there may be lost with this server: its outcome is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_with_a_warning_is_unknown() {
    let postgres = Postgres::start().await.expect("PostgreSQL");
    let store = open(&postgres.url()).await;
    grant(store.as_ref(), &key("before"), "ann", 60_000).await;
    let client = postgres.connect().await.expect("a connection");
    for sql in ["ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await.expect("a setting");
    }
    let sql =
        "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_standby_names' AND setting = 'nobody'";
    wait_for("the setting", SOON, || async { number(&client, sql).await == 1 }).await.expect("it is set");
    // The reload reaches each of the store's connections when it gets to it.
    wait_for("a commit that waits in vain", SOON, || {
        let store = store.clone();
        async move {
            let job = key(&uuid::Uuid::now_v7().to_string());
            match run(store.as_ref(), acquire(&job, "ann", 60_000)).await {
                Err(StoreError::Unknown(_)) => true,
                Ok(_) => false,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await
    .expect("it is unknown");
    for sql in ["ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"] {
        client.batch_execute(sql).await.expect("a setting");
    }
    let page = store.events(&EventQuery { limit: 1, ..Default::default() }).await.expect("reads go on");
    assert_eq!(page.events.len(), 1);
}

/// PostgreSQL has no place for another connection: those that are open are kept, and serve everyone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_serve_all_when_no_other_can_be_made() {
    let url = database().await;
    let client = connect(&url).await;
    let database = url.rsplit('/').next().expect("a name");
    let role = format!("limited_{}", uuid::Uuid::now_v7().simple());
    let prepare = format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 2; \
         GRANT EXECUTE ON FUNCTION pg_control_system() TO {role}; \
         ALTER DATABASE \"{database}\" OWNER TO {role}"
    );
    client.batch_execute(&prepare).await.expect("a role");
    let store = open(&url.replace("postgres://postgres@", &format!("postgres://{role}@"))).await;
    let opened = async || -> Vec<i32> {
        let sql = "SELECT pid FROM pg_stat_activity WHERE usename = $1";
        let rows = client.query(sql, &[&role]).await.expect("connections");
        rows.iter().map(|row| row.get(0)).collect()
    };
    grant(store.as_ref(), &key("first"), "ann", 60_000).await;
    let before = opened().await;
    let mut asking = JoinSet::new();
    for n in 0..24 {
        let store = store.clone();
        asking.spawn(async move { grant(store.as_ref(), &key(&format!("job-{n}")), "ann", 60_000).await });
    }
    assert_eq!(asking.join_all().await.len(), 24);
    let after = opened().await;
    assert!(!before.is_empty() && before.iter().all(|pid| after.contains(pid)), "{before:?} {after:?}");
}
