//! A holder that came back is a new session: its former one renews nothing and takes nothing more (rule 13).

use solehold_core::{event::Change, event::What, key::SessionId};

use crate::step::Step;

pub fn renews_nothing(step: &Step<'_>) {
    let is_last = |id: SessionId| {
        let session = step.before.session(id).expect("only a session that is there is renewed");
        assert_eq!(step.promised.last_opened.get(&session.holder), Some(&id), "session {id} was superseded");
        assert!(step.now() < step.promised.sessions[&id].until, "session {id} had expired");
    };
    for change in &step.decision.changes {
        match change {
            Change::SessionRenewed { id, .. } => is_last(*id),
            Change::LeaseRenewed { tenure, .. } => tenure.session().into_iter().for_each(is_last),
            Change::Event(event) => match &event.what {
                What::Acquired(lease) => lease.tenure.session().into_iter().for_each(is_last),
                What::Pending(pending) => is_last(pending.session),
                _ => {}
            },
            _ => {}
        }
    }
}
