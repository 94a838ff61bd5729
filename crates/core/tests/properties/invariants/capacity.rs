//! A session never has more leases than its capacity, however it came by them.

use solehold_core::limits::SESSION_LEASES_MAX;

use crate::step::Step;

pub fn is_never_exceeded(step: &Step<'_>) {
    for session in step.after.sessions() {
        let hangs = |r: &&solehold_core::lease::Resource| {
            r.lease.as_ref().is_some_and(|l| l.tenure.session() == Some(session.id))
        };
        let held = step.after.resources().filter(hangs).count();
        let capacity = session.capacity.unwrap_or(SESSION_LEASES_MAX) as usize;
        assert!(held <= capacity, "session {} of {capacity} has {held} leases", session.id);
    }
}
