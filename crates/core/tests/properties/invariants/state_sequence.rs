//! The hand-over document is written under the live token, with a sequence above the stored one (rule 17).

use std::collections::BTreeMap;

use solehold_core::{event::What, key::ResourceKey, time::Token};

use crate::step::{Invariant, Step};

#[derive(Default)]
pub struct GrowsUnderOneToken {
    stored: BTreeMap<ResourceKey, (Token, u64)>,
}

impl Invariant for GrowsUnderOneToken {
    fn check(&mut self, step: &Step<'_>) {
        for event in step.events() {
            match &event.what {
                What::StateChanged(state) => {
                    let hold = step.promised.open_hold(&event.key).expect("only a holder writes");
                    assert_eq!(hold.token, state.token);
                    assert!(step.now() < step.promised.until(hold), "{state:?} was written too late");
                    let new = (state.token, state.sequence);
                    let old = self.stored.insert(event.key.clone(), new);
                    assert!(old < Some(new), "{new:?} was written over {old:?}");
                }
                What::Deleted => {
                    self.stored.remove(&event.key);
                }
                _ => {}
            }
        }
        for resource in step.after.resources() {
            let stored = resource.state.as_ref().map(|s| (s.token, s.sequence));
            assert_eq!(stored, self.stored.get(&resource.key).copied(), "the state of {}", resource.key);
        }
    }
}
