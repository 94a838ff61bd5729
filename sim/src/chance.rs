//! Chance that is the same at each run of a seed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use solehold_client::chance::Chance;
use uuid::Uuid;

/// A generator of numbers: a Weyl sequence through a mixer.
#[derive(Debug)]
pub struct SeededChance(AtomicU64);

impl SeededChance {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(mixed(seed)))
    }

    /// Another generator, so that what one part of the world draws does not change what another part draws.
    pub fn branch(&self) -> Self {
        Self::new(self.number())
    }

    pub fn number(&self) -> u64 {
        mixed(self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst))
    }

    /// A number from 0 to below the bound.
    pub fn below(&self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<'a, T>(&self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// A time from the first to below the second, in milliseconds.
    pub fn millis(&self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Chance for SeededChance {
    fn unit(&self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
    fn id(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.number()) << 64 | u128::from(self.number()))
    }
}
