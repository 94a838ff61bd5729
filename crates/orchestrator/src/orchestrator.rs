//! What the partition owners of one process share, the transaction in which they change jobs, and the outcome of a step
//! of their background work.

use std::{sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_sql::{
    Error,
    partitions::{Standing, Tenure},
};
use tokio_postgres::Client;

use crate::{
    batch::{Batch, Rules, Tally},
    dispatch::Dispatchers,
    mailbox::Mailbox,
    metrics::Metrics,
    model::{command::Mapping, pipeline::Pipeline},
    publish::Publish,
    store::Store,
};

#[derive(Clone)]
pub struct Parts {
    /// The way in for reports and requests, with the store.
    pub mailbox: Arc<Mailbox>,
    pub commands: Arc<Mapping>,
    pub pipeline: Arc<Pipeline>,
    pub dispatchers: Dispatchers,
    /// Publishes events and copies of dead letters.
    pub publisher: Arc<dyn Publish>,
    pub events_topic: Option<String>,
    pub dead_letter_topic: Option<String>,
    pub inbox_retention: Duration,
    /// How long finished jobs are kept: no less than their marks.
    pub job_retention: Duration,
}

/// Everything that the partition owners of one process share. Cheap to clone.
#[derive(Clone)]
pub struct Orchestrator {
    pub parts: Parts,
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orchestrator").field("store", self.store()).finish_non_exhaustive()
    }
}

impl Orchestrator {
    /// An orchestrator of these parts. Nothing runs yet.
    pub fn new(parts: Parts) -> Self {
        let metrics = Arc::new(Metrics::new(parts.mailbox.without_job.clone()));
        Self { parts, metrics }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.parts.mailbox.store
    }

    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.parts.mailbox
    }

    /// Begins a batch in a transaction that has checked the epoch.
    pub(crate) async fn batch<'a>(
        &'a self,
        client: &'a Client,
        tenure: &'a Tenure,
    ) -> Result<Batch<'a>, Error> {
        let rules = Rules {
            mapping: &self.parts.commands,
            pipeline: &self.parts.pipeline,
            has_events: self.parts.events_topic.is_some(),
            has_dead_letters: self.parts.dead_letter_topic.is_some(),
        };
        Batch::begin(self.store(), client, tenure, rules).await
    }

    /// Changes jobs in one transaction that first checks the epoch of the partition.
    pub(crate) async fn transact(
        &self,
        tenure: &Tenure,
        work: impl AsyncFnOnce(&mut Batch<'_>, &Client) -> Result<(), Error>,
    ) -> Result<(), StepError> {
        let mut client = self.store().pool.get().await?;
        let tx = client.transaction().await?;
        if self.store().partitions.check(&*tx, tenure).await? == Standing::Fenced {
            return Err(StepError::Fenced);
        }
        let tally = {
            let client = tokio_postgres::GenericClient::client(&*tx);
            let mut batch = self.batch(client, tenure).await?;
            work(&mut batch, client).await?;
            batch.write().await?
        };
        tx.commit().await?;
        self.after_commit(tenure, &tally);
        Ok(())
    }

    /// Counts what a transaction did, and notifies the outbox senders and the owners of other partitions.
    pub(crate) fn after_commit(&self, tenure: &Tenure, tally: &Tally) {
        self.metrics.add(tally);
        let mailbox = &self.parts.mailbox;
        mailbox.count_without_job(&tally.without_job);
        mailbox.notifier.outbox(tenure.partition.number);
        mailbox.notifier.mail(&tally.mailed);
    }

    /// Checks the epoch without a lock, to spare workers duplicates of tasks that another owner sends.
    pub(crate) async fn check_owner(&self, tenure: &Tenure) -> Result<(), StepError> {
        let client = self.store().pool.get().await?;
        let row = self.store().partitions.look(&**client, &tenure.partition).await?;
        if row.epoch == tenure.epoch { Ok(()) } else { Err(StepError::Fenced) }
    }
}

/// When the next step is due.
pub(crate) enum Next {
    /// At once: there may be more to do.
    Now,
    /// When a signal arrives, or at the next poll.
    Idle,
    /// After a short pause, signal or not.
    Paused,
    /// At this time, or when a signal arrives.
    At(BootTime),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("the partition has another owner")]
    Fenced,
    #[error(transparent)]
    Database(#[from] Error),
}

impl From<tokio_postgres::Error> for StepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<deadpool_postgres::PoolError> for StepError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Database(error.into())
    }
}
