//! A store that was set back, or that was failed over and comes back: nobody works by its word.

use std::time::Duration;

use solehold_client::{AcquireError, Lost, OlderHistory, Policy, Token};

use crate::{
    network::Claims,
    world::{TTL, World},
};

#[tokio::test(start_paused = true)]
async fn an_answer_from_an_older_history_ends_every_guard() {
    let world = World::new(50);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    *network.claims.lock().expect("unhurt") = Claims { epoch: Some(2), ..Claims::default() };
    let a = session.acquire("job", "a").await.expect("a");
    let b = session.acquire("job", "b").await.expect("b");
    world.pass(TTL).await;
    assert!(a.is_live() && b.is_live());
    *network.claims.lock().expect("unhurt") = Claims { epoch: Some(1), ..Claims::default() };
    let lost = Lost::OlderHistory(OlderHistory { seen: 2, told: 1 });
    let deadline = a.deadline();
    for guard in [&a, &b] {
        let told = tokio::time::timeout(TTL, guard.lost()).await.expect("by the next heartbeat");
        assert_eq!(told, lost);
    }
    assert_eq!(a.deadline(), deadline, "nothing of that answer was taken up");
    // There is no other session while the history is older, so nothing can be acquired.
    drop((a, b));
    world.pass(TTL).await;
    assert_eq!(session.id(), None);
    let within = session.acquire_within("job", "a", TTL).await;
    assert!(matches!(within, Err(AcquireError::TimedOut { .. })), "{within:?}");
    *network.claims.lock().expect("unhurt") = Claims { epoch: Some(3), ..Claims::default() };
    session.ready().await.expect("another session");
    assert!(session.acquire("job", "a").await.expect("granted").is_live());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_failed_over_and_comes_back_grants_nothing() {
    let world = World::new(51);
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, other) = world.holder("two", Policy::Deadline).await;
    let epoch = world.fail_over().await;
    network.leads_to(epoch);
    other.leads_to(epoch);
    world.pass(TTL * 2).await;
    one.ready().await.expect("a session of the new store");
    let theirs = two.acquire("job", "a").await.expect("granted by the new store");
    network.leads_to(1);
    let asked = tokio::time::timeout(TTL * 3, one.acquire("job", "a")).await;
    assert!(asked.is_err(), "granted by the old store: {asked:?}");
    assert!(theirs.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_carried_over_under_another_token_ends_its_guard_and_goes_with_it() {
    let world = World::new(52);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let old = guard.token();
    let new = Token(1 << 32);
    *network.claims.lock().expect("unhurt") =
        Claims { epoch: Some(2), token: Some(new), ..Claims::default() };
    assert_eq!(guard.lost().await, Lost::Ended);
    assert_eq!(guard.token(), old, "nobody works under the new token");
    world.pass(TTL).await;
    assert!(network.released.lock().expect("unhurt").is_empty(), "its work may not have stopped yet");
    drop(guard);
    world.pass(Duration::from_secs(1)).await;
    let released: Vec<Token> =
        network.released.lock().expect("unhurt").iter().map(|held| held.token).collect();
    assert_eq!(released, [new], "or the session would keep it for ever");
}

#[tokio::test(start_paused = true)]
async fn heartbeats_show_the_last_cursor_and_so_does_the_next_session_before_it_asks_for_anything() {
    let world = World::new(53);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    world.pass(TTL).await;
    let shown = || std::mem::take(&mut *network.shown.lock().expect("unhurt"));
    assert!(shown().iter().all(Option::is_none), "none was given");
    *network.claims.lock().expect("unhurt") =
        Claims { sealed_cursor: Some("sealed".to_owned()), ..Claims::default() };
    world.pass(TTL).await;
    let first = session.id().expect("open");
    assert_eq!(shown().last(), Some(&Some("sealed".to_owned())));
    // The next session begins with showing it, even where an opening gives another.
    *network.claims.lock().expect("unhurt") =
        Claims { sealed_cursor: Some("other".to_owned()), ..Claims::default() };
    let tenant = world.key("job", "a").tenant;
    let close = solehold_core::command::Command::CloseSession { tenant, session: first };
    world.engine.submit(close).await.expect("an outcome").expect("closed");
    let was_shown_to_first = async || {
        while session.id() == Some(first) {
            world.pass(Duration::from_millis(10)).await;
        }
    };
    was_shown_to_first().await;
    session.ready().await.expect("another session");
    assert_eq!(
        shown(),
        [Some("sealed".to_owned()), Some("sealed".to_owned())],
        "to the old and the new session"
    );
    world.pass(TTL / 2).await;
    assert_eq!(shown().last(), Some(&Some("other".to_owned())));
}
