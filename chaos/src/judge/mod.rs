//! Judges a history: what must hold in it whatever was killed, paused or cut. Pure, one judgement per file.

mod fence;
mod kept;
mod ownership;
mod watch;

use std::fmt;

pub use self::fence::overlap;
use crate::history::History;

/// Something that must never happen, and happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub judgement: &'static str,
    pub detail: String,
}

impl Violation {
    fn new(judgement: &'static str, detail: String) -> Self {
        Self { judgement, detail }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judgement, self.detail)
    }
}

/// Everything that is wrong with a history.
pub fn judge(history: &History) -> Vec<Violation> {
    let judgements = [ownership::judge, fence::judge, kept::judge, watch::judge];
    judgements.iter().flat_map(|judge| judge(history)).collect()
}

/// What was done must have cost nobody a lease.
pub fn keeps_leases(takeovers: usize) -> Option<Violation> {
    (takeovers > 0)
        .then(|| Violation::new("leases", format!("{takeovers} leases were lost to another holder")))
}

/// How many acknowledged writes are not there.
pub fn lost(history: &History) -> usize {
    kept::lost(history).len()
}

/// Short histories for the tests of the judgements. Times are in milliseconds.
#[cfg(test)]
mod story {
    use solehold_clock::BootTime;

    use crate::history::{Action, Operation, Outcome, SinkWrite, Write};

    fn operation(by: &str, action: Action, start: u64, end: u64, outcome: Outcome) -> Operation {
        let end = Some((BootTime::from_ms(end), outcome));
        Operation { by: by.to_owned(), action, start: BootTime::from_ms(start), end }
    }

    pub fn acquire(by: &str, start: u64, end: u64, token: u64) -> Operation {
        let action = Action::Acquire { resource: "a".to_owned() };
        operation(by, action, start, end, Outcome::Granted { token })
    }

    pub fn write(by: &str, start: u64, token: u64, outcome: Outcome) -> Operation {
        operation(by, Action::Write(bare(start, token)), start, start + 1, outcome)
    }

    /// The same write at the sink, which it reaches at `at`.
    pub fn at_sink(at: u64, start: u64, token: u64) -> SinkWrite {
        SinkWrite { at: BootTime::from_ms(at), write: bare(start, token) }
    }

    fn bare(start: u64, token: u64) -> Write {
        Write { resource: "a".to_owned(), token, id: format!("{token}/{start}") }
    }
}
