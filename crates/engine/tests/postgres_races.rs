//! Several PostgreSQL stores over one database at once: two replicas, strict isolation, failures to serialize.

#[path = "postgres/common.rs"]
mod common;

use std::{sync::Arc, time::Duration};

use common::*;
use solehold_core::{
    command::*,
    outcome::{Answer, Outcome, Refusal},
};
use solehold_engine::{
    Engine, EngineError, EngineOptions,
    store::{EventQuery, Store},
};
use solehold_testkit::wait_for;
use tokio::task::JoinSet;

/// Makes the first statements that write fail, as CockroachDB's do now and then.
const FAILING: &str = "CREATE SEQUENCE failures; \
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF nextval('failures') <= 12 THEN \
            RAISE EXCEPTION 'injected' USING ERRCODE = 'serialization_failure'; \
        END IF; RETURN NULL; END $$; \
    CREATE TRIGGER fail_leases AFTER INSERT OR UPDATE OR DELETE ON solehold.leases \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_sessions AFTER INSERT OR UPDATE OR DELETE ON solehold.sessions \
        FOR EACH STATEMENT EXECUTE FUNCTION fail(); \
    CREATE TRIGGER fail_commits AFTER INSERT ON solehold.commits FOR EACH STATEMENT EXECUTE FUNCTION fail()";

fn engine(store: Arc<dyn Store>) -> Engine {
    Engine::start(store, EngineOptions::default(), Arc::new(()))
}

async fn two_engines(url: &str) -> [Engine; 2] {
    let (one, two) = tokio::join!(open(url), open(url));
    [engine(one), engine(two)]
}

/// A replica that stands still in the middle of a batch, its rows and the clock locked, holds nobody up for long:
/// PostgreSQL ends its transaction before the others give up, and it decides anew when it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_stops_in_the_middle_of_a_batch_holds_the_others_up_for_a_moment() {
    let url = database().await;
    let paused = open(&url).await;
    let other = open(&url).await;
    let (enter, entered) = tokio::sync::oneshot::channel();
    let (go_on, told) = std::sync::mpsc::sync_channel(1);
    let mut enter = Some(enter);
    let stands_still = move |_| {
        if let Some(enter) = enter.take() {
            enter.send(()).expect("someone waits");
            told.recv_timeout(Duration::from_secs(60)).expect("the others go on");
        }
    };
    let paused = tokio::spawn(async move {
        let (result, batch) =
            run_batch(paused.as_ref(), vec![acquire(&key("a"), "ann", 60_000)], stands_still).await;
        result.expect("it comes back");
        (batch.decided, batch.outcomes)
    });
    entered.await.expect("it is in the middle");
    let granted = grant(other.as_ref(), &key("b"), "bea", 60_000).await;
    let taken = grant(other.as_ref(), &key("a"), "bea", 60_000).await;
    go_on.send(()).expect("it waits");
    let (decided, outcomes) = paused.await.expect("no panic");
    assert_eq!(decided, 2, "what it had decided counts for nothing");
    assert!(matches!(&outcomes[..], [Err(Refusal::Held { holder, .. })] if holder.as_str() == "bea"));
    assert_eq!((granted.lease.lease.token.0, taken.lease.lease.token.0), (1, 2));
}

/// A holder that asks at two replicas at once, by its name alone, gets no more than it may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_replicas_and_one_capacity() {
    const ROUNDS: usize = 8;
    const MOST: u32 = 3;
    let url = database().await;
    let engines = two_engines(&url).await;
    for round in 0..ROUNDS {
        let holder = format!("holder-{round}");
        let mut asks = JoinSet::new();
        for n in 0..12 {
            let Command::Acquire(ask) = acquire(&key(&format!("{round}-{n}")), &holder, 60_000) else {
                panic!("not an acquire")
            };
            let engine = engines[n % 2].clone();
            let ask = Acquire { holds_at_most: Some(MOST), ..ask };
            asks.spawn(async move { engine.submit(Command::Acquire(ask)).await.expect("answered") });
        }
        let outcomes = asks.join_all().await;
        let granted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(granted, MOST as usize, "{outcomes:?}");
        let is_refused = |o: &&Outcome| matches!(o, Err(Refusal::HolderAtCapacity { capacity: MOST, .. }));
        assert_eq!(outcomes.iter().filter(is_refused).count(), 12 - MOST as usize, "{outcomes:?}");
    }
}

