//! Rows name only rows that exist: a lease its session, a holder its session, and no holder has two that may renew.

use solehold_core::session::Standing;

use crate::step::Step;

pub fn rows_name_rows_that_exist(step: &Step<'_>) {
    for resource in step.after.resources() {
        for id in resource.sessions() {
            let session = step.after.session(id).unwrap_or_else(|| panic!("{} hangs on {id}", resource.key));
            assert_eq!(session.holder.tenant, resource.key.tenant);
        }
    }
    for holder in step.after.holders() {
        let Some(id) = holder.session else { continue };
        let session = step.after.session(id).unwrap_or_else(|| panic!("{:?} has {id}", holder.key));
        assert_eq!(session.holder, holder.key);
    }
    for session in step.after.sessions().filter(|s| !s.is_room()) {
        let present = step.after.holder(&session.holder).and_then(|h| h.session);
        let is_present = present == Some(session.id);
        assert_eq!(is_present, session.standing != Standing::Superseded, "session {}", session.id);
    }
}
