//! Time as this machine counts it. This crate is the only place that reads a clock.
//!
//! ```text
//!   BootTime    a reading of CLOCK_BOOTTIME     Clock: reads one       AlarmClock: also waits for one
//!   deadline    how long a holder may trust a lease (rule 4)           Timer: the kernel's, for those without a runtime
//!   Backoff     how long to wait before the next attempt               RetryPauses: the same between transactions
//! ```
//! `CLOCK_BOOTTIME` never steps, and it keeps counting while the machine is suspended. Store time is another type
//! (`solehold_core::time::StoreTime`), and there is no conversion between the two.

mod backoff;
mod boot_time;
mod clocks;
pub mod deadline;
mod timer;

pub use backoff::{Backoff, RetryPauses};
pub use boot_time::{BootTime, boot_id, wall_ms};
pub use clocks::{AlarmClock, BootClock, Clock, ManualClock, VirtualClock};
pub use timer::Timer;
