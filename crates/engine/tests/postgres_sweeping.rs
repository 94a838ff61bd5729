//! What the PostgreSQL store nominates when much else is due that cannot be judged yet.

#[path = "postgres/common.rs"]
mod common;

use std::sync::Arc;

use common::*;
use solehold_core::{
    command::{Acquire, Command, HandOver, Wait},
    key::{LeaseId, ResourceKey, SessionId},
    lease::Declaration,
    outcome::Answer,
    session::Session,
};
use solehold_engine::{postgres::PostgresStore, store::Store};
use solehold_testkit::wait_for;
use uuid::Uuid;

/// How much the sweeper looks at in one step, and how much of each sort is in its way.
const WINDOW: usize = 4;
const IN_THE_WAY: usize = 10;
const HOUR_MS: u64 = 3_600_000;
const LOCK_DELAY_MS: u64 = 300_000;
/// Long enough for a busy machine to do a thing or two to what runs out.
const BRIEF_MS: u64 = 3_000;

struct Bench {
    store: Arc<PostgresStore>,
    next: Session,
}

impl Bench {
    async fn new() -> Self {
        let store = open(&database().await).await;
        let next = session(store.as_ref(), "next", HOUR_MS).await;
        Self { store, next }
    }

    /// Declares a resource that is left alone for minutes once its lease has run out and someone is to have it.
    async fn declare(&self, key: &ResourceKey) {
        let declaration = Declaration { lock_delay_ms: LOCK_DELAY_MS, ..Default::default() };
        done(self.store.as_ref(), Command::Declare { key: key.clone(), declaration, only_new: false }).await;
    }

    async fn hand_over(&self, key: &ResourceKey, to: SessionId) {
        let lease = LeaseId::new(key, Uuid::new_v4());
        let hand_over = Command::HandOver(HandOver::new(key.clone(), lease, to, HOUR_MS));
        done(self.store.as_ref(), hand_over).await;
    }

    /// Lets a lease and a session run out behind all that is in the way, and sweeps until they are judged.
    async fn sweeps_what_is_ripe(&self) {
        let job = key("ripe");
        let brief = session(self.store.as_ref(), "brief", BRIEF_MS).await;
        grant(self.store.as_ref(), &job, "ann", BRIEF_MS).await;
        let over = wait_for("the lease to run out", SOON, || async {
            !is_live(&lease(self.store.as_ref(), &job).await)
        });
        over.await.expect("it runs out");
        let mut wanted = vec![Command::Expire { key: job }, Command::ExpireSession(brief.id)];
        for _ in 0..20 {
            let due = self.store.due(WINDOW).await.expect("the store reads").commands;
            wanted.retain(|command| !due.contains(command));
            for command in due {
                done(self.store.as_ref(), command).await;
            }
        }
        assert!(wanted.is_empty(), "not nominated in 20 sweeps: {wanted:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_within_their_lock_delay_are_not_in_the_way() {
    let bench = Bench::new().await;
    for n in 0..IN_THE_WAY {
        let job = key(&format!("job-{n}"));
        bench.declare(&job).await;
        grant(bench.store.as_ref(), &job, "ann", BRIEF_MS).await;
        bench.hand_over(&job, bench.next.id).await;
    }
    bench.sweeps_what_is_ripe().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_held_back_from_their_line_are_not_in_the_way() {
    let bench = Bench::new().await;
    let store = bench.store.as_ref();
    let room = SessionId(Uuid::new_v4());
    done(store, Command::OpenRoom { id: room, ttl_ms: HOUR_MS }).await;
    for n in 0..IN_THE_WAY {
        let job = key(&format!("job-{n}"));
        let held = grant(store, &job, "ann", BRIEF_MS).await;
        // The bound by which the sweeper finds it stays where it was.
        done(store, Command::Renew { claim: claim(&held), ttl_ms: Some(HOUR_MS), stats: None }).await;
        let Command::Acquire(ask) = acquire(&job, "bea", HOUR_MS) else { panic!("not an acquire") };
        let wait = Some(Wait { room, wait_ms: HOUR_MS });
        let Answer::Waiting(_) = done(store, Command::Acquire(Acquire { wait, ..ask })).await else {
            panic!("not in line")
        };
        done(store, Command::Revoke { claim: claim(&held), fenced: false, reason: None }).await;
    }
    bench.sweeps_what_is_ripe().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_sessions_whose_leases_are_not_ripe_are_not_in_the_way() {
    let bench = Bench::new().await;
    for n in 0..IN_THE_WAY {
        let job = key(&format!("job-{n}"));
        let dead = session(bench.store.as_ref(), &format!("dead-{n}"), BRIEF_MS).await;
        bench.declare(&job).await;
        done(bench.store.as_ref(), acquire_on(&job, &dead)).await;
        bench.hand_over(&job, bench.next.id).await;
    }
    bench.sweeps_what_is_ripe().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_sessions_with_only_pending_leases_are_not_in_the_way() {
    let bench = Bench::new().await;
    for n in 0..IN_THE_WAY {
        let job = key(&format!("job-{n}"));
        let dead = session(bench.store.as_ref(), &format!("dead-{n}"), BRIEF_MS).await;
        grant(bench.store.as_ref(), &job, "ann", HOUR_MS).await;
        bench.hand_over(&job, dead.id).await;
    }
    bench.sweeps_what_is_ripe().await;
}

/// What made a lease wait for its lock-delay goes away: it is judged then, not minutes later, and its session with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_session_is_found_when_nothing_holds_its_lease_back_any_more() {
    let bench = Bench::new().await;
    let store = bench.store.as_ref();
    let job = key("job");
    let dead = session(store, "dead", BRIEF_MS).await;
    bench.declare(&job).await;
    done(store, acquire_on(&job, &dead)).await;
    bench.hand_over(&job, bench.next.id).await;
    wait_for("the session to be over", SOON, || async { !is_live(&lease(store, &job).await) })
        .await
        .expect("over");
    assert!(store.due(WINDOW).await.expect("the store reads").commands.is_empty(), "nothing is ripe");
    done(store, Command::CloseSession { tenant: name("acme"), session: bench.next.id }).await;
    let is_gone = wait_for("the dead session to be removed", SOON, || async {
        for command in store.due(WINDOW).await.expect("the store reads").commands {
            done(store, command).await;
        }
        let wanted = solehold_core::command::Footprint { sessions: vec![dead.id], ..Default::default() };
        store.load(&wanted).await.expect("the store reads").state.session(dead.id).is_none()
    });
    is_gone.await.expect("it is found");
}

/// Nominations that nobody judges, as when their batch fails each time, are not all that is ever nominated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_nominated_in_vain_is_not_in_the_way() {
    let bench = Bench::new().await;
    let store = bench.store.as_ref();
    let mut wanted = Vec::new();
    for n in 0..IN_THE_WAY {
        let job = key(&format!("job-{n}"));
        wanted.push(Command::ExpireSession(session(store, &format!("brief-{n}"), BRIEF_MS).await.id));
        grant(store, &job, "ann", BRIEF_MS).await;
        wanted.push(Command::Expire { key: job });
    }
    let last = key(&format!("job-{}", IN_THE_WAY - 1));
    let over = wait_for("the leases to run out", SOON, || async { !is_live(&lease(store, &last).await) });
    over.await.expect("they run out");
    for _ in 0..20 {
        let due = store.due(WINDOW).await.expect("the store reads").commands;
        assert!(due.len() <= WINDOW, "{due:?}");
        wanted.retain(|command| !due.contains(command));
    }
    assert!(wanted.is_empty(), "not nominated in 20 sweeps: {wanted:?}");
}
