//! A message of a live lease is acknowledged to the MQTT broker only when it has been passed on: a gate that dies
//! loses none, since the broker sends again what was not acknowledged.

use std::collections::BTreeSet;

use solehold_core::event::What;

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct AcknowledgedLast {
    passed: BTreeSet<u64>,
    /// The tokens whose leases are live in the newest store.
    live: BTreeSet<u64>,
    epoch: u64,
}

impl Invariant for AcknowledgedLast {
    fn name(&self) -> &'static str {
        "a message is acknowledged only after it was passed on"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Committed(epoch, event) => {
                if *epoch > self.epoch {
                    // What the store before it knew is lost.
                    self.epoch = *epoch;
                    self.live.clear();
                }
                match &event.what {
                    What::Acquired(lease) => drop(self.live.insert(lease.token.0)),
                    What::Released(ended)
                    | What::Expired(ended)
                    | What::Revoked(ended)
                    | What::Stolen(ended) => {
                        ended.token.map(|token| self.live.remove(&token.0));
                    }
                    _ => {}
                }
            }
            Happening::Passed(message) => drop(self.passed.insert(message.number)),
            Happening::Acknowledged(message)
                if self.live.contains(&message.token) && !self.passed.contains(&message.number) =>
            {
                return Err(format!("{message} is lost"));
            }
            _ => {}
        }
        Ok(())
    }
}
