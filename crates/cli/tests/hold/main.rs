//! `solehold run` and `solehold lock` against a real server, with real processes, killed and stopped in every way.

#[path = "../common/mod.rs"]
mod common;

mod endings;
mod locks;
mod running;
mod speaking;
mod terminal;
mod world;
