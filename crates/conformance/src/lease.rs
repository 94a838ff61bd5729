//! The life of a lease.

use solehold_core::{command::*, event::EventName, key::*, lease::LeaseStatus, outcome::*, time::*};

use crate::{Fixture, kit::*};

/// Acquire, renew, release, acquire again, expire.
pub async fn life(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("life");
    let first = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    assert_eq!((first.lease.ttl_ms, first.lease.status), (SHORT_MS, LeaseStatus::Active));
    assert_eq!(first.lease.deadline, first.lease.now.plus_ms(SHORT_MS));
    assert_eq!(first.lease.lease.holder, name("ann"));
    assert_eq!(first.revision.0, token(&first).0);

    let again = renewed(bench.run(renew(its(&first))).await);
    assert_eq!(token(&again), token(&first));
    assert!(again.lease.deadline >= first.lease.deadline);
    let longer = Command::Renew { claim: its(&first), ttl_ms: Some(5_000), stats: None };
    let longer = renewed(bench.run(longer).await);
    assert_eq!((longer.lease.ttl_ms, longer.lease.deadline), (5_000, longer.lease.now.plus_ms(5_000)));

    is!(bench.done(release(its(&first))).await, Answer::Released(id) if *id == first.lease.lease.id);
    assert!(bench.lease(&job).await.is_none());
    is!(bench.refused(renew(its(&first))).await, Refusal::NoResource(_) | Refusal::Lost { .. });

    let second = bench.grant(ask_for(&job, "bea", SHORT_MS)).await;
    assert!(token(&second) > token(&first));
    bench.pass_until(second.lease.deadline).await;
    assert_eq!(bench.lease(&job).await.expect("unswept").status, LeaseStatus::Expired);
    is!(bench.done(Command::Expire { key: job.clone() }).await, Answer::Judged { expired: true });
    is!(bench.done(Command::Expire { key: job.clone() }).await, Answer::Judged { expired: false });
    assert!(bench.lease(&job).await.is_none());
    use EventName::{LeaseAcquired, LeaseExpired, LeaseReleased};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, LeaseReleased, LeaseAcquired, LeaseExpired]);
}

/// The second to acquire learns the holder, the token, and when to come back.
pub async fn second_acquirer_is_refused(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("second");
    let first = bench.grant(ask(&job, "ann")).await;
    for second in ["bea", "ann"] {
        let refusal = bench.refused(ask(&job, second)).await;
        let Refusal::Held { holder, token: held, retry_after_ms } = refusal else { panic!("{refusal:?}") };
        assert_eq!((holder, held), (name("ann"), token(&first)));
        assert!((1..=LONG_MS).contains(&retry_after_ms), "{retry_after_ms}");
    }
    let lease = bench.lease(&job).await.expect("held");
    assert_eq!(lease.lease.id, first.lease.lease.id);
}

/// Renewals write no event and give out no revision (rule 19).
pub async fn renewals_are_nobodys_news(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let grant = bench.grant(ask(&key("own"), "ann")).await;
    let session = bench.session("bea", LONG_MS).await;
    let on_session = bench.grant(ask_on(&key("hangs"), &session)).await;
    let before = (bench.head().await, bench.events(Revision(0)).await.len());
    for _ in 0..3 {
        renewed(bench.run(renew(its(&grant))).await);
        renewed(bench.run(renew(its(&on_session))).await);
        bench.done(heartbeat(session.id)).await;
    }
    assert_eq!((bench.head().await, bench.events(Revision(0)).await.len()), before);
}

/// From its deadline on a lease is dead, even if nobody has swept it and nobody else wants it.
pub async fn renew_after_expiry(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let own = key("own");
    let hanging = key("hangs");
    let grant = bench.grant(ask_for(&own, "ann", SHORT_MS)).await;
    let session = bench.session("bea", SHORT_MS).await;
    let on_session = bench.grant(ask_on(&hanging, &session)).await;
    let last = grant.lease.deadline.max(on_session.lease.deadline);
    bench.pass_until(last.plus_ms(1)).await;
    is!(bench.refused(renew(its(&grant))).await, Refusal::Lost { holder: None, .. });
    is!(bench.refused(renew(by_id("acme", grant.lease.lease.id))).await, Refusal::Lost { .. });
    is!(bench.refused(renew(by_holder(&own, "ann"))).await, Refusal::Lost { .. });
    is!(bench.refused(release(its(&grant))).await, Refusal::Lost { .. });
    is!(bench.refused(renew(its(&on_session))).await, Refusal::Lost { .. });
    is!(bench.refused(heartbeat(session.id)).await, Refusal::NoSession { .. });
    let write = StateWrite { sequence: 1, document: text("late") };
    is!(bench.refused(Command::WriteState { claim: its(&grant), write }).await, Refusal::Lost { .. });
}

/// An old token ends nothing.
pub async fn release_with_an_old_token(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("old");
    let first = bench.grant(ask(&job, "ann")).await;
    bench.done(release(its(&first))).await;
    let second = bench.grant(ask(&job, "bea")).await;
    let refusal = bench.refused(release(its(&first))).await;
    is!(refusal, Refusal::Lost { holder: Some(h), last_token } if *h == name("bea") && *last_token == token(&second));
    is!(bench.refused(renew(its(&first))).await, Refusal::Lost { .. });
    is!(bench.refused(release(by_id("acme", first.lease.lease.id))).await, Refusal::NoLease(_));
    is!(bench.refused(release(by_holder(&job, "ann"))).await, Refusal::NotYours { what: "holder", .. });
    assert_eq!(bench.lease(&job).await.expect("held").lease.token, token(&second));
}

