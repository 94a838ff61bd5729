//! Metrics of a reconciler.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use super::Summary;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

/// The counters of one reconciler, or of several together.
#[derive(Clone, Debug)]
pub struct ReconcilerMetrics {
    rows: Family<ResultLabels, Counter>,
    moved: Family<StateLabels, Counter>,
    pub(super) failures: Counter,
    pub(super) outages: Gauge,
    seconds: Histogram,
}

impl Default for ReconcilerMetrics {
    fn default() -> Self {
        Self {
            rows: Family::default(),
            moved: Family::default(),
            failures: Counter::default(),
            outages: Gauge::default(),
            // From a millisecond to a minute.
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
        }
    }
}

impl ReconcilerMetrics {
    /// Names them in a registry, all beginning with `solehold_reconciler`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("solehold_reconciler");
        registry.register("rows", "Rows by the result of their cycle", self.rows.clone());
        registry.register("moved", "Rows moved, by the state they moved to", self.moved.clone());
        registry.register("cycle_failures", "Cycles that the database failed", self.failures.clone());
        registry.register(
            "observer_unreachable",
            "Reconcilers whose observer is unreachable, for all rows or for some",
            self.outages.clone(),
        );
        registry.register_with_unit("cycle", "Length of a cycle", Unit::Seconds, self.seconds.clone());
    }

    pub(super) fn add(&self, summary: &Summary, took: Duration) {
        let counts = [
            ("claimed", summary.claimed),
            ("scanned", summary.scanned),
            ("skipped", summary.skipped),
            ("errors", summary.errors),
            ("unreachable", summary.unreachable),
            ("lost", summary.lost),
            ("buried", summary.buried),
            ("unburied", summary.unburied),
            ("returned", summary.returned),
        ];
        for (result, rows) in counts {
            self.rows.get_or_create(&ResultLabels { result }).inc_by(rows);
        }
        for (state, rows) in &summary.moved {
            self.moved.get_or_create(&StateLabels { state: state.clone() }).inc_by(*rows);
        }
        self.seconds.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_kept() {
        let metrics = ReconcilerMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let summary = Summary { moved: [("paid".to_owned(), 1)].into(), ..Summary::default() };
        metrics.add(&summary, Duration::from_secs(1));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a string takes writes");
        let table = solehold_testkit::metrics_table(&text);
        solehold_testkit::golden_part("reference/metrics.md", "reconciler", &table);
    }
}
