//! Batches and races.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::{join_all, poll_immediate};
use solehold_core::{command::*, event::EventName, key::*, outcome::*, time::*};
use tokio::task::unconstrained;
use uuid::Uuid;

use crate::{Fixture, kit::*};
use solehold_engine::{Engine, EngineOptions, observe::*};

/// The same resource in one batch twice: the second command sees what the first one did.
pub async fn same_resource_twice(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("twice");
    let first = ask(&job, "ann");
    let second = ask(&job, "bea");
    let by_lease = by_id("acme", first.lease);
    let outcomes =
        bench.all(vec![first.command(), second.clone().command(), release(by_lease), second.command()]).await;
    let ann = granted(outcomes[0].clone());
    is!(outcomes[1], Err(Refusal::Held { token: t, .. }) if *t == token(&ann));
    assert!(outcomes[2].is_ok());
    let bea = granted(outcomes[3].clone());
    assert_eq!(token(&bea).0, token(&ann).0 + 2, "acquired, released, acquired");
    assert_eq!(bench.lease(&job).await.expect("held").lease, bea.lease.lease);
    use EventName::{LeaseAcquired, LeaseReleased};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, LeaseReleased, LeaseAcquired]);
}

/// A session that is opened, used and closed in one batch.
pub async fn session_and_lease_in_one(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let opening = open("ann", LONG_MS);
    let Command::OpenSession(OpenSession { id, .. }) = opening else { unreachable!("as just made") };
    let on = |n: &str| Acquire { tenure: AskedTenure::Session(id), ..ask(&key(n), "ann") };
    let outcomes = bench
        .all(vec![
            opening,
            on("a").command(),
            on("b").command(),
            heartbeat(id),
            renew(by_session(&key("a"), id)),
        ])
        .await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let state = bench.load(Footprint { whole_sessions: vec![id], ..Default::default() }).await.state;
    assert_eq!(state.session(id).expect("open").lease_count, 2);
    assert_eq!(state.attached_to(id).count(), 2);
    let outcomes = bench.all(vec![on("c").command(), close(id), on("d").command()]).await;
    is!(outcomes[1], Ok(Answer::Closed { released: 3 }));
    is!(outcomes[2], Err(Refusal::NoSession { .. }));
    assert!(bench.resource(&key("a")).await.is_none());
}

/// Rows that one command of a batch makes are there for the next, whatever they are named by.
pub async fn found_in_one_batch(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("relay");
    let next = bench.session("bea", LONG_MS).await;
    let first = ask(&job, "ann");
    let lease = first.lease;
    let outcomes = bench
        .all(vec![
            declare(&job, Default::default()),
            first.command(),
            hand_over(&job, next.id, LONG_MS),
            release(by_id("acme", lease)),
            heartbeat(next.id),
            renew(by_session(&job, next.id)),
            close(next.id),
            Command::Delete { key: job.clone(), force: false, fenced: false },
        ])
        .await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(bench.resource(&job).await.is_none());
}

/// Two hundred at once: one wins, and every other one learns of the winner.
pub async fn two_hundred_acquirers_one_wins(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let job = key("raced");
    let asks = (0..200).map(|n| {
        let engine = engine.clone();
        let ask = ask(&job, &format!("holder-{n}"));
        tokio::spawn(async move { engine.submit(ask.command()).await.expect("the store answers") })
    });
    let mut winners = Vec::new();
    let mut told = Vec::new();
    for outcome in asks.collect::<Vec<_>>() {
        match outcome.await.expect("no panic") {
            Ok(Answer::Granted(grant)) => winners.push(grant),
            Err(Refusal::Held { holder, token, .. }) => told.push((holder, token)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((winners.len(), told.len()), (1, 199));
    let won = (winners[0].lease.lease.holder.clone(), token(&winners[0]));
    assert!(told.iter().all(|t| *t == won));
    engine.stop().await;
}

/// Counts batches, of which none ends before all have asked.
#[derive(Default)]
struct Batches {
    count: AtomicUsize,
    all_asked: OnceLock<()>,
}

impl Observer for Batches {
    fn batch(&self, _: Lane, _: usize, _: std::time::Duration) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.all_asked.wait();
    }
}

/// A thousand clients that each ask for one thing while a commit is under way cost a few commits, not a thousand.
pub async fn a_thousand_in_few_batches(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let batches = Arc::new(Batches::default());
    let engine = Engine::start(bench.store.clone(), EngineOptions::default(), batches.clone());
    let clients = (0..1_000).map(|n| engine.submit(ask(&key(&format!("job-{n}")), "ann").command()));
    // A future that has been polled once has asked; without a budget, all of them are.
    let mut answers = pin!(unconstrained(join_all(clients)));
    assert!(poll_immediate(answers.as_mut()).await.is_none(), "answered before the first batch was over");
    batches.all_asked.set(()).expect("set once");
    let grants = answers.await.into_iter().map(|answer| granted(answer.expect("the store answers")));
    let tokens: BTreeSet<_> = grants.map(|grant| token(&grant)).collect();
    assert_eq!(tokens.len(), 1_000);
    // One that was under way, and one with the rest; a few more do no harm.
    let count = batches.count.load(Ordering::SeqCst);
    assert!(count <= 10, "{count} batches");
    engine.stop().await;
}

/// Heartbeats against expiry at the same time: a session that a heartbeat kept loses nothing, one that was too late
/// renews nothing, and nobody is told both.
pub async fn heartbeats_race_expiry(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let session = bench.session("ann", SHORT_MS).await;
    let job = key("beaten");
    let grant = bench.grant(ask_on(&job, &session)).await;
    bench.pass_until(StoreTime(session.deadline.0 - 20)).await;
    let beats = (0..64).map(|n| {
        let engine = engine.clone();
        let command = if n % 2 == 0 { heartbeat(session.id) } else { Command::Expire { key: job.clone() } };
        tokio::spawn(async move { engine.submit(command).await.expect("the store answers") })
    });
    let beats: Vec<_> = beats.collect();
    bench.pass(40).await;
    let mut kept_until = StoreTime(0);
    for outcome in beats {
        match outcome.await.expect("no panic") {
            Ok(Answer::Session(view)) => kept_until = kept_until.max(view.session.deadline),
            Ok(Answer::Judged { .. }) | Err(Refusal::NoSession { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let ended = bench.events(grant.revision).await.into_iter().find(|e| e.name() == EventName::LeaseExpired);
    assert!(ended.is_none_or(|e| e.at >= kept_until.max(session.deadline)), "expired though it was kept");
    engine.stop().await;
}

/// A decider that finds no way: nothing of its batch is committed.
pub async fn nothing_by_halves(fixture: &dyn Fixture) {
    use solehold_core::ledger::{FoundLate, Ledger};
    use solehold_engine::store::{BatchDecision, Decider};

    struct Late(Judge);
    impl Decider for Late {
        fn decide(&mut self, state: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
            self.0.decide(state, moment)?;
            Err(FoundLate::Session(SessionId(Uuid::nil())))
        }
    }
    let bench = Bench::new(fixture).await;
    let command = ask(&key("half"), "ann").command();
    let mut footprint = Footprint::default();
    command.footprint(&mut footprint);
    let mut late = Late(Judge::of(vec![command]));
    assert!(bench.store.transact(&footprint, Lane::News, &mut late).await.is_err());
    assert!(bench.resource(&key("half")).await.is_none());
    assert_eq!(bench.head().await.revision, Revision(0));
    bench.grant(ask(&key("half"), "bea")).await;
}
