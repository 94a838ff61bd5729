//! What a gate says, case by case.

use solehold_core::{
    fence::{Doubt, Fence, Mark, MarkLookup, MarkRecord, Rules, Tick, Verdict},
    time::{Revision, Token},
};

use crate::world::{key, session};

const TTL: u64 = 1_000;

fn rules() -> Rules {
    Rules { cache_ttl: TTL, ..Rules::default() }
}

fn mark(token: u64) -> Mark {
    Mark { token: Token(token), session: Some(session(token)) }
}

/// A gate whose watch has told of one resource.
fn watching(rules: Rules, token: u64) -> Fence {
    let mut fence = Fence::new(rules);
    assert!(fence.snapshot_begins(1));
    fence.learn(&key(0), mark(token));
    fence.snapshot_ends(Revision(token), Tick(0));
    fence
}

fn judge(fence: &mut Fence, token: u64, now: u64) -> Verdict {
    fence.admit(&key(0), Token(token), None, Tick(now))
}

#[test]
fn older_is_stale_newer_is_asked_for_and_absence_admits_nothing() {
    let mut fence = watching(rules(), 7);
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Admit);
    assert_eq!(judge(&mut fence, 6, 0), Verdict::Stale { newest: Token(7) });
    assert_eq!(judge(&mut fence, 8, 0), Verdict::Undecidable(Doubt::Newer { known: Token(7) }));
    let unknown = fence.judge(&key(1), Token(7), None, Tick(0));
    assert_eq!(unknown, Some(Verdict::Undecidable(Doubt::Unknown)));
    fence.deleted(&key(0));
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Undecidable(Doubt::Unknown));
    assert_eq!(
        judge(&mut fence, 6, 0),
        Verdict::Stale { newest: Token(7) },
        "the mark of a deleted one stays"
    );
    // It is not in the next snapshot, either.
    assert!(fence.snapshot_begins(1));
    fence.snapshot_ends(Revision(9), Tick(0));
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Undecidable(Doubt::Unknown));
}

#[test]
fn a_token_belongs_to_one_session() {
    let mut fence = watching(rules(), 7);
    let mut from = |of| fence.admit(&key(0), Token(7), Some(session(of)), Tick(0));
    assert_eq!(from(7), Verdict::Admit);
    assert_eq!(from(8), Verdict::Stale { newest: Token(7) });
    // One that the store does not name is bound when it is first shown.
    fence.learn(&key(0), Mark { token: Token(9), session: None });
    let mut show = |of| fence.admit(&key(0), Token(9), Some(session(of)), Tick(0));
    assert_eq!(show(1), Verdict::Admit);
    assert_eq!(show(2), Verdict::Stale { newest: Token(9) });
    assert_eq!(show(1), Verdict::Admit);
}

#[test]
fn knowledge_is_as_old_as_the_question() {
    let mut fence = watching(rules(), 7);
    assert_eq!(judge(&mut fence, 7, TTL), Verdict::Admit);
    assert_eq!(judge(&mut fence, 7, TTL + 1), Verdict::Undecidable(Doubt::Expired));
    assert_eq!(
        judge(&mut fence, 6, 10 * TTL),
        Verdict::Stale { newest: Token(7) },
        "older is stale at any age"
    );
    // The watch tells something, however late: that alone says nothing of how old it is.
    fence.told_up_to(Revision(8));
    assert_eq!(judge(&mut fence, 7, TTL + 1), Verdict::Undecidable(Doubt::Expired));
    // The store was asked at 500, and was further than the watch has told.
    assert!(fence.head_was(1, Revision(9), Tick(500)));
    assert_eq!(judge(&mut fence, 7, TTL + 1), Verdict::Undecidable(Doubt::Expired));
    fence.told_up_to(Revision(9));
    assert_eq!((judge(&mut fence, 7, TTL + 1), fence.proven()), (Verdict::Admit, Some(Tick(500))));
    assert_eq!(judge(&mut fence, 7, TTL + 501), Verdict::Undecidable(Doubt::Expired));
}

