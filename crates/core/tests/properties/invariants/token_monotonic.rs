//! Tokens grow for a resource through release, expiry, deletion, re-declaration and restart; none is used twice (rule
//! 5).

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::{event::What, key::ResourceKey, time::Token};

use crate::step::{Invariant, Step};

#[derive(Default)]
pub struct TokensGrowAndAreNeverUsedTwice {
    last: BTreeMap<ResourceKey, Token>,
    used: BTreeSet<Token>,
}

impl Invariant for TokensGrowAndAreNeverUsedTwice {
    fn check(&mut self, step: &Step<'_>) {
        for event in step.events() {
            let What::Acquired(lease) = &event.what else { continue };
            assert_eq!(lease.token.0, event.revision.0, "a token is the revision of its event");
            assert!(self.used.insert(lease.token), "{:?} is used twice", lease.token);
            let last = self.last.insert(event.key.clone(), lease.token);
            assert!(last < Some(lease.token), "{last:?} came before {:?} of {}", lease.token, event.key);
        }
        for resource in step.after.resources() {
            if let Some(lease) = &resource.lease {
                assert_eq!(resource.last_token, lease.token);
            }
        }
    }
}
