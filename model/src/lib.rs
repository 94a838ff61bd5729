//! A model checker for the lease protocol: the real `solehold_core::decide` with a few clients over a bad network.
//!
//! A [`World`] is one state: the store's rows and clock, the clients with clocks of their own, and the messages under
//! way. From each state there are a few [`Action`]s: a client sends, a message arrives (in any order, perhaps twice,
//! perhaps never), a process crashes, an operator revokes, time passes. A [`Scope`] bounds how often each may happen,
//! which makes the number of states finite; within it, [`search::exhaust`] visits every one of them and checks every
//! [`invariants`] in it. [`search::shortest`] finds the shortest way to a violation, which is how the broken variants
//! in [`Variant`] show that the checks can fail: each [`flaw`] has a scope in which it shows.
//!
//! ```text
//!   client 0 ──┐  call (sent at its own time)      ┌── decide(rows, command, now): the real one,
//!   client 1 ──┼──> network: a set of messages ──> │   or a hand-written table
//!   client 2 ──┘ <──────── reply ──────────────────┘
//!       │  write (token)
//!       └────────────> sink: refuses a token below the highest that it has seen
//! ```
//!
//! A message that is lost is one that never arrives, and a process that is paused is one that takes no action: neither
//! needs an action of its own.
#![allow(missing_docs, reason = "items whose names say everything need no docs")]

mod action;
pub mod authority;
mod client;
pub mod flaw;
pub mod invariants;
mod message;
mod scope;
pub mod search;
mod variant;
mod world;

pub use action::Action;
pub use message::{Ask, Message, Reply, Shown};
pub use scope::{Scope, Tenure};
pub use variant::Variant;
pub use world::World;
