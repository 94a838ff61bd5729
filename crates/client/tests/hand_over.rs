//! Being told at once, and hand-overs, against every sort of authority. The ttl is so long that no heartbeat would come
//! during a test: whatever is heard of in time was told.

mod common;

use std::{sync::Mutex, time::Duration};

use common::{Behind, PATIENCE, Sort, database, http, postgres_store, serve};
use serde_json::json;
use solehold_client::{ClientSession, Lost, SessionConfig, clock::BootTime};
use solehold_core::{
    command::{Claim, Command, Target},
    event::EventName,
    key::{Name, ResourceKey},
};
use solehold_engine::{Engine, store::EventQuery};
use solehold_testkit::wait_for;

/// Its heartbeats come every 80 s at the soonest, which is longer than anything is waited for here.
const TTL: Duration = Duration::from_secs(300);

fn lasting(holder: &str) -> SessionConfig {
    SessionConfig { ttl: TTL, ..SessionConfig::new(holder) }
}

fn key(name: &str) -> ResourceKey {
    let of = |text: &str| Name::new(text).expect("a name");
    ResourceKey::new(of("default"), of("job"), of(name))
}

async fn revoke(engine: &Engine, job: &str) {
    let claim = Claim { target: Target::Resource(key(job)), token: None, session: None, holder: None };
    let command = Command::Revoke { claim, fenced: true, reason: None };
    engine.submit(command).await.expect("an outcome").expect("revoked");
}

/// The events of a job: their names, holders and times.
async fn events(engine: &Engine, job: &str) -> Vec<(EventName, Option<String>, u64)> {
    let query = EventQuery { resource: Some(key(job)), limit: 100, ..Default::default() };
    let page = engine.events(&query).await.expect("events");
    let told = |e: &solehold_core::event::Event| (e.name(), e.holder().map(ToString::to_string), e.at.0);
    page.events.iter().map(told).collect()
}

async fn for_all(test: impl AsyncFn(&Behind)) {
    for sort in Sort::ALL {
        println!("{sort:?}");
        test(&sort.start().await).await;
    }
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    let began = BootTime::now();
    let done = tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("no {what}"));
    println!("{what} after {:?}", BootTime::now().since(began));
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_at_once_that_its_lease_was_revoked() {
    for_all(async |behind| {
        let one = behind.session_with(lasting("one")).await;
        let two = behind.session_with(lasting("two")).await;
        let lost = one.acquire("job", "a").await.expect("granted");
        let kept = [one.acquire("job", "b").await, two.acquire("job", "c").await];
        // The second time, nothing is looked up any more: the news come from where the last ones ended.
        for _ in 0..2 {
            let again = two.acquire("job", "d").await.expect("granted");
            revoke(&behind.engine, "d").await;
            assert_eq!(in_time("word of the revocation", again.lost()).await, Lost::Ended);
        }
        revoke(&behind.engine, "a").await;
        assert_eq!(in_time("word of the revocation", lost.lost()).await, Lost::Ended);
        for guard in kept {
            assert!(guard.expect("granted").is_live());
        }
    })
    .await;
}

/// The answer that tells of the loss renews the session, and so the other leases.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_a_lost_lease_does_not_move_with_its_session() {
    for_all(async |behind| {
        let session = behind.session_with(lasting("one")).await;
        let lost = session.acquire("job", "a").await.expect("granted");
        let kept = session.acquire("job", "b").await.expect("granted");
        // A heartbeat that was sent before the lease is revoked moves its deadline: none may be under way.
        let looks = Mutex::new(Vec::new());
        let is_at_rest = async || {
            let mut looks = looks.lock().expect("unhurt");
            looks.push(kept.deadline());
            looks.iter().rev().take_while(|look| **look == kept.deadline()).count() >= 20
        };
        wait_for("a session at rest", PATIENCE, is_at_rest).await.expect("at rest");
        let before = kept.deadline();
        revoke(&behind.engine, "a").await;
        in_time("word of the revocation", lost.lost()).await;
        let is_renewed = async || {
            session.refresh();
            kept.deadline() > before.plus(Duration::from_millis(10))
        };
        wait_for("a renewal", PATIENCE, is_renewed).await.expect("renewed");
        assert!(lost.deadline() <= before, "{:?} {before:?}", lost.deadline());
    })
    .await;
}

/// Two replicas over one PostgreSQL: the word crosses from one to the other.
#[tokio::test(flavor = "multi_thread")]
async fn what_happens_at_one_replica_is_told_at_the_other() {
    let url = database().await;
    let first = serve(postgres_store(&url).await).await;
    let second = serve(postgres_store(&url).await).await;
    let session = ClientSession::open(http(&[&first]), lasting("one")).await.expect("a session");
    let guard = session.acquire("job", "a").await.expect("granted");
    revoke(second.engine(), "a").await;
    assert_eq!(in_time("word of the revocation", guard.lost()).await, Lost::Ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_move_has_no_gap_and_carries_the_state_along() {
    for_all(async |behind| {
        let one = behind.session_with(lasting("one")).await;
        let two = behind.session_with(lasting("two")).await;
        let old = one.acquire("job", "a").await.expect("granted");
        old.write_state(&json!({"seen": 1})).await.expect("written");
        let mover = two.clone();
        let token = old.token();
        let moving = tokio::spawn(async move { mover.take_over("job", "a", PATIENCE).await });
        let asked = in_time("word of the hand-over", old.hand_over_asked()).await;
        assert_eq!(asked.to, "two");
        assert!(old.is_live(), "it is asked, not lost");
        old.release_with(&json!({"seen": 2})).await.expect("released");
        let new = in_time("guard of the next holder", moving).await.expect("no panic");
        let new = new.expect("granted").expect("handed over");
        assert!(new.is_live() && new.token() > token);
        assert_eq!(new.state(), Some(json!({"seen": 2})));
        new.write_state(&json!({"seen": 3})).await.expect("its own token");
        let told = events(&behind.engine, "a").await;
        let released = told.iter().position(|(name, ..)| *name == EventName::LeaseReleased);
        let [(_, _, at), (next, holder, then)] = &told[released.expect("released")..][..2] else {
            panic!("{told:?}")
        };
        assert_eq!((next, holder.as_deref(), then), (&EventName::LeaseAcquired, Some("two"), at));
        new.release().await.expect("released");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_does_not_hand_over_keeps_its_lease() {
    for_all(async |behind| {
        let one = behind.session_with(lasting("one")).await;
        let two = behind.session_with(lasting("two")).await;
        let held = one.acquire("job", "a").await.expect("granted");
        let moved = two.take_over("job", "a", Duration::from_millis(300)).await.expect("an outcome");
        assert!(moved.is_none() && held.is_live());
        let is_over = async || {
            let rows = behind.engine.resource(&key("a")).await.expect("rows");
            rows.state.resource(&key("a")).is_some_and(|resource| resource.pending.is_none())
        };
        wait_for("the end of the offer", PATIENCE, is_over).await.expect("it lapses");
        // Who gives up waiting calls it off, so that nothing is handed over to nobody.
        let mover = two.clone();
        let moving = tokio::spawn(async move { mover.take_over("job", "a", TTL).await });
        in_time("word of the hand-over", held.hand_over_asked()).await;
        moving.abort();
        wait_for("the end of the offer", PATIENCE, is_over).await.expect("it is called off");
        held.check().expect("it is kept");
        assert!(two.take_over("job", "nobody-holds-it", TTL).await.is_err());
    })
    .await;
}
