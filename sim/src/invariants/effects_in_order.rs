//! Messages of a key take effect in order, each once, and the position of the partition is above none that has not.

use std::collections::{BTreeMap, BTreeSet};

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct EffectsInOrder {
    effective: BTreeSet<i64>,
    /// All below took effect.
    below: i64,
    /// The last message of each key.
    last: BTreeMap<String, i64>,
}

impl Invariant for EffectsInOrder {
    fn name(&self) -> &'static str {
        "messages of a key take effect in order, and the position is above none that has not"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let Happening::TookEffect { messages, position, .. } = &record.what else { return Ok(()) };
        for (offset, key) in messages {
            let last = self.last.insert(key.clone(), *offset);
            if let Some(last) = last.filter(|last| last >= offset) {
                return Err(format!("message {offset} takes effect after message {last} of {key}"));
            }
            self.effective.insert(*offset);
        }
        while self.effective.contains(&self.below) {
            self.below += 1;
        }
        if *position > self.below {
            return Err(format!(
                "the position is {position}, and message {} has not taken effect",
                self.below
            ));
        }
        Ok(())
    }
}
