//! The lane: which messages may be processed, and where the position is.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use proptest::prelude::*;
use solehold_clock::{Backoff, BootTime};
use solehold_kafka::{
    Message,
    lane::{Arrival, Bounds, Flow, Lane, Retry},
};
use solehold_sql::partitions::Checkpoint;

const NOW: BootTime = BootTime::from_nanos(1_000_000_000);

fn bounds() -> Bounds {
    let backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(1) };
    Bounds { parallel: 4, messages: 10, bytes: 1 << 20, span: 100, batch: 3, attempts: 3, backoff }
}

fn message(offset: i64, key: &str) -> Message {
    let key = (!key.is_empty()).then(|| Bytes::copy_from_slice(key.as_bytes()));
    let payload = Some(Bytes::from(format!("message {offset}")));
    Message { topic: "t".into(), partition: 0, offset, key, payload, headers: Vec::new(), timestamp_ms: None }
}

fn begun(lane: &mut Lane) -> Vec<i64> {
    std::iter::from_fn(|| lane.begin(NOW)).map(|message| message.offset).collect()
}

fn lane_with(bounds: Bounds, messages: &[(i64, &str)]) -> Lane {
    let mut lane = Lane::new(0, None, bounds);
    for (offset, key) in messages {
        assert_eq!(lane.arrive(message(*offset, key)), Arrival::Taken);
    }
    lane
}

#[test]
fn keys_are_in_order_and_the_position_is_contiguous() {
    let mut lane = lane_with(bounds(), &[(0, "a"), (1, "a"), (2, "b"), (5, "c"), (6, "a")]);
    assert_eq!(begun(&mut lane), [0, 2, 5], "one of each key");
    lane.finish(5);
    lane.finish(2);
    let batch = lane.batch().unwrap();
    assert_eq!((batch.offsets.as_slice(), batch.next_offset), (&[2, 5][..], 0), "the first is under way");
    assert_eq!(batch.checkpoint, None);
    lane.committed(&batch.offsets);
    assert_eq!(lane.position(), 0);
    lane.finish(0);
    assert_eq!(begun(&mut lane), [0; 0], "the next of a key begins after the commit");
    let batch = lane.batch().unwrap();
    assert_eq!((batch.offsets.as_slice(), batch.next_offset), (&[0][..], 1));
    assert_eq!(batch.checkpoint.unwrap().offset, 0);
    lane.committed(&batch.offsets);
    assert_eq!(begun(&mut lane), [1]);
    lane.finish(1);
    let batch = lane.batch().unwrap();
    assert_eq!(batch.next_offset, 6, "over what has taken effect, and over the gap");
    lane.committed(&batch.offsets);
    assert_eq!((begun(&mut lane), lane.position(), lane.len()), (vec![6], 6, 1));
}

#[test]
fn a_message_that_fails_is_tried_again_after_a_while_and_then_given_up() {
    let mut lane = lane_with(bounds(), &[(0, "a"), (1, "a"), (2, "b")]);
    assert_eq!(begun(&mut lane), [0, 2]);
    let first = NOW.plus(Duration::from_millis(100));
    assert_eq!(lane.fail(0, NOW, 1.0), Retry::NotBefore(first));
    assert_eq!(lane.next_retry(), Some(first));
    assert_eq!(lane.begin(NOW), None, "its key waits with it");
    assert_eq!(lane.begin(first).map(|message| message.offset), Some(0));
    assert!(matches!(lane.fail(0, first, 1.0), Retry::NotBefore(_)));
    let last = first.plus(Duration::from_millis(200));
    assert_eq!(lane.begin(last).map(|message| message.offset), Some(0));
    assert_eq!(lane.fail(0, last, 1.0), Retry::GiveUp);
    // As a dead letter it is committed like others.
    lane.finish(0);
    assert_eq!(lane.batch().unwrap().offsets, [0]);
}

