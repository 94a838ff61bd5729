//! Recipes of `docs/guides/gates.md` that need a few lines of code: files, object stores, and Redis by a
//! Lua script.
//!
//! The test beside them (`tests/gates_e2e.rs`) runs every recipe against the real thing: a writer is paused, another
//! takes over, and the first one wakes up and writes.

pub mod files;
pub mod objects;
pub mod redis;
