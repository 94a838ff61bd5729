//! The protocol as it is, and ways to break it that people have shipped.

/// Which protocol is checked. All but the first are wrong.
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
    /// The table of the scene trackers (docs/origins.md), as the four that follow.
    SceneTrackers,
    PaymentReconciler,
    CameraPipeline,
    ChatGateway,
    VideoOrchestrator,
}

impl Variant {
    /// Whether the authority is a hand-written table with one flaw.
    pub fn is_table(self) -> bool {
        matches!(
            self,
            Self::SweeperDecides
                | Self::TokenRaisedByRenewal
                | Self::NoToken
                | Self::CallerClockDecides
                | Self::TimestampCompared
        )
    }

    /// Whether it is one of the five designs that Solehold replaces. Their holders keep no deadline of their own: they
    /// work until a request is refused.
    pub fn is_origin(self) -> bool {
        matches!(
            self,
            Self::SceneTrackers
                | Self::PaymentReconciler
                | Self::CameraPipeline
                | Self::ChatGateway
                | Self::VideoOrchestrator
        )
    }

    /// Whether what the work writes to compares tokens.
    pub fn is_fenced(self) -> bool {
        !matches!(self, Self::NoToken | Self::CameraPipeline | Self::ChatGateway | Self::VideoOrchestrator)
    }
}