#[test]
fn what_was_rolled_back_is_alone_from_then_on() {
    let mut lane = lane_with(bounds(), &[(0, ""), (1, ""), (2, ""), (3, "")]);
    begun(&mut lane).into_iter().for_each(|offset| lane.finish(offset));
    let batch = lane.batch().unwrap();
    assert_eq!(batch.offsets, [0, 1, 2], "as many as a batch takes");
    lane.returned(&batch.offsets, true);
    for offset in [0, 1, 2] {
        let batch = lane.batch().unwrap();
        assert_eq!(batch.offsets, [offset]);
        lane.committed(&batch.offsets);
    }
    let batch = lane.batch().unwrap();
    lane.returned(&batch.offsets, false);
    assert_eq!(lane.batch().unwrap(), batch);
    assert_eq!((batch.offsets.as_slice(), batch.next_offset), (&[3][..], 4));
}

#[test]
fn it_is_paused_when_it_is_full_and_resumed_when_it_is_half_empty() {
    let mut lane = lane_with(bounds(), &[]);
    for offset in 0..10 {
        assert_eq!(lane.flow(), None);
        lane.arrive(message(offset, ""));
    }
    assert_eq!((lane.flow(), lane.flow()), (Some(Flow::Pause), None));
    for _ in 0..5 {
        assert_eq!(lane.flow(), None);
        let offset = lane.begin(NOW).unwrap().offset;
        lane.finish(offset);
        let batch = lane.batch().unwrap();
        lane.committed(&batch.offsets);
    }
    assert_eq!((lane.flow(), lane.flow()), (Some(Flow::Resume), None));
    // A few large ones fill it, too.
    let mut lane = lane_with(Bounds { bytes: 600, ..bounds() }, &[(0, ""), (1, "")]);
    assert_eq!(lane.flow(), None);
    lane.arrive(message(2, ""));
    assert_eq!(lane.flow(), Some(Flow::Pause));
}

#[test]
fn the_span_from_the_position_is_bounded() {
    let mut lane = lane_with(Bounds { span: 5, ..bounds() }, &[(0, "a"), (1, "b"), (4, "c"), (5, "d")]);
    assert_eq!(begun(&mut lane), [0, 1, 4]);
    lane.finish(4);
    let batch = lane.batch().unwrap();
    lane.committed(&batch.offsets);
    assert_eq!(begun(&mut lane), [0; 0], "5 is too far from 0");
    lane.finish(0);
    let batch = lane.batch().unwrap();
    lane.committed(&batch.offsets);
    assert_eq!(begun(&mut lane), [5]);
}

#[test]
fn another_topic_of_the_same_name_is_noticed_by_its_checkpoint() {
    let mut lane = lane_with(bounds(), &[(7, "a")]);
    begun(&mut lane).into_iter().for_each(|offset| lane.finish(offset));
    let mark = lane.batch().unwrap().checkpoint.unwrap();
    let mut lane = Lane::new(9, Some(mark), bounds());
    assert_eq!(lane.arrive(message(7, "a")), Arrival::Old);
    assert_eq!(lane.arrive(message(8, "a")), Arrival::Old);
    assert_eq!(lane.arrive(message(9, "a")), Arrival::Taken);
    assert_eq!(lane.arrive(message(9, "a")), Arrival::Old, "it is there already");
    let mut lane = Lane::new(9, Some(mark), bounds());
    assert_eq!(lane.arrive(message(7, "b")), Arrival::Foreign);
    // It must never change: a row remembers it.
    assert_eq!(mark, Checkpoint { offset: 7, digest: -6797395059121974543 });
}

#[derive(Debug, Clone)]
enum Step {
    Arrive { gap: i64, key: u8 },
    Begin,
    Finish { which: usize },
    Fail { which: usize },
    Transaction { works: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4i64, 0..5u8).prop_map(|(gap, key)| Step::Arrive { gap, key }),
        4 => Just(Step::Begin),
        3 => (0..8usize).prop_map(|which| Step::Finish { which }),
        1 => (0..8usize).prop_map(|which| Step::Fail { which }),
        3 => any::<bool>().prop_map(|works| Step::Transaction { works }),
    ]
}