/// A lease is found by its id while it lives, and not after.
pub async fn found_by_id(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let engine = bench.engine();
    let grant = bench.grant(ask(&key("by-id"), "ann")).await;
    let id = grant.lease.lease.id;
    let found = engine.lease(id).await.expect("the store reads").expect("live");
    assert_eq!((found.key, found.lease), (key("by-id"), grant.lease.lease.clone()));
    renewed(bench.run(renew(by_id("acme", id))).await);
    is!(bench.done(release(by_id("acme", id))).await, Answer::Released(_));
    assert!(engine.lease(id).await.expect("the store reads").is_none());
    is!(bench.refused(renew(by_id("acme", id))).await, Refusal::NoLease(_));
    assert!(engine.lease(LeaseId(uuid::Uuid::new_v4())).await.expect("the store reads").is_none());
    engine.stop().await;
}

/// A tenant's names are its own, and its leases are nobody else's.
pub async fn other_tenants_see_nothing(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let ours = bench.grant(ask(&key("same"), "ann")).await;
    let there = ResourceKey { tenant: name("other"), ..key("same") };
    let theirs = bench.grant(ask(&there, "ann")).await;
    assert_ne!(token(&ours), token(&theirs));
    let id = ours.lease.lease.id;
    is!(bench.refused(renew(by_id("other", id))).await, Refusal::NoLease(_));
    is!(bench.refused(release(by_id("other", id))).await, Refusal::NoLease(_));
    let session = bench.session("ann", LONG_MS).await;
    let ask = Acquire { tenure: AskedTenure::Session(session.id), ..ask(&there, "ann") };
    is!(bench.refused(ask).await, Refusal::NoSession { .. });
    let alien =
        Command::Heartbeat { tenant: name("other"), session: session.id, holder: None, metrics: None };
    is!(bench.refused(alien).await, Refusal::NoSession { .. });
}

/// A takeover before the sweep tells all that happened, in order (rule 14).
pub async fn takeover_of_an_unswept_lease(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("taken");
    let first = bench.grant(ask_for(&job, "ann", SHORT_MS)).await;
    bench.pass_until(first.lease.deadline).await;
    let second = bench.grant(ask(&job, "bea")).await;
    use EventName::{LeaseAcquired, LeaseExpired, LeaseStolen};
    assert_eq!(bench.names(&job).await, [LeaseAcquired, LeaseExpired, LeaseStolen, LeaseAcquired]);
    assert!(token(&second) > token(&first));
    is!(bench.refused(renew(its(&first))).await, Refusal::Lost { .. });
}

/// A name alone is not proof, and nothing is proof of another's lease (rule 6).
pub async fn proof_is_needed(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("proof");
    let session = bench.session("ann", LONG_MS).await;
    bench.grant(ask_on(&job, &session)).await;
    let bare = Claim { target: Target::Resource(job.clone()), token: None, session: None, holder: None };
    is!(bench.refused(release(bare)).await, Refusal::NoProof);
    let write = StateWrite { sequence: 1, document: text("x") };
    let weak = Command::WriteState { claim: by_holder(&job, "ann"), write };
    is!(bench.refused(weak).await, Refusal::NoProof);
    let other = bench.session("bea", LONG_MS).await;
    is!(bench.refused(renew(by_session(&job, other.id))).await, Refusal::NotYours { what: "session", .. });
    renewed(bench.run(renew(by_session(&job, session.id))).await);
}

/// An undeclared resource lives while someone holds it, or does not exist, as the asker says.
pub async fn undeclared_or_refused(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("undeclared");
    let strict = || Acquire { undeclared: Undeclared::Refuse, ..ask(&job, "ann") };
    is!(bench.refused(strict()).await, Refusal::NoResource(k) if *k == job);
    let grant = bench.grant(ask(&job, "ann")).await;
    is!(bench.refused(strict()).await, Refusal::NoResource(_));
    bench.done(release(its(&grant))).await;
    assert!(bench.resource(&job).await.is_none(), "nothing is left of it");
    bench.done(declare(&job, Default::default())).await;
    bench.grant(strict()).await;
}

/// Times outside their bounds are refused, and the refusal names the bound (rule 25).
pub async fn bounds_are_refused(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    for ttl_ms in [0, 999, 24 * 60 * 60 * 1_000 + 1, u64::MAX] {
        let refusal = bench.refused(ask_for(&key("bounds"), "ann", ttl_ms)).await;
        is!(refusal, Refusal::OutOfBounds { what: "ttl_ms", given, least: 1_000, .. } if *given == ttl_ms);
        is!(bench.refused(open("ann", ttl_ms)).await, Refusal::OutOfBounds { .. });
    }
    assert_eq!(bench.head().await.revision, Revision(0));
}

/// What an adapter keeps with a lease comes back as it was given, whatever text it is.
pub async fn attributes_and_stats_are_kept(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("kept");
    let odd = text("{\"a\": \"\\u0000 ü 🚦\", \"b\":   1.0}\n\tnot even JSON '\\");
    let ask = Acquire { attributes: odd.clone(), ..ask(&job, "ann") };
    let grant = bench.grant(ask).await;
    let large = text(&"x".repeat(solehold_core::limits::DOCUMENT_BYTES_MAX));
    let tell = Command::Renew { claim: its(&grant), ttl_ms: None, stats: Some(large.clone()) };
    renewed(bench.run(tell).await);
    let lease = bench.lease(&job).await.expect("held").lease;
    assert_eq!((lease.attributes, lease.stats), (odd, large));
}