/// What goes round within a holder changes no index: the rows stay in their pages, and indexes do not grow with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_and_their_ends_are_heap_only() {
    const CYCLES: i64 = 200;
    let url = database().await;
    let store = open(&url).await;
    let session = session(store.as_ref(), "ann", 60_000).await;
    let by_ttl = key("by ttl");
    let by_session = key("by session");
    for key in [&by_ttl, &by_session] {
        let declaration = Default::default();
        done(store.as_ref(), Command::Declare { key: key.clone(), declaration, only_new: false }).await;
    }
    for _ in 0..CYCLES / 2 {
        for ask in [acquire(&by_ttl, "ann", 60_000), acquire_on(&by_session, &session)] {
            let Answer::Granted(grant) = done(store.as_ref(), ask).await else { panic!("not granted") };
            done(store.as_ref(), release(&grant)).await;
        }
    }
    store.close().await;
    let client = connect(&url).await;
    let updates = |what: &str| {
        format!("SELECT coalesce(sum({what}), 0)::bigint FROM pg_stat_user_tables WHERE relname = 'leases'")
    };
    let all = async || number(&client, &updates("n_tup_upd")).await >= 2 * CYCLES;
    wait_for("PostgreSQL to count", Duration::from_secs(60), all).await.expect("counted");
    let heap_only = number(&client, &updates("n_tup_hot_upd")).await;
    assert!(heap_only >= 2 * CYCLES * 9 / 10, "{heap_only} of {} updates", 2 * CYCLES);
}

/// The bound by which the sweeper finds a lease stays when the lease ends, and is cleared when its time has come; the
/// resource stays what it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_that_a_lease_left_behind_is_cleared() {
    let url = database().await;
    let engine = engine(open(&url).await);
    let job = key("short");
    let declare = Command::Declare { key: job.clone(), declaration: Default::default(), only_new: false };
    engine.submit(declare).await.expect("answered").expect("declared");
    let Ok(Answer::Granted(grant)) = engine.submit(acquire(&job, "ann", 1_000)).await.expect("answered")
    else {
        panic!("not granted")
    };
    engine.submit(release(&grant)).await.expect("answered").expect("released");
    let client = connect(&url).await;
    let bounds = "SELECT count(due_ms) FROM solehold.leases";
    assert_eq!(number(&client, bounds).await, 1);
    let is_cleared = async || number(&client, bounds).await == 0;
    wait_for("the bound to be cleared", Duration::from_secs(60), is_cleared).await.expect("cleared");
    assert!(matches!(engine.submit(acquire(&job, "bea", 60_000)).await, Ok(Ok(Answer::Granted(_)))));
    assert_eq!(number(&client, bounds).await, 1);
    engine.stop().await;
}

