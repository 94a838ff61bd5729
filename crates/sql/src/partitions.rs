//! One row per partition of a topic: who may write for it, and how far its messages have taken effect.
//!
//! A consumer of a partition commits the effect of its messages together with its position, in one transaction that
//! checks the partition's *epoch*. The epoch grows with each change of owner and never goes back, so that a consumer
//! that was paused and taken over cannot write any more: its transaction finds another epoch and is rolled back.
//!
//! ```text
//!   BEGIN
//!     UPDATE partitions SET next_offset = ... WHERE partition = mine AND epoch = mine    no row: fenced, roll back
//!     inbox marks, effects, outgoing messages
//!   COMMIT
//! ```
//!
//! How an epoch is raised depends on who says that the partition is ours:
//!
//! - *A lease* ([`Partitions::raise_to`]): the epoch is the lease's token.
//! - *A consumer group* ([`Partitions::raise_from`]): a group gives no token. The consumer reads the row, then makes the
//!   broker prove that it is still a member, then raises the epoch if the row is still as it was read. A consumer that
//!   slept between the proof and the raise finds that its successor has raised it, and must ask for a new proof, which
//!   the broker refuses.

/// The partition of a topic, as a group of consumers sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The group of consumers.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The number of the partition.
    pub number: i32,
}

/// The right to write for a partition: valid as long as its row has this epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// Which partition.
    pub partition: Partition,
    /// Larger at each change of owner, never used twice.
    pub epoch: i64,
    /// The offset of the first message that has not taken effect, when the tenure began.
    pub next_offset: i64,
}
