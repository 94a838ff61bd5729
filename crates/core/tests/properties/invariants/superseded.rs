//! A holder that came back is a new session: its former one renews nothing and takes nothing more (rule 13).

use solehold_core::{
    command::Command,
    event::{Change, What},
    key::{HolderKey, SessionId},
    outcome::Answer,
};

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

/// Nobody is answered with a lease of a session that was superseded: it could not be renewed.
pub fn is_no_answer_to_an_acquire(step: &Step<'_>) {
    let (Command::Acquire(ask), Ok(Answer::Granted(grant))) = (step.command, &step.decision.outcome) else {
        return;
    };
    let Some(id) = grant.lease.lease.tenure.session() else { return };
    let holder = HolderKey { tenant: ask.key.tenant.clone(), name: ask.holder.clone() };
    assert_eq!(step.promised.last_opened.get(&holder), Some(&id), "{ask:?} is answered with {grant:?}");
}
