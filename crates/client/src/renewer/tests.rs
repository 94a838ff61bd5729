//! The machine by itself: any order of answers, failures and pauses.

use proptest::prelude::*;
use solehold_api::problem::{ErrorCode, Problem};
use solehold_core::{key::SessionId, time::Revision};
use uuid::Uuid;

use super::*;
use crate::authority::{HeldLease, ResourceName};

const TTL: Duration = Duration::from_secs(30);

fn timing(policy: Policy) -> Timing {
    Timing { ttl: TTL, every: TTL / 3, policy }
}

fn at(ms: u64) -> BootTime {
    BootTime::from_nanos(1_000_000_000_000 + ms * 1_000_000)
}

fn lease(number: u64) -> LeaseId {
    LeaseId(Uuid::from_u128(number.into()))
}

fn beat(revision: u64, leases: &[u64]) -> Beat {
    let held = |number: &u64| HeldLease {
        resource: ResourceName::new("job", number.to_string()).expect("a name"),
        lease: lease(*number),
        token: Token(*number),
        slot: None,
    };
    Beat {
        session: SessionId(Uuid::from_u128(1)),
        ttl_left: TTL,
        slack: Duration::ZERO,
        epoch: None,
        revision: Revision(revision),
        sealed_cursor: None,
        set_cursor: None,
        leases: leases.iter().map(held).collect(),
        hand_overs: [].into(),
        pending: [].into(),
    }
}

fn renewer(policy: Policy) -> Renewer {
    Renewer::new(timing(policy), at(0), &beat(0, &[]), History::default(), 0.0).expect("no history before")
}

/// The heartbeat that it sends now.
fn sent(renewer: &mut Renewer, now_ms: u64) -> SentHeartbeat {
    match renewer.poll(at(now_ms)) {
        Step::Beat(flight) => flight,
        other => panic!("{other:?}"),
    }
}

fn refusal() -> RefusalReason {
    Problem::new(ErrorCode::NoSession, "it has expired").into()
}

/// The deadline of a ttl of 30 s is 600 ms before its end.
const DEADLINE_MS: u64 = 29_400;

#[test]
fn it_beats_at_a_third_of_the_ttl() {
    let mut renewer = renewer(Policy::Deadline);
    assert_eq!(renewer.poll(at(0)), Step::Sleep(at(10_000)));
    assert_eq!(renewer.poll(at(9_999)), Step::Sleep(at(10_000)));
    let first = SentHeartbeat { number: 1, sent: at(10_000), until: at(DEADLINE_MS), beside: 0 };
    assert_eq!(sent(&mut renewer, 10_000), first);
    // In flight: nothing to do until another one is sent beside it.
    assert_eq!(renewer.poll(at(11_000)), Step::Sleep(at(10_000).plus(TTL / 9)));
    assert_eq!(renewer.on_answer(at(10_000), at(11_500), &beat(0, &[]), 0.0).ended, []);
    assert_eq!(renewer.trusted_until(), at(10_000 + DEADLINE_MS));
    assert_eq!(renewer.poll(at(11_500)), Step::Sleep(at(20_000)));
    // With jitter it comes earlier, never later.
    renewer.on_answer(at(20_000), at(20_001), &beat(0, &[]), 0.5);
    assert_eq!(renewer.next_wake(), at(29_000));
}

#[test]
fn the_policies_differ_in_what_a_failure_means() {
    let after_failure = |policy, now| {
        let mut renewer = renewer(policy);
        let flight = sent(&mut renewer, 10_000);
        assert!(renewer.on_failure(flight.number, at(10_050), "away", 0.0));
        renewer.poll(at(now))
    };
    assert_eq!(after_failure(Policy::Immediate, 10_050), Step::Lost(Lost::Failed("away".to_owned())));
    assert_eq!(after_failure(Policy::Deadline, 10_050), Step::Sleep(at(10_150)));
    assert!(matches!(after_failure(Policy::Deadline, DEADLINE_MS - 1), Step::Beat(_)));
    assert_eq!(after_failure(Policy::Deadline, DEADLINE_MS), Step::Lost(Lost::Deadline));
    let grace = Policy::Grace(Duration::from_secs(60));
    assert!(matches!(after_failure(grace, DEADLINE_MS + 59_999), Step::Beat(_)));
    assert_eq!(after_failure(grace, DEADLINE_MS + 60_000), Step::Lost(Lost::Deadline));
}

