//! A runner that is killed, paused or drained, and what becomes of what it had. Times are those of events: the store's.

use std::collections::BTreeMap;

use solehold_api::watch::LeaseEvent;
use solehold_core::event::EventName;

use crate::{
    human::{count, duration_ms},
    live::board::ms,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncidentCause {
    Killed,
    Paused,
    Drained,
}

impl IncidentCause {
    pub fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Paused => "paused",
            Self::Drained => "drained",
        }
    }
}

/// What became of one resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fate {
    /// When the lease of the former holder ended.
    ended_ms: Option<u64>,
    taken_ms: Option<u64>,
    taken_by: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Incident {
    pub cause: IncidentCause,
    pub runner: String,
    pub began_ms: u64,
    fates: BTreeMap<String, Fate>,
}

/// How long it took until every resource had another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeoverTimes {
    pub resources: usize,
    /// From the incident to the last takeover.
    pub all_ms: u64,
    /// The longest time that a resource had no owner after its lease had ended.
    pub gap_ms: u64,
}

impl Incident {
    pub fn new(
        cause: IncidentCause,
        runner: &str,
        began_ms: u64,
        resources: impl IntoIterator<Item = String>,
    ) -> Self {
        let fates = resources.into_iter().map(|key| (key, Fate::default())).collect();
        Self { cause, runner: runner.to_owned(), began_ms, fates }
    }

    /// Takes an event into account, and says whether the last resource was taken over by it.
    pub fn take(&mut self, event: &LeaseEvent) -> bool {
        let Some(fate) = self.fates.get_mut(&event.key).filter(|fate| fate.taken_ms.is_none()) else {
            return false;
        };
        let at = ms(event.timestamp);
        let is_of_runner = event.holder.as_deref() == Some(self.runner.as_str());
        match event.event_type {
            EventName::LeaseReleased
            | EventName::LeaseExpired
            | EventName::LeaseRevoked
            | EventName::LeaseStolen
                if is_of_runner && event.token.is_some() =>
            {
                fate.ended_ms = Some(at);
                false
            }
            EventName::LeaseAcquired if !is_of_runner => {
                fate.taken_ms = Some(at);
                fate.taken_by = event.holder.clone();
                self.is_over()
            }
            _ => false,
        }
    }

    pub fn is_over(&self) -> bool {
        self.taken() == self.fates.len()
    }

    fn taken(&self) -> usize {
        self.fates.values().filter(|fate| fate.taken_ms.is_some()).count()
    }

    /// None until everything has another owner.
    pub fn times(&self) -> Option<TakeoverTimes> {
        let taken: Vec<u64> = self.fates.values().map(|fate| fate.taken_ms).collect::<Option<_>>()?;
        let gaps = self.fates.values().filter_map(|fate| Some(fate.taken_ms?.saturating_sub(fate.ended_ms?)));
        Some(TakeoverTimes {
            resources: self.fates.len(),
            all_ms: taken.iter().max()?.saturating_sub(self.began_ms),
            gap_ms: gaps.max().unwrap_or_default(),
        })
    }

    /// In words: how it went, or how far it is.
    pub fn summary(&self, now_ms: u64) -> String {
        let Self { cause, runner, .. } = self;
        let word = cause.word();
        let counters = count(self.fates.len(), "counter");
        match self.times() {
            None if self.fates.is_empty() => format!("{runner} {word}: it owned nothing"),
            None => format!(
                "{runner} {word} {} ago: {} of {counters} taken over",
                duration_ms(now_ms.saturating_sub(self.began_ms)),
                self.taken()
            ),
            Some(times) if *cause == IncidentCause::Drained => format!(
                "{runner} {word}: {counters} handed over within {}; without an owner for {} at most",
                duration_ms(times.all_ms),
                duration_ms(times.gap_ms)
            ),
            Some(times) => format!(
                "{runner} {word}: {counters} taken over within {}; {} at most after the lease ran out",
                duration_ms(times.all_ms),
                duration_ms(times.gap_ms)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use solehold_api::watch::WatchFrame;

    use super::*;
    use crate::live::board::tests::event;

    fn take(incident: &mut Incident, frame: WatchFrame) -> bool {
        let WatchFrame::Event(event) = frame else { unreachable!("only events are made") };
        incident.take(&event)
    }

    #[test]
    fn a_takeover_is_timed_by_its_events() {
        let mut incident = Incident::new(IncidentCause::Killed, "r1", 10_000, ["a", "b"].map(str::to_owned));
        assert!(!take(&mut incident, event(14, "lease_expired", "a", "r1", Some(3))));
        assert!(!take(&mut incident, event(15, "lease_acquired", "a", "r2", Some(15))));
        assert!(!take(&mut incident, event(15, "lease_acquired", "c", "r2", Some(16))), "not its own");
        assert_eq!(incident.summary(15_000), "r1 killed 5s ago: 1 of 2 counters taken over");
        assert!(!take(&mut incident, event(16, "lease_expired", "b", "r1", Some(4))));
        assert!(!take(&mut incident, event(17, "lease_acquired", "b", "r1", Some(17))), "not another owner");
        assert!(take(&mut incident, event(19, "lease_acquired", "b", "r2", Some(19))));
        assert_eq!(incident.times(), Some(TakeoverTimes { resources: 2, all_ms: 9_000, gap_ms: 3_000 }));
        assert!(!take(&mut incident, event(21, "lease_acquired", "b", "r3", Some(21))), "it is over");
        assert_eq!(
            incident.summary(30_000),
            "r1 killed: 2 counters taken over within 9s; 3s at most after the lease ran out"
        );
    }
}
