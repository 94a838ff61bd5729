//! Work that arrives as messages. Three products share this crate:
//!
//! - `mqtt`, `solehold gate mqtt`: a gate between publishers and subscribers of an MQTT broker ([`window`], [`topic`],
//!   [`shards`] are its parts);
//! - `kafka`: a consumer of Kafka partitions whose effects and position commit in one transaction, by the token of a
//!   lease or by membership in a consumer group;
//! - `orchestrator`, `solehold orchestrator`: turns job commands from Kafka into tasks for workers, stage by stage, on
//!   top of the consumer. `redis_inbox` is for workers whose effects are outside PostgreSQL.
//!
//! # The gate
//!
//! It stands between publishers and subscribers, neither of which need to change, and passes on only what bears the
//! newest token of its resource (rule 21).
//!
//! ```text
//!   publishers ──> broker ──> intake ──> window ──> broker ──> subscribers, under a prefix
//!                             what does   what passes, what is
//!                             it claim?   held back, what may
//!                                         be acknowledged
//! ```
//!
//! MQTT has no way to refuse a message so that it comes again: it is acknowledged or it is not. So the promise is made
//! of the order of two acknowledgements: what came in is acknowledged only when what went out was, on a session that
//! the broker keeps. Nothing that bears the newest token is lost however the gate ends; it may be passed twice. What
//! cannot be decided is not acknowledged, and when enough of it waits, the broker stops sending: that is all the
//! backpressure that there is.
//!
//! [`window`] is the heart, a machine without a clock or any I/O. `mqtt` drives it.

/// Whether the orchestrator is built in.
pub const HAS_ORCHESTRATOR: bool = cfg!(feature = "kafka");

mod intake;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod message;
#[cfg(feature = "mqtt")]
pub mod mqtt;
#[cfg(feature = "kafka")]
pub mod orchestrator;
#[cfg(not(feature = "kafka"))]
#[path = "orchestrator_missing.rs"]
pub mod orchestrator;
#[cfg(feature = "kafka")]
pub mod redis_inbox;
mod refusal;
mod routes;
pub mod running;
pub mod shards;
pub mod topic;
pub mod window;

pub use intake::{Claim, Fate, Intake, Message};
pub use refusal::Reason;
pub use routes::{Publication, Routes};
