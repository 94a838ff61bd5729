//! What an orchestrator counts, in the format of Prometheus.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::store::Tally;
use solehold_kafka as kafka;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// What an orchestrator counts, beside what its consumer does: `consumer_lag`, `rebalance_count`, `idempotency_hits`.
#[derive(Debug)]
pub struct Figures {
    registry: Mutex<Registry>,
    consumer: Arc<kafka::Figures>,
    commands: Counter,
    letters: Counter,
    timeouts: Counter,
    unreadable: Counter,
    times: Family<OfState, Histogram>,
}

/// From a tenth of a second to a day.
fn times() -> Histogram {
    Histogram::new([
        0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 7_200.0,
        14_400.0, 43_200.0, 86_400.0,
    ])
}

impl Figures {
    /// What is counted from now on. Mail without a job is counted by the desk, where it comes in.
    pub(super) fn new(without_job: Counter) -> Self {
        let mut registry = Registry::default();
        let figures = Self {
            registry: Mutex::default(),
            consumer: Arc::default(),
            commands: Counter::default(),
            letters: Counter::default(),
            timeouts: Counter::default(),
            unreadable: Counter::default(),
            times: Family::new_with_constructor(times),
        };
        registry.register("job_commands", "Commands that arrived", figures.commands.clone());
        figures.consumer.register(&mut registry);
        registry.register("dead_letters", "Commands that could not take effect", figures.letters.clone());
        registry.register("stage_timeouts", "Attempts that took too long", figures.timeouts.clone());
        registry.register(
            "unreadable_mail",
            "Reports and requests to jobs that could not take effect and were set aside",
            figures.unreadable.clone(),
        );
        registry.register(
            "mail_without_job",
            "Reports and requests that had no effect, since their job is gone",
            without_job,
        );
        registry.register_with_unit(
            "job_processing_time",
            "How long jobs took from their creation to their end, by how they ended",
            Unit::Seconds,
            figures.times.clone(),
        );
        Self { registry: Mutex::new(registry), ..figures }
    }

    /// What the consumer counts.
    pub fn consumer(&self) -> &Arc<kafka::Figures> {
        &self.consumer
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    pub(super) fn add(&self, tally: &Tally) {
        let arrived = tally.commands + tally.duplicates + tally.dead + tally.parked;
        self.consumer.duplicates(tally.duplicates);
        for (counter, count) in [(&self.commands, arrived), (&self.letters, tally.dead + tally.returned)] {
            if count > 0 {
                counter.inc_by(count);
            }
        }
        for (state, took_ms) in &tally.finished {
            let took = *took_ms as f64 / 1_000.0;
            self.times.get_or_create(&OfState { state: state.name() }).observe(took);
        }
    }

    pub(super) fn timeouts(&self, count: usize) {
        self.timeouts.inc_by(count as u64);
    }

    pub(super) fn unreadable(&self, count: usize) {
        self.unreadable.inc_by(count as u64);
    }

    /// Everything, for a scrape.
    pub fn text(&self) -> Option<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry()).ok()?;
        Some(text)
    }
}
