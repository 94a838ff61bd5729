//! Hostile clients against a real server: whatever they do, another client keeps its lease, memory stays bounded, and
//! what is refused is refused by a bound that has a name.
//!
//! `SOLEHOLD_E2E=full` (`make hostile`) opens 10,000 connections and streams at once; a plain `cargo test` opens 500.
//! Each attack prints the row that `docs/reliability.md` shows.

#[path = "../common/mod.rs"]
mod common;

mod bodies;
mod flooding;
mod framing;
mod readers;
mod wire;
mod world;

/// How many connections or streams an attack opens at once.
fn crowd() -> usize {
    if std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full") { 10_000 } else { 500 }
}

/// How many MiB the server may grow by for a crowd: 32, and `kib_each` KiB per connection.
fn mib_for_crowd(kib_each: u64) -> u64 {
    32 + crowd() as u64 * kib_each / 1_024
}
