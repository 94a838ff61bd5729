//! Times out attempts, and deletes rows that are no longer needed. Each finds candidates without a lock; whether they
//! qualify is decided again in a transaction under the epoch.

use crate::{
    model::{
        job::Input,
        limits::{CLEANING_BATCH, SWEEP_BATCH},
    },
    orchestrator::{Next, StepError},
    store::IMPORTED,
};

use super::PartitionOwner;

impl PartitionOwner<'_> {
    /// Times out attempts whose deadline has passed.
    pub(super) async fn time_out_attempts(&self) -> Result<Next, StepError> {
        let store = self.orchestrator.store();
        let client = store.pool.get().await?;
        let overdue = store.overdue(&client, self.partition(), SWEEP_BATCH).await?;
        drop(client);
        if overdue.is_empty() {
            return Ok(Next::Idle);
        }
        self.orchestrator
            .transact(self.tenure, async |batch, _| {
                batch.load(overdue.iter().map(|(job, ..)| job.as_str())).await?;
                for (job, stage, attempt) in &overdue {
                    let input = Input::Timeout { stage: stage.clone(), attempt: *attempt };
                    if let Err(rejection) = batch.apply(job, &input) {
                        tracing::debug!(job, stage, %rejection, "stage timeout had no effect");
                    }
                }
                Ok(())
            })
            .await?;
        self.orchestrator.metrics.timeouts(overdue.len());
        Ok(Next::Now)
    }

    /// Deletes a batch of marks, dead letters and mail that are older than the retention and whose messages lie behind
    /// the partition's position.
    pub(super) async fn clean(&self) -> Result<Next, StepError> {
        let parts = &self.orchestrator.parts;
        let store = self.orchestrator.store();
        let client = store.pool.get().await?;
        let row = store.partitions.look(&**client, &self.tenure.partition).await?;
        if row.epoch != self.tenure.epoch {
            return Err(StepError::Fenced);
        }
        let Some(below) = row.next_offset else { return Ok(Next::Idle) };
        let partition = self.partition();
        let retention = parts.inbox_retention;
        let scope = partition.to_string();
        store.inbox.prune_below(&**client, &scope, below, retention, CLEANING_BATCH).await?;
        // Imported marks belong to no partition, so every owner deletes old ones. Only their age is known.
        store.inbox.prune_below(&**client, IMPORTED, i64::MAX, retention, CLEANING_BATCH).await?;
        store.prune_unreadable_mail(&client, partition, parts.job_retention, CLEANING_BATCH).await?;
        store.prune_dead_letters(&client, partition, below, retention, CLEANING_BATCH).await?;
        drop(client);
        self.delete_old_jobs().await
    }

    /// Deletes a batch of jobs that ended longer ago than the retention.
    async fn delete_old_jobs(&self) -> Result<Next, StepError> {
        let store = self.orchestrator.store();
        let partition = self.partition();
        let retention = self.orchestrator.parts.job_retention;
        let client = store.pool.get().await?;
        let old = store.old_jobs(&client, partition, retention, CLEANING_BATCH).await?;
        if old.is_empty() {
            // Pipelines belong to no partition, so every owner deletes unused ones.
            store.delete_pipelines(&client, CLEANING_BATCH).await?;
            return Ok(Next::Idle);
        }
        drop(client);
        self.orchestrator
            .transact(self.tenure, async |_, client| {
                let deleted = store.delete_jobs(client, partition, retention, &old).await?;
                tracing::debug!(partition, deleted, "deleted old jobs");
                Ok(())
            })
            .await?;
        Ok(Next::Paused)
    }
}
