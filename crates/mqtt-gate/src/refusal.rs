//! Why a message is refused.

/// Why a message is refused. Its name is a label of metrics and a level of dead-letter topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Its token is older than the newest one of its resource.
    Stale,
    /// Its resource does not exist, or never had that token.
    Unknown,
    NotJson,
    NoToken,
    /// Its token is not a whole number from 1 on.
    BadToken,
    /// It is larger than `--message-max`.
    TooLarge,
    /// It is a retained message: it was passed on when it was published, or is older than the gate's subscription.
    Retained,
    /// Its topic cannot name a resource, or would be too long under the prefix.
    BadTopic,
    /// It could not be decided, the broker will not redeliver it (QoS 0), and there is no room to hold it.
    NoRoom,
}

impl Reason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::Stale,
        Self::Unknown,
        Self::NotJson,
        Self::NoToken,
        Self::BadToken,
        Self::TooLarge,
        Self::Retained,
        Self::BadTopic,
        Self::NoRoom,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Unknown => "unknown",
            Self::NotJson => "not_json",
            Self::NoToken => "no_token",
            Self::BadToken => "bad_token",
            Self::TooLarge => "too_large",
            Self::Retained => "retained",
            Self::BadTopic => "bad_topic",
            Self::NoRoom => "no_room",
        }
    }
}
