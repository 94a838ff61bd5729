//! Store time: the one clock that decides (rule 1).

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds on the store's clock. It starts near the Unix epoch's count, so that people can read it, and never goes
/// back. No other clock converts to it: whatever a client knows of time, it knows as time left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreTime(pub u64);

impl StoreTime {
    /// This time and `ms` more; at the end of time it stays there.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// How long from `now` until this time, 0 when it has passed.
    pub fn ms_after(self, now: Self) -> u64 {
        self.0.saturating_sub(now.0)
    }
}

impl fmt::Debug for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// A position in the one total order of events, which is commit order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// The fencing number of a grant: the revision of its event (rule 5), so it grows at each change of owner whatever
/// happens to the resource's row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// When a batch is decided: the store's time, read after the batch took its locks, and the last revision given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub now: StoreTime,
    /// The last revision given; the next event gets the one after it.
    pub revision: Revision,
}

impl Moment {
    pub fn next_revision(&mut self) -> Revision {
        self.revision = self.revision.next();
        self.revision
    }
}
