//! Trying again, with bounds.

use std::{hash::BuildHasher, time::Duration};

/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Pauses that grow, each of a random length, so that two who met do not meet again.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
}

impl Backoff {
    /// How long to pause before the next attempt.
    fn pause(&mut self) -> Duration {
        self.attempt += 1;
        let longest = Duration::from_micros(500 << self.attempt.min(10)).min(PAUSE_MAX);
        // The hasher is seeded by chance: that is all that is needed here.
        let chance = std::hash::RandomState::new().hash_one(self.attempt);
        longest.mul_f64(f64::from(chance as u32) / f64::from(u32::MAX))
    }

    /// Pauses.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded() {
        let mut backoff = Backoff::default();
        assert!((0..100).all(|_| backoff.pause() <= PAUSE_MAX));
    }
}
