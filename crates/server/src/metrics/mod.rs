//! What is measured: with the feature `metrics` for `/metrics`, without it nothing.

#[cfg(not(feature = "metrics"))]
mod absent;
#[cfg(feature = "metrics")]
mod prometheus;

use std::hash::{Hash, Hasher};

use axum::extract::MatchedPath;

#[cfg(not(feature = "metrics"))]
pub(crate) use absent::Metrics;
#[cfg(feature = "metrics")]
pub(crate) use prometheus::Metrics;

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
