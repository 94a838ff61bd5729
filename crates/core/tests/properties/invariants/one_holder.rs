//! At any time at most one holder, and nobody is let in while another may still work (rules 1, 12).

use solehold_core::{event::What, key::ResourceKey};

use crate::{promises::How, step::Step};

/// By the history of promises, at most one grant of a resource is live.
pub fn at_most_one_live_holder(step: &Step<'_>) {
    for (key, holds) in &step.promises.holds {
        let live = |h: &&crate::promises::Hold| h.end.is_none() && step.promises.until(h) > step.now();
        let live: Vec<_> = holds.iter().filter(live).collect();
        assert!(live.len() <= 1, "{key} is held by {live:?}");
        let held = step.after.resource(key).and_then(|r| r.lease.as_ref());
        assert_eq!(
            live.first().map(|h| (h.lease, h.token, &h.holder)),
            held.filter(|l| step.after.deadline_of(l).expect("it is there") > step.now())
                .map(|l| (l.id, l.token, &l.holder)),
            "the holder of {key}"
        );
    }
}

/// A grant comes after its predecessor was released by its holder, was fenced, or had its promised time and lock-delay
/// pass; nothing expires early, and what ran out is not released any more.
pub fn no_grant_while_another_may_work(step: &Step<'_>) {
    let mut promises = step.promised.clone();
    for event in step.events() {
        if matches!(event.what, What::Acquired(_)) {
            let is_apart = |key: &ResourceKey| key.is_slot() && event.key.is_slot() && *key != event.key;
            for (_, former) in promises.holds_of(&event.key).filter(|(key, _)| !is_apart(key)) {
                let end = former.end.unwrap_or_else(|| panic!("{} is granted over {former:?}", event.key));
                let free_at = match end.how {
                    How::Released | How::Fenced => end.at,
                    How::Expired | How::Revoked => end.until.plus_ms(end.lock_delay_ms),
                };
                assert!(event.at >= free_at, "{} is granted at {:?}, after {former:?}", event.key, event.at);
            }
        }
        promises.learn_event(step.command, event);
        let last = promises.holds.get(&event.key).and_then(|holds| holds.last());
        let Some(end) = last.and_then(|hold| hold.end) else { continue };
        match &event.what {
            What::Expired(ended) if ended.token.is_some() => {
                assert!(event.at >= end.until, "{end:?} is early")
            }
            What::Released(_) | What::Revoked(_) if matches!(end.how, How::Released) => {
                assert!(event.at < end.until, "{end:?}: it had run out");
            }
            _ => {}
        }
    }
}
