//! Leases ended by other callers, deletion, and tokens that always grow (rules 5 and 12).

use solehold_core::{command::*, event::EventName, lease::Declaration, outcome::*, time::*};

use crate::{Fixture, kit::*};

fn delete(name: &str, force: bool, fenced: bool) -> Command {
    Command::Delete { key: key(name), force, fenced }
}

/// The old holder may work until its deadline, so nobody gets the resource before.
pub async fn revoke_holds_back(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("revoked");
    let first = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    let Answer::Revoked { lease, held_back_ms } = bench.done(revoke(its(&first), false)).await else {
        panic!()
    };
    assert_eq!(lease, first.lease.lease.id);
    assert!(held_back_ms <= SHORT_MS);
    is!(bench.refused(renew(its(&first))).await, Refusal::Lost { .. } | Refusal::NoResource(_));
    let refusal = bench.refused(ask(&job, "bea")).await;
    is!(refusal, Refusal::HeldBack { token: t, retry_after_ms: 1..=SHORT_MS } if *t == token(&first));
    bench.pass_until(first.lease.deadline).await;
    assert!(token(&bench.grant(ask(&job, "bea")).await) > token(&first));
    assert_eq!(bench.names(&job).await[..2], [EventName::LeaseAcquired, EventName::LeaseRevoked]);
}

/// A caller that knows that the old holder is fenced off need not wait.
pub async fn revoke_fenced(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("fenced");
    let first = bench.grant(ask(&job, "ann")).await;
    is!(bench.done(revoke(its(&first), true)).await, Answer::Revoked { held_back_ms: 0, .. });
    assert!(token(&bench.grant(ask(&job, "bea")).await) > token(&first));
}

/// A held resource is not deleted by accident.
pub async fn delete_refused_while_held(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("kept");
    is!(bench.refused(delete("kept", false, false)).await, Refusal::NoResource(_));
    bench.done(declare(&job, Declaration::default())).await;
    let grant = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    let refusal = bench.refused(delete("kept", false, false)).await;
    is!(refusal, Refusal::InUse { holder, token: t } if *holder == name("ann") && *t == token(&grant));
    bench.pass_until(grant.lease.deadline).await;
    is!(bench.done(delete("kept", false, false)).await, Answer::Removed);
    assert!(bench.resource(&job).await.is_none());
}

/// By force it is, and the lease is revoked.
pub async fn delete_by_force(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("forced");
    bench.done(declare(&job, Declaration::default())).await;
    let grant = bench.grant(ask(&job, "ann")).await;
    let next = bench.session("bea", LONG_MS).await;
    bench.done(hand_over(&job, next.id, LONG_MS)).await;
    is!(bench.done(delete("forced", true, true)).await, Answer::Removed);
    assert!(bench.resource(&job).await.is_none());
    is!(bench.refused(renew(its(&grant))).await, Refusal::NoResource(_));
    is!(bench.done(close(next.id)).await, Answer::Closed { released: 0 });
}

/// Deleting and declaring anew is no way around the old holder's deadline.
pub async fn hold_back_survives_declaring_anew(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("anew");
    bench.done(declare(&job, Declaration::default())).await;
    let first = bench.grant(ask_for(&job, "ann", 2 * SHORT_MS)).await;
    bench.done(delete("anew", true, false)).await;
    is!(bench.refused(ask(&job, "bea")).await, Refusal::HeldBack { .. });
    bench.done(declare(&job, Declaration::default())).await;
    is!(bench.refused(ask(&job, "bea")).await, Refusal::HeldBack { token: t, .. } if *t == token(&first));
    bench.pass_until(first.lease.deadline).await;
    assert!(token(&bench.grant(ask(&job, "bea")).await) > token(&first));
}

/// After a lease that ran out the resource is held back for its lock-delay; a clean release never waits.
pub async fn lock_delay(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("delayed");
    bench.done(declare(&job, Declaration { lock_delay_ms: 500, ..Default::default() })).await;
    let first = bench.grant(ask(&job, "ann")).await;
    bench.done(release(its(&first))).await;
    let second = bench.grant(ask_for(&job, "bea", SHORT_MS)).await;
    bench.pass_until(second.lease.deadline).await;
    is!(bench.refused(ask(&job, "carl")).await, Refusal::HeldBack { retry_after_ms: 1..=500, .. });
    bench.pass_until(second.lease.deadline.plus_ms(500)).await;
    bench.grant(ask(&job, "carl")).await;
}

/// Every grant of a resource bears a larger token than all before it, whatever happened in between.
pub async fn tokens_grow(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("grown");
    let mut last = Token(0);
    let mut next = async |ttl_ms| {
        let grant = bench.grant(ask_for(&job, "ann", ttl_ms)).await;
        assert!(token(&grant) > last, "{:?} after {last:?}", token(&grant));
        last = token(&grant);
        grant
    };
    bench.done(declare(&job, Declaration::default())).await;
    let grant = next(LONG_MS).await;
    bench.done(release(its(&grant))).await;
    let grant = next(SHORT_MS).await;
    bench.pass_until(grant.lease.deadline).await;
    let grant = next(LONG_MS).await;
    bench.done(revoke(its(&grant), true)).await;
    next(LONG_MS).await;
    bench.done(delete("grown", true, true)).await;
    next(LONG_MS).await;
    bench.done(release(by_holder(&job, "ann"))).await;
    assert!(bench.resource(&job).await.is_none());
    bench.done(declare(&job, Declaration::default())).await;
    next(LONG_MS).await;
}

/// Tokens go on from above where an operator says so.
pub async fn raise_revision(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let first = bench.grant(ask(&key("a"), "ann")).await;
    let above = Revision((1 << 33) + 7);
    is!(bench.done(Command::RaiseRevision { above }).await, Answer::Raised(r) if *r == above);
    assert_eq!(bench.head().await.revision, above);
    let second = bench.grant(ask(&key("b"), "ann")).await;
    assert_eq!(token(&second), Token(above.0 + 1));
    is!(bench.done(Command::RaiseRevision { above: Revision(9) }).await, Answer::Raised(_));
    assert_eq!(bench.head().await.revision, Revision(above.0 + 1));
    let far = Revision(u64::MAX);
    is!(bench.refused(Command::RaiseRevision { above: far }).await, Refusal::OutOfBounds { .. });
    assert_eq!(bench.lease(&key("a")).await.expect("held").lease.token, token(&first));
    let events = bench.events(Revision(0)).await;
    assert_eq!(events.iter().map(|e| e.revision.0).collect::<Vec<_>>(), [1, above.0 + 1]);
}
