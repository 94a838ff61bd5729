//! The result of one cycle.

use std::{collections::BTreeMap, fmt};

/// Counts of one cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    pub claimed: u64,
    /// Rows that an observer answered about.
    pub scanned: u64,
    /// Rows moved, by the state they moved to.
    pub moved: BTreeMap<String, u64>,
    pub skipped: u64,
    /// Observations and effects that failed because of their row.
    pub errors: u64,
    /// Rows whose observer could not be reached: they stay open, and no attempt was counted.
    pub unreachable: u64,
    /// Rows that were to be buried, and stay open because of the limit on burials.
    pub unburied: u64,
    /// Rows whose claim had been lost before their result was written.
    pub lost: u64,
    pub buried: u64,
    /// Rows returned because of a stop.
    pub returned: u64,
}

impl Summary {
    /// Nothing yet; these states are shown even if nothing moves to them.
    pub(super) fn new(states: &[String]) -> Self {
        Self { moved: states.iter().map(|state| (state.clone(), 0)).collect(), ..Self::default() }
    }

    /// Whether the observer answered about nothing at all.
    pub(super) fn is_outage(&self) -> bool {
        self.unreachable > 0 && self.scanned + self.errors == 0
    }

    pub(super) fn add_moved(&mut self, to: &str) {
        *self.moved.entry(to.to_owned()).or_default() += 1;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claimed={} scanned={}", self.claimed, self.scanned)?;
        for (state, rows) in &self.moved {
            write!(f, " {state}={rows}")?;
        }
        write!(f, " skipped={} errors={}", self.skipped, self.errors)?;
        let rare = [
            ("unreachable", self.unreachable),
            ("lost", self.lost),
            ("buried", self.buried),
            ("unburied", self.unburied),
            ("returned", self.returned),
        ];
        rare.iter().filter(|(_, rows)| *rows > 0).try_for_each(|(name, rows)| write!(f, " {name}={rows}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line() {
        let mut summary = Summary::new(&["confirmed", "detected", "expired"].map(str::to_owned));
        summary.claimed = 3;
        summary.scanned = 2;
        summary.errors = 1;
        summary.add_moved("confirmed");
        assert_eq!(
            summary.to_string(),
            "claimed=3 scanned=2 confirmed=1 detected=0 expired=0 skipped=0 errors=1"
        );
        summary.returned = 4;
        assert!(summary.to_string().ends_with("errors=1 returned=4"));
    }
}
