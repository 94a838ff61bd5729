//! Style is an ordinary test: `tests/tidy` holds the rules.
//!
//! They are a crate of their own, without dependencies, so that they build in seconds.
