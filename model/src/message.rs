//! What goes over the network.

use std::fmt;

use solehold_clock::BootTime;

/// Which grant it is, whatever its token says.
pub type GrantId = u32;

/// A request to the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ask {
    /// Acquire under a request id. An attempt is one sending of it.
    Acquire {
        request: u8,
        attempt: u8,
    },
    /// Renew the lease with this token, or with it the session.
    Renew {
        token: u64,
    },
    Release {
        token: u64,
    },
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
    Write {
        token: u64,
        grant: GrantId,
    },
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { from: Process { client: u8::MAX, .. }, ask, .. } => write!(f, "{ask:?}"),
            Self::Call { from, ask, .. } => write!(f, "client {}'s {ask:?}", from.client),
            Self::Reply { to, ask, reply, .. } => write!(f, "{reply:?} at client {}, for {ask:?}", to.client),
            Self::Write { token, .. } => write!(f, "a write with token {token} at the sink"),
        }
    }
}
