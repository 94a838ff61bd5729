//! When work stops: at or before the deadline, at once after a refusal, and as the policy says.

use std::{sync::atomic::Ordering, time::Duration};

use solehold_client::{Lost, Policy, SessionConfig, clock::Clock};
use solehold_core::command::{Claim, Command, Target};

use crate::{
    network::{Kind, Weather},
    world::{TTL, World},
};

/// An unreachable authority under `deadline`: the work is cancelled while nobody else can hold the lease.
async fn stops_by_the_deadline(weather: Weather) {
    let world = World::new(1);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    world.pass(Duration::from_secs(100)).await;
    assert!(guard.is_live(), "it is kept while the weather is fair");
    network.turns(weather);
    let deadline = guard.deadline();
    let lost = guard.lost().await;
    let now = world.clock.now();
    assert_eq!(lost, Lost::Deadline);
    // No renewal was heard of, so the deadline did not move. The timers of tokio are exact to a millisecond.
    assert!(now <= deadline.plus(Duration::from_millis(2)), "{now:?} after {deadline:?}");
    assert!(!guard.is_live());
    assert_eq!(guard.check(), Err(Lost::Deadline));
    assert_eq!(
        world.holder_of("job", "a").await.as_deref(),
        Some("one"),
        "it was still ours when we stopped"
    );
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_is_away_stops_work_by_the_deadline() {
    stops_by_the_deadline(Weather::Away).await;
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_is_silent_stops_work_by_the_deadline() {
    stops_by_the_deadline(Weather::Silent).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_whose_answers_are_lost_do_not_count() {
    stops_by_the_deadline(Weather::AnswersLost).await;
}

#[tokio::test(start_paused = true)]
async fn immediate_stops_at_the_first_failure() {
    let world = World::new(2);
    let (session, network) = world.holder("one", Policy::Immediate).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    network.turns(Weather::Away);
    let began = world.clock.now();
    let lost = guard.lost().await;
    assert!(matches!(lost, Lost::Failed(_)), "{lost}");
    assert!(world.clock.now().since(began) <= TTL / 3 + Duration::from_millis(2), "at the next heartbeat");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_ridden_out_under_deadline() {
    let world = World::new(3);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let id = session.id();
    for weather in [Weather::Away, Weather::Silent, Weather::AnswersLost] {
        network.turns(weather);
        world.pass(TTL / 2).await;
        network.turns(Weather::Fair);
        world.pass(TTL).await;
        assert!(guard.is_live(), "after {weather:?}");
    }
    assert_eq!(session.id(), id, "it is the same session");
}

/// Slowness alone costs nothing: not a lease that is held, and not one that is wanted.
#[tokio::test(start_paused = true)]
async fn slow_answers_cost_no_lease_and_keep_none_from_being_acquired() {
    for (seed, every_ms) in [(60, 50), (61, 1_000), (62, 10_000), (63, 14_900)] {
        for weather in [Weather::Late(TTL / 10), Weather::Slow(TTL / 10)] {
            let world = World::new(seed);
            let every = Some(Duration::from_millis(every_ms));
            let config = SessionConfig { ttl: TTL, every, ..SessionConfig::new("one") };
            let (session, network) = world.holder_with(config, 0).await;
            let guard = session.acquire("job", "a").await.expect("granted");
            let id = session.id();
            network.turns(weather);
            world.pass(TTL * 10).await;
            assert!(guard.is_live(), "every {every_ms} ms, {weather:?}");
            let other = session.try_acquire("job", "b").await.expect("granted");
            assert!(other.is_live());
            guard.release().await.expect("released");
            assert_eq!(session.id(), id, "it is the same session");
            // Another one is opened while answers are slow.
            network.turns(Weather::Away);
            assert_eq!(other.lost().await, Lost::Deadline);
            network.turns(weather);
            session.ready().await.expect("another session");
            world.pass(TTL).await;
            assert!(session.acquire("job", "c").await.expect("granted").is_live());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_revoked_stops_at_the_next_heartbeat_and_no_other_does() {
    let world = World::new(4);
    for policy in [Policy::Immediate, Policy::Deadline, Policy::Grace(TTL)] {
        let (session, _) = world.holder("one", policy).await;
        let revoked = session.acquire("job", "a").await.expect("a");
        let kept = session.acquire("job", "b").await.expect("b");
        let target = Target::Resource(world.key("job", "a"));
        let claim = Claim { target, token: Some(revoked.token()), session: None, holder: None };
        let revoke = Command::Revoke { claim, fenced: true, reason: None };
        world.engine.submit(revoke).await.expect("an outcome").expect("revoked");
        let began = world.clock.now();
        assert_eq!(revoked.lost().await, Lost::Ended);
        assert!(world.clock.now().since(began) <= TTL / 3 + Duration::from_millis(2));
        assert!(kept.is_live());
        kept.release().await.expect("released");
        drop(revoked);
        session.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_refused_stops_at_once_and_another_is_opened() {
    let world = World::new(5);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let first = session.id().expect("open");
    let tenant = world.key("job", "a").tenant;
    world
        .engine
        .submit(Command::CloseSession { tenant, session: first })
        .await
        .expect("an outcome")
        .expect("closed");
    let lost = guard.lost().await;
    assert!(matches!(&lost, Lost::Refused(refusal) if refusal.ends_session()), "{lost}");
    let second = session.ready().await.expect("another session");
    assert_ne!(first, second);
    let again = session.acquire("job", "a").await.expect("granted anew");
    assert!(again.token() > guard.token());
    drop(guard);
    world.pass(TTL * 2).await;
    assert!(again.is_live(), "the old guard's end does not touch the new lease");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_superseded_does_not_fight() {
    let world = World::new(6);
    let (first, _) = world.holder("twin", Policy::Deadline).await;
    let guard = first.acquire("job", "a").await.expect("granted");
    let (second, _) = world.holder("twin", Policy::Deadline).await;
    let lost = guard.lost().await;
    assert!(matches!(&lost, Lost::Refused(refusal) if refusal.is_superseded()), "{lost}");
    assert!(first.ready().await.is_err(), "it is over");
    assert!(first.try_acquire("job", "b").await.is_err());
    world.pass(TTL * 3).await;
    assert!(second.is_live());
}

/// Its session had expired and was forgotten, so nothing told it that it was superseded, and it superseded the other.
#[tokio::test(start_paused = true)]
async fn whoever_was_away_past_its_ttl_does_not_supersede_its_successor() {
    for policy in [Policy::Deadline, Policy::Grace(TTL * 20)] {
        let world = World::new(6);
        let (first, network) = world.holder("twin", policy).await;
        let guard = first.acquire("job", "a").await.expect("granted");
        network.turns(Weather::Away);
        let (second, _) = world.holder("twin", Policy::Deadline).await;
        world.pass(TTL * 3).await;
        network.turns(Weather::Fair);
        world.pass(TTL * 3).await;
        assert!(first.ready().await.is_err(), "{policy:?}: it is over");
        assert!(!guard.is_live(), "{policy:?}");
        assert!(second.is_live(), "{policy:?}");
        let _ = second.acquire("job", "a").await.expect("granted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_to_open_that_arrives_late_does_not_supersede_its_own_repeat() {
    let world = World::new(9);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    network.turns(Weather::Away);
    world.pass(TTL * 2).await;
    assert!(!session.is_live());
    network.turns_for(Kind::Open, Weather::Slow(TTL));
    let before = network.requests.load(Ordering::Relaxed);
    world.pass(TTL / 2).await;
    assert!(network.requests.load(Ordering::Relaxed) > before, "no request is on its way");
    network.turns(Weather::Fair);
    session.ready().await.expect("the repeat is answered at once");
    let guard = session.acquire("job", "a").await.expect("granted");
    world.pass(TTL * 2).await;
    assert!(guard.is_live(), "{:?}", session.ready().await);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_machine_finds_its_guard_dead() {
    let world = World::new(7);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    world.pass(Duration::from_secs(3)).await;
    assert!(guard.is_live());
    world.clock.suspend(TTL * 2);
    // No task has run since.
    assert!(!guard.is_live());
    let ran = guard.run(async { "worked" }).await;
    assert_eq!(ran, Err(Lost::Deadline));
    assert_eq!(guard.lost().await, Lost::Deadline);
    session.ready().await.expect("another session");
    session.acquire("job", "a").await.expect("granted anew").release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_short_suspension_is_no_loss() {
    let world = World::new(8);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    for _ in 0..20 {
        world.clock.suspend(TTL / 2);
        world.pass(Duration::from_millis(100)).await;
        assert!(guard.is_live());
    }
}

#[tokio::test(start_paused = true)]
async fn run_drops_the_work_when_the_lease_is_lost() {
    let world = World::new(9);
    let (session, network) = world.holder("one", Policy::Deadline).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let alive = std::sync::Arc::new(());
    let held = alive.clone();
    network.turns(Weather::Away);
    let ran = guard.run(async move {
        let _held = held;
        std::future::pending::<()>().await
    });
    assert_eq!(ran.await, Err(Lost::Deadline));
    assert_eq!(std::sync::Arc::strong_count(&alive), 1, "the work is gone with what it held");
}

#[tokio::test(start_paused = true)]
async fn grace_works_on_and_wins_back_what_nobody_took() {
    let world = World::new(10);
    world.declare("job", "a").await;
    let (session, network) = world.holder("one", Policy::Grace(TTL * 10)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let token = guard.token();
    network.turns(Weather::Away);
    world.pass(TTL * 3).await;
    assert!(guard.is_live() && guard.is_in_grace());
    assert_eq!(world.holder_of("job", "a").await, None, "it has run out by the engine's word");
    network.turns(Weather::Fair);
    world.pass(TTL).await;
    assert!(guard.is_live() && !guard.is_in_grace());
    assert!(guard.token() > token, "under a new token");
    assert_eq!(world.lease("job", "a").await.expect("held").lease.token, guard.token());
    world.pass(TTL * 5).await;
    assert!(guard.is_live(), "and it is kept as before");
}

#[tokio::test(start_paused = true)]
async fn grace_ends_when_there_was_a_successor() {
    let world = World::new(11);
    world.declare("job", "a").await;
    let (session, network) = world.holder("one", Policy::Grace(TTL * 10)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    network.turns(Weather::Away);
    let (other, _) = world.holder("two", Policy::Deadline).await;
    let taken = other.acquire("job", "a").await.expect("it ran out");
    assert!(guard.is_live(), "the first does not know yet, which is what gates are for");
    assert!(taken.token() > guard.token());
    // Even though the successor is gone by the time that the first is told.
    taken.release().await.expect("released");
    network.turns(Weather::Fair);
    let lost = guard.lost().await;
    assert!(matches!(lost, Lost::Refused(_)), "{lost}");
    assert_eq!(world.holder_of("job", "a").await, None, "nothing was taken by the way");
}

#[tokio::test(start_paused = true)]
async fn grace_ends_when_someone_held_it_while_the_acquire_was_on_its_way() {
    let world = World::new(14);
    world.declare("job", "a").await;
    let (session, network) = world.holder("one", Policy::Grace(TTL * 10)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let (other, _) = world.holder("two", Policy::Deadline).await;
    let old = session.id();
    network.turns(Weather::Away);
    world.pass(TTL * 3).await;
    network.turns(Weather::Fair);
    network.turns_for(Kind::Acquire, Weather::Slow(Duration::from_secs(3)));
    while session.id().is_none() || session.id() == old {
        world.pass(Duration::from_millis(50)).await;
    }
    // Nobody had held it when the first looked.
    world.pass(Duration::from_millis(500)).await;
    let taken = other.try_acquire("job", "a").await.expect("it is free");
    taken.release().await.expect("released");
    let lost = guard.lost().await;
    assert!(matches!(lost, Lost::Ended), "{lost}");
    world.pass(TTL).await;
    assert_eq!(world.holder_of("job", "a").await, None, "what was granted is released again");
    assert!(session.is_live());
}

#[tokio::test(start_paused = true)]
async fn grace_has_an_end() {
    let world = World::new(12);
    let (session, network) = world.holder("one", Policy::Grace(TTL)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    network.turns(Weather::Silent);
    let stop = guard.deadline().plus(TTL);
    assert_eq!(guard.lost().await, Lost::Deadline);
    assert!(world.clock.now() <= stop.plus(Duration::from_millis(2)));
}

#[tokio::test(start_paused = true)]
async fn what_is_let_go_in_the_middle_is_not_won_back() {
    let world = World::new(13);
    world.declare("job", "a").await;
    let (session, network) = world.holder("one", Policy::Grace(TTL * 10)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let old = session.id();
    network.turns(Weather::Away);
    world.pass(TTL * 3).await;
    // Each step of winning back takes a second.
    network.turns(Weather::Late(Duration::from_secs(1)));
    while session.id().is_none() || session.id() == old {
        world.pass(Duration::from_millis(100)).await;
    }
    assert!(guard.is_live());
    drop(guard);
    world.pass(TTL).await;
    assert!(session.is_live());
    assert_eq!(world.holder_of("job", "a").await, None);
}
