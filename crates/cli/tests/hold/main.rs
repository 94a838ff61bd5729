//! `solehold run` and `solehold lock` against a real server, with real processes, killed and stopped in every way.

#[path = "../common/mod.rs"]
mod common;

mod electing;
mod endings;
mod keeping;
mod locks;
mod restarting;
mod running;
mod speaking;
mod terminal;
mod world;
