//! Request ids: an acquire can be retried, and never gets a second grant (rule 7).

use solehold_core::{
    call::{Actor, Call},
    command::*,
    key::*,
    limits::{CANCELLED_REQUESTS_MAX, SPENT_REQUESTS_MAX},
    outcome::*,
};

use crate::{Fixture, kit::*};
use solehold_engine::store::{Retention, Row};

fn cancel(key: &ResourceKey, holder: &str, request: &str) -> Command {
    Command::CancelRequest(RequestKey { resource: key.clone(), holder: name(holder), request: name(request) })
}

/// A command by a key.
fn by(key: &str, command: impl IntoCommand) -> Call {
    Call::new(command.command(), Actor::Key { id: name(key), scopes: Default::default() })
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

/// After the release the same request gets nothing.
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

/// However often one holder takes and releases a resource, no more of its requests are kept than are remembered for
/// sure: the newest. Those of others, and for other resources, are counted by themselves.
pub async fn no_more_spent_requests_are_kept_than_the_bound(fixture: &dyn Fixture) {
    const TURNS: usize = 200;
    let bench = Bench::new(fixture).await;
    let job = key("often");
    let other = key("seldom");
    // The newest has the least name, so that an order by name is not taken for an order by age.
    let turn = |n: usize| format!("r{:03}", TURNS - n);
    let spent = async |job: &ResourceKey, holder: &str, request: &str| {
        let grant = bench.grant(ask_as(job, holder, request)).await;
        bench.done(release(its(&grant))).await;
        bench.pass(1).await;
    };
    spent(&job, "bea", "r1").await;
    spent(&other, "ann", "r1").await;
    for n in 0..TURNS {
        spent(&job, "ann", &turn(n)).await;
    }
    let keep = Retention { events_ms: 1_000_000_000, events_max: 1_000_000, unsent_after: None };
    bench.store.maintain(&keep).await.expect("maintained");
    let kept = bench.exported().await.iter().filter(|row| matches!(row, Row::Request { .. })).count();
    assert_eq!(kept, SPENT_REQUESTS_MAX + 2);
    for n in TURNS - SPENT_REQUESTS_MAX..TURNS {
        is!(bench.refused(ask_as(&job, "ann", &turn(n))).await, Refusal::RequestSpent(_));
    }
    is!(bench.refused(ask_as(&job, "bea", "r1")).await, Refusal::RequestSpent(_));
    is!(bench.refused(ask_as(&other, "ann", "r1")).await, Refusal::RequestSpent(_));
}

const KEEP: Retention = Retention { events_ms: 1_000_000_000, events_max: 1_000_000, unsent_after: None };

/// However many requests another key cancels in a holder's name, or gets leases for and releases, the holder's own stay
/// spent, over housekeeping, too.
pub async fn another_key_displaces_no_spent_request(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("displaced");
    let acquire = |key: &str, request: &str| by(key, ask_as(&job, "ann", request));
    let release = |key: &str| {
        let claim = Claim {
            token: None,
            session: None,
            holder: Some(name("ann")),
            target: Target::Resource(job.clone()),
        };
        by(key, Command::Release { claim, state: None })
    };
    let done = async |calls: Vec<Call>| {
        for outcome in bench.all(calls).await {
            outcome.expect("not refused");
        }
        bench.pass(1).await;
    };
    done(vec![acquire("one", "r1"), release("one")]).await;
    let others = 0..SPENT_REQUESTS_MAX + 6;
    done(others.clone().map(|n| by("two", cancel(&job, "ann", &format!("invented-{n}")))).collect()).await;
    let turn = |n| [acquire("two", &format!("other-{n}")), release("two")];
    done(others.flat_map(turn).collect()).await;
    bench.store.maintain(&KEEP).await.expect("maintained");
    is!(bench.all(vec![acquire("one", "r1")]).await.remove(0), Err(Refusal::RequestSpent(_)));
}

/// A key that has cancelled as many unseen requests as are remembered is refused one more, by the name of the bound;
/// other keys, and what was seen, are not.
pub async fn unseen_cancellations_are_bounded(fixture: &dyn Fixture) {
    let bench = Bench::new(fixture).await;
    let job = key("invented");
    let cancels = |key: &str, n: usize| by(key, cancel(&job, "ann", &format!("invented-{n}")));
    let outcomes = bench.all((0..CANCELLED_REQUESTS_MAX).map(|n| cancels("two", n)).collect()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Answer::Spent))));
    let more = vec![
        cancels("two", CANCELLED_REQUESTS_MAX),
        cancels("two", 0),
        cancels("one", CANCELLED_REQUESTS_MAX + 1),
        by("two", cancel(&job, "bea", "r1")),
    ];
    let outcomes = bench.all(more).await;
    is!(&outcomes[0], Err(Refusal::TooManyCancelled { holder, .. }) if *holder == name("ann"));
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Ok(Answer::Spent))), "{outcomes:?}");
    bench.store.maintain(&KEEP).await.expect("maintained");
    is!(bench.refused(ask_as(&job, "ann", "invented-0")).await, Refusal::RequestSpent(_));
    bench.grant(ask_as(&job, "ann", &format!("invented-{CANCELLED_REQUESTS_MAX}"))).await;
}
