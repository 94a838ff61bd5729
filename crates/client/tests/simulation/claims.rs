//! A lease is never adopted while this program is still ending it, however the network orders requests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use solehold_client::{Authority, ClientSession, Guard, LeaseId, Policy, ResourceName};

use crate::{
    network::{Kind, Network, Weather},
    world::{TTL, World},
};

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Every guard that anyone has.
#[derive(Clone, Default)]
struct Guards(Arc<Mutex<Vec<(&'static str, Guard)>>>);

impl Guards {
    fn take(&self, holder: &'static str, guard: Guard) {
        self.0.lock().expect("unhurt").push((holder, guard));
    }

    fn live(&self) -> Vec<&'static str> {
        let guards = self.0.lock().expect("unhurt");
        guards.iter().filter(|(_, guard)| guard.is_live()).map(|(holder, _)| *holder).collect()
    }

    /// Adopts all that it may, as a program does that wants the resource, and looks at who works. Once it works it is
    /// cut off, so that no heartbeat tells it of what its own requests do later.
    async fn adopt_for(&self, world: &World, (one, network): (&ClientSession, &Network), time: Duration) {
        for _ in 0..time.as_millis() / LOOK_EVERY.as_millis() {
            one.refresh();
            for lease in one.unclaimed() {
                if let Ok(Some(guard)) = one.adopt(&lease).await {
                    self.take("one", guard);
                    network.turns_for(Kind::Heartbeat, Weather::Away);
                }
            }
            let live = self.live();
            assert!(live.len() < 2, "{live:?} work at once");
            world.pass(LOOK_EVERY).await;
        }
    }

    /// Acquires it as soon as it is free.
    fn acquire(&self, holder: &'static str, session: &ClientSession) {
        let guards = self.clone();
        let session = session.clone();
        tokio::spawn(async move { guards.take(holder, session.acquire("job", "a").await.expect("free")) });
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_request_is_being_cancelled_is_not_adopted() {
    let world = World::new(40);
    let guards = Guards::default();
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    network.turns_for(Kind::Acquire, Weather::AnswersLost);
    network.turns_for(Kind::Cancel, Weather::Slow(Duration::from_secs(20)));
    one.try_acquire("job", "a").await.expect_err("all answers are lost");
    assert_eq!(world.holder_of("job", "a").await.as_deref(), Some("one"));
    guards.acquire("two", &two);
    guards.adopt_for(&world, (&one, &network), Duration::from_secs(60)).await;
    assert_eq!(guards.live(), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_hand_over_is_being_called_off_is_not_adopted() {
    let world = World::new(41);
    let guards = Guards::default();
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let held = two.acquire("job", "a").await.expect("free");
    network.turns_for(Kind::CallOff, Weather::Slow(Duration::from_secs(6)));
    let given_up = tokio::time::timeout(Duration::from_secs(1), one.take_over("job", "a", TTL));
    given_up.await.expect_err("the holder keeps it");
    held.release().await.expect("released");
    assert_eq!(world.holder_of("job", "a").await.as_deref(), Some("one"), "by the hand-over");
    guards.acquire("two", &two);
    guards.adopt_for(&world, (&one, &network), Duration::from_secs(60)).await;
    assert_eq!(guards.live(), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_being_released_is_not_adopted() {
    for is_dropped in [false, true] {
        let world = World::new(42);
        let guards = Guards::default();
        let (one, network) = world.holder("one", Policy::Deadline).await;
        let (two, _) = world.holder("two", Policy::Deadline).await;
        let guard = one.acquire("job", "a").await.expect("free");
        network.turns_for(Kind::Release, Weather::Slow(Duration::from_secs(16)));
        if is_dropped {
            drop(guard);
        } else {
            // As a program does that waits for a release no longer than this.
            let given_up = tokio::time::timeout(Duration::from_secs(1), guard.release());
            given_up.await.expect_err("no answer yet");
        }
        guards.acquire("two", &two);
        guards.adopt_for(&world, (&one, &network), Duration::from_secs(60)).await;
        assert_eq!(guards.live(), ["two"]);
    }
}

/// A heartbeat that was sent before the release was answered may be answered after it.
#[tokio::test(start_paused = true)]
async fn a_set_that_is_older_than_a_release_is_not_believed() {
    let world = World::new(43);
    let guards = Guards::default();
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let guard = one.acquire("job", "a").await.expect("free");
    network.turns_for(Kind::Heartbeat, Weather::Late(Duration::from_secs(2)));
    one.refresh();
    world.pass(Duration::from_secs(1)).await;
    guard.release().await.expect("released");
    guards.acquire("two", &two);
    guards.adopt_for(&world, (&one, &network), Duration::from_secs(30)).await;
    assert_eq!(guards.live(), ["two"]);
}

/// The request to hand over was given up without an answer, and is done all the same.
#[tokio::test(start_paused = true)]
async fn a_hand_over_that_was_given_up_without_an_answer_leaves_nothing() {
    let world = World::new(44);
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let held = two.acquire("job", "a").await.expect("free");
    network.turns_for(Kind::HandOver, Weather::AnswersLost);
    one.take_over("job", "a", TTL).await.expect_err("all answers are lost");
    held.release().await.expect("released");
    assert_eq!(world.holder_of("job", "a").await.as_deref(), Some("one"), "by the hand-over");
    world.pass(TTL).await;
    assert_eq!(world.holder_of("job", "a").await, None);
    assert!(one.is_live() && one.unclaimed().is_empty());
}

/// An attempt that is still on its way when a repeat of it was refused must not be granted unnoticed.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_arrives_after_its_repeat_was_refused_leaves_nothing() {
    let world = World::new(45);
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let held = two.acquire("job", "a").await.expect("free");
    network.turns_for(Kind::Acquire, Weather::Slow(Duration::from_secs(8)));
    let trying = tokio::spawn({
        let one = one.clone();
        async move { one.try_acquire("job", "a").await.map(drop) }
    });
    world.pass(Duration::from_secs(1)).await;
    network.turns_for(Kind::Acquire, Weather::Fair);
    trying.await.expect("it ends").expect_err("refused, by the repeat");
    held.release().await.expect("released");
    world.pass(TTL).await;
    assert_eq!(world.holder_of("job", "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_asked_for_is_adopted_once() {
    let world = World::new(46);
    let (one, _) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let held = two.acquire("job", "a").await.expect("free");
    let lease = LeaseId::new(&world.key("job", "a"), uuid::Uuid::from_u128(1));
    assert!(world.offer("job", "a", lease, one.id().expect("open")).await);
    held.release().await.expect("released");
    one.refresh();
    world.pass(Duration::from_secs(1)).await;
    let unclaimed = one.unclaimed();
    assert_eq!(unclaimed.iter().map(|held| held.lease).collect::<Vec<_>>(), [lease]);
    let (first, second) = tokio::join!(one.adopt(&unclaimed[0]), one.adopt(&unclaimed[0]));
    let guards: Vec<Guard> = [first, second].into_iter().filter_map(|it| it.expect("read")).collect();
    assert!(matches!(&guards[..], [guard] if guard.is_live()), "{} guards", guards.len());
    assert!(one.unclaimed().is_empty());
    assert!(one.adopt(&unclaimed[0]).await.expect("read").is_none());
}

/// How a program may ask for what an operator hands to its session meanwhile.
#[derive(Debug, Clone, Copy)]
enum Asking {
    UntilGranted,
    InLine,
    Again,
}

impl Asking {
    async fn ask(self, session: &ClientSession) -> Guard {
        match self {
            Self::UntilGranted => session.acquire("job", "a").await.expect("granted"),
            Self::InLine => session.acquire_within("job", "a", TTL * 4).await.expect("granted"),
            Self::Again => loop {
                if let Ok(guard) = session.try_acquire("job", "a").await {
                    return guard;
                }
                let _ = tokio::time::timeout(LOOK_EVERY, std::future::pending::<()>()).await;
            },
        }
    }
}

/// The acquire has a claim on the resource, and is refused because its own session holds it.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_handed_what_it_acquires_does_not_wait_for_itself() {
    let both = [Asking::UntilGranted, Asking::InLine];
    for ways in [&[Asking::UntilGranted][..], &[Asking::InLine], &[Asking::Again], &both] {
        let world = World::new(47);
        let (one, _) = world.holder("one", Policy::Deadline).await;
        let (two, _) = world.holder("two", Policy::Deadline).await;
        let held = two.acquire("job", "a").await.expect("free");
        let mut asked = tokio::task::JoinSet::new();
        for &way in ways {
            let one = one.clone();
            asked.spawn(async move { way.ask(&one).await });
        }
        world.pass(LOOK_EVERY).await;
        let lease = LeaseId::new(&world.key("job", "a"), uuid::Uuid::from_u128(1));
        assert!(world.offer("job", "a", lease, one.id().expect("open")).await);
        held.release().await.expect("released");
        let first = tokio::time::timeout(TTL * 2, asked.join_next()).await;
        let guard = first.unwrap_or_else(|_| panic!("{ways:?}: it waits for itself")).expect("it asked");
        let guard = guard.expect("it ends");
        assert!(guard.is_live());
        let shown: Vec<_> = one.leases().iter().map(|held| held.lease).collect();
        assert_eq!(shown, [lease], "{ways:?}: what it was handed");
        guard.release().await.expect("released");
        while let Some(guard) = asked.join_next().await {
            guard.expect("it ends").release().await.expect("released");
        }
        world.pass(TTL).await;
        assert_eq!(world.holder_of("job", "a").await, None, "{ways:?}: nothing is left");
    }
}

/// A heartbeat shows the grant long before its own answer comes.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_answer_is_late_is_not_taken_for_another() {
    let world = World::new(48);
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let held = two.acquire("job", "a").await.expect("free");
    network.turns_for(Kind::Acquire, Weather::Late(Duration::from_millis(1_800)));
    let waits = tokio::spawn({
        let one = one.clone();
        async move { one.acquire_within("job", "a", TTL * 4).await.expect("granted") }
    });
    world.pass(LOOK_EVERY).await;
    let token = held.token();
    held.release().await.expect("released");
    for _ in 0..30 {
        one.refresh();
        world.pass(LOOK_EVERY).await;
    }
    let guard = waits.await.expect("it ends");
    let job = ResourceName::new("job", "a").expect("good names");
    let newest = world.stores.authority(world.stores.newest());
    let before = newest.token_before(&job, guard.token()).await.expect("an answer").expect("done");
    assert_eq!(before, Some(token), "the first grant after the other's");
}
