//! What may happen next.

use std::fmt;

use crate::message::{Ask, Message};

/// One step from a state to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes, for all clocks.
    Tick,
    /// A client sends a request.
    Send {
        client: u8,
        ask: Ask,
    },
    /// A client that trusts its lease writes to the sink.
    Write {
        client: u8,
    },
    Crash {
        client: u8,
    },
    /// The operator revokes the lease.
    Revoke,
    /// The sweeper finds that the lease has expired.
    Nominate {
        token: u64,
    },
    Deliver(Message),
    /// It arrives, and will arrive once more.
    DeliverTwice(Message),
    /// It arrives at a sink that cannot reach the authority.
    DeliverUnchecked(Message),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => write!(f, "a second passes"),
            Self::Send { client, ask } => write!(f, "client {client} sends: {ask}"),
            Self::Write { client } => write!(f, "client {client} writes to the sink"),
            Self::Crash { client } => write!(f, "client {client} crashes and starts again"),
            Self::Revoke => write!(f, "the operator revokes the lease"),
            Self::Nominate { token } => write!(f, "the sweeper finds that token {token} has expired"),
            Self::Deliver(message) => write!(f, "arrives: {message}"),
            Self::DeliverTwice(message) => write!(f, "arrives, and will once more: {message}"),
            Self::DeliverUnchecked(message) => write!(f, "arrives, while the sink has no answer: {message}"),
        }
    }
}
