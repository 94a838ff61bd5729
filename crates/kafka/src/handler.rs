//! What an application does with messages.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use deadpool_postgres::Transaction;
use solehold_sql::partitions::Tenure;
use tokio::sync::watch;
use xxhash_rust::xxh3::Xxh3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    /// Messages with the same key are handled in order.
    pub key: Option<Bytes>,
    /// None in a tombstone.
    pub payload: Option<Bytes>,
    /// Empty with brokers that are older than headers.
    pub headers: Vec<(String, Bytes)>,
    /// When it was written, by the broker or the producer, in milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
}

impl Message {
    /// Tells it from another message at the same offset, of a topic that was created again.
    pub fn digest(&self) -> i64 {
        let mut hasher = Xxh3::new();
        for part in [&self.key, &self.payload] {
            let part = part.as_ref();
            hasher.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            hasher.update(part.map_or(&[], |part| &part[..]));
        }
        hasher.update(&self.timestamp_ms.unwrap_or(-1).to_le_bytes());
        hasher.digest().cast_signed()
    }
}

/// Why a message could not be handled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It will never work: it becomes a dead letter at once.
    #[error("{0}")]
    Poison(String),
    /// It may work later: it is tried again a bounded number of times, then it becomes a dead letter.
    #[error("{0}")]
    Again(String),
}

/// A processed message, with an effect to commit or the reason why it is a dead letter.
#[derive(Debug)]
pub struct Done<E> {
    pub message: Message,
    /// A dead letter is committed, too: later messages of its key wait for it.
    pub effect: Result<E, Failure>,
}

/// Becomes true when the partition should be released: finish the work in progress, and begin nothing new.
pub type Leaving = watch::Receiver<bool>;

/// What an application does with the messages of its partitions.
pub trait Handler: Send + Sync + 'static {
    /// The effect of a message, before it is committed.
    type Effect: Send + Sync + 'static;

    /// The result of a transaction, for [`committed`](Self::committed).
    type Receipt: Send + 'static;

    /// Processes one message. Messages of one key are processed one after the other, each after the commit of the one
    /// before; messages of different keys in parallel. An effect outside the database that happens here may happen
    /// twice: guard it with a gate.
    fn work(&self, message: &Message) -> impl Future<Output = Result<Self::Effect, Failure>> + Send;

    /// Commits the effects of several messages of one partition. The epoch of the tenure has been checked in this
    /// transaction, and the position is written by it. The messages are in the order of their offsets; there may be
    /// gaps, and a message may have been committed before: its inbox mark shows that. An error rolls everything back,
    /// and the messages are retried, one per transaction, so that one bad message does not stop the others. Wait for
    /// nothing but PostgreSQL here: it ends a transaction that is idle for 1.5 s.
    fn commit(
        &self,
        transaction: &Transaction<'_>,
        tenure: &Tenure,
        done: &[Done<Self::Effect>],
    ) -> impl Future<Output = Result<Self::Receipt, solehold_sql::Error>> + Send;

    /// A transaction was committed. For counters and hints only: it is not called if the process ends right then.
    fn committed(&self, tenure: &Tenure, receipt: Self::Receipt) {
        let _ = (tenure, receipt);
    }

    /// The background work of a partition while it is ours, such as sweeps and sending outgoing messages. It must end
    /// soon after `leaving` becomes true, and is dropped when the partition is lost. If it ends before that, a new
    /// tenure begins; if it panics, the consumer ends.
    fn attend(&self, tenure: Tenure, leaving: Leaving) -> impl Future<Output = ()> + Send;
}
