//! Trackers from end to end, on a real Mosquitto and behind a real gate.
//!
//! `make e2e EXAMPLE=tracker` runs it in full; a plain `cargo test` runs a short form.

mod behaviour;
mod fleet;
mod moving;
mod secured;
mod world;
