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

impl Verdict {
    /// Whether the work may take effect.
    pub fn is_admitted(self) -> bool {
        self == Self::Admit
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// Nothing is known of the resource in the present history.
    Unknown,
    /// The mark of the resource was dropped, and may have been above this token.
    Forgotten,
    /// The token is newer than the newest known.
    Newer {
        /// The newest that is known.
        known: Token,
    },
    /// What is known is older than the cache's ttl.
    Expired,
    /// The gate is strict and has not read the store for this token yet.
    Unconfirmed,
    /// The mark is not saved yet.
    Unsaved,
    /// The store refuses the gate itself: its key is wrong, has expired or was revoked.
    Denied,
    /// The store was asked, and does not show the resource to the gate's key.
    Hidden,
    /// The store was asked, and has no such resource.
    NoSuchResource,
    /// The store was asked, and has not given such a token.
    NeverGiven {
        /// The newest that it has given.
        newest: Token,
    },
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

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("nothing is known of the resource yet"),
            Self::Forgotten => f.write_str("the mark of the resource was dropped, and must be read again"),
            Self::Newer { known } => write!(f, "the token is newer than {known}, the newest that is known"),
            Self::Expired => f.write_str("what is known of the resource is too old"),
            Self::Unconfirmed => f.write_str("the store has not been read for this token yet"),
            Self::Unsaved => f.write_str("the mark is not saved yet"),
            Self::Denied => f.write_str("the server refuses the gate; check the gate's key"),
            Self::Hidden => f.write_str("the gate's key may not see the resource"),
            Self::NoSuchResource => f.write_str("the store has no such resource"),
            Self::NeverGiven { newest } => {
                write!(f, "the store has never given this token; its newest is {newest}")
            }
        }
    }
}
