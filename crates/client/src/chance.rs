//! Chance: jitter, and ids that nobody else has. An argument like time, so that a run can be repeated.

use std::time::Duration;

use uuid::Uuid;

/// Where chance comes from: the machine, or a simulation.
pub trait Chance: Send + Sync + 'static {
    /// A number from 0 up to, but not including, 1.
    fn unit(&self) -> f64;

    /// An id unlike any other.
    fn id(&self) -> Uuid;
}

/// The machine's own chance.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineChance;

impl Chance for MachineChance {
    fn unit(&self) -> f64 {
        rand::random()
    }

    fn id(&self) -> Uuid {
        Uuid::now_v7()
    }
}

/// How long to wait before the next attempt: longer each time, up to a cap, and never quite the same as others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first wait.
    pub first: Duration,
    /// The longest wait of all.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), cap: Duration::from_secs(5) }
    }
}

impl Backoff {
    /// The wait after so many attempts in a row have failed (1 or more): half of it certain, half of it chance.
    pub fn wait(&self, failures: u32, unit: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let most = doubled.min(self.cap);
        most / 2 + (most / 2).mul_f64(unit.clamp(0.0, 1.0))
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
        }
    }

    #[test]
    fn many_failures_wait_about_the_cap() {
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(60, 1.0), backoff.cap);
        assert_eq!(backoff.wait(1, 0.0), backoff.first / 2);
    }
}
