//! A watcher sees every event once and in order, however often it has to begin again (rule 18).

use std::collections::BTreeMap;

use super::Invariant;
use crate::chronicle::{Happening, Record};

/// The events of one history.
#[derive(Default)]
struct Watched {
    committed: Vec<u64>,
    seen: Vec<u64>,
    /// How many of those that were seen are known to be right.
    checked: usize,
    /// Where the watcher began.
    offset: Option<usize>,
}

impl Watched {
    fn check(&mut self) -> Result<(), String> {
        while let Some(seen) = self.seen.get(self.checked) {
            let offset = match self.offset {
                Some(offset) => offset,
                None => match self.committed.iter().position(|revision| revision == seen) {
                    Some(offset) => *self.offset.insert(offset),
                    None => return Ok(()),
                },
            };
            let Some(committed) = self.committed.get(offset + self.checked) else { return Ok(()) };
            if committed != seen {
                return Err(format!("the watcher sees event {seen} where event {committed} is next"));
            }
            self.checked += 1;
        }
        Ok(())
    }
}

#[derive(Default)]
pub struct EventsOnce {
    histories: BTreeMap<u64, Watched>,
}

impl Invariant for EventsOnce {
    fn name(&self) -> &'static str {
        "a watcher sees every event once and in order"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let history = match &record.what {
            Happening::Committed(epoch, event) => {
                let history = self.histories.entry(*epoch).or_default();
                history.committed.push(event.revision.0);
                history
            }
            Happening::Saw(epoch, revision) => {
                let history = self.histories.entry(*epoch).or_default();
                history.seen.push(*revision);
                history
            }
            _ => return Ok(()),
        };
        history.check()
    }
}
