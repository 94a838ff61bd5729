//! Acquires whose answers are lost or late, and those that nobody waits for any more: nothing is held by accident.

use std::{sync::atomic::Ordering, time::Duration};

use solehold_client::{AcquireError, Policy};

use crate::{
    network::Weather,
    world::{TTL, World},
};

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again_and_granted_once() {
    let world = World::new(20);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    network.turns(Weather::AnswersLost);
    let acquiring = tokio::spawn({
        let session = session.clone();
        async move { session.acquire("job", "a").await.expect("granted") }
    });
    world.pass(Duration::from_secs(1)).await;
    let token = world.lease("job", "a").await.expect("granted already").lease.token;
    network.turns(Weather::Fair);
    let guard = acquiring.await.expect("it ends");
    assert_eq!(guard.token(), token, "the same grant, not a second one");
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_leaves_nothing() {
    let world = World::new(21);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    for weather in [Weather::AnswersLost, Weather::Late(Duration::from_secs(60)), Weather::Fair] {
        network.turns(weather);
        let acquire = session.acquire("job", "a");
        let given_up = tokio::time::timeout(Duration::from_millis(200), acquire).await;
        network.turns(Weather::Fair);
        drop(given_up);
        world.pass(TTL * 3).await;
        assert_eq!(world.holder_of("job", "a").await, None, "after {weather:?}");
        assert!(session.is_live());
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_never_sent_costs_no_request() {
    let world = World::new(22);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    network.turns(Weather::Late(Duration::from_millis(10)));
    let before = network.requests.load(Ordering::Relaxed);
    // The first is under way; the others wait for it, and are dropped there.
    let first = tokio::spawn({
        let session = session.clone();
        async move { session.acquire("job", "first").await.expect("granted") }
    });
    while network.requests.load(Ordering::Relaxed) == before {
        tokio::task::yield_now().await;
    }
    let others: Vec<_> = (0..100)
        .map(|n| {
            let session = session.clone();
            tokio::spawn(async move { session.acquire("job", &format!("other-{n}")).await.map(drop) })
        })
        .collect();
    tokio::task::yield_now().await;
    for other in others {
        other.abort();
    }
    let guard = first.await.expect("it ends");
    assert!(guard.is_live());
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(network.requests.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_tried_for_as_long_as_the_session_lives() {
    let world = World::new(23);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    network.turns(Weather::Away);
    drop(guard);
    world.pass(TTL / 2).await;
    assert_eq!(world.holder_of("job", "a").await.as_deref(), Some("one"));
    network.turns(Weather::Fair);
    world.pass(TTL / 2).await;
    assert!(session.is_live());
    assert_eq!(world.holder_of("job", "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_waits_for_the_holder_with_growing_pauses() {
    let world = World::new(24);
    let (one, _) = world.holder("one", Policy::Deadline).await;
    let (two, network) = world.holder("two", Policy::Deadline).await;
    let guard = one.acquire("job", "a").await.expect("granted");
    let refused = two.try_acquire("job", "a").await.expect_err("held");
    let AcquireError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!((refusal.holder.as_deref(), refusal.token), (Some("one"), Some(guard.token())));
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.acquire("job", "a").await.expect("granted") }
    });
    let before = network.requests.load(Ordering::Relaxed);
    world.pass(Duration::from_secs(60)).await;
    let asked = network.requests.load(Ordering::Relaxed) - before;
    assert!((10..40).contains(&asked), "{asked} requests in a minute, heartbeats among them");
    guard.release().await.expect("released");
    assert!(waiting.await.expect("it ends").is_live());
}

#[tokio::test(start_paused = true)]
async fn closing_tells_the_guards_first() {
    let world = World::new(25);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    session.close().await;
    assert!(!guard.is_live());
    assert_eq!(world.holder_of("job", "a").await.as_deref(), Some("one"), "its work may not have stopped");
    drop(guard);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.holder_of("job", "a").await, None);
    assert!(matches!(session.acquire("job", "a").await, Err(AcquireError::SessionOver(_))));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_nobody_has_any_more_is_closed() {
    let world = World::new(26);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    drop(session);
    world.pass(TTL * 3).await;
    assert!(guard.is_live(), "a guard keeps its session");
    drop(guard);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.engine.usage(None).await.expect("usage").sessions, 0);
}