#[test]
fn another_heartbeat_is_sent_beside_one_without_an_answer() {
    let mut renewer = renewer(Policy::Deadline);
    let first = sent(&mut renewer, 10_000);
    let Step::Sleep(until) = renewer.poll(at(10_001)) else { panic!("it waits") };
    let Step::Beat(second) = renewer.poll(until) else { panic!("it is due") };
    assert_eq!((first.beside, second.beside), (0, 1));
    assert_eq!(first.until, at(DEADLINE_MS), "it has all of the time that is left");
    // The second is answered: the first has nothing more to say, and its failure counts for nothing.
    renewer.on_answer(second.sent, at(14_000), &beat(0, &[]), 0.0);
    assert!(!renewer.on_failure(first.number, at(14_001), "away", 0.0));
    assert_eq!(renewer.poll(at(14_002)), Step::Sleep(second.sent.plus(TTL / 3)));
    // Nothing is answered: they are bounded in number, and the last comes before the deadline.
    let mut renewer = self::renewer(Policy::Deadline);
    let mut now = at(10_000);
    let mut flights = Vec::new();
    loop {
        match renewer.poll(now) {
            Step::Beat(flight) => flights.push(flight),
            Step::Sleep(until) => now = until,
            Step::Lost(_) => break,
        }
    }
    assert!((3..=FLIGHTS_MAX as usize).contains(&flights.len()), "{flights:?}");
    assert_eq!(flights.iter().map(|flight| flight.beside).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_late_answer_counts_from_when_its_own_heartbeat_was_sent() {
    let mut renewer = renewer(Policy::Deadline);
    let first = sent(&mut renewer, 10_000);
    let second = sent(&mut renewer, 14_000);
    renewer.on_answer(first.sent, at(15_000), &beat(0, &[]), 0.0);
    assert_eq!(renewer.trusted_until(), at(10_000 + DEADLINE_MS));
    renewer.on_answer(second.sent, at(16_000), &beat(0, &[]), 0.0);
    assert_eq!(renewer.trusted_until(), at(14_000 + DEADLINE_MS));
}

#[test]
fn where_one_failure_is_the_end_nothing_is_sent_beside_a_heartbeat() {
    let mut renewer = renewer(Policy::Immediate);
    let flight = sent(&mut renewer, 10_000);
    assert_eq!(flight.until, at(20_000));
    assert_eq!(renewer.poll(at(19_999)), Step::Sleep(at(DEADLINE_MS)));
    assert!(renewer.on_failure(flight.number, at(20_000), "no answer in time", 0.0));
    assert!(matches!(renewer.poll(at(20_000)), Step::Lost(Lost::Failed(_))));
}

#[test]
fn a_refusal_is_at_once_and_for_good() {
    for policy in [Policy::Immediate, Policy::Deadline, Policy::Grace(TTL)] {
        let mut renewer = renewer(policy);
        sent(&mut renewer, 10_000);
        renewer.on_refusal(refusal());
        assert_eq!(renewer.poll(at(10_001)), Step::Lost(Lost::Refused(refusal())));
        // A late answer to an earlier heartbeat changes nothing.
        renewer.on_answer(at(9_000), at(10_002), &beat(7, &[]), 0.0);
        assert_eq!(renewer.poll(at(10_003)), Step::Lost(Lost::Refused(refusal())));
        assert!(!renewer.granted(lease(9), Token(9), None, at(10_004)));
    }
}

#[test]
fn an_answer_after_the_deadline_does_not_bring_it_back() {
    let mut renewer = renewer(Policy::Deadline);
    sent(&mut renewer, 10_000);
    renewer.on_answer(at(10_000), at(DEADLINE_MS), &beat(0, &[]), 0.0);
    assert_eq!(renewer.poll(at(DEADLINE_MS)), Step::Lost(Lost::Deadline));
}

#[test]
fn an_older_set_is_never_applied_over_a_newer_grant() {
    let mut renewer = renewer(Policy::Deadline);
    assert!(renewer.granted(lease(5), Token(5), None, at(1)));
    assert_eq!(renewer.on_answer(at(2), at(3), &beat(4, &[]), 0.0).ended, []);
    assert_eq!(renewer.on_answer(at(4), at(5), &beat(5, &[5]), 0.0).ended, []);
    // Heard late: this set is older than the last.
    assert_eq!(renewer.on_answer(at(1), at(6), &beat(3, &[]), 0.0).ended, []);
    assert_eq!(renewer.on_answer(at(7), at(8), &beat(6, &[]), 0.0).ended, [lease(5)]);
    // Told once.
    assert_eq!(renewer.on_answer(at(9), at(9), &beat(6, &[]), 0.0).ended, []);
}

#[test]
fn an_unchanged_set_is_kept_over_many_answers_and_gives_way_to_a_changed_one() {
    let mut renewer = renewer(Policy::Deadline);
    let known = beat(6, &[5, 6]);
    assert_eq!(renewer.on_answer(at(1), at(2), &known, 0.0).ended, []);
    assert!(
        renewer.granted(lease(5), Token(5), None, at(3)) && renewer.granted(lease(6), Token(6), None, at(3))
    );
    for n in 1..=100 {
        let sent = at(n * 10_000);
        let kept = renewer.on_answer(sent, sent, &beat(6, &[]).with_set_of(&known), 0.0);
        assert_eq!(kept, Heard { ended: Vec::new(), is_newest: true });
        assert_eq!(
            renewer.trusted_until(),
            sent.plus(Duration::from_millis(DEADLINE_MS)),
            "renewed as by a set"
        );
    }
    assert!(!renewer.granted(lease(4), Token(4), None, at(1_000_000)), "the set as of 6 lacks it");
    assert!(renewer.granted(lease(7), Token(7), None, at(1_000_000)), "newer than the set");
    let changed = beat(8, &[6, 7]);
    assert_eq!(renewer.on_answer(at(1_010_000), at(1_010_001), &changed, 0.0).ended, [lease(5)]);
    // The answer to a heartbeat that named the set before is older, and says nothing.
    let late = renewer.on_answer(at(1_005_000), at(1_010_002), &beat(6, &[]).with_set_of(&known), 0.0);
    assert_eq!(late, Heard::default());
    assert!(renewer.is_known_to_have_ended(lease(5), Token(5)));
}

#[test]
fn a_grant_that_is_known_to_have_ended_is_not_taken_up() {
    let mut renewer = renewer(Policy::Deadline);
    renewer.on_answer(at(1), at(2), &beat(8, &[6]), 0.0);
    assert!(!renewer.granted(lease(5), Token(5), None, at(3)), "the set as of 8 lacks it");
    assert!(renewer.granted(lease(6), Token(6), None, at(3)));
    assert!(renewer.granted(lease(9), Token(9), None, at(3)), "newer than the set");
}

/// A beat of an epoch. Its leases bear these tokens.
fn beat_of(epoch: u64, revision: u64, leases: &[(u64, u64)]) -> Beat {
    let held = |(number, token): &(u64, u64)| HeldLease {
        token: Token(*token),
        ..beat(0, &[*number]).leases[0].clone()
    };
    Beat { epoch: Some(epoch), leases: leases.iter().map(held).collect(), ..beat(revision, &[]) }
}

#[test]
fn an_answer_from_an_older_history_ends_the_session_and_is_not_taken_up() {
    for policy in [Policy::Immediate, Policy::Deadline, Policy::Grace(TTL)] {
        let mut renewer = renewer(policy);
        assert_eq!(renewer.on_answer(at(1), at(2), &beat_of(3, 7, &[]), 0.0).ended, []);
        assert!(renewer.granted(lease(8), Token(8), Some(3), at(3)));
        let trusted = renewer.trusted_until();
        let history = renewer.history().clone();
        // However new it looks: the older history may have gone on by itself.
        let older = Beat { sealed_cursor: Some("older".to_owned()), ..beat_of(2, 900, &[(8, 8)]) };
        assert_eq!(renewer.on_answer(at(10_000), at(10_001), &older, 0.0).ended, []);
        let lost = Lost::OlderHistory(OlderHistory { seen: 3, told: 2 });
        assert_eq!(renewer.poll(at(10_001)), Step::Lost(lost));
        assert_eq!(renewer.trusted_until(), trusted, "it vouches for nothing");
        assert_eq!(renewer.history(), &history);
        // Neither does another session begin there.
        let reopened = Renewer::new(timing(policy), at(10_002), &older, history.clone(), 0.0);
        assert_eq!(reopened.expect_err("older"), OlderHistory { seen: 3, told: 2 });
        assert!(Renewer::new(timing(policy), at(10_002), &beat_of(4, 1, &[]), history, 0.0).is_ok());
    }
}

#[test]
fn a_grant_from_an_older_history_is_not_taken_up() {
    let mut renewer = renewer(Policy::Deadline);
    renewer.on_answer(at(1), at(2), &beat_of(3, 7, &[]), 0.0);
    assert!(!renewer.granted(lease(900), Token(900), Some(2), at(3)));
    assert_eq!(renewer.lost(), None, "it may have been under way since before");
    assert!(renewer.granted(lease(8), Token(8), Some(3), at(3)));
}

#[test]
fn a_later_epoch_comes_after_any_revision_of_an_earlier_one() {
    let mut renewer = renewer(Policy::Deadline);
    renewer.on_answer(at(1), at(2), &beat_of(3, 7, &[]), 0.0);
    assert!(renewer.granted(lease(900), Token(900), Some(3), at(3)));
    assert!(renewer.granted(lease(901), Token(901), Some(3), at(3)));
    // Restored from before both grants, and known as such: the set is authoritative, however low its revision.
    assert_eq!(renewer.on_answer(at(4), at(5), &beat_of(4, 5, &[]), 0.0).ended, [lease(900), lease(901)]);
    // And a grant of the new history is newer than that set.
    assert!(renewer.granted(lease(6), Token(6), Some(4), at(6)));
    assert_eq!(renewer.on_answer(at(7), at(8), &beat_of(4, 6, &[(6, 6)]), 0.0).ended, []);
}

#[test]
fn a_lease_that_was_carried_over_under_another_token_is_lost_to_its_guard() {
    let mut renewer = renewer(Policy::Deadline);
    renewer.on_answer(at(1), at(2), &beat_of(1, 7, &[]), 0.0);
    assert!(renewer.granted(lease(8), Token(8), Some(1), at(3)));
    assert!(renewer.granted(lease(9), Token(9), Some(1), at(3)));
    assert_eq!(renewer.on_answer(at(4), at(5), &beat_of(1, 9, &[(8, 8), (9, 9)]), 0.0).ended, []);
    let carried = beat_of(2, 1 << 32, &[(8, 8), (9, 1 << 32)]);
    assert_eq!(renewer.on_answer(at(6), at(7), &carried, 0.0).ended, [lease(9)]);
}

#[test]
fn the_cursor_of_the_last_answer_is_shown_with_the_next_heartbeat() {
    let mut renewer = renewer(Policy::Deadline);
    assert_eq!(renewer.history().sealed_cursor(), None);
    let sealed = |text: &str| Beat { sealed_cursor: Some(text.to_owned()), ..beat(0, &[]) };
    renewer.on_answer(at(1), at(2), &sealed("a"), 0.0);
    assert_eq!(renewer.history().sealed_cursor(), Some("a"));
    renewer.on_answer(at(3), at(4), &beat(0, &[]), 0.0);
    assert_eq!(renewer.history().sealed_cursor(), Some("a"));
    renewer.on_answer(at(5), at(6), &sealed("b"), 0.0);
    assert_eq!(renewer.history().sealed_cursor(), Some("b"));
}

#[derive(Debug, Clone)]
enum Event {
    Pass(u64),
    Answer { sent_ago_ms: u64, ttl_left_ms: u64 },
    Failure,
    Refusal,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u64..15_000).prop_map(Event::Pass),
        3 => (0u64..40_000, 0u64..30_000).prop_map(|(sent_ago_ms, ttl_left_ms)| Event::Answer { sent_ago_ms, ttl_left_ms }),
        2 => Just(Event::Failure),
        1 => Just(Event::Refusal),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Immediate),
        Just(Policy::Deadline),
        (1u64..60_000).prop_map(|ms| Policy::Grace(Duration::from_millis(ms)))
    ]
}

