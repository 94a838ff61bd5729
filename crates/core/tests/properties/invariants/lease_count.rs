//! A session's count of leases is the number of leases that hang on it.

use crate::step::Step;

pub fn is_what_hangs_on_the_session(step: &Step<'_>) {
    for session in step.after.sessions() {
        let hangs = |r: &&solehold_core::lease::Resource| {
            r.lease.as_ref().is_some_and(|l| l.tenure.session() == Some(session.id))
        };
        let hanging = step.after.resources().filter(hangs).count();
        assert_eq!(session.lease_count as usize, hanging, "session {}", session.id);
    }
}
