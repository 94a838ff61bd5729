//! Answers messages: of one session one at a time, in order, whichever node they came in at.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use serde_json::{Value, json};
use solehold_client::{Cluster, Lost, Metrics};
use tokio::sync::Mutex as AsyncMutex;

use crate::{
    legacy::{self, LegacyTable, LockError, LockLost, LockedSession},
    store::{Fence, OpenMessage, Store},
};

/// A message that is unanswered for this long was left behind by a node that died.
const LEFT_BEHIND_MS: i64 = 2_000;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Sessions taken over per scan.
const TAKE_UP_MAX: i64 = 8;
/// How often to try to record that a session was left.
const LEAVE_TRIES: u32 = 5;
/// How often this node publishes its metrics.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Why a session is not answered now; sending the message again does no harm.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Lost(#[from] LockLost),
    #[error("the session could not be answered: {0:#}")]
    Broken(#[from] anyhow::Error),
}

pub struct Gateway {
    store: Store,
    cluster: Cluster,
    /// The lock table of older nodes, while there are any.
    legacy: Option<LegacyTable>,
    /// How long answering takes: a language model would think here.
    work: Duration,
    answered: AtomicU64,
    busy: AtomicU64,
    /// Without locks among nodes there is one process, and its tasks exclude each other by these.
    local: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

impl Gateway {
    pub fn new(store: Store, cluster: Cluster, legacy: Option<LegacyTable>, work: Duration) -> Arc<Self> {
        let answered = AtomicU64::new(0);
        let busy = AtomicU64::new(0);
        Arc::new(Self { store, cluster, legacy, work, answered, busy, local: Mutex::default() })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn node_id(&self) -> &str {
        self.cluster.node_id()
    }

    /// Leaves the cluster: another node may take over at once.
    pub async fn close(&self) {
        self.cluster.leave().await;
    }

    /// Answers all waiting messages of a session.
    pub async fn answer(&self, session: &str) -> Result<(), AnswerError> {
        match legacy::lock_session(&self.cluster, self.legacy.as_ref(), session).await? {
            Some(locked) => self.answer_under(session, locked).await,
            None => {
                let local = self.local_lock(session);
                let _held = local.lock().await;
                // There are no tokens without locks: the fence stays where it is, and holds back nothing.
                Ok(self.answer_all(session, self.store.fence(session).await?).await?)
            }
        }
    }

    /// The work is dropped when the lock is lost, and the fence refuses writes that were already under way.
    async fn answer_under(&self, session: &str, locked: LockedSession) -> Result<(), AnswerError> {
        let token = i64::try_from(locked.token().0).map_err(anyhow::Error::from)?;
        let fence = Fence { session, token, node_id: self.node_id() };
        let entered = locked.run(self.store.visit(fence, "entered")).await;
        if !matches!(entered, Ok(Ok(()))) {
            // The write may still arrive after this node has lost the session.
            self.leave(fence, "overdue").await;
        }
        entered??;
        self.busy.fetch_add(1, Ordering::Relaxed);
        let worked = locked.run(self.answer_all(session, token)).await;
        self.busy.fetch_sub(1, Ordering::Relaxed);
        self.leave(fence, "left").await;
        // A note written after the deadline, as on an overloaded machine, may follow the next node's entry. That is no
        // violation of the lock.
        if matches!(locked.check(), Err(LockLost::Lease(Lost::Deadline) | LockLost::Row(_))) {
            self.leave(fence, "overdue").await;
        }
        if let Err(error) = locked.release().await {
            tracing::debug!(%error, session, "cannot release the session lock; it expires after its ttl");
        }
        Ok(worked??)
    }

    /// Records that this node has left the session, before another node can enter.
    async fn leave(&self, fence: Fence<'_>, how: &str) {
        for _ in 0..LEAVE_TRIES {
            match self.store.visit(fence, how).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "cannot record that this node left a session"
                    )
                }
            }
        }
    }

    async fn answer_all(&self, session: &str, token: i64) -> Result<()> {
        let fence = Fence { session, token, node_id: self.node_id() };
        while let Some(message) = self.store.next_unanswered(session).await? {
            self.store.begin(fence, message.position).await?;
            let reply = self.think(&message).await;
            self.store.answer(fence, message.position, &reply).await?;
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn think(&self, message: &OpenMessage) -> String {
        tokio::time::sleep(self.work).await;
        format!("you said: {}", message.text)
    }

    fn local_lock(&self, session: &str) -> Arc<AsyncMutex<()>> {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = local.get(session).and_then(Weak::upgrade) {
            return lock;
        }
        local.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
        local.insert(session.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// Answers messages that other nodes left unanswered, forever.
    pub async fn answer_abandoned(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let left = self.store.left_behind(LEFT_BEHIND_MS, TAKE_UP_MAX).await;
            let sessions = left.unwrap_or_else(|error| {
                tracing::warn!(error = format!("{error:#}"), "cannot look for unanswered messages; retrying");
                Vec::new()
            });
            for session in sessions {
                if let Err(busy) = self.answer(&session).await {
                    tracing::debug!(%busy, session, "another node is answering this session");
                }
            }
        }
    }

    /// Publishes this node's metrics, forever.
    pub async fn publish_metrics(self: Arc<Self>) {
        loop {
            self.cluster.set_metrics(&self.metrics());
            tokio::time::sleep(TELL_EVERY).await;
        }
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.insert("answered".to_owned(), self.answered.load(Ordering::Relaxed).into());
        metrics.insert("busy".to_owned(), self.busy.load(Ordering::Relaxed).into());
        metrics
    }

    /// This node, and all live nodes.
    pub async fn health(&self) -> Value {
        let mut health = self.cluster.health();
        health["answered"] = self.answered.load(Ordering::Relaxed).into();
        health["busy"] = self.busy.load(Ordering::Relaxed).into();
        health["warnings"] = json!(self.cluster.warnings());
        health["nodes"] = match self.cluster.nodes().await {
            Ok(nodes) => nodes.iter().map(|n| json!({"node_id": n.node_id, "metrics": n.metrics})).collect(),
            // Health is answered even while the database is away.
            Err(error) => json!({"error": error.to_string()}),
        };
        health
    }

    pub async fn route(&self, session: &str) -> Result<Option<String>, solehold_client::AuthorityError> {
        self.cluster.route(session).await
    }
}
