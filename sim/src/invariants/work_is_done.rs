//! Once the faults are over, every message takes effect and every job comes to an end within the stated time.

use super::Invariant;
use crate::chronicle::{Happening, Record};

pub struct WorkIsDone;

impl Invariant for WorkIsDone {
    fn name(&self) -> &'static str {
        "every message has taken effect and every job has ended within 30 s after the faults"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Remaining(Some(what)) => Err(format!("{what} is left")),
            _ => Ok(()),
        }
    }
}
