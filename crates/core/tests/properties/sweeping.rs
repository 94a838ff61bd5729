//! Rule 11: who gets what is judged by time, never by whether the sweeper ran. Two worlds live through the same script;
//! in one of them the sweeper comes by at every step, in the other never.
//!
//! Without hand-overs, waiting and request ids, that is: a pending lease has a deadline of its own, and lapses if
//! nobody came by before it, as anyone in line does; and the hour for which a spent request is kept begins when the end
//! of its lease was noticed.

use proptest::{collection::vec, prelude::*};
use solehold_core::{
    command::Command,
    key::{ResourceKey, SessionId},
    ledger::Ledger,
    outcome::{Answer, Outcome},
    time::StoreTime,
};

use crate::{
    common::World,
    harness::pass,
    memory::Memory,
    promises::Promises,
    script::{Ask, Claiming, Shown, Wait, Who, ask, wait},
    step::Step,
};

#[derive(Debug, Clone)]
pub struct Turn {
    wait: Option<Wait>,
    ask: Ask,
}

pub fn script() -> impl Strategy<Value = Vec<Turn>> {
    // At the end of time a lease is dead when it is granted.
    let wait = wait().prop_map(|wait| match wait {
        Wait::End { before_ms } => Wait::Ms(before_ms),
        other => other,
    });
    let turn = (proptest::option::of(wait), ask().prop_map(comparable));
    vec(turn.prop_map(|(wait, ask)| Turn { wait, ask }), 1..60)
}

/// Tokens differ between the two worlds, since a sweep is an event: nothing here is claimed by token.
fn comparable(ask: Ask) -> Ask {
    let tokenless = |claim: Claiming| Claiming { token: Shown::Nothing, ..claim };
    match ask {
        Ask::HandOver { what, .. } => Ask::Expire { what, slot: 0 },
        // A session of another that died is unknown once it was swept: only one's own is replaced here.
        Ask::Open { who, ttl_ms, replace, fenced, capacity } => {
            let replace = replace.map(|_| Who::LastOf(who));
            Ask::Open { who, ttl_ms, replace, fenced, capacity }
        }
        // Nor does a driver try again after the sweeper came by.
        Ask::Again { nth, .. } => Ask::Again { nth, is_fresh: true },
        Ask::Acquire { what, who, keep, strict, slots, .. } => {
            Ask::Acquire { what, who, keep, request: None, strict, wait: None, slots }
        }
        Ask::Raise { .. } => Ask::Expire { what: 0, slot: 0 },
        Ask::Renew { claim, ttl_ms, stats } => Ask::Renew { claim: tokenless(claim), ttl_ms, stats },
        Ask::Release { claim, sequence } => Ask::Release { claim: tokenless(claim), sequence },
        Ask::Revoke { claim, fenced } => Ask::Revoke { claim: tokenless(claim), fenced },
        Ask::Write { claim, sequence } => Ask::Write { claim: tokenless(claim), sequence },
        other => other,
    }
}

pub fn check(script: &[Turn]) {
    let mut swept = World::new();
    let mut unswept = World::new();
    let mut memory = Memory::default();
    for turn in script {
        // Deadlines are read where nothing was swept, so that all of them are seen.
        if let Some(wait) = &turn.wait {
            pass(&mut unswept, wait);
            swept.moment.now = unswept.moment.now;
        }
        sweep(&mut swept);
        let command = memory.command(&mut unswept, &turn.ask);
        let before = unswept.state.clone();
        let decision = unswept.run(&command);
        let also = swept.run(&command);
        assert_eq!(kind(&command, &decision.outcome), kind(&command, &also.outcome), "{command:?}");
        assert_eq!(
            held(&unswept.state, unswept.moment.now),
            held(&swept.state, swept.moment.now),
            "{command:?}"
        );
        let promises = Promises::default();
        memory.learn(&Step {
            command: &command,
            by: &unswept.by,
            at: decision.moment,
            before: &before,
            after: &unswept.state,
            decision: &decision,
            promised: &promises,
            promises: &promises,
        });
    }
}

/// All that a sweeper may nominate.
fn sweep(world: &mut World) {
    let keys: Vec<_> = world.state.resources().map(|r| r.key.clone()).collect();
    for key in keys {
        world.run(&Command::Expire { key });
    }
    let sessions: Vec<_> = world.state.sessions().map(|s| s.id).collect();
    for session in sessions {
        world.run(&Command::ExpireSession(session));
    }
}

/// Whether it was done or refused. What only a sweep can answer, or why exactly it was refused, may differ.
fn kind(command: &Command, outcome: &Outcome) -> Option<(bool, Option<u64>)> {
    let left = match outcome {
        Ok(Answer::Granted(grant) | Answer::Renewed(grant)) => Some(grant.lease.ttl_left_ms()),
        _ => None,
    };
    let is_judged = matches!(command, Command::Expire { .. } | Command::ExpireSession(_));
    (!is_judged).then_some((outcome.is_ok(), left))
}

type Held = (ResourceKey, String, Option<SessionId>, StoreTime);

/// Everything that is held at a time, by whom and until when.
fn held(state: &Ledger, now: StoreTime) -> Vec<Held> {
    let live = |r: &solehold_core::lease::Resource| {
        let lease = r.lease.as_ref()?;
        let deadline = state.deadline_of(lease).expect("its session is there");
        let held = (r.key.clone(), lease.holder.to_string(), lease.tenure.session(), deadline);
        (deadline > now).then_some(held)
    };
    state.resources().filter_map(live).collect()
}
