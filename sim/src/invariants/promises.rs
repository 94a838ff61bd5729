//! Nothing that was answered is lost: a lease whose session was promised some time does not run out before.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use solehold_core::{event::What, key::LeaseId};

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct Promises {
    /// Until when each session lives at least.
    until: BTreeMap<String, Duration>,
    /// Leases that lapse unless they are confirmed (rule 15).
    conditional: BTreeSet<LeaseId>,
}

impl Invariant for Promises {
    fn name(&self) -> &'static str {
        "no lease runs out before the time that was promised"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let event = match &record.what {
            Happening::Promised(session, left) => {
                let until = self.until.entry(session.clone()).or_default();
                *until = (*until).max(record.at + *left);
                return Ok(());
            }
            Happening::Committed(_, event) => event,
            _ => return Ok(()),
        };
        match &event.what {
            What::Acquired(lease) if lease.confirm_by.is_some() => {
                self.conditional.insert(lease.id);
            }
            // What ends with its session, because another one of its name was opened, is held back for its time.
            What::Expired(ended) | What::Stolen(ended)
                if ended.token.is_some() && ended.held_back_until.is_none() =>
            {
                let promised = ended.session.and_then(|session| self.until.get(&session.to_string()));
                if let Some(until) = promised.filter(|until| record.at < **until)
                    && !self.conditional.contains(&ended.lease)
                {
                    let key = &event.key.key;
                    let holder = &ended.holder;
                    return Err(format!("{holder} was promised {key} until {:.3} s", until.as_secs_f64()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
