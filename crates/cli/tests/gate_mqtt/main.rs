//! `solehold gate mqtt` between real publishers and subscribers, on a real Mosquitto.

#[path = "../common/mod.rs"]
mod common;
mod fates;
mod limits;
mod losses;
mod secured;
mod throughput;
mod world;