proptest! {
    /// Whatever comes in whatever order: nobody is trusted longer than an answer allows, trust never shrinks, what is
    /// lost stays lost, and a driver that sleeps as long as it is told wakes in time for the stop.
    #[test]
    fn trust_is_never_longer_than_what_was_told(policy in policy(), events in prop::collection::vec(event(), 1..60), unit in 0.0..1.0f64) {
        let opened = Renewer::new(timing(policy), at(0), &beat(0, &[]), History::default(), unit);
        let mut renewer = opened.expect("no history before");
        let mut now = 0u64;
        let mut told = local_deadline(at(0), TTL, Duration::ZERO);
        let mut was_lost = false;
        let mut flights = std::collections::VecDeque::new();
        for event in events {
            let before = renewer.trusted_until();
            match event {
                Event::Pass(ms) => now += ms,
                Event::Answer { sent_ago_ms, ttl_left_ms } => {
                    let sent = at(now.saturating_sub(sent_ago_ms));
                    let ttl_left = Duration::from_millis(ttl_left_ms);
                    renewer.on_answer(sent, at(now), &Beat { ttl_left, ..beat(0, &[]) }, unit);
                    told = told.max(local_deadline(sent, ttl_left, Duration::ZERO));
                }
                Event::Failure => if let Some(flight) = flights.pop_front() {
                    renewer.on_failure(flight, at(now), "away", unit);
                },
                Event::Refusal => renewer.on_refusal(refusal()),
            }
            prop_assert!(renewer.trusted_until() >= before);
            prop_assert!(renewer.trusted_until() <= told);
            let step = renewer.poll(at(now));
            let is_lost = matches!(step, Step::Lost(_));
            prop_assert!(is_lost || !was_lost, "back from the dead");
            prop_assert!(is_lost || at(now) < renewer.stop_at());
            match step {
                Step::Sleep(until) => prop_assert!(until > at(now) && until <= renewer.stop_at()),
                Step::Beat(flight) => {
                    prop_assert!(flight.sent == at(now) && flight.until <= renewer.stop_at());
                    prop_assert!(flight.beside < FLIGHTS_MAX);
                    flights.push_back(flight.number);
                }
                Step::Lost(_) => {}
            }
            was_lost = is_lost;
        }
    }

    /// Slowness alone never costs a lease whose ttl is ten times the delay: with any interval, any ttl, any slack of
    /// the store's clock up to half of the ttl and any policy, however many servers there are, and whether they are
    /// slow to take a request or slow to answer it.
    #[test]
    fn slowness_alone_costs_no_lease(
        policy in policy(),
        ttl_ms in 1_000u64..120_000,
        every_share in 0.0..0.499f64,
        delay_share in 0.0..0.1f64,
        slack_share in 0.0..0.5f64,
        unit in 0.0..1.0f64,
    ) {
        let ttl = Duration::from_millis(ttl_ms);
        let every = ttl.mul_f64(every_share).max(Duration::from_millis(50));
        let delay = ttl.mul_f64(delay_share);
        let slack = ttl.mul_f64(slack_share).min(Duration::from_millis(500));
        let mut now = at(0);
        let end = at(ttl_ms * 20);
        let opened = Beat { ttl_left: ttl, slack, ..beat(0, &[]) };
        let timing = Timing { ttl, every, policy };
        let opened = Renewer::new(timing, now, &opened, History::default(), unit);
        let mut renewer = opened.expect("no history before");
        // The answers that are on their way: when they arrive, and to what.
        let mut answers = std::collections::VecDeque::new();
        let mut beats = 0u64;
        while now < end {
            while answers.front().is_some_and(|(arrives, _)| *arrives <= now) {
                let Some((_, flight)) = answers.pop_front() else { break };
                let SentHeartbeat { sent, until, .. } = flight;
                prop_assert!(now <= until, "it is not given up");
                let beat = Beat { ttl_left: ttl, slack, ..beat(0, &[]) };
                renewer.on_answer(sent, now, &beat, unit);
            }
            match renewer.poll(now) {
                Step::Beat(flight) => {
                    beats += 1;
                    answers.push_back((now.plus(delay), flight));
                }
                Step::Sleep(until) => {
                    let next = answers.front().map_or(until, |(arrives, _)| until.min(*arrives));
                    now = next;
                }
                Step::Lost(lost) => return Err(TestCaseError::fail(format!("{lost} at {now:?}"))),
            }
        }
        // And not by a flood of heartbeats: one after each interval, and one beside another after each pause.
        let count = |pause: Duration| (end.since(at(0)).as_nanos() / pause.as_nanos()) as u64 + 1;
        let after = every.min(ttl / 4).mul_f64(0.8);
        let beside = Duration::from_millis(250);
        prop_assert!(beats <= count(after) + count(beside), "{beats}");
    }

    /// The pauses between retries grew to a third of the ttl. With a ttl of 6 s the last try came 1.9 s before the
    /// deadline and the next one after it, so a server that was back in between was not found.
    #[test]
    fn a_server_that_is_back_a_tenth_of_the_ttl_before_the_deadline_is_found(
        ttl_ms in 1_000u64..120_000,
        every_share in 0.0..0.499f64,
        unit in 0.0..1.0f64,
    ) {
        let ttl = Duration::from_millis(ttl_ms);
        let every = ttl.mul_f64(every_share).max(Duration::from_millis(50));
        let opened = Beat { ttl_left: ttl, ..beat(0, &[]) };
        let timing = Timing { ttl, every, policy: Policy::Deadline };
        let opened = Renewer::new(timing, at(0), &opened, History::default(), unit);
        let mut renewer = opened.expect("no history before");
        let mut now = at(0);
        let deadline = renewer.trusted_until();
        let mut tries = Vec::new();
        loop {
            match renewer.poll(now) {
                Step::Beat(_) if deadline.since(now) <= ttl / 10 => break,
                Step::Beat(flight) => {
                    tries.push(deadline.since(now));
                    renewer.on_failure(flight.number, now, "refused", unit);
                }
                Step::Sleep(until) => now = until,
                Step::Lost(_) => {
                    let last = tries.last();
                    let told = format!("ttl {ttl:?}, every {every:?}: last try {last:?} before the deadline");
                    return Err(TestCaseError::fail(told));
                }
            }
        }
    }

    /// Retries never come in a flood, and never less often than heartbeats.
    #[test]
    fn retries_are_spaced(failures in 1u32..50, unit in 0.0..1.0f64) {
        let mut renewer = renewer(Policy::Grace(Duration::from_secs(3_600)));
        let mut now = at(10_000);
        for _ in 0..failures {
            let Step::Beat(flight) = renewer.poll(now) else { panic!("it is due") };
            renewer.on_failure(flight.number, now, "away", unit);
            let Step::Sleep(until) = renewer.poll(now) else { panic!("it waits") };
            let wait = until.since(now);
            prop_assert!(wait >= Duration::from_millis(50) && wait <= TTL / 3);
            now = until;
        }
    }
}
