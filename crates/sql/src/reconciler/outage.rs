//! An observer that is unreachable: how long to wait for it, and when to report that it is away or back.

use std::time::Duration;

use solehold_clock::{Backoff, BootTime};

/// What is known about the observer. It decides, and reads no clock.
#[derive(Debug, Default)]
pub(super) struct Outages {
    current: Option<Outage>,
    /// Cycles in a row in which most rows found the observer unreachable. One that only misses an answer now and then
    /// is not waited for longer and longer.
    failures: u32,
}

#[derive(Debug)]
struct Outage {
    since: BootTime,
    rows: u64,
    /// When the last of the rows that were postponed is due again. Cycles before that say nothing about them.
    due: BootTime,
    /// Whether the observer has answered since.
    is_answered: bool,
}

/// A change worth a log line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Began,
    Ended { lasted: Duration, rows: u64 },
}

impl Outages {
    /// The pause of rows that find the observer unreachable now.
    pub(super) fn pause(&self, backoff: Backoff, unit: f64) -> Duration {
        backoff.wait(self.failures.saturating_add(1), unit)
    }

    /// Forgets the outage that there is; whether there was one.
    pub(super) fn forget(&mut self) -> bool {
        std::mem::take(self).current.is_some()
    }

    /// Takes in a cycle that began and ended at these times: how many rows found the observer unreachable and how many
    /// it answered about. Rows that were postponed are due after `pause`, at the latest.
    pub(super) fn cycle(
        &mut self,
        (began, ended): (BootTime, BootTime),
        (unreachable, answered): (u64, u64),
        pause: Duration,
    ) -> Option<Change> {
        if unreachable > answered {
            self.failures = self.failures.saturating_add(1);
        } else if answered > 0 {
            self.failures = 0;
        }
        if unreachable > 0 {
            let due = ended.plus(pause);
            if let Some(outage) = &mut self.current {
                outage.rows += unreachable;
                (outage.due, outage.is_answered) = (due, false);
                return None;
            }
            self.current = Some(Outage { since: began, rows: unreachable, due, is_answered: false });
            return Some(Change::Began);
        }
        // A cycle that finds none of them says so too: they have been answered just before, here or elsewhere.
        let is_over = |outage: &mut Outage| {
            outage.is_answered |= answered > 0;
            outage.is_answered && began >= outage.due
        };
        let outage = self.current.take_if(is_over)?;
        Some(Change::Ended { lasted: ended.since(outage.since), rows: outage.rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(30) };

    #[test]
    fn an_outage_is_reported_when_it_begins_and_when_its_rows_have_been_answered() {
        let mut outages = Outages::default();
        let start = BootTime::now();
        let at = |seconds: u64| start.plus(Duration::from_secs(seconds));
        let second = Duration::from_secs(1);
        assert_eq!(outages.cycle((at(0), at(1)), (0, 5), second), None);
        assert_eq!(outages.cycle((at(1), at(2)), (5, 5), second), Some(Change::Began));
        assert_eq!(outages.cycle((at(2), at(3)), (7, 0), 10 * second), None);
        // Other rows are answered meanwhile: that says nothing about those that wait.
        assert_eq!(outages.cycle((at(5), at(6)), (0, 9), second), None);
        let ended = outages.cycle((at(13), at(16)), (0, 1), second);
        assert_eq!(ended, Some(Change::Ended { lasted: 15 * second, rows: 12 }));
        assert_eq!(outages.cycle((at(16), at(17)), (0, 1), second), None);
        // The last rows may be answered just before they are due by this clock, and then nothing is left to ask.
        assert_eq!(outages.cycle((at(20), at(21)), (1, 0), second), Some(Change::Began));
        assert_eq!(outages.cycle((at(22), at(23)), (0, 0), second), None, "nothing was answered");
        assert_eq!(outages.cycle((at(24), at(25)), (2, 0), 5 * second), None);
        assert_eq!(outages.cycle((at(29), at(30)), (0, 2), second), None);
        let ended = outages.cycle((at(31), at(31)), (0, 0), second);
        assert_eq!(ended, Some(Change::Ended { lasted: 11 * second, rows: 3 }));
    }

    #[test]
    fn pauses_grow_while_the_observer_is_away_and_begin_anew_when_it_answers() {
        let mut outages = Outages::default();
        let start = BootTime::now();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pause = outages.pause(BACKOFF, 1.0);
            pauses.push(pause.as_secs());
            outages.cycle((start, start), (1, 0), pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        outages.cycle((start, start), (1, 20), Duration::ZERO);
        assert_eq!(outages.pause(BACKOFF, 1.0).as_secs(), 1);
    }
}
