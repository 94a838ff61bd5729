//! Waiting before another attempt: longer after each failure, up to a bound, and never in step with others.

use std::time::Duration;

/// How long to wait before the next attempt. The bound doubles with each failure in a row, up to `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The bound after the first failure.
    pub first: Duration,
    /// The bound that is never exceeded.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), cap: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The longest wait after `failures` attempts in a row have failed (1 or more).
    pub fn longest(&self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.saturating_sub(1).min(31)).min(self.cap)
    }

    /// A wait with jitter, for a caller that must give the other side time to recover: between half of the longest wait
    /// and all of it. `unit` is a random number from 0 to 1.
    pub fn wait(&self, failures: u32, unit: f64) -> Duration {
        let half = self.longest(failures) / 2;
        half + half.mul_f64(unit.clamp(0.0, 1.0))
    }

    /// A random wait between zero and the longest one, for callers that collided and must not collide again.
    pub fn scattered(&self, failures: u32) -> Duration {
        self.longest(failures).mul_f64(rand::random())
    }
}

/// The pauses of a transaction that is tried again because others were in its way: counts the attempts, and pauses at
/// most 50 ms after each.
#[derive(Debug, Default)]
pub struct RetryPauses {
    failures: u32,
}

impl RetryPauses {
    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(1), cap: Duration::from_millis(50) };

    /// Pauses before the next attempt.
    pub async fn pause(&mut self) {
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(Self::BACKOFF.scattered(self.failures)).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn waits_grow_to_the_cap(failures in 1u32..100, unit in 0.0..1.0f64) {
            let backoff = Backoff::default();
            let wait = backoff.wait(failures, unit);
            prop_assert!(wait <= backoff.cap);
            prop_assert!(wait >= backoff.first / 2);
            prop_assert!(backoff.wait(failures + 1, unit) >= wait);
            prop_assert!(backoff.scattered(failures) <= backoff.longest(failures));
        }
    }

    #[test]
    fn many_failures_wait_about_the_cap() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(60, 1.0), backoff.cap);
        assert_eq!(backoff.wait(1, 0.0), backoff.first / 2);
        assert_eq!(backoff.longest(0), backoff.first);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_between_transactions_are_bounded() {
        let mut pauses = RetryPauses::default();
        for _ in 0..100 {
            let began = tokio::time::Instant::now();
            pauses.pause().await;
            // The timers of tokio count whole milliseconds.
            assert!(began.elapsed() <= RetryPauses::BACKOFF.cap + Duration::from_millis(1));
        }
    }
}
