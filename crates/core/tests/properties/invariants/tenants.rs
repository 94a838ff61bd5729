//! A command of one tenant changes nothing of another.

use solehold_core::{
    command::{Claim, Command, OpenSession, Target},
    key::Name,
};

use crate::{harness::decide_and_apply, step::Step};

pub fn keep_to_themselves(step: &Step<'_>) {
    let Some(tenant) = tenant(step.command) else { return };
    let mut full = step.before.clone();
    decide_and_apply(&mut full, step);
    let dirty = full.take_dirty();
    let of_resources = dirty.resources.iter().map(|key| &key.tenant);
    let of_holders = dirty.holders.iter().map(|key| &key.tenant);
    let of_requests = dirty.requests.iter().map(|request| &request.resource.tenant);
    let session = |id| step.before.session(id).or(step.after.session(id)).map(|s| &s.holder.tenant);
    // A replica's waiting room has waiters of all tenants.
    let of_sessions = dirty.sessions.iter().filter_map(|id| session(*id)).filter(|t| **t != Name::rooms());
    let of_waiters = dirty.waiters.iter().map(|(key, _)| &key.tenant);
    if *tenant == Name::rooms() {
        return;
    }
    for changed in of_resources.chain(of_holders).chain(of_requests).chain(of_sessions).chain(of_waiters) {
        assert_eq!(changed, tenant, "{:?}", step.command);
    }
}

fn tenant(command: &Command) -> Option<&Name> {
    match command {
        Command::Acquire(ask) => Some(&ask.key.tenant),
        // Each of its acquires may be another tenant's here.
        Command::AcquireAll(_) => None,
        Command::HandOver(ask) => Some(&ask.key.tenant),
        Command::Renew { claim, .. }
        | Command::Release { claim, .. }
        | Command::Revoke { claim, .. }
        | Command::WriteState { claim, .. } => Some(of_claim(claim)),
        Command::CancelRequest(request) => Some(&request.resource.tenant),
        Command::LeaveQueue { key, .. }
        | Command::Expire { key }
        | Command::Declare { key, .. }
        | Command::Delete { key, .. }
        | Command::NoteConfig { key, .. } => Some(&key.tenant),
        Command::OpenSession(OpenSession { holder, .. })
        | Command::HeardOf { holder, .. }
        | Command::SetStatus { holder, .. }
        | Command::RemoveHolder { holder, .. } => Some(&holder.tenant),
        Command::Heartbeat { tenant, .. } | Command::CloseSession { tenant, .. } => Some(tenant),
        Command::ExpireSession(_)
        | Command::OpenRoom { .. }
        | Command::PutRecord { .. }
        | Command::RemoveRecord { .. }
        | Command::RaiseRevision { .. } => None,
    }
}

fn of_claim(claim: &Claim) -> &Name {
    match &claim.target {
        Target::Resource(key) => &key.tenant,
        Target::Lease { tenant, .. } => tenant,
    }
}
