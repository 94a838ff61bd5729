//! `solehold gate mqtt`: a fencing gate between the publishers and the subscribers of an MQTT broker.
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

mod intake;
pub mod message;
pub mod mqtt;
mod refusal;
mod routes;
pub mod shards;
pub mod topic;
pub mod window;

pub use intake::{Claim, Fate, Intake, Message};
pub use refusal::Reason;
pub use routes::{Publication, Routes};
