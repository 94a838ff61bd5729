//! Short scenes that chance alone plays too seldom: several things must come together in their order. What one batch
//! makes is known to the next.

use proptest::prelude::*;

use crate::script::{ACTORS, Act, Ask, Claiming, Keep, Meant, Shown, Wait, Who};

pub fn any() -> BoxedStrategy<Vec<Act>> {
    let two = || (0..3u8, 1..3u8).prop_map(|(first, on)| (first, (first + on) % 3));
    prop_oneof![
        4 => (two(), two()).prop_map(|(who, what)| full_before_its_turn(who, what)),
        4 => (two(), two()).prop_map(|(who, what)| everything_at_once(who, what)),
        4 => (two(), 0..3u8, 0..3u8)
            .prop_map(|(who, what, request)| one_request_of_two_holders(who, what, request)),
        4 => (two(), 0..3u8, 1..20_000u64).prop_map(|(who, what, gap_ms)| down_while_held_back(who, what, gap_ms)),
        4 => (two(), 0..3u8, 1..20_000u64).prop_map(|(who, what, gap_ms)| down_while_waiting(who, what, gap_ms)),
        // Long ones, and so seldom.
        1 => (0..3u8, 0..3u8, 0..ACTORS, prop_oneof![9 => Just(70u16), 1 => Just(300u16)])
            .prop_map(|(who, what, by, count)| spent_among_invented_ones(who, what, by, count)),
    ]
    .boxed()
}

fn of_one(who: u8) -> Ask {
    Ask::Open { who, ttl_ms: 6_000, replace: None, fenced: false, capacity: Some(Some(1)) }
}

fn acquire(who: u8, what: u8, keep: Keep) -> Ask {
    Ask::Acquire { what, who, keep, request: None, strict: false, wait: None, slots: None }
}

fn wait_for(who: u8, what: u8, request: Option<u8>) -> Ask {
    let wait = Some((8_000, 0));
    Ask::Acquire { what, who, keep: Keep::Own(5_000), request, strict: false, wait, slots: None }
}

fn hand_over(what: u8, to: u8) -> Ask {
    Ask::HandOver { what, to: Who::LastOf(to), within_ms: 5_000, budget: None, planned: false }
}

/// The lease on a resource, whoever holds it.
fn held(what: u8) -> Claiming {
    let token = Shown::Nothing;
    let session = Shown::Nothing;
    let holder = Shown::Nothing;
    Claiming { what, meant: Meant::Lease, token, session, holder }
}

fn ends(what: u8) -> Ask {
    Ask::Release { claim: held(what), sequence: None }
}

/// A session is offered a resource, fills up with another, and then its turn comes.
fn full_before_its_turn((who, next): (u8, u8), (what, other): (u8, u8)) -> Vec<Act> {
    vec![
        Act::Batch(vec![of_one(next), acquire(who, what, Keep::Own(5_000))]),
        Act::Batch(vec![hand_over(what, next), acquire(next, other, Keep::Present)]),
        Act::Batch(vec![ends(what)]),
    ]
}

/// One session lets go of two resources that both are on their way to another.
fn everything_at_once((who, next): (u8, u8), (what, other): (u8, u8)) -> Vec<Act> {
    let open = Ask::Open { who, ttl_ms: 6_000, replace: None, fenced: false, capacity: None };
    vec![
        Act::Batch(vec![open, of_one(next)]),
        Act::Batch(vec![acquire(who, what, Keep::Present), acquire(who, other, Keep::Present)]),
        Act::Batch(vec![hand_over(what, next), hand_over(other, next)]),
        Act::Batch(vec![Ask::Close { session: Who::LastOf(who) }]),
    ]
}

/// Two holders call their requests the same; the first runs out, and is cancelled before anyone has swept.
fn one_request_of_two_holders((who, next): (u8, u8), what: u8, request: u8) -> Vec<Act> {
    let keep = Keep::Own(1_000);
    let first =
        Ask::Acquire { what, who, keep, request: Some(request), strict: false, wait: None, slots: None };
    vec![
        Act::Batch(vec![Ask::OpenRoom { ttl_ms: 9_000 }, first]),
        Act::Batch(vec![wait_for(next, what, Some(request))]),
        Act::Wait(Wait::Ms(1_000)),
        Act::Batch(vec![Ask::Cancel { what, who, request }]),
    ]
}

/// A lease is revoked, and while its resource is held back nobody looks for a while.
fn down_while_held_back((who, next): (u8, u8), what: u8, gap_ms: u64) -> Vec<Act> {
    vec![
        Act::Batch(vec![acquire(who, what, Keep::Own(3_000))]),
        Act::Batch(vec![Ask::Revoke { claim: held(what), fenced: false }]),
        Act::Restart { gap_ms },
        Act::Batch(vec![acquire(next, what, Keep::Own(3_000))]),
    ]
}

/// Nobody looks for a while after someone has come to wait.
fn down_while_waiting((who, next): (u8, u8), what: u8, gap_ms: u64) -> Vec<Act> {
    vec![
        Act::Batch(vec![Ask::OpenRoom { ttl_ms: 9_000 }, acquire(who, what, Keep::Own(3_000))]),
        Act::Batch(vec![wait_for(next, what, None)]),
        Act::Restart { gap_ms },
        Act::Batch(vec![ends(what)]),
    ]
}

/// A lease spends its request; then someone, perhaps with another key, cancels requests that nobody made, and the first
/// one comes again.
fn spent_among_invented_ones(who: u8, what: u8, by: u8, count: u16) -> Vec<Act> {
    let keep = Keep::Own(1_000);
    let first = Ask::Acquire { what, who, keep, request: Some(0), strict: false, wait: None, slots: None };
    vec![
        Act::Batch(vec![first.clone()]),
        Act::Batch(vec![ends(what)]),
        Act::Wait(Wait::Ms(1)),
        Act::By(by),
        Act::CancelInvented { what, who, count },
        Act::Forget,
        Act::Batch(vec![first]),
    ]
}