#[test]
fn a_read_settles_what_the_watch_has_not_told() {
    let mut fence = watching(rules(), 7);
    let mut ask = |shown: u64, answer, asked: u64| {
        let message = (&key(0), Token(shown), None);
        fence.conclude(message, (answer, Some(1)), Tick(asked), Tick(asked)).expect("this history")
    };
    assert_eq!(ask(9, MarkLookup::Newest(mark(9)), 0), Verdict::Admit);
    assert_eq!(ask(10, MarkLookup::Newest(mark(12)), 0), Verdict::Stale { newest: Token(12) });
    let forged = Verdict::Undecidable(Doubt::NeverGiven { newest: Token(12) });
    assert_eq!(ask(13, MarkLookup::Newest(mark(12)), 0), forged);
    let gone = Verdict::Undecidable(Doubt::NoSuchResource);
    assert_eq!(ask(12, MarkLookup::Nothing, 2 * TTL), gone);
    assert!(!Doubt::NoSuchResource.may_pass() && Doubt::Expired.may_pass());
}

#[test]
fn failing_open_never_goes_below_the_mark_or_the_floor() {
    let mut fence = watching(Rules { fail_open: true, marks_max: 1, ..rules() }, 7);
    let old = 2 * TTL;
    assert_eq!(fence.admit(&key(0), Token(7), None, Tick(old)), Verdict::Undecidable(Doubt::Expired));
    fence.store_is_away(Tick(old + 100));
    assert_eq!(fence.admit(&key(0), Token(7), None, Tick(old)), Verdict::Admit);
    assert_eq!(fence.admit(&key(0), Token(9), None, Tick(old)), Verdict::Admit, "it may have been granted");
    assert_eq!(fence.admit(&key(0), Token(8), None, Tick(old)), Verdict::Stale { newest: Token(9) });
    // The mark of the first is dropped for that of the second.
    assert_eq!(fence.admit(&key(1), Token(11), None, Tick(old)), Verdict::Admit);
    assert_eq!((fence.marks(), fence.floor()), (1, Token(9)));
    assert_eq!(fence.admit(&key(0), Token(9), None, Tick(old)), Verdict::Undecidable(Doubt::Forgotten));
    // And when the store is back, it is asked again.
    let later = Tick(old + 100);
    assert_eq!(fence.admit(&key(1), Token(11), None, later), Verdict::Undecidable(Doubt::Unknown));
}

#[test]
fn a_strict_gate_reads_before_a_new_token() {
    let mut fence = watching(Rules { strict: true, ..rules() }, 7);
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Undecidable(Doubt::Unconfirmed));
    let read = |fence: &mut Fence, answer: Mark| {
        fence.conclude((&key(0), Token(7), None), (MarkLookup::Newest(answer), Some(1)), Tick(1), Tick(1))
    };
    assert_eq!(read(&mut fence, mark(7)), Some(Verdict::Admit));
    assert_eq!(judge(&mut fence, 7, 2), Verdict::Admit, "once per token");
    fence.learn(&key(0), mark(8));
    assert_eq!(judge(&mut fence, 8, 2), Verdict::Undecidable(Doubt::Unconfirmed));
}

#[test]
fn a_gate_that_remembers_saves_before_it_admits() {
    let rules = Rules { remembers: true, ..rules() };
    let mut fence = watching(rules, 7);
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Undecidable(Doubt::Unsaved));
    let (records, number) = fence.unsaved();
    assert_eq!(records, [MarkRecord::Epoch(1), MarkRecord::Mark(key(0), mark(7))]);
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Undecidable(Doubt::Unsaved), "it is only being saved");
    fence.saved_up_to(number);
    assert_eq!(judge(&mut fence, 7, 0), Verdict::Admit);

    let mut again = Fence::new(rules);
    records.into_iter().for_each(|record| again.restore(record));
    assert_eq!(judge(&mut again, 6, 0), Verdict::Stale { newest: Token(7) }, "it needs no server for that");
    assert_eq!(judge(&mut again, 7, 0), Verdict::Undecidable(Doubt::Unknown));
    assert!(!again.snapshot_begins(0), "an older history is not followed after a restart, either");
}

