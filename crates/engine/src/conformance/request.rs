//! Request ids: an acquire can be retried, and never gets a second grant (rule 7).

use solehold_core::{command::*, key::*, outcome::*};

use super::{Fixture, kit::*};

fn cancel(key: &ResourceKey, holder: &str, request: &str) -> Command {
    Command::CancelRequest(RequestKey { resource: key.clone(), holder: name(holder), request: name(request) })
}

/// The answer was lost; the repeat, under another lease id, gets the same grant with the time that is left.
pub async fn repeat_gets_the_same_grant(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("repeat");
    let first = bench.grant(ask_as(&job, "ann", "r1")).await;
    let head = bench.head().await;
    let again = bench.grant(ask_as(&job, "ann", "r1")).await;
    assert!(again.repeated && !first.repeated);
    assert_eq!((again.lease.lease, again.lease.deadline), (first.lease.lease, first.lease.deadline));
    assert_eq!(bench.head().await, head, "nothing was decided anew");
    is!(bench.refused(ask_as(&job, "ann", "r2")).await, Refusal::Held { .. });
}

/// After the release the same request can get nothing any more.
pub async fn spent_after_release(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("released");
    let grant = bench.grant(ask_as(&job, "ann", "r1")).await;
    bench.done(release(its(&grant))).await;
    is!(bench.refused(ask_as(&job, "ann", "r1")).await, Refusal::RequestSpent(r) if *r == name("r1"));
    bench.grant(ask_as(&job, "ann", "r2")).await;
    is!(bench.refused(ask_as(&job, "ann", "r1")).await, Refusal::RequestSpent(_));
}

/// A cancel that overtakes its request spends it.
pub async fn cancel_before_it_was_seen(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("overtaken");
    is!(bench.done(cancel(&job, "ann", "r1")).await, Answer::Spent);
    is!(bench.refused(ask_as(&job, "ann", "r1")).await, Refusal::RequestSpent(_));
    is!(bench.done(cancel(&job, "ann", "r1")).await, Answer::Spent);
    bench.grant(ask_as(&job, "ann", "r2")).await;
}

/// A cancel of a request that got a grant releases it.
pub async fn cancel_releases(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("cancelled");
    bench.grant(ask_as(&job, "ann", "r1")).await;
    bench.done(cancel(&job, "bea", "r1")).await;
    assert!(bench.lease(&job).await.is_some(), "another holder's request of the same name");
    bench.done(cancel(&job, "ann", "r1")).await;
    assert!(bench.lease(&job).await.is_none());
    is!(bench.refused(ask_as(&job, "ann", "r1")).await, Refusal::RequestSpent(_));
    bench.grant(ask(&job, "bea")).await;
}

/// A request whose lease ran out is spent, swept or not.
pub async fn spent_after_expiry(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("ran-out");
    let ask = || Acquire { request: Some(name("r1")), ..ask_for(&job, "ann", SHORT_MS) };
    let grant = bench.grant(ask()).await;
    bench.pass_until(grant.lease.deadline).await;
    is!(bench.refused(ask()).await, Refusal::RequestSpent(_));
    bench.done(Command::Expire { key: job.clone() }).await;
    is!(bench.refused(ask()).await, Refusal::RequestSpent(_));
    bench.grant(ask_as(&job, "ann", "r2")).await;
}

/// A request id is scoped to tenant, holder and resource.
pub async fn scope(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let elsewhere = ResourceKey { tenant: name("other"), ..key("a") };
    let one = bench.grant(ask_as(&key("a"), "ann", "r1")).await;
    let two = bench.grant(ask_as(&key("b"), "ann", "r1")).await;
    let three = bench.grant(ask_as(&elsewhere, "ann", "r1")).await;
    assert!(token(&one) < token(&two) && token(&two) < token(&three));
    is!(bench.refused(ask_as(&key("a"), "bea", "r1")).await, Refusal::Held { .. });
    bench.done(release(its(&one))).await;
    bench.grant(ask_as(&key("a"), "bea", "r1")).await;
}
