//! Sharding: which shard a resource belongs to.
//!
//! A broker keeps the queue of a disconnected client under its client id, and only a client with that id can resume it.
//! So the unit that moves from a dead gate to a live one is the client id, and there is a fixed number of them: shard =
//! client id = lease.

use solehold_core::key::ResourceKey;
use xxhash_rust::xxh3::xxh3_64;

/// The most shards of a gate. Each one is sent every message, so a large number is expensive.
pub const SHARDS_MAX: u32 = 64;

/// The kind of the leases that shards are held by.
pub const SHARD_KIND: &str = "gate";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// The name does not fit into a client id.
    #[error("{0:?} is not a name for a gate; write up to 64 letters, digits, dashes, dots and underscores")]
    Name(String),
    #[error("a gate has 1 to {SHARDS_MAX} shards")]
    Count,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    name: String,
    count: u32,
}

impl Shards {
    /// `count` shards under a name: gates of the same name share the work.
    pub fn new(name: &str, count: u32) -> Result<Self, ShardsError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
            return Err(ShardsError::Name(name.to_owned()));
        }
        if !(1..=SHARDS_MAX).contains(&count) {
            return Err(ShardsError::Count);
        }
        Ok(Self { name: name.to_owned(), count })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// The client id of a shard, and the key of its lease. The number of shards is part of it: gates that disagree
    /// about it share nothing, and at worst pass a message twice.
    pub fn id(&self, shard: u32) -> String {
        format!("solehold-gate-{}-{shard}-of-{}", self.name, self.count)
    }

    /// The shard that a resource belongs to. It must never change: while gates of two versions run, both would pass a
    /// message, or neither.
    pub fn of(&self, resource: &ResourceKey) -> u32 {
        // No name has a NUL in it.
        let bytes = [resource.kind.as_str().as_bytes(), b"\0", resource.key.as_str().as_bytes()].concat();
        (xxh3_64(&bytes) % u64::from(self.count)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(number: usize) -> ResourceKey {
        crate::intake::tests::resource(&format!("scene-{number}"))
    }

    #[test]
    fn every_resource_has_one_shard_and_each_shard_its_part() {
        let shards = Shards::new("main", 4).expect("good");
        let mut parts = [0; 4];
        (0..10_000).for_each(|number| parts[shards.of(&scene(number)) as usize] += 1);
        assert!(parts.iter().all(|part| (2_200..2_800).contains(part)), "{parts:?}");
        let one = Shards::new("main", 1).expect("good");
        assert!((0..100).all(|number| one.of(&scene(number)) == 0));
    }

    #[test]
    fn the_shard_of_a_resource_never_changes() {
        let shards = Shards::new("main", 8).expect("good");
        let of = |number| shards.of(&scene(number));
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), [3, 6, 5, 4, 0, 1, 3, 4]);
        assert_eq!(shards.id(3), "solehold-gate-main-3-of-8");
    }

    #[test]
    fn a_name_is_plain() {
        assert!(Shards::new("a b", 1).is_err() && Shards::new("", 1).is_err());
        assert!(Shards::new("a", 0).is_err() && Shards::new("a", 65).is_err());
    }
}
