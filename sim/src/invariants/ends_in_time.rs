//! No worker works longer than its keeper was told, whatever becomes of the agent.

use std::{collections::BTreeMap, time::Duration};

use super::Invariant;
use crate::chronicle::{Happening, Record, Working};

/// How long it may take until nothing is left of a worker that is killed.
const KILL_MAX: Duration = Duration::from_millis(30);

#[derive(Default)]
pub struct EndsInTime {
    terms: BTreeMap<String, Duration>,
}

impl Invariant for EndsInTime {
    fn name(&self) -> &'static str {
        "no worker outlives the deadline of its leases"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        if let Happening::Term(worker, until) = &record.what {
            self.terms.insert(format!("{}/{worker}", record.who), *until);
        }
        Ok(())
    }

    fn look(&mut self, at: Duration, working: &[&Working]) -> Result<(), String> {
        let is_late =
            |working: &&&Working| self.terms.get(&working.who).is_some_and(|until| at > *until + KILL_MAX);
        match working.iter().find(is_late) {
            Some(late) => Err(format!("{} still works on {}", late.who, late.resource)),
            None => Ok(()),
        }
    }
}
