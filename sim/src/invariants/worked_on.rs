//! Once the faults are over, everything that is wanted is owned and worked on within the stated time.

use super::Invariant;
use crate::chronicle::{Happening, Record};

pub struct WorkedOn;

impl Invariant for WorkedOn {
    fn name(&self) -> &'static str {
        "everything is worked on again within 30 s after the faults"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Outcome(resource, None) => Err(format!("nobody works on {resource}")),
            _ => Ok(()),
        }
    }
}
