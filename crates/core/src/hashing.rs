//! Maps by keys that clients choose, which no client may slow down by its choice.

use std::{
    collections::{HashMap, HashSet},
    hash::BuildHasher,
    sync::LazyLock,
};

use foldhash::fast::{FoldHasher, RandomState};

/// Hashes keys from a seed that this process has chosen at random. It takes no room in a map.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHashing;

impl BuildHasher for KeyHashing {
    type Hasher = FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        static SEEDED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        SEEDED.build_hasher()
    }
}

/// Looked up only: the order of its entries differs from process to process.
pub type KeyMap<K, V> = HashMap<K, V, KeyHashing>;
pub type KeySet<K> = HashSet<K, KeyHashing>;
/// Keys, each once, in the order in which they came.
pub type KeyList<K> = indexmap::IndexSet<K, KeyHashing>;
/// A persistent map: a clone shares its entries.
pub(crate) type SharedKeyMap<K, V> = rpds::HashTrieMapSync<K, V, KeyHashing>;
