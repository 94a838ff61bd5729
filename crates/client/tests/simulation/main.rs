//! The client on a virtual clock, against the real engine over memory, through a network that a test can hurt.
//!
//! Nothing here waits for real time: tokio's clock is paused and jumps to the next timer.

mod claims;
mod histories;
mod network;
mod policies;
mod random;
mod requests;
mod trust;
mod waiting;
mod words;
mod world;
