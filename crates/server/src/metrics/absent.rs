//! Measures nothing.

use std::time::Duration;

use axum::http::Method;
use solehold_core::outcome::Outcome;
use solehold_engine::{EngineError, observe::Observer};

use super::{RelayCount, Route};

#[derive(Debug)]
pub(crate) struct Metrics;

impl Metrics {
    pub fn new(_node_id: &str) -> Self {
        Self
    }

    pub fn request(&self, _: Route, _: &Method, _status: u16, _took: Duration) {}

    pub fn relay(&self, _relay: &str, _: RelayCount) {}

    pub fn relay_lag(&self, _relay: &str, _events: u64, _seconds: f64) {}

    pub fn operation(&self, _: &'static str, _: &Result<Outcome, EngineError>, _took: Duration) {}
}

impl Observer for Metrics {}