proptest! {
    /// Whatever happens in whatever order: messages of a key begin in order and each after the commit of the one
    /// before, bounds hold, the position covers exactly what has taken effect, and in the end everything has.
    #[test]
    fn nothing_is_lost_and_nothing_overtakes(steps in prop::collection::vec(step(), 1..200)) {
        let bounds = Bounds { span: 20, ..bounds() };
        let mut lane = Lane::new(0, None, bounds.clone());
        let mut now = NOW;
        let mut next = 0;
        let mut open: BTreeMap<i64, u8> = BTreeMap::new();
        let mut running = Vec::new();
        let mut committed = Vec::new();
        let begin = |lane: &mut Lane, now, open: &BTreeMap<i64, u8>, running: &mut Vec<i64>| {
            let Some(message) = lane.begin(now) else { return Ok(false) };
            let offset = message.offset;
            let key = open[&offset];
            let earlier = open.iter().any(|(other, of)| *other < offset && *of == key && key > 0);
            prop_assert!(!earlier, "{offset} overtakes an earlier message of key {key}");
            prop_assert!(!running.contains(&offset));
            running.push(offset);
            prop_assert!(running.len() <= bounds.parallel);
            prop_assert!(offset < lane.position() + bounds.span);
            Ok(true)
        };
        let commit = |lane: &mut Lane, works: bool, open: &mut BTreeMap<i64, u8>, committed: &mut Vec<i64>, next: i64| {
            let Some(batch) = lane.batch() else { return Ok(false) };
            prop_assert!(batch.offsets.len() <= bounds.batch && batch.offsets.is_sorted());
            if !works {
                lane.returned(&batch.offsets, true);
                return Ok(true);
            }
            lane.committed(&batch.offsets);
            open.retain(|offset, _| !batch.offsets.contains(offset));
            committed.extend(batch.offsets);
            let lowest = open.keys().next().copied().unwrap_or(next);
            prop_assert_eq!(batch.next_offset, lowest);
            prop_assert_eq!(lane.position(), lowest);
            Ok(true)
        };
        for step in steps {
            match step {
                Step::Arrive { gap, key } => {
                    let offset = next + gap - 1;
                    let name = if key == 0 { String::new() } else { key.to_string() };
                    prop_assert_eq!(lane.arrive(message(offset, &name)), Arrival::Taken);
                    open.insert(offset, key);
                    next = offset + 1;
                }
                Step::Begin => _ = begin(&mut lane, now, &open, &mut running)?,
                Step::Finish { which } if which < running.len() => lane.finish(running.swap_remove(which)),
                Step::Fail { which } if which < running.len() => {
                    match lane.fail(running[which], now, 0.5) {
                        Retry::NotBefore(_) => _ = running.swap_remove(which),
                        Retry::GiveUp => lane.finish(running.swap_remove(which)),
                    }
                    now = now.plus(Duration::from_millis(70));
                }
                Step::Transaction { works } => _ = commit(&mut lane, works, &mut open, &mut committed, next)?,
                Step::Finish { .. } | Step::Fail { .. } => {}
            }
        }
        now = now.plus(Duration::from_secs(10));
        while !lane.is_empty() {
            let mut moved = false;
            while begin(&mut lane, now, &open, &mut running)? { moved = true; }
            for offset in running.drain(..) { lane.finish(offset); moved = true; }
            while commit(&mut lane, true, &mut open, &mut committed, next)? { moved = true; }
            prop_assert!(moved, "it stands still with {} messages", lane.len());
        }
        prop_assert!(lane.is_quiet() && open.is_empty());
        prop_assert_eq!(lane.position(), next);
        committed.sort_unstable();
        let mut once = committed.clone();
        once.dedup();
        prop_assert_eq!(once, committed, "one took effect twice");
    }
}
