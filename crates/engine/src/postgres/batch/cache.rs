//! Caches resources, so that most batches can take their locks without a query before.
//!
//! Nothing here is trusted. An id belongs to one key forever and a version to one declaration, and both are in the row
//! that is locked: what is remembered is used if the locked row confirms it, and looked up again if not.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use solehold_core::{
    key::{LeaseId, ResourceKey, SessionId},
    lease::Resource,
};

use crate::postgres::tables::rows::DescribedResource;

/// Past this many entries, or this many bytes of declarations, everything is forgotten.
const ENTRIES_MAX: usize = 200_000;
const BYTES_MAX: usize = 64 << 20;
/// Of resources whose rows are idle, this many are remembered.
const IDLE_MAX: usize = 10_000;

#[derive(Debug, Clone)]
pub(crate) struct KnownResource {
    pub(crate) is: DescribedResource,
    /// The sessions of its lease and of its pending lease when it was last seen; locking one too many does no harm.
    pub(crate) sessions: [Option<SessionId>; 2],
    pub(crate) has_state: bool,
    pub(crate) is_queued: bool,
    /// It is a slot, or has slots that are taken: to decide about one of them needs all.
    pub(crate) is_shared: bool,
}

impl KnownResource {
    /// What is known of a resource that was just seen or written.
    pub(crate) fn of(is: DescribedResource, resource: &Resource) -> Self {
        let has_state = resource.state.is_some();
        let is_queued = resource.queued > 0;
        let is_shared = resource.taken > 0 || resource.key.is_slot();
        Self { is, sessions: sessions(resource), has_state, is_queued, is_shared }
    }

    /// What is known of a row that is idle.
    pub(crate) fn idle(is: DescribedResource) -> Self {
        let is_shared = is.key.is_slot();
        Self { is, sessions: [None; 2], has_state: false, is_queued: false, is_shared }
    }

    /// Whether a resource has the same sessions as before, and a document and a line or none as before.
    pub(crate) fn is_still(&self, resource: &Resource) -> bool {
        self.sessions == sessions(resource)
            && self.has_state == resource.state.is_some()
            && self.is_queued == (resource.queued > 0)
            && self.is_shared == (resource.taken > 0 || resource.key.is_slot())
    }
}

fn sessions(resource: &Resource) -> [Option<SessionId>; 2] {
    let held = resource.lease.as_ref().and_then(|l| l.tenure.session());
    [held, resource.pending.as_ref().map(|p| p.session)]
}

#[derive(Debug, Default)]
struct Entries {
    resources: HashMap<ResourceKey, Arc<KnownResource>>,
    leases: HashMap<LeaseId, ResourceKey>,
    bytes: usize,
    /// Resources whose rows became idle, the oldest first. Most of them are never heard of again, or are held again.
    idle: VecDeque<Arc<KnownResource>>,
}

/// Remembers resources by key and by the leases on them.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Entries>);

impl Cache {
    /// All resources of these keys and leases; nothing, if one is not known.
    pub(crate) fn all<'a>(
        &self,
        keys: impl Iterator<Item = &'a ResourceKey>,
        leases: impl Iterator<Item = &'a LeaseId>,
    ) -> Option<HashMap<ResourceKey, Arc<KnownResource>>> {
        let entries = self.0.lock();
        let mut found = HashMap::new();
        for key in keys {
            found.insert(key.clone(), entries.resources.get(key)?.clone());
        }
        for lease in leases {
            let key = entries.leases.get(lease)?;
            found.insert(key.clone(), entries.resources.get(key)?.clone());
        }
        Some(found)
    }

    /// Remembers resources as they are now, and the leases on them.
    pub(crate) fn learn(&self, seen: impl Iterator<Item = (Arc<KnownResource>, [Option<LeaseId>; 2])>) {
        let mut entries = self.0.lock();
        for (known, leases) in seen {
            if entries.resources.len().max(entries.leases.len()) >= ENTRIES_MAX || entries.bytes > BYTES_MAX {
                *entries = Entries::default();
            }
            for lease in leases.into_iter().flatten() {
                entries.leases.insert(lease, known.is.key.clone());
            }
            if entries.resources.get(&known.is.key).is_some_and(|old| Arc::ptr_eq(old, &known)) {
                continue;
            }
            entries.bytes += weight(&known);
            if let Some(old) = entries.resources.insert(known.is.key.clone(), known) {
                entries.bytes -= weight(&old);
            }
        }
    }

    /// Remembers resources whose rows are idle, the newest of them.
    pub(crate) fn learn_idle(&self, seen: impl Iterator<Item = KnownResource>) {
        let seen: Vec<_> = seen.map(Arc::new).collect();
        self.learn(seen.iter().map(|known| (known.clone(), [None; 2])));
        let mut entries = self.0.lock();
        entries.idle.extend(seen);
        let surplus = entries.idle.len().saturating_sub(IDLE_MAX);
        let oldest: Vec<_> = entries.idle.drain(..surplus).collect();
        for old in oldest {
            let is_idle_still = |known: &Arc<KnownResource>| Arc::ptr_eq(known, &old);
            if entries.resources.get(&old.is.key).is_some_and(is_idle_still) {
                entries.resources.remove(&old.is.key);
            }
        }
    }

    pub(crate) fn clear(&self) {
        *self.0.lock() = Entries::default();
    }

    /// Forgets resources, and leases that have ended.
    pub(crate) fn forget<'a>(
        &self,
        keys: impl Iterator<Item = &'a ResourceKey>,
        leases: impl Iterator<Item = LeaseId>,
    ) {
        let mut entries = self.0.lock();
        for key in keys {
            if let Some(old) = entries.resources.remove(key) {
                entries.bytes -= weight(&old);
            }
        }
        for lease in leases {
            entries.leases.remove(&lease);
        }
    }
}

fn weight(known: &KnownResource) -> usize {
    let Some(declared) = &known.is.declared else { return 0 };
    let labels: usize = declared.labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    declared.attributes.as_str().len() + labels
}
