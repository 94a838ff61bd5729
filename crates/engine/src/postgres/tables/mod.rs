//! The tables, as Rust has their rows.

pub(crate) mod rows;
pub(crate) mod text;
