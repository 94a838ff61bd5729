//! Options of an engine.

use crate::{driver::DriverLimits, store::Retention};

/// How an engine runs.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    pub driver: DriverLimits,
    pub retention: Retention,
    /// Most leases that are nominated for expiry per second: a mass expiry is spread (rule 11).
    pub sweep_per_second: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            driver: DriverLimits::default(),
            retention: Retention {
                events_ms: 7 * 24 * 60 * 60 * 1_000,
                events_max: 10_000_000,
                unsent_after: None,
            },
            sweep_per_second: 20_000,
        }
    }
}
