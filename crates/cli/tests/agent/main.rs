//! `solehold agent` against a real server, with real workers, killed and stopped in every way.

#[path = "../common/mod.rs"]
mod common;

mod configuration;
mod crashing;
mod ending;
mod examples;
mod failing;
mod lingering;
mod losing;
mod moving;
mod placing;
mod speaking;
mod superseding;
mod world;
