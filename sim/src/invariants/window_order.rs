//! Messages of a resource are passed on in the order in which they were published. Some are passed on again after a
//! connection was lost, so the first time counts.

use std::collections::{BTreeMap, BTreeSet};

use solehold_client::ResourceName;

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct WindowOrder {
    passed: BTreeSet<u64>,
    last: BTreeMap<ResourceName, u64>,
}

impl Invariant for WindowOrder {
    fn name(&self) -> &'static str {
        "messages of a resource are passed on in order"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let Happening::Passed(message) = &record.what else { return Ok(()) };
        if !self.passed.insert(message.number) {
            return Ok(());
        }
        let last = self.last.entry(message.resource.clone()).or_default();
        if message.number < *last {
            return Err(format!("{message} is passed on after message {last}"));
        }
        *last = message.number;
        Ok(())
    }
}
