//! What goes over the network.

use std::fmt;

use solehold_clock::BootTime;

/// Which grant it is, whatever its token says.
pub type GrantId = u32;

/// A lease as a request shows it. The grant is for the checks only: no authority looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shown {
    pub token: u64,
    pub grant: GrantId,
}

/// A request to the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ask {
    /// Acquire under a request id. An attempt is one sending of it.
    Acquire {
        request: u8,
        attempt: u8,
    },
    /// Renew the lease with this token, or with it the session.
    Renew(Shown),
    Release(Shown),
    /// Give up a request, whether or not it was granted.
    Cancel {
        request: u8,
    },
    OpenSession,
    /// End the lease of whoever holds it, without knowing whether the holder has stopped.
    Revoke,
    /// The sweeper saw that the lease with this token had expired.
    Expire {
        token: u64,
    },
    /// Set the next status of the row that is leased, whose status was read with the lease, and end the lease.
    Advance(Shown),
    /// Look whether the command was marked as done.
    LookUp,
    /// Mark the command as done.
    Mark,
}

impl Ask {
    /// The lease that it shows.
    pub fn shown(&self) -> Option<Shown> {
        match self {
            Self::Renew(shown) | Self::Release(shown) | Self::Advance(shown) => Some(*shown),
            _ => None,
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { request, attempt: 0 } => write!(f, "acquire (request {request})"),
            Self::Acquire { request, attempt } => write!(f, "acquire (request {request}, repeat {attempt})"),
            Self::Renew(Shown { token, .. }) => write!(f, "renew (token {token})"),
            Self::Release(Shown { token, .. }) => write!(f, "release (token {token})"),
            Self::Cancel { request } => write!(f, "cancel (request {request})"),
            Self::OpenSession => write!(f, "open a session"),
            Self::Revoke => write!(f, "revoke"),
            Self::Expire { token } => write!(f, "expire (token {token})"),
            Self::Advance(Shown { token, .. }) => write!(f, "advance (status {token})"),
            Self::LookUp => write!(f, "look up the mark"),
            Self::Mark => write!(f, "set the mark"),
        }
    }
}

/// The authority's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    /// Granted, or granted before and repeated. `grant` identifies the grant, for the checks only.
    Granted {
        token: u64,
        left_ms: u64,
        grant: GrantId,
    },
    Waiting,
    Renewed {
        left_ms: u64,
    },
    Opened,
    /// Released, revoked, cancelled or judged.
    Done,
    /// The lease or session is over.
    Lost,
    /// Not granted.
    Refused,
    /// Whether there is a mark.
    Found(bool),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { token, left_ms, .. } => {
                write!(f, "granted with token {token}, {left_ms} ms left")
            }
            Self::Waiting => write!(f, "waiting"),
            Self::Renewed { left_ms } => write!(f, "renewed, {left_ms} ms left"),
            Self::Opened => write!(f, "opened"),
            Self::Done => write!(f, "done"),
            Self::Lost => write!(f, "lost"),
            Self::Refused => write!(f, "refused"),
            Self::Found(true) => write!(f, "there is a mark"),
            Self::Found(false) => write!(f, "there is no mark"),
        }
    }
}

/// One life of a client's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    pub client: u8,
    pub life: u8,
}

/// A message under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    Call {
        from: Process,
        sent: BootTime,
        ask: Ask,
    },
    Reply {
        to: Process,
        sent: BootTime,
        ask: Ask,
        reply: Reply,
    },
    /// To the sink.
    Write(Shown),
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { from: Process { client: u8::MAX, .. }, ask, .. } => write!(f, "{ask}"),
            Self::Call { from, ask, .. } => write!(f, "client {}'s {ask}", from.client),
            Self::Reply { to, ask, reply, .. } => write!(f, "at client {}, for {ask}: {reply}", to.client),
            Self::Write(Shown { token, .. }) => write!(f, "a write with token {token} at the sink"),
        }
    }
}
