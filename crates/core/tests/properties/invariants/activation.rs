//! Hand-over: what is pending is granted in the commit that frees the resource, or lapses (rule 16).

use std::collections::BTreeMap;

use solehold_core::{event::What, session::Standing};

use crate::step::Step;

pub fn is_in_the_same_commit(step: &Step<'_>) {
    for before in step.before.resources() {
        let Some(pending) = &before.pending else { continue };
        let after = step.after.resource(&before.key);
        let about = |e: &&solehold_core::event::Event| e.key == before.key;
        let granted =
            step.events().filter(about).any(|e| matches!(&e.what, What::Acquired(l) if l.id == pending.id));
        let session = step.before.session(pending.session).expect("what is pending hangs on a session");
        let is_able = session.standing == Standing::Current && session.is_live(step.now());
        if granted {
            assert!(is_able, "{} goes to a session that is over", before.key);
            // Its turn may have come before its deadline, unnoticed.
            let free_at = match &before.lease {
                Some(lease) => {
                    let deadline = step.before.deadline_of(lease).expect("the whole state is here");
                    deadline.plus_ms(before.lock_delay_ms())
                }
                None => before.held_back_until.unwrap_or_default(),
            };
            let is_in_time = step.now() < pending.deadline || free_at < pending.deadline;
            assert!(is_in_time, "{} goes to a pending lease that had lapsed", before.key);
        }
        let waits = after.and_then(|r| r.pending.as_ref()).is_some_and(|p| p.id == pending.id);
        let free =
            after.is_none_or(|r| r.lease.is_none() && r.held_back_until.is_none_or(|t| t <= step.now()));
        if waits && step.events().any(|e| e.key == before.key) {
            assert!(!free, "{} is free and {pending:?} still waits", before.key);
        }
    }
    at_most_one(step);
}

/// At most one pending lease a resource, without a token.
fn at_most_one(step: &Step<'_>) {
    let mut waiting = BTreeMap::new();
    for resource in step.before.resources() {
        waiting.extend(resource.pending.as_ref().map(|p| (resource.key.clone(), p.id)));
    }
    for event in step.events() {
        match &event.what {
            What::Pending(pending) => {
                let former = waiting.insert(event.key.clone(), pending.id);
                assert_eq!(former, None, "a second pending lease on {}", event.key);
                assert_eq!(event.token(), None);
            }
            What::Acquired(lease) if waiting.get(&event.key) == Some(&lease.id) => {
                waiting.remove(&event.key);
            }
            What::Expired(ended) if waiting.get(&event.key) == Some(&ended.lease) => {
                assert_eq!(ended.token, None);
                waiting.remove(&event.key);
            }
            _ => {}
        }
    }
    let left = step.after.resources().filter_map(|r| Some((r.key.clone(), r.pending.as_ref()?.id)));
    assert_eq!(left.collect::<BTreeMap<_, _>>(), waiting, "what is pending");
}
