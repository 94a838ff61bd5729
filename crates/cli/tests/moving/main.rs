//! Moving over from a lease table that a team wrote itself, and back: what is imported, and workers of both sides under
//! load while it happens.

#[path = "../common/mod.rs"]
mod common;
mod documents;
mod load;
mod planes;
mod tables;
