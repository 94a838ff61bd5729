//! The protocol as it is, and ways to break it that people have shipped.

/// Which protocol is checked. All but the first are wrong, each in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// Solehold: the real decisions, and clients that follow the rules.
    Sound,
    /// A client counts its deadline from when the reply came, not from before it asked.
    DeadlineFromReply,
    /// A release names its holder and shows no token.
    ReleaseByName,
    /// A revoked lease ends at once: nothing is held back for a holder that has not heard of it.
    RevokeWithoutHoldBack,
    /// An acquire looks only whether there is a row, and the sweeper deletes what it found expired without judging it
    /// again.
    SweeperDecides,
    /// A table whose token is raised by renewals, and kept by a change of holder.
    TokenRaisedByRenewal,
    /// A table without a token: the sink admits every write.
    NoToken,
    /// A table whose expiry is judged by the wall clock of the process that asks.
    CallerClockDecides,
    /// A table that answers with a timestamp, which the holder compares with its own wall clock.
    TimestampCompared,
    /// A mark is looked up before the work, and set after it.
    MarkSetAfterwards,
}

impl Variant {
    /// Whether the authority is a hand-written table rather than the real decisions.
    pub fn is_table(self) -> bool {
        matches!(
            self,
            Self::SweeperDecides
                | Self::TokenRaisedByRenewal
                | Self::NoToken
                | Self::CallerClockDecides
                | Self::TimestampCompared
                | Self::MarkSetAfterwards
        )
    }

    /// How far a client's wall clock is ahead of the store's, where that matters.
    pub fn wall_ahead_ms(self, client: u8) -> i64 {
        match self {
            Self::CallerClockDecides if client == 1 => 2_000,
            Self::TimestampCompared if client == 0 => -2_000,
            _ => 0,
        }
    }
}
