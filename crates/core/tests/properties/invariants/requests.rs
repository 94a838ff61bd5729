//! A request id never leads to two grants (rule 7).

use std::collections::BTreeMap;

use solehold_core::{
    command::Command,
    event::What,
    key::{LeaseId, RequestKey},
    limits::REQUEST_KEPT_MS,
    outcome::Answer,
    time::{StoreTime, Token},
};

use crate::step::{Invariant, Step};

/// Cancelling a request ends the lease that it got, and no other by anyone's word.
pub fn are_cancelled_one_at_a_time(step: &Step<'_>) {
    let Command::CancelRequest(request) = step.command else { return };
    for event in step.events() {
        let What::Released(ended) = &event.what else { continue };
        let lease = step.before.resource(&event.key).and_then(|r| r.lease.as_ref()).expect("it was held");
        assert_eq!((ended.lease, &ended.holder), (lease.id, &request.holder), "{request:?} ends another");
        assert_eq!(lease.request.as_ref(), Some(&request.request), "{request:?} ends another");
    }
}

#[derive(Default)]
pub struct NeverLeadToTwoGrants {
    granted: BTreeMap<RequestKey, (LeaseId, Token)>,
    cancelled: BTreeMap<RequestKey, StoreTime>,
}

impl Invariant for NeverLeadToTwoGrants {
    fn check(&mut self, step: &Step<'_>) {
        if let (Command::CancelRequest(request), Ok(_)) = (step.command, &step.decision.outcome) {
            self.cancelled.insert(request.clone(), step.now());
        }
        let mut got_now = Vec::new();
        for event in step.events() {
            let What::Acquired(lease) = &event.what else { continue };
            let Some(request) = lease.request.clone() else { continue };
            let key = RequestKey { resource: event.key.whole(), holder: lease.holder.clone(), request };
            self.granted_once(step, key.clone(), (lease.id, lease.token));
            got_now.push(key);
        }
        let Command::Acquire(ask) = step.command else { return };
        let Some(request) = ask.request.clone() else { return };
        let key = RequestKey { resource: ask.key.clone(), holder: ask.holder.clone(), request };
        let Ok(Answer::Granted(grant)) = &step.decision.outcome else { return };
        let got = (grant.lease.lease.id, grant.lease.lease.token);
        assert_eq!(self.granted.get(&key), Some(&got), "what {key:?} is told");
        if grant.repeated && !got_now.contains(&key) {
            assert_eq!(step.decision.changes, [], "a repeat of {key:?}");
        }
    }
}

impl NeverLeadToTwoGrants {
    fn granted_once(&mut self, step: &Step<'_>, key: RequestKey, got: (LeaseId, Token)) {
        if let Some(former) = self.granted.insert(key.clone(), got) {
            let ended_at = ended_at(step, &key, former);
            let is_forgotten = ended_at.is_some_and(|at| step.now() >= at.plus_ms(REQUEST_KEPT_MS));
            assert!(is_forgotten, "{key:?} got {former:?}, which ended at {ended_at:?}, and now {got:?}");
        }
        if let Some(at) = self.cancelled.get(&key) {
            assert!(step.now() >= at.plus_ms(REQUEST_KEPT_MS), "{key:?} was cancelled at {at:?}");
        }
    }
}

/// When a grant ended: by its event, or when its time ran out if that was before.
fn ended_at(step: &Step<'_>, key: &RequestKey, (lease, token): (LeaseId, Token)) -> Option<StoreTime> {
    let mut holds = step.promises.holds_of(&key.resource);
    let (_, hold) = holds.find(|(_, h)| (h.lease, h.token) == (lease, token)).expect("it was granted");
    hold.end.map(|end| end.at.min(end.until))
}
