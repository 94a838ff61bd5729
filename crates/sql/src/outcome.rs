//! The result of a change to a claimed row.

/// The result of one row's change. A change that affected no row is never silent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a lost claim means that nothing was changed"]
pub enum ClaimOutcome {
    /// The change was made (in the caller's transaction, if there is one).
    Done,
    /// Nothing was changed: the claim no longer held.
    Lost { why: LossReason },
}

impl ClaimOutcome {
    pub fn is_done(&self) -> bool {
        *self == Self::Done
    }
}

/// Why a claim did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// The lease had run out by the database's clock, and the row has not been claimed since.
    Expired,
    /// The row was claimed again since.
    Taken {
        /// By whom; none if that claim has ended already.
        owner: Option<String>,
        /// The epoch of the newest claim.
        epoch: i64,
    },
    /// The claim had been ended already: by a transition, a release, or the like.
    Ended,
    /// The row is not in the state that the change starts from.
    State {
        actual: Option<String>,
    },
    Gone,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expired => f.write_str("the lease has expired"),
            Self::Taken { owner: Some(owner), epoch } => {
                write!(f, "{owner} has claimed the row (epoch {epoch})")
            }
            Self::Taken { owner: None, epoch } => write!(f, "the row has been claimed since (epoch {epoch})"),
            Self::Ended => f.write_str("the claim has ended already"),
            Self::State { actual: Some(actual) } => write!(f, "the row is in state {actual}"),
            Self::State { actual: None } => f.write_str("the row has no state"),
            Self::Gone => f.write_str("the row no longer exists"),
        }
    }
}
