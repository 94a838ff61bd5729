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
    CREATE TRIGGER fail_clock AFTER UPDATE ON solehold.clock FOR EACH STATEMENT EXECUTE FUNCTION fail()";

fn engine(store: Arc<dyn Store>) -> Engine {
    Engine::start(store, EngineOptions::default(), Arc::new(()))
}

async fn two_engines(url: &str) -> [Engine; 2] {
    let (one, two) = tokio::join!(open(url), open(url));
    [engine(one), engine(two)]
}

/// 200 acquirers at two replicas: one wins, and everyone else is told who.
async fn race(url: &str) {
    let engines = two_engines(url).await;
    let wanted = key("the one");
    let mut tasks = JoinSet::new();
    for n in 0..200_usize {
        let (engine, command) = (engines[n % 2].clone(), acquire(&wanted, &format!("holder-{n}"), 60_000));
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
    let held = "SELECT count(*) FROM (SELECT session_id, count(*) FROM solehold.leases WHERE session_id IS NOT NULL \
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
        let (tenant, session) = (name("acme"), view.session.id);
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
