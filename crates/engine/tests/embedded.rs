//! The embedded store against the conformance suite.

mod common;

use common::Embedded;
use solehold_engine::{conformance, embedded::FolderLimits};

conformance::suite!(Embedded::new());

/// The same over a log that is folded at every opportunity.
mod folded {
    use super::*;

    conformance::suite!(Embedded::with(FolderLimits { log_bytes_max: 0, ..Default::default() }));
}