#[test]
fn another_history_refuses_by_what_is_known_and_admits_by_what_it_says() {
    let mut fence = watching(rules(), 7);
    assert!(fence.head_was(2, Revision(1 << 32), Tick(10)));
    assert_eq!(judge(&mut fence, 7, 10), Verdict::Undecidable(Doubt::Unknown));
    assert_eq!(judge(&mut fence, 6, 10), Verdict::Stale { newest: Token(7) });
    // The new history has lost the grant: the mark stays, and nothing is admitted until there is a newer one.
    assert!(fence.snapshot_begins(2));
    fence.learn(&key(0), mark(5));
    fence.snapshot_ends(Revision(1 << 32), Tick(10));
    assert_eq!(judge(&mut fence, 5, 10), Verdict::Stale { newest: Token(7) });
    assert_eq!(judge(&mut fence, 7, 10), Verdict::Undecidable(Doubt::Unknown));
    let next = (1 << 32) + 1;
    fence.learn(&key(0), mark(next));
    assert_eq!(judge(&mut fence, next, 10), Verdict::Admit);
    assert!(!fence.follow(1));
}

#[test]
fn a_mark_of_a_former_history_that_was_dropped_is_remembered() {
    let rules = Rules { remembers: true, marks_max: 2, ..rules() };
    let mut fence = watching(rules, 7);
    fence.learn(&key(1), mark(9));
    // The store was set back to before the grant of 7, and tokens go on above all of them.
    assert!(fence.snapshot_begins(2));
    fence.learn(&key(0), mark(5));
    fence.learn(&key(2), mark(1 << 32));
    fence.snapshot_ends(Revision(1 << 32), Tick(10));
    assert_eq!((fence.mark(&key(0)), fence.floor()), (None, Token(7)), "there is no room for it");
    let mut written_along = Fence::new(rules);
    fence.unsaved().0.into_iter().for_each(|record| written_along.restore(record));
    let mut written_anew = Fence::new(rules);
    fence.records().for_each(|record| written_anew.restore(record));
    for mut fence in [fence, written_along, written_anew] {
        let answer = (MarkLookup::Newest(mark(5)), Some(2));
        let verdict = fence.conclude((&key(0), Token(5), None), answer, Tick(10), Tick(10));
        assert_eq!(verdict, Some(Verdict::Stale { newest: Token(7) }), "{fence:?}");
    }
}

#[test]
fn a_floor_is_remembered() {
    let rules = Rules { remembers: true, fail_open: true, marks_max: 1, ..rules() };
    let mut fence = watching(rules, 7);
    fence.learn(&key(1), mark(9));
    let (records, _) = fence.unsaved();
    assert!(records.contains(&MarkRecord::Floor(Token(7))), "{records:?}");
    // What is written anew, in place of everything before, says no more of the dropped mark than that.
    let mut again = Fence::new(rules);
    fence.records().for_each(|record| again.restore(record));
    assert_eq!((again.marks(), again.floor(), again.epoch()), (1, Token(7), 1));
    again.store_is_away(Tick(100));
    let forgotten = Verdict::Undecidable(Doubt::Forgotten);
    assert_eq!(again.admit(&key(0), Token(6), None, Tick(0)), forgotten, "an older one was admitted before");
}

#[test]
fn a_dropped_mark_comes_back_by_a_read() {
    let mut fence = Fence::new(Rules { marks_max: 8, ..rules() });
    let ask = |fence: &mut Fence, resource: usize, token: u64| {
        let message = (&key(resource), Token(token), None);
        fence.conclude(message, (MarkLookup::Newest(mark(token)), Some(1)), Tick(0), Tick(0))
    };
    for resource in 1..=9 {
        assert_eq!(ask(&mut fence, resource, resource as u64), Some(Verdict::Admit));
    }
    assert_eq!((fence.marks(), fence.floor()), (7, Token(2)));
    let judge = |fence: &Fence, resource| fence.judge(&key(resource), Token(2), None, Tick(0));
    assert_eq!(judge(&fence, 1), Some(Verdict::Undecidable(Doubt::Forgotten)));
    assert_eq!(ask(&mut fence, 2, 2), Some(Verdict::Admit), "the store says that it is still the newest");
    assert_eq!(ask(&mut fence, 1, 1), Some(Verdict::Admit));
}
