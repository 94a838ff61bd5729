//! Derives from a batch's events what it has to write.

use std::collections::{HashMap, HashSet};

use solehold_core::{
    event::{Event, What},
    key::ResourceKey,
    ledger::Ledger,
    time::Revision,
};

/// Which resources were made, declared or given another state by events.
#[derive(Debug, Default)]
pub(crate) struct ResourceChanges<'a> {
    /// The first event of each.
    pub(crate) first: HashMap<&'a ResourceKey, Revision>,
    /// The last declaration or deletion of each.
    pub(crate) declared: HashMap<&'a ResourceKey, Revision>,
    pub(crate) state: HashSet<&'a ResourceKey>,
}

impl<'a> ResourceChanges<'a> {
    /// Rows that come from elsewhere, all at once: they get numbers from 1 on, since no event of this store made them.
    pub(crate) fn imported(state: &'a Ledger) -> Self {
        let first = (1..).map(Revision).zip(state.resources()).map(|(number, r)| (&r.key, number)).collect();
        let with_state = state.resources().filter(|r| r.state.is_some());
        Self { first, declared: HashMap::new(), state: with_state.map(|r| &r.key).collect() }
    }

    pub(crate) fn by(events: &'a [Event]) -> Self {
        let mut changes = Self::default();
        for event in events {
            changes.first.entry(&event.key).or_insert(event.revision);
            match event.what {
                What::Declared(_) => {
                    changes.declared.insert(&event.key, event.revision);
                }
                What::Deleted => {
                    changes.declared.insert(&event.key, event.revision);
                    changes.state.insert(&event.key);
                }
                What::StateChanged(_) => {
                    changes.state.insert(&event.key);
                }
                _ => {}
            }
        }
        changes
    }
}
