//! The embedded store against the conformance suite.

mod common;

use common::Embedded;
use solehold_engine::{conformance, embedded::FolderLimits, history::TTL_MAX_MS};

conformance::suite!(Embedded::new());

/// The same over a log that is folded at every opportunity.
mod folded {
    use super::*;

    conformance::suite!(Embedded::with(FolderLimits { log_bytes_max: 0, ..Default::default() }));
}

#[tokio::test]
async fn set_back_jumps_and_bars() {
    conformance::moving::set_back_jumps_and_bars(&Embedded::new(), TTL_MAX_MS).await;
}

#[tokio::test]
async fn no_more_spent_requests_are_kept_than_the_bound() {
    conformance::request::no_more_spent_requests_are_kept_than_the_bound(&Embedded::new()).await;
}
