//! The gate's judgement (rule 21): whether work that carries a token may still take effect.
//!
//! A gate keeps a *mark* for each resource: the newest token that it admitted or learned of, and the session that the
//! token was granted to. It learns from the watch, from reads of the store, and from what it kept before a restart.
//!
//! ```text
//!   token < mark                       stale: a newer token was admitted or granted
//!   token = mark, another session      stale: a token belongs to one session
//!   token = mark, knowledge fresh      admit
//!   token = mark, knowledge too old    undecidable: ask the store
//!   token > mark, or no mark           undecidable: ask the store
//! ```
//!
//! What is not known admits nothing, marks are never lowered, and knowledge is as old as the question that it answers:
//! rule 21 in `docs/protocol.md` has all of it.

mod marks;
mod verdict;

pub use marks::{Fence, MarkLookup, MarkRecord};
pub use verdict::{Doubt, Verdict};

use crate::{key::SessionId, time::Token};

/// A reading of the gate's own clock, in nanoseconds. It never goes back, and counts on while the machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Tick(pub u64);

impl Tick {
    /// `nanos` later.
    #[must_use]
    pub fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The newest token of a resource that a gate knows, and the session that it was granted to, if that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub token: Token,
    /// The session. A lease with a session of its own has none to show.
    pub session: Option<SessionId>,
}

/// How a gate judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How old knowledge may be that admits, in nanoseconds.
    pub cache_ttl: u64,
    /// Whether a token that is not below the mark is admitted while the store is away.
    pub fail_open: bool,
    /// Whether the store is read before a new token is admitted, even if the watch has told of it.
    pub strict: bool,
    /// Whether marks are kept on a disk: a mark admits only when it has been saved.
    pub remembers: bool,
    /// Most marks that are kept in memory.
    pub marks_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            cache_ttl: 30_000_000_000,
            fail_open: false,
            strict: false,
            remembers: false,
            marks_max: 1_000_000,
        }
    }
}
