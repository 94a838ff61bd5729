//! The embedded store against the conformance suite.

mod common;

use common::Embedded;
use solehold_engine::{embedded::FolderLimits, history::TTL_MAX_MS};

solehold_conformance::suite!(Embedded::new());

/// The same over a log that is folded at every opportunity.
mod folded {
    solehold_conformance::suite!(crate::Embedded::with(crate::FolderLimits {
        log_bytes_max: 0,
        ..Default::default()
    }));
}

#[tokio::test]
async fn set_back_jumps_and_bars() {
    solehold_conformance::moving::set_back_jumps_and_bars(&Embedded::new(), TTL_MAX_MS).await;
}

#[tokio::test]
async fn no_more_spent_requests_are_kept_than_the_bound() {
    solehold_conformance::request::no_more_spent_requests_are_kept_than_the_bound(&Embedded::new()).await;
}
