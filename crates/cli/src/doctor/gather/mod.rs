//! Gathers facts, and changes nothing.

pub mod host;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod server;
