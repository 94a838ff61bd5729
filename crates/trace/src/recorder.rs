//! Where finished spans go: a bounded queue that an exporter empties.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use solehold_clock::{BootTime, wall_ms};
use tokio::sync::mpsc;

use crate::{TraceContext, span::FinishedSpan};

/// Spans that may wait for the exporter.
#[cfg_attr(not(feature = "export"), allow(dead_code))]
pub(crate) const QUEUE_MAX: usize = 4_096;

static RECORDER: OnceLock<Recorder> = OnceLock::new();
static EXPORTED: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Recorder {
    queue: mpsc::Sender<FinishedSpan>,
    pub sampler: Sampler,
    /// One moment by both clocks, so that times of one process are in the order in which they were.
    anchor: (u64, BootTime),
}

/// Which traces are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// The share of traces that begin here, from 0 to 1.
    pub ratio: f64,
    /// Whether the caller decides about traces that it began.
    pub is_parent_based: bool,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { ratio: 1.0, is_parent_based: true }
    }
}

impl Sampler {
    pub(crate) fn is_sampled(self, trace_id: u128, parent: Option<TraceContext>) -> bool {
        match parent {
            Some(parent) if self.is_parent_based => parent.is_sampled,
            // By the trace's id, so that all processes with this ratio take the same traces.
            _ => ((trace_id as u64) >> 11) as f64 / ((1u64 << 53) as f64) < self.ratio,
        }
    }
}

/// What became of the spans of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanCounts {
    /// Taken by the collector.
    pub exported: u64,
    /// Lost: the queue was full, or the collector did not take them.
    pub dropped: u64,
}

/// What became of the spans of this process so far.
pub fn counts() -> SpanCounts {
    SpanCounts { exported: EXPORTED.load(Ordering::Relaxed), dropped: DROPPED.load(Ordering::Relaxed) }
}

/// Whether spans are recorded.
pub fn is_on() -> bool {
    RECORDER.get().is_some()
}

pub(crate) fn get() -> Option<&'static Recorder> {
    RECORDER.get()
}

impl Recorder {
    pub fn record(&self, span: FinishedSpan) {
        if self.queue.try_send(span).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Nanoseconds since 1970.
    pub fn unix_ns(&self, at: BootTime) -> u64 {
        let (wall, boot) = self.anchor;
        let since = u64::try_from(at.since(boot).as_nanos()).unwrap_or(u64::MAX);
        (wall * 1_000_000).saturating_add(since)
    }
}

/// Starts recording. None if it was started before.
#[cfg_attr(not(feature = "export"), allow(dead_code))]
pub(crate) fn start(sampler: Sampler) -> Option<mpsc::Receiver<FinishedSpan>> {
    let (queue, spans) = mpsc::channel(QUEUE_MAX);
    let recorder = Recorder { queue, sampler, anchor: (wall_ms(), BootTime::now()) };
    RECORDER.set(recorder).ok().map(|()| spans)
}

#[cfg_attr(not(feature = "export"), allow(dead_code))]
pub(crate) fn exported(count: u64) {
    EXPORTED.fetch_add(count, Ordering::Relaxed);
}

#[cfg_attr(not(feature = "export"), allow(dead_code))]
pub(crate) fn dropped(count: u64) {
    DROPPED.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_kept_and_a_parent_decides() {
        let ids = (0..10_000u64).map(|n| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1 << 100);
        let ids: Vec<u128> = ids.collect();
        let count = |ratio| {
            let sampler = Sampler { ratio, is_parent_based: true };
            ids.iter().filter(|id| sampler.is_sampled(**id, None)).count()
        };
        assert_eq!((count(0.0), count(1.0)), (0, ids.len()));
        assert!((2_300..2_700).contains(&count(0.25)), "{}", count(0.25));
        for is_sampled in [false, true] {
            let parent = Some(TraceContext { trace_id: 1, span_id: 1, is_sampled });
            let never = Sampler { ratio: 0.0, is_parent_based: true };
            assert_eq!(never.is_sampled(1, parent), is_sampled);
            assert!(!Sampler { is_parent_based: false, ..never }.is_sampled(1, parent));
        }
    }
}
