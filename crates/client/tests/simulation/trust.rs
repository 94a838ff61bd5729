//! What moves a deadline, for whom, and in which order.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Wake, Waker},
    time::Duration,
};

use solehold_client::{
    ClientSession, Policy,
    clock::{BootTime, Clock},
};

use crate::{
    network::Weather,
    world::{TTL, World},
};

#[tokio::test(start_paused = true)]
async fn confirming_one_lease_vouches_for_no_other() {
    let world = World::new(40);
    let (one, network) = world.holder("one", Policy::Deadline).await;
    let (two, _) = world.holder("two", Policy::Deadline).await;
    let revoked = one.acquire("job", "a").await.expect("granted");
    let theirs = two.acquire("lock", "b").await.expect("granted");
    let deadline = revoked.deadline();
    let waiting = tokio::spawn({
        let one = one.clone();
        async move { one.acquire_within("lock", "b", TTL).await.expect("its turn") }
    });
    world.pass(Duration::from_millis(300)).await;
    assert!(world.revoke("job", "a").await);
    // Long after the revocation, and before the next heartbeat could tell of it, the session is renewed by a
    // confirmation.
    world.pass(Duration::from_secs(7)).await;
    theirs.release().await.expect("released");
    let confirmed = waiting.await.expect("it ends");
    network.turns(Weather::Away);
    assert_eq!((revoked.deadline(), confirmed.deadline()), (deadline, deadline), "no heartbeat was answered");
    let next = two.acquire("job", "a").await.expect("held back until the first must have stopped");
    assert!(next.is_live());
    assert!(!revoked.is_live(), "two work at once");
}

/// Reads the session's deadline in the moment that it is woken.
struct Witness {
    session: ClientSession,
    seen: Mutex<Vec<BootTime>>,
}

impl Wake for Witness {
    fn wake(self: Arc<Self>) {
        self.seen.lock().expect("unhurt").push(self.session.deadline());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_deadline_is_never_seen_before_ended_guards_are_cancelled() {
    let world = World::new(41);
    let (session, _) = world.holder("one", Policy::Deadline).await;
    let revoked = session.acquire("job", "a").await.expect("a");
    let kept = session.acquire("job", "b").await.expect("b");
    let before = session.deadline();
    let witness = Arc::new(Witness { session: session.clone(), seen: Mutex::default() });
    let waker = Waker::from(witness.clone());
    let cancellation = revoked.cancellation();
    let mut context = Context::from_waker(&waker);
    let mut cancelled = pin!(cancellation.cancelled());
    assert!(cancelled.as_mut().poll(&mut context).is_pending());
    assert!(world.revoke("job", "a").await);
    revoked.lost().await;
    assert_eq!(*witness.seen.lock().expect("unhurt"), [before], "the deadline that it was cancelled under");
    assert!(session.deadline() > before && kept.is_live());
    assert_eq!(revoked.deadline(), before, "the renewal was not for the lease that had ended");
    assert_eq!(kept.deadline(), session.deadline());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_not_won_back_yet_is_not_trusted_by_the_next_session() {
    let world = World::new(42);
    world.declare("job", "a").await;
    let (session, network) = world.holder("one", Policy::Grace(TTL * 10)).await;
    let guard = session.acquire("job", "a").await.expect("granted");
    let old = session.id();
    let deadline = guard.deadline();
    network.turns(Weather::Away);
    world.pass(TTL * 3).await;
    // Each step of winning back takes a second.
    network.turns(Weather::Late(Duration::from_secs(1)));
    while session.id().is_none() || session.id() == old {
        world.pass(Duration::from_millis(100)).await;
    }
    assert!(session.deadline() > world.clock.now());
    assert_eq!(guard.deadline(), deadline, "the next session says nothing about it");
    assert!(guard.is_live() && guard.is_in_grace());
    world.pass(TTL / 2).await;
    assert!(guard.is_live() && !guard.is_in_grace(), "it was won back");
    assert_eq!(guard.deadline(), session.deadline());
}
