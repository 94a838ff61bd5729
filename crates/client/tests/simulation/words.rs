//! What is said about a last word: that it was taken, that it was not, or that nobody knows. Never the wrong one.

use std::time::Duration;

use solehold_client::{AuthorityError, Guard, GuardError, Lost, Policy};

use crate::{
    network::Weather,
    world::{TTL, World},
};

/// Leaves a word while the weather is bad, and lets it clear up after a while.
async fn last_word(
    world: &World,
    guard: Guard,
    weather: (&crate::network::Network, Weather),
) -> Result<(), GuardError> {
    let (network, weather) = weather;
    network.turns(weather);
    let leaving = tokio::spawn(async move { guard.release_with(&"last").await });
    world.pass(Duration::from_millis(10)).await;
    network.turns(Weather::Fair);
    leaving.await.expect("it ends")
}

#[tokio::test(start_paused = true)]
async fn a_word_that_was_taken_is_never_called_lost() {
    let world = World::new(60);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    last_word(&world, guard, (&network, Weather::AnswersLost)).await.expect("it was taken");
    let next = session.acquire("job", "a").await.expect("granted");
    assert_eq!(next.state(), Some("last".into()));
}

#[tokio::test(start_paused = true)]
async fn a_word_that_was_not_taken_is_never_called_taken() {
    for weather in [Weather::Away, Weather::AnswersLost] {
        let world = World::new(61);
        let (session, network) = world.holder("one", Policy::Deadline).await;
        let first = session.acquire("job", "a").await.expect("granted");
        first.release_with(&"first").await.expect("taken");
        let guard = session.acquire("job", "a").await.expect("granted");
        assert!(world.revoke("job", "a").await);
        let error = last_word(&world, guard, (&network, weather)).await.expect_err("the lease was over");
        assert!(matches!(error, GuardError::Lost(Lost::Refused(_))), "{weather:?}: {error}");
        world.pass(TTL * 2).await;
        let next = session.acquire("job", "a").await.expect("granted");
        assert_eq!(next.state(), Some("first".into()), "{weather:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_word_that_was_written_over_before_anyone_told_is_unknown() {
    let world = World::new(62);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let (other, _) = world.holder("two", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    network.turns(Weather::AnswersLost);
    let leaving = tokio::spawn(async move { guard.release_with(&"last").await });
    let next = other.acquire("job", "a").await.expect("it was released");
    next.write_state(&"next").await.expect("written");
    network.turns(Weather::Fair);
    let error = leaving.await.expect("it ends").expect_err("nobody can tell");
    assert!(matches!(error, GuardError::Authority(AuthorityError::Unknown(_))), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_word_that_nobody_answered_is_unknown_once_it_may_have_arrived() {
    let world = World::new(63);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    for (first, is_known) in [(Weather::Away, true), (Weather::AnswersLost, false)] {
        let guard = session.acquire("job", "a").await.expect("granted");
        network.turns(first);
        let leaving = tokio::spawn(async move { guard.release_with(&"last").await });
        world.pass(Duration::from_millis(10)).await;
        network.turns(Weather::Away);
        let error = leaving.await.expect("it ends").expect_err("nobody answers");
        let says_nothing_done = matches!(error, GuardError::Authority(AuthorityError::Unreachable { .. }));
        assert_eq!(says_nothing_done, is_known, "{first:?}: {error}");
        network.turns(Weather::Fair);
        world.pass(TTL).await;
    }
}
