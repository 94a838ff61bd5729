//! An answer says what is stored once it was given: nobody is told of a lease, session or row other than the one kept.

use solehold_core::{
    key::LeaseId,
    lease::LeaseStatus,
    ledger::Ledger,
    outcome::{Answer, LeaseView},
};

use crate::step::Step;

pub fn say_what_is_stored(step: &Step<'_>) {
    let Ok(answer) = &step.decision.outcome else { return };
    let after = step.after;
    let is_gone = |id: &LeaseId| assert_eq!(after.resource_of(*id), None, "lease {id} is over");
    match answer {
        Answer::Granted(grant) | Answer::Renewed(grant) => {
            let resource = after.resource(&grant.lease.key).expect("what is held has a row");
            let stored = LeaseView::of(after, resource, step.now()).expect("the whole state is here");
            assert_eq!(
                stored.map(without_renewal_at_once),
                Some(without_renewal_at_once(grant.lease.clone()))
            );
            assert_eq!((&grant.state, grant.revision), (&resource.state, step.decision.moment.revision));
        }
        Answer::GrantedAll(grants) => {
            // At the end of time a lease is dead when it is granted.
            for grant in grants.iter().filter(|grant| grant.lease.status == LeaseStatus::Active) {
                let resource = after.resource(&grant.lease.key).expect("what is held has a row");
                assert_eq!(resource.lease.as_ref(), Some(&grant.lease.lease), "{grant:?}");
            }
        }
        Answer::Released(id) => is_gone(id),
        Answer::Revoked { lease, held_back_ms } => {
            is_gone(lease);
            let resource = step.claimed().and_then(|key| after.resource(&key));
            let until = resource.and_then(|r| r.held_back_until);
            assert_eq!(*held_back_ms, until.map_or(0, |until| until.ms_after(step.now())));
        }
        Answer::HoldBackLifted => {
            let resource = step.claimed().and_then(|key| after.resource(&key));
            assert_eq!(resource.and_then(|r| r.held_back_until), None);
        }
        Answer::StateWritten(state) => {
            let resource = step.resource().and_then(|key| after.resource(&key));
            assert_eq!(resource.and_then(|r| r.state.as_ref()), Some(state));
        }
        Answer::Offered(pending) => {
            let resource = after.resource_of(pending.id).and_then(|key| after.resource(key));
            // A repeat may find that its offer has become a lease.
            let is_taken = resource.and_then(|r| r.lease.as_ref()).is_some_and(|l| l.id == pending.id);
            assert!(is_taken || resource.and_then(|r| r.pending.as_deref()) == Some(pending), "{pending:?}");
        }
        Answer::Session(view) => {
            assert_eq!(after.session(view.session.id), Some(&view.session));
            let holder = view.holder.as_ref();
            assert!(holder.is_none_or(|h| after.holder(&h.key) == Some(h)), "{holder:?}");
        }
        Answer::Holder(holder) => assert_eq!(after.holder(&holder.key), Some(holder)),
        Answer::Declared { resource, created } => {
            assert_eq!(after.resource(&resource.key), Some(resource));
            let before = step.before.resource(&resource.key);
            assert_eq!(*created, before.is_none_or(|r| r.declared.is_none()));
        }
        Answer::Record(record) => assert_eq!(after.record(&record.collection, &record.id), Some(record)),
        Answer::Closed { released } => {
            let count = step.events().filter(|e| e.name().as_str() == "lease_released").count();
            assert_eq!(*released, count);
        }
        Answer::HolderRemoved { released, revoked } => {
            let count = |name: &str| step.events().filter(|e| e.name().as_str() == name).count();
            assert_eq!((*released, *revoked), (count("lease_released"), count("lease_revoked")));
        }
        Answer::Waiting(place) => {
            let waiter = after.waiter_of_lease(place.lease).expect("who waits has a row");
            assert_eq!((waiter.arrival, waiter.deadline), (place.arrival, place.deadline));
            let ahead = after.waiters_for(&waiter.key).filter(|w| w.arrival < waiter.arrival).count();
            assert!(ahead <= place.ahead as usize, "{ahead} stand before {place:?}");
        }
        Answer::Noted => {
            // A slot that has run out goes.
            let count = |of: &Ledger| of.resources().filter(|r| !r.key.is_slot()).count();
            assert_eq!(count(step.before), count(after));
        }
        Answer::Left | Answer::Spent | Answer::Judged { .. } | Answer::Removed | Answer::Raised(_) => {}
    }
}

/// A session renewed in the millisecond of a grant may be told as renewed or not.
fn without_renewal_at_once(mut view: LeaseView) -> LeaseView {
    view.renewed_at = view.renewed_at.filter(|at| *at > view.lease.acquired_at);
    view
}
