//! What `gate http` refused: counted, and logged in one line each within a rate, so that a caller that retries in a
//! loop does not fill the disk.

use std::time::Duration;

use http::{HeaderMap, Method};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use solehold_client::gate::{RESOURCE, Refused, TOKEN};
use solehold_clock::BootTime;
use tokio::sync::Mutex;

/// Lines that are logged within a period; later ones are counted.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Longest part of a header or a path that is logged, in characters.
const SHOWN_MAX: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: &'static str,
}

#[derive(Debug, Default)]
pub struct Refusals {
    counts: Family<OfCode, Counter>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    began: Option<BootTime>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// Whether one more line may be written, and how many were left out in the period before, if it is over.
    fn one_more(&mut self, now: BootTime) -> (bool, u64) {
        let mut left_out = 0;
        if self.began.is_none_or(|began| now.since(began) >= PERIOD) {
            left_out = self.left_out;
            *self = Self { began: Some(now), ..Self::default() };
        }
        if self.written < LINES_MAX {
            self.written += 1;
            return (true, left_out);
        }
        self.left_out += 1;
        (false, left_out)
    }
}

pub struct Asked {
    pub method: Method,
    pub path: String,
    resource: Option<String>,
    token: Option<String>,
}

impl Asked {
    /// Without the query, which may have secrets in it.
    pub fn of<B>(request: &http::Request<B>) -> Self {
        let header = |headers: &HeaderMap, name| Some(shown(headers.get(name)?.to_str().ok()?));
        Self {
            method: request.method().clone(),
            path: shown(request.uri().path()),
            resource: header(request.headers(), RESOURCE),
            token: header(request.headers(), TOKEN),
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

impl Refusals {
    pub fn counts(&self) -> impl prometheus_client::registry::Metric + use<> {
        self.counts.clone()
    }

    /// Counts a refusal, and logs it if the rate allows.
    pub async fn refused(&self, asked: &Asked, refused: &Refused) {
        self.counts.get_or_create(&OfCode { code: refused.code }).inc();
        let (may_log, left_out) = self.lines.lock().await.one_more(BootTime::now());
        if left_out > 0 {
            tracing::warn!(refused = left_out, "further refusals were not logged");
        }
        if may_log {
            let Asked { method, path, resource, token } = asked;
            let status = refused.status.as_u16();
            let code = refused.code;
            let why = &refused.detail;
            tracing::info!(%method, path, resource, token, status, code, why, "request refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_within_a_period_and_those_left_out_are_counted() {
        let mut lines = Lines::default();
        let began = BootTime::now();
        for _ in 0..LINES_MAX {
            assert_eq!(lines.one_more(began), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(lines.one_more(began), (false, 0));
        }
        assert_eq!(lines.one_more(began.plus(PERIOD)), (true, 7));
        assert_eq!(lines.one_more(began.plus(PERIOD)), (true, 0));
    }
}
