//! A lease is released only when no work is left under it.

use std::{collections::BTreeMap, time::Duration};

use solehold_core::event::What;

use super::Invariant;
use crate::chronicle::{Happening, Record, Working};

#[derive(Default)]
pub struct ReleasedAfterWork {
    /// The tokens that were released, and when.
    released: BTreeMap<u64, Duration>,
}

impl Invariant for ReleasedAfterWork {
    fn name(&self) -> &'static str {
        "a lease is released only after its work has ended"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        if let Happening::Committed(_, event) = &record.what
            && let What::Released(ended) = &event.what
            && let Some(token) = ended.token
        {
            self.released.insert(token.0, record.at);
        }
        Ok(())
    }

    fn look(&mut self, _at: Duration, working: &[&Working]) -> Result<(), String> {
        let is_released = |working: &&&Working| self.released.contains_key(&working.token);
        match working.iter().find(is_released) {
            Some(late) => {
                let released = self.released[&late.token].as_secs_f64();
                let token = late.token;
                let who = &late.who;
                Err(format!(
                    "{who} works on {} under token {token}, released at {released:.3} s",
                    late.resource
                ))
            }
            None => Ok(()),
        }
    }
}
