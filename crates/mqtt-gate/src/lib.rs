//! `solehold gate mqtt`: a fencing gate between the publishers and the subscribers of an MQTT broker.
//!
//! Publishers and subscribers need not change: the gate subscribes to the topics of the publishers, and republishes
//! only the messages that carry the newest token of their resource (rule 21).
//!
//! ```text
//!   publishers ──> broker ──> intake ──> window ──> broker ──> subscribers, under a prefix
//!                             resource    verdict, holding back,
//!                             and token   acknowledgement
//! ```
//!
//! MQTT has no way to reject a message so that it is redelivered. So the guarantee rests on the order of two
//! acknowledgements, on a session that the broker keeps: a message is acknowledged only when the broker has
//! acknowledged its publication. No message with the newest token is lost however the gate ends; it may be passed
//! twice. A message that cannot be decided is not acknowledged, and when enough of them wait, the broker stops sending:
//! that is the backpressure.
//!
//! From the bottom up: `message`, `topic`, `shards`, `refusal` and `routes` are pure; `intake` reads what a message
//! claims; `window` decides, a machine without a clock or any I/O; `mqtt` drives it.

#![allow(missing_docs, reason = "fields whose names say everything need no docs")]

mod intake;
pub mod message;
pub mod mqtt;
mod refusal;
mod routes;
pub mod shards;
pub mod topic;
pub mod window;

pub use intake::{Fate, Intake, Message, MessageClaim};
pub use refusal::Reason;
pub use routes::{Publication, Routes};
