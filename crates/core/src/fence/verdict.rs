//! The verdicts of a gate.

use std::fmt;

use crate::time::Token;

/// What a gate says of work that carries a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may take effect.
    Admit,
    /// It is refused: the resource has been granted since, or the token belongs to another session.
    Stale {
        /// The newest token that the gate knows.
        newest: Token,
    },
    /// The gate cannot tell now. A transport that can wait holds the work back; one that cannot refuses it.
    Undecidable(Doubt),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admit => f.write_str("admit"),
            Self::Stale { newest } => write!(f, "stale: the newest token is {newest}"),
            Self::Undecidable(doubt) => write!(f, "undecidable: {doubt}"),
        }
    }
}

/// Why a gate cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// In the present history.
    #[error("nothing is known of the resource yet")]
    Unknown,
    /// It may have been above this token.
    #[error("the mark of the resource was dropped, and must be read again")]
    Forgotten,
    #[error("the token is newer than {known}, the newest that is known")]
    Newer { known: Token },
    /// Older than the cache's ttl.
    #[error("the mark of the resource is older than the cache allows, and must be read again")]
    Expired,
    /// The gate is strict.
    #[error("the store has not been read for this token yet")]
    Unconfirmed,
    #[error("the mark is not saved yet")]
    Unsaved,
    /// Its key is wrong, has expired or was revoked.
    #[error("the server refuses the gate; check the gate's key")]
    Denied,
    /// The store was asked for this very work.
    #[error("the gate's key may not see the resource")]
    Hidden,
    /// As [`Self::Hidden`].
    #[error("the store has no such resource")]
    NoSuchResource,
    /// As [`Self::Hidden`].
    #[error("the store has never given this token; its newest is {newest}")]
    NeverGiven { newest: Token },
}

impl Doubt {
    /// Whether waiting may settle it. If not, the store has answered, and the work is better refused.
    pub fn may_pass(self) -> bool {
        !matches!(self, Self::NoSuchResource | Self::NeverGiven { .. })
    }

    /// Whether a read of the store may settle it.
    pub fn needs_a_read(self) -> bool {
        self.may_pass() && !matches!(self, Self::Unsaved | Self::Denied)
    }

    /// Whether a gate that fails open admits in spite of it, while the store is away.
    pub(super) fn yields_to_fail_open(self) -> bool {
        matches!(self, Self::Unknown | Self::Newer { .. } | Self::Expired | Self::Unconfirmed)
    }

    /// One word for it, the same in metrics, logs and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Forgotten => "forgotten",
            Self::Newer { .. } => "newer",
            Self::Expired => "expired",
            Self::Unconfirmed => "unconfirmed",
            Self::Unsaved => "unsaved",
            Self::Denied => "denied",
            Self::Hidden => "hidden",
            Self::NoSuchResource => "no_such_resource",
            Self::NeverGiven { .. } => "never_given",
        }
    }
}
