//! Deadlines never move earlier, and are what holders were promised (rules 1, 9).

use solehold_core::{
    event::{Event, What},
    lease::Tenure,
};

use crate::step::Step;

pub fn never_move_earlier(step: &Step<'_>) {
    for before in step.before.sessions() {
        let after = step.after.session(before.id);
        assert!(after.is_none_or(|after| after.deadline >= before.deadline), "session {}", before.id);
    }
    for before in step.before.resources() {
        let after = step.after.resource(&before.key);
        let lease = after.and_then(|r| r.lease.as_ref());
        if let (Some(old), Some(new)) = (&before.lease, lease)
            && old.token == new.token
            && let (Tenure::Own { deadline: old, .. }, Tenure::Own { deadline: new, .. }) =
                (old.tenure, new.tenure)
        {
            assert!(new >= old, "the lease on {}", before.key);
        }
        let pending = after.and_then(|r| r.pending.as_ref());
        if let (Some(old), Some(new)) = (&before.pending, pending) {
            let is_anew = step.events().any(|e| matches!(e.what, What::Pending(_)));
            assert!(old == new || is_anew, "the pending lease on {}", before.key);
        }
        let is_granted = lease.is_some();
        let is_lifted = |e: &Event| e.key == before.key && matches!(e.what, What::HoldBackLifted { .. });
        let held_back = before.held_back_until.filter(|until| *until > step.now());
        if let Some(until) = held_back.filter(|_| !step.events().any(is_lifted)) {
            assert!(!is_granted, "{} is granted while it is held back", before.key);
            let after = after.and_then(|r| r.held_back_until);
            assert_eq!(after, Some(until), "{} stays held back", before.key);
        }
    }
}

pub fn are_as_promised(step: &Step<'_>) {
    for resource in step.after.resources() {
        let Some(lease) = &resource.lease else { continue };
        let hold = step.promises.open_hold(&resource.key).expect("what is held was granted");
        assert_eq!((hold.lease, hold.token), (lease.id, lease.token));
        let deadline = step.after.deadline_of(lease).expect("the whole state is here");
        assert_eq!(deadline, step.promises.until(hold), "the deadline of {}", resource.key);
    }
}
