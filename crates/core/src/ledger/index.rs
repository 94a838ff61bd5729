//! Resources by what they are attached to or held by.

use std::{collections::BTreeSet, hash::Hash, ops::Bound, sync::Arc};

use crate::{hashing::KeyMap, key::ResourceKey};

/// The keys of resources, in order, under the one that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResourceIndex<K: Hash + Eq>(KeyMap<K, BTreeSet<Arc<ResourceKey>>>);

impl<K: Hash + Eq> Default for ResourceIndex<K> {
    fn default() -> Self {
        Self(KeyMap::default())
    }
}

impl<K: Hash + Eq> ResourceIndex<K> {
    pub(super) fn insert(&mut self, of: K, key: Arc<ResourceKey>) {
        self.0.entry(of).or_default().insert(key);
    }

    pub(super) fn remove(&mut self, of: &K, key: &ResourceKey) {
        if let Some(keys) = self.0.get_mut(of) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(of);
            }
        }
    }

    /// All of one, in order.
    pub(super) fn of<'a>(&'a self, of: &K) -> impl Iterator<Item = &'a ResourceKey> + use<'a, K> {
        self.0.get(of).into_iter().flatten().map(|key| &**key)
    }

    /// All of one from a key on, in order.
    pub(super) fn from<'a>(
        &'a self,
        of: &K,
        key: &ResourceKey,
    ) -> impl Iterator<Item = &'a ResourceKey> + use<'a, K> {
        let from = (Bound::Included(key), Bound::Unbounded);
        let keys = self.0.get(of).map(|keys| keys.range::<ResourceKey, _>(from));
        keys.into_iter().flatten().map(|key| &**key)
    }

    /// One that has resources, as it is kept here.
    pub(super) fn kept(&self, of: &K) -> Option<&K> {
        self.0.get_key_value(of).map(|(kept, _)| kept)
    }
}
