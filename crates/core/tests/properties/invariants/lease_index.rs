//! The index of leases names the resource of every lease, live or pending, and of no former one.

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::key::LeaseId;

use crate::step::{Invariant, Step};

#[derive(Default)]
pub struct NamesEveryLeaseAndNoFormerOne {
    seen: BTreeSet<LeaseId>,
}

impl Invariant for NamesEveryLeaseAndNoFormerOne {
    fn check(&mut self, step: &Step<'_>) {
        let mut present = BTreeMap::new();
        for resource in step.after.resources() {
            let held = resource.lease.as_ref().map(|l| l.id);
            for id in held.into_iter().chain(resource.pending.as_ref().map(|p| p.id)) {
                assert_eq!(present.insert(id, &resource.key), None, "lease {id} is there twice");
            }
        }
        self.seen.extend(present.keys());
        for id in &self.seen {
            assert_eq!(step.after.resource_of(*id), present.get(id).copied(), "lease {id}");
        }
    }
}
