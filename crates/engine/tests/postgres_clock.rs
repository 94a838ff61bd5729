//! PostgreSQL's clock set forward and back by an hour: nothing expires early, nothing lives for ever.

#[path = "postgres/common.rs"]
mod common;

use std::sync::Arc;

use common::*;
use solehold_engine::{
    postgres::PostgresStore,
    store::{Retention, Store},
};
use solehold_testkit::{Postgres, wait_for};

const HOUR: i64 = 3_600;
const KEEP: Retention = Retention { events_ms: u64::MAX >> 1, events_max: u64::MAX >> 1 };

async fn server() -> Postgres {
    Postgres::builder().fake_clock().start().await.expect("PostgreSQL")
}

/// A long lease and a short one, each of its own, and one of each on a session.
struct Leases {
    own: [solehold_core::key::ResourceKey; 2],
    session: solehold_core::session::Session,
    hanging: solehold_core::key::ResourceKey,
}

impl Leases {
    async fn of(store: &dyn Store) -> Self {
        let [long, short, hanging] = ["long", "short", "hanging"].map(key);
        grant(store, &long, "ann", 600_000).await;
        grant(store, &short, "ann", 20_000).await;
        let session = session(store, "bea", 300_000).await;
        done(store, acquire_on(&hanging, &session)).await;
        Self { own: [long, short], session, hanging }
    }

    /// All are live and have about the time left that they had.
    async fn are_live(&self, store: &dyn Store) {
        for (key, ttl_ms) in [(&self.own[0], 600_000), (&self.hanging, 300_000)] {
            let view = lease(store, key).await;
            assert!(is_live(&view), "{view:?}");
            let left = view.map_or(0, |view| view.ttl_left_ms());
            assert!((ttl_ms - 60_000..=ttl_ms + 1_000).contains(&left), "{left} ms left of {ttl_ms}");
        }
    }
}

/// A lease that nobody renews runs out in its time, by a clock that was set.
async fn runs_out(store: &Arc<PostgresStore>) {
    let brief = key("brief");
    grant(store.as_ref(), &brief, "carl", 1_000).await;
    let over = wait_for("a lease of a second to run out", SOON, || async {
        store.maintain(&KEEP).await.expect("the store maintains");
        !is_live(&lease(store.as_ref(), &brief).await)
    });
    over.await.expect("it runs out");
}

async fn while_running(offset: i64) {
    let postgres = server().await;
    let store = open(&postgres.url()).await;
    let leases = Leases::of(store.as_ref()).await;
    for (step, offset) in [offset, 0, offset].into_iter().enumerate() {
        postgres.set_clock_offset(offset).expect("a clock");
        leases.are_live(store.as_ref()).await;
        // Both lanes, and not only reads.
        done(store.as_ref(), heartbeat(leases.session.id)).await;
        let other = key(&format!("other-{step}"));
        let other = grant(store.as_ref(), &other, "ann", 60_000).await;
        done(store.as_ref(), renew(&other)).await;
        leases.are_live(store.as_ref()).await;
        runs_out(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_forward_while_running() {
    while_running(HOUR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_back_while_running() {
    while_running(-HOUR).await;
}

async fn while_stopped(offset: i64) {
    let postgres = server().await;
    let store = open(&postgres.url()).await;
    let leases = Leases::of(store.as_ref()).await;
    store.close().await;
    drop(store);
    postgres.set_clock_offset(offset).expect("a clock");
    let store = open(&postgres.url()).await;
    leases.are_live(store.as_ref()).await;
    assert!(is_live(&lease(store.as_ref(), &leases.own[1]).await), "the short one, too");
    done(store.as_ref(), heartbeat(leases.session.id)).await;
    leases.are_live(store.as_ref()).await;
    runs_out(&store).await;
    // Another replica, while this one keeps time, changes nothing.
    let second = open(&postgres.url()).await;
    leases.are_live(second.as_ref()).await;
    leases.are_live(store.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_forward_while_stopped() {
    while_stopped(HOUR).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_back_while_stopped() {
    while_stopped(-HOUR).await;
}

/// Two replicas see the same step, one of them after the other has corrected it, and keep the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_agree_on_a_step() {
    let postgres = server().await;
    let url = postgres.url();
    let (one, two) = tokio::join!(open(&url), open(&url));
    let leases = Leases::of(one.as_ref()).await;
    for offset in [HOUR, -HOUR, 0] {
        postgres.set_clock_offset(offset).expect("a clock");
        tokio::join!(leases.are_live(one.as_ref()), leases.are_live(two.as_ref()));
        runs_out(&two).await;
        runs_out(&one).await;
    }
}

/// The time of a batch is read when its locks are held, however long it waited for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_is_read_under_the_locks() {
    let url = database().await;
    let store = open(&url).await;
    let job = key("contended");
    grant(store.as_ref(), &job, "ann", 60_000).await;
    for sql in ["SELECT 1 FROM solehold.clock FOR UPDATE", "SELECT 1 FROM solehold.leases FOR UPDATE"] {
        let mut client = connect(&url).await;
        let in_the_way = client.transaction().await.expect("a transaction");
        in_the_way.execute(sql, &[]).await.expect("a lock");
        let waiting = tokio::spawn({
            let (store, other) = (store.clone(), key(sql));
            let both = [acquire(&key("contended"), "bea", 60_000), acquire(&other, "bea", 60_000)];
            async move { run_batch(store.as_ref(), both.to_vec(), |_| ()).await.1.outcomes }
        });
        let watcher = connect(&url).await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_for("the batch to wait for a lock", SOON, || async { number(&watcher, sql).await == 1 })
            .await
            .expect("it waits");
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let released_at = number(&watcher, clock).await;
        in_the_way.rollback().await.expect("the lock goes");
        let outcomes = waiting.await.expect("the batch");
        let Some(Ok(solehold_core::outcome::Answer::Granted(other))) = outcomes.last() else {
            panic!("{outcomes:?}");
        };
        let granted_at = other.lease.lease.acquired_at.0 as i64;
        assert!(granted_at >= released_at, "{granted_at} is before {released_at}");
    }
}
