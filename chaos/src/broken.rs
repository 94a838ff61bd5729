//! Ways to break the system on purpose: a run of a broken system must fail, or the judgements are worth nothing.

use clap::ValueEnum;

/// What is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Broken {
    /// The sink takes every write, whatever its token.
    Gate,
    /// Writers trust their leases for as long as they have something to write.
    Deadline,
    /// Servers are told that a failover loses nothing, though replication is asynchronous.
    Lossless,
    /// Servers show certificates of an authority that nobody trusts yet.
    Trust,
}

impl Broken {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Deadline => "deadline",
            Self::Lossless => "lossless",
            Self::Trust => "trust",
        }
    }
}
