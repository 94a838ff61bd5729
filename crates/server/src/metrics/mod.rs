//! The metrics of a node, which `/metrics` serves as OpenMetrics text.

mod prometheus;
mod relays;

use std::hash::{Hash, Hasher};

use axum::extract::MatchedPath;

pub(crate) use prometheus::Metrics;

/// Something that a relay did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayCount {
    /// An event was delivered and confirmed.
    Sent,
    /// An attempt to deliver an event failed.
    Retried,
    /// The destination refused an event.
    Refused,
    /// An event went to the dead letters.
    DeadLettered,
    /// This node began to send.
    Takeover,
    /// Events were dropped before they were sent.
    Gap,
    /// A renewal was delivered.
    RenewalSent,
    /// A renewal was left out.
    RenewalLeftOut,
}

/// The route that a request matched; requests that match none are all one.
#[derive(Clone, Debug)]
pub(crate) struct Route(pub Option<MatchedPath>);

impl Route {
    /// Its template.
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("none", MatchedPath::as_str)
    }
}

impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Route {}

impl Hash for Route {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}
