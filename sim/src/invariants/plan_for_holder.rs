//! A plan speaks only for the lease that it was made for: who takes a resource over under another key than its
//! holder's has a plan that says so, and that was made since the holder got it (rule 16).

use std::collections::BTreeMap;

use solehold_core::{
    event::What,
    key::{Name, ResourceKey},
};

use super::Invariant;
use crate::chronicle::{Happening, PlannedMove, Record};

/// The lease on a resource.
struct Held {
    token: u64,
    holder: Name,
    key: Option<Name>,
}

#[derive(Default)]
pub struct PlanForHolder {
    held: BTreeMap<ResourceKey, Held>,
    /// The moves of each plan, with the epoch and the revision of the store that it was made from.
    plans: Vec<(u64, u64, Vec<PlannedMove>)>,
}

impl Invariant for PlanForHolder {
    fn name(&self) -> &'static str {
        "a plan moves a resource only from the holder that it was made for"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let (epoch, event) = match &record.what {
            Happening::Plans(epoch, revision, moves) => {
                self.plans.push((*epoch, *revision, moves.clone()));
                return Ok(());
            }
            Happening::Committed(epoch, event) => (epoch, event),
            _ => return Ok(()),
        };
        match &event.what {
            What::Acquired(lease) => {
                let held = Held { token: lease.token.0, holder: lease.holder.clone(), key: lease.by.clone() };
                self.held.insert(event.key.clone(), held);
            }
            What::Pending(pending) => {
                let Some(held) = self.held.get(&event.key) else { return Ok(()) };
                if event.by.is_none() || held.key.is_none() || event.by == held.key {
                    return Ok(());
                }
                let is_it = |planned: &PlannedMove| {
                    planned.key == event.key && planned.from == held.holder && planned.to == pending.holder
                };
                let speaks = |(of, revision, moves): &(u64, u64, Vec<PlannedMove>)| {
                    of == epoch && *revision >= held.token && moves.iter().any(is_it)
                };
                if !self.plans.iter().any(speaks) {
                    let Held { token, holder, .. } = held;
                    let key = &event.key.key;
                    let to = &pending.holder;
                    return Err(format!(
                        "{to} takes {key} over from {holder}, whose lease of token {token} no plan knows"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
