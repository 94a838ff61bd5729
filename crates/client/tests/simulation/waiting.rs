//! Waiting in line over a bad network: a grant that nobody confirms goes to the next, and what is trusted was
//! confirmed.

use std::{sync::atomic::Ordering, time::Duration};

use solehold_client::{AcquireError, LockConfig, Locks, Policy};

use crate::{
    network::Weather,
    world::{TTL, World},
};

fn config(acquire_timeout: Duration) -> LockConfig {
    LockConfig { acquire_timeout, ..LockConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_does_not_confirm_is_passed_over() {
    let world = World::new(30);
    let (one, _) = world.holder("one", Policy::Deadline).await;
    let (two, network) = world.holder("two", Policy::Deadline).await;
    let (three, _) = world.holder("three", Policy::Deadline).await;
    let [one, two, three] = [one, two, three].map(|session| Locks::over(session, config(TTL)));
    let held = one.acquire("a").await.expect("free");
    // The second hears of its grant late: it has lapsed by then.
    network.turns(Weather::Late(Duration::from_secs(4)));
    let second = tokio::spawn(async move { two.acquire("a").await.map(|guard| guard.token()) });
    world.pass(Duration::from_millis(10)).await;
    let third = tokio::spawn(async move { three.acquire("a").await.expect("its turn") });
    world.pass(Duration::from_millis(10)).await;
    held.release().await.expect("released");
    let guard = third.await.expect("it ends");
    assert!(guard.is_live());
    assert_eq!(world.holder_of("lock", "a").await.as_deref(), Some("three"));
    network.turns(Weather::Fair);
    let token = guard.token();
    guard.release().await.expect("released");
    // It has gone to the end of the line, and gets it there.
    assert!(second.await.expect("it ends").expect("its turn") > token);
}

#[tokio::test(start_paused = true)]
async fn a_wait_whose_answers_are_lost_ends_in_time_and_holds_nothing() {
    let world = World::new(31);
    let (one, _) = world.holder("one", Policy::Deadline).await;
    let (two, network) = world.holder("two", Policy::Deadline).await;
    let one = Locks::over(one, config(TTL));
    let two = Locks::over(two, config(TTL));
    let held = one.acquire("a").await.expect("free");
    network.turns(Weather::AnswersLost);
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.acquire_within("a", Duration::from_secs(5)).await.map(drop) }
    });
    world.pass(Duration::from_secs(1)).await;
    held.release().await.expect("released");
    let error = waiting.await.expect("it ends").expect_err("nothing was heard");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    network.turns(Weather::Fair);
    world.pass(TTL).await;
    assert!(two.session().is_live());
    assert_eq!(world.holder_of("lock", "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_many_calls_keeps_its_place() {
    let world = World::new(32);
    let (one, _) = world.holder("one", Policy::Deadline).await;
    let (patient, network) = world.holder("patient", Policy::Deadline).await;
    let (later, _) = world.holder("later", Policy::Deadline).await;
    let hour = Duration::from_secs(3_600);
    let [one, patient, later] = [one, patient, later].map(|session| Locks::over(session, config(hour)));
    *network.wait_max.lock().expect("unhurt") = Duration::from_secs(30);
    let held = one.acquire("a").await.expect("free");
    let before = network.requests.load(Ordering::Relaxed);
    let patient = tokio::spawn(async move { patient.acquire("a").await.expect("its turn") });
    world.pass(Duration::from_millis(10)).await;
    let later = tokio::spawn(async move { later.acquire("a").await.expect("its turn") });
    for minutes in 1..=20 {
        world.pass(Duration::from_secs(60)).await;
        let key = world.key("lock", "a");
        let loaded = world.engine.resource(&key).await.expect("a read");
        assert_eq!(loaded.state.resource(&key).expect("held").queued, 2, "after {minutes} minutes");
    }
    // A call of half a minute every twenty seconds, and a heartbeat every ten.
    let asked = network.requests.load(Ordering::Relaxed) - before;
    assert!((150..300).contains(&asked), "{asked} requests in 20 minutes");
    held.release().await.expect("released");
    let patient = patient.await.expect("it ends");
    assert!(patient.is_live() && !later.is_finished());
    let token = patient.token();
    patient.release().await.expect("released");
    assert!(later.await.expect("it ends").token() > token);
}
