//! Chance: jitter and unique ids. An argument like time, so that a simulated run can be repeated.

use uuid::Uuid;

/// Where chance comes from: the machine, or a simulation.
pub trait Chance: Send + Sync + 'static {
    /// A number from 0 up to, but not including, 1.
    fn unit(&self) -> f64;

    fn id(&self) -> Uuid;
}

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