/// 200 acquirers at two replicas: one wins, and everyone else is told who.
async fn race(url: &str) {
    let engines = two_engines(url).await;
    let wanted = key("the one");
    let mut tasks = JoinSet::new();
    for n in 0..200_usize {
        let engine = engines[n % 2].clone();
        let command = acquire(&wanted, &format!("holder-{n}"), 60_000);
        tasks.spawn(async move { engine.submit(command).await.expect("the store answers") });
    }
    let outcomes = tasks.join_all().await;
    let winners: Vec<_> = outcomes
        .iter()
        .filter_map(|o| match o {
            Ok(Answer::Granted(grant)) => Some(grant.lease.lease.holder.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    let told = |o: &Outcome| matches!(o, Err(Refusal::Held { holder, .. }) if *holder == winners[0]);
    assert_eq!(outcomes.iter().filter(|o| told(o)).count(), 199);
    let store = open(url).await;
    let events = store.events(&EventQuery { limit: 10, ..Default::default() }).await.expect("events").events;
    assert_eq!(events.len(), 1);
    for engine in engines {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_and_one_winner() {
    race(&database().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_winner_under_serializable() {
    let url = database().await;
    strict(&url, "serializable").await;
    race(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_winner_under_repeatable_read() {
    let url = database().await;
    strict(&url, "repeatable read").await;
    race(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_winner_among_failures_to_serialize() {
    let url = database().await;
    open(&url).await.close().await;
    let client = connect(&url).await;
    client.batch_execute(FAILING).await.expect("triggers");
    race(&url).await;
    assert!(number(&client, "SELECT last_value FROM failures").await > 12, "all failures were injected");
}

async fn strict(url: &str, isolation: &str) {
    let client = connect(url).await;
    let database = url.rsplit('/').next().expect("a name");
    let sql = format!("ALTER DATABASE \"{database}\" SET default_transaction_isolation = '{isolation}'");
    client.batch_execute(&sql).await.expect("a setting");
}

/// Everything at once on few keys and few sessions, from two replicas: nobody is ever in a deadlock, nobody gives up.
async fn mix(url: &str, lasts: Duration) {
    let engines = two_engines(url).await;
    let mut tasks = JoinSet::new();
    for worker in 0..16_usize {
        tasks.spawn(work(engines[worker % 2].clone(), worker, lasts));
    }
    let done: usize = tasks.join_all().await.into_iter().sum();
    assert!(done > 100, "only {done} commands in {lasts:?}");
    let client = connect(url).await;
    let held = "SELECT count(*) FROM (SELECT session_id, count(*) FROM solehold.leases \
                WHERE session_id IS NOT NULL AND lease_id IS NOT NULL \
                GROUP BY 1) l FULL JOIN (SELECT * FROM solehold.sessions WHERE lease_count > 0) s ON s.id = l.session_id \
                WHERE s.lease_count IS DISTINCT FROM l.count";
    assert_eq!(number(&client, held).await, 0, "sessions count their leases right");
    for engine in engines {
        engine.stop().await;
    }
}

async fn work(engine: Engine, worker: usize, lasts: Duration) -> usize {
    let holder = format!("holder-{}", worker % 3);
    let submit = async |command: Command| match engine.submit(command).await {
        Ok(outcome) => outcome.ok(),
        Err(EngineError::Overloaded { .. }) => None,
        Err(error) => panic!("{error}"),
    };
    let mut done = 0;
    let began = tokio::time::Instant::now();
    while began.elapsed() < lasts {
        let Some(Answer::Session(view)) = submit(open_session(&holder, 2_000)).await else { continue };
        for n in 0..8 {
            let wanted = key(&format!("key-{}", (worker * 5 + n * 3) % 7));
            let hung = submit(acquire_on(&wanted, &view.session)).await;
            let own = submit(acquire(&wanted, &holder, 1_000)).await;
            submit(heartbeat(view.session.id)).await;
            for got in [hung, own] {
                let Some(Answer::Granted(grant)) = got else { continue };
                submit(renew(&grant)).await;
                if n % 2 == 0 {
                    submit(release(&grant)).await;
                }
            }
            done += 4;
        }
        let tenant = name("acme");
        let session = view.session.id;
        submit(Command::CloseSession { tenant, session }).await;
    }
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_batches_never_meet_in_a_deadlock() {
    let url = database().await;
    mix(&url, Duration::from_secs(5)).await;
    let client = connect(&url).await;
    let sql = "SELECT deadlocks + conflicts FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(number(&client, sql).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_batches_under_serializable() {
    let url = database().await;
    strict(&url, "serializable").await;
    mix(&url, Duration::from_secs(3)).await;
}
