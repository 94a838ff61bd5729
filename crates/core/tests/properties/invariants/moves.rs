//! What is pending is counted, and a hand-over keeps to its budget (rule 16).

use solehold_core::{
    command::{Command, HandOver},
    event::What,
    lease::Resource,
};

use crate::step::Step;

pub fn are_counted_and_keep_to_the_budget(step: &Step<'_>) {
    let all = step.after.resources().chain(step.before.resources());
    for Resource { key, .. } in all {
        let its = |r: &&Resource| r.key.tenant == key.tenant && r.key.kind == key.kind && r.pending.is_some();
        let pending = step.after.resources().filter(its).count();
        assert_eq!(step.after.moves(&key.tenant, &key.kind) as usize, pending, "{key:?}");
    }
    let made = step.events().any(|event| matches!(event.what, What::Pending(_)));
    if let Command::HandOver(HandOver { key, budget: Some(budget), .. }) = step.command
        && made
    {
        assert!(step.after.moves(&key.tenant, &key.kind) <= *budget, "{:?}", step.command);
    }
}

/// Whatever changes the leases of a session, or the resources that it holds, moves the revision of its set, and so it
/// can be told that there is news.
pub fn move_the_sets_of_both_sides(step: &Step<'_>) {
    for event in step.events() {
        for id in event.is_news_to() {
            let Some(session) = step.after.session(id) else { continue };
            assert!(session.lease_revision >= event.revision, "{event:?}");
        }
        let held = step.before.resource(&event.key).and_then(|r| r.lease.as_ref());
        let holder = held.and_then(|lease| lease.tenure.session());
        let is_made = matches!(&event.what, What::Pending(_));
        let still_holds = step.after.resource(&event.key).and_then(|r| r.lease.as_ref()).map(|l| l.id);
        if is_made && still_holds == held.map(|lease| lease.id) {
            assert_eq!(event.holder_session, holder, "{event:?}");
        }
    }
}
