//! Counters of an orchestrator, in the format of Prometheus.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::batch::Tally;
use solehold_kafka as kafka;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// Counters, including those of the consumer: `consumer_lag`, `rebalance_count`, `idempotency_hits`.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    pub consumer: Arc<kafka::ConsumerMetrics>,
    commands: Counter,
    dead_letters: Counter,
    timeouts: Counter,
    unreadable: Counter,
    times: Family<StateLabel, Histogram>,
}

/// From a tenth of a second to a day.
fn times() -> Histogram {
    Histogram::new([
        0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0,
        14_400.0, 43_200.0, 86_400.0,
    ])
}

impl Metrics {
    /// `without_job` is counted by the mailbox.
    pub(crate) fn new(without_job: Counter) -> Self {
        let mut registry = Registry::default();
        let metrics = Self {
            registry: Mutex::default(),
            consumer: Arc::default(),
            commands: Counter::default(),
            dead_letters: Counter::default(),
            timeouts: Counter::default(),
            unreadable: Counter::default(),
            times: Family::new_with_constructor(times),
        };
        registry.register("job_commands", "Commands that arrived", metrics.commands.clone());
        metrics.consumer.register(&mut registry);
        for (name, help, counter) in [
            ("dead_letters", "Commands that could not take effect", &metrics.dead_letters),
            ("stage_timeouts", "Attempts that took too long", &metrics.timeouts),
            (
                "unreadable_mail",
                "Reports and requests to jobs that could not take effect and were set aside",
                &metrics.unreadable,
            ),
            (
                "mail_without_job",
                "Reports and requests that had no effect, since their job is gone",
                &without_job,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register_with_unit(
            "job_processing_time",
            "How long jobs took from their creation to their end, by how they ended",
            Unit::Seconds,
            metrics.times.clone(),
        );
        Self { registry: Mutex::new(registry), ..metrics }
    }

    pub(crate) fn add(&self, tally: &Tally) {
        let arrived = tally.commands + tally.duplicates + tally.dead + tally.parked;
        self.consumer.duplicates(tally.duplicates);
        self.commands.inc_by(arrived);
        self.dead_letters.inc_by(tally.dead + tally.returned);
        for (state, took_ms) in &tally.finished {
            let took = *took_ms as f64 / 1_000.0;
            self.times.get_or_create(&StateLabel { state: state.name() }).observe(took);
        }
    }

    pub(crate) fn timeouts(&self, count: usize) {
        self.timeouts.inc_by(count as u64);
    }

    pub(crate) fn unreadable(&self, count: usize) {
        self.unreadable.inc_by(count as u64);
    }

    pub fn text(&self) -> Option<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock()).ok()?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use solehold_testkit::{golden_part, metrics_table};

    use super::*;

    /// Those of its consumer are kept by solehold-kafka.
    #[test]
    fn the_reference_of_metrics_is_kept() {
        let metrics = Metrics::new(Counter::default());
        metrics.times.get_or_create(&StateLabel { state: "succeeded" }).observe(1.0);
        let mut consumer = Registry::default();
        metrics.consumer.register(&mut consumer);
        let mut of_consumer = String::new();
        encode(&mut of_consumer, &consumer).expect("a string takes writes");
        let of_consumer = metrics_table(&of_consumer);
        let table = metrics_table(&metrics.text().expect("a string takes writes"));
        let own = table.lines().filter(|row| !row.starts_with("| `") || !of_consumer.contains(row));
        let own: String = own.map(|row| format!("{row}\n")).collect();
        golden_part("reference/metrics.md", "orchestrator", &own);
    }
}
