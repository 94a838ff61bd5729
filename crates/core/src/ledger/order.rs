//! The order of keys whose rows are found by a hash.

use std::{borrow::Borrow, sync::Arc};

/// How many keys a chunk has at most. Each insertion moves half of them on average, and copies all where a clone has
/// the same chunk.
const CHUNK_MAX: usize = 512;
/// A chunk that has fewer becomes one with its neighbour, if both fit.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// Keys, each once, in order, in chunks that a clone shares.
#[derive(Debug, Clone)]
pub(super) struct SortedKeys<K> {
    /// None is empty; all of one come before all of the next.
    chunks: Arc<Vec<Arc<Vec<K>>>>,
}

impl<K: PartialEq> PartialEq for SortedKeys<K> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Eq> Eq for SortedKeys<K> {}

impl<K> SortedKeys<K> {
    pub(super) fn iter(&self) -> impl Iterator<Item = &K> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

impl<K> Default for SortedKeys<K> {
    fn default() -> Self {
        Self { chunks: Arc::default() }
    }
}

impl<K: Ord + Clone> SortedKeys<K> {
    /// Adds a key that is not there yet.
    pub(super) fn insert(&mut self, key: K) {
        let at = self.chunk_of(&key);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some(chunk) = chunks.get_mut(at) else {
            chunks.push(Arc::new(vec![key]));
            return;
        };
        let chunk = Arc::make_mut(chunk);
        if let Err(place) = chunk.binary_search(&key) {
            chunk.insert(place, key);
        }
        if chunk.len() > CHUNK_MAX {
            // Keys that come in order leave full chunks behind.
            let is_last = at + 1 == chunks.len();
            let chunk = Arc::make_mut(&mut chunks[at]);
            let rest = chunk.split_off(if is_last { CHUNK_MAX } else { CHUNK_MAX / 2 });
            chunks.insert(at + 1, Arc::new(rest));
        }
    }

    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let found = self.chunks.get(at).map(|chunk| chunk.binary_search_by(|of| of.borrow().cmp(key)));
        let Some(Ok(place)) = found else { return };
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = Arc::make_mut(&mut chunks[at]);
        chunk.remove(place);
        if chunk.len() < CHUNK_MIN {
            self.merge(at);
        }
    }

    /// Makes a small chunk one with a neighbour, if both fit.
    fn merge(&mut self, at: usize) {
        let chunks = Arc::make_mut(&mut self.chunks);
        if chunks[at].is_empty() {
            chunks.remove(at);
            return;
        }
        let both = |first: usize| Some(chunks.get(first)?.len() + chunks.get(first + 1)?.len());
        let fit = |first: &usize| both(*first).is_some_and(|both| both <= CHUNK_MAX);
        let Some(first) = at.checked_sub(1).into_iter().chain([at]).find(fit) else { return };
        let second = chunks.remove(first + 1);
        Arc::make_mut(&mut chunks[first]).extend(Arc::unwrap_or_clone(second));
    }

    /// Where the chunk is that has a key, or in which it belongs.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let is_before = |chunk: &Arc<Vec<K>>| chunk.first().is_some_and(|first| first.borrow() <= key);
        self.chunks.partition_point(is_before).saturating_sub(1)
    }

    /// All keys from one on, which need not be there.
    pub(super) fn from<'a, Q: Ord + ?Sized>(&'a self, key: &Q) -> impl Iterator<Item = &'a K> + use<'a, K, Q>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let first = self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|of| of.borrow() < key));
        self.chunks.iter().skip(at).flat_map(|chunk| chunk.iter()).skip(first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn check(sorted: &SortedKeys<u32>, right: &BTreeSet<u32>, from: u32) {
        assert!(sorted.iter().eq(right));
        assert!(sorted.from(&from).eq(right.range(from..)));
        assert!(sorted.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_MAX));
    }

    #[test]
    fn keys_that_come_in_order_fill_their_chunks() {
        let mut sorted = SortedKeys::default();
        (0..10 * CHUNK_MAX as u32).for_each(|key| sorted.insert(key));
        assert_eq!(sorted.chunks.len(), 10);
    }

    #[test]
    fn chunks_that_become_small_are_merged() {
        let mut sorted = SortedKeys::default();
        let all = 20 * CHUNK_MAX as u32;
        (0..all).for_each(|key| sorted.insert(key));
        (0..all).filter(|key| key % 100 > 0).for_each(|key| sorted.remove(&key));
        assert!(sorted.chunks.len() <= 2, "{} chunks", sorted.chunks.len());
        (0..all).for_each(|key| sorted.remove(&key));
        assert_eq!(sorted.chunks.len(), 0);
    }

    proptest! {
        /// Often enough in and out that chunks are split and merged.
        #[test]
        fn they_are_in_order_whatever_comes_and_goes(
            runs in prop::collection::vec((any::<bool>(), 0..4_000_u32, 1..1_500_u32, 1..5_u32), 1..12),
            from in 0..6_000_u32,
        ) {
            let mut sorted = SortedKeys::default();
            let mut right = BTreeSet::new();
            for (comes, first, count, step) in runs {
                let before = sorted.clone();
                let its = right.clone();
                for key in (0..count).map(|n| first + n * step) {
                    if comes {
                        sorted.insert(key);
                        right.insert(key);
                    } else {
                        sorted.remove(&key);
                        right.remove(&key);
                    }
                }
                check(&sorted, &right, from);
                // A clone is not affected by what comes later.
                check(&before, &its, from);
            }
        }
    }
}
