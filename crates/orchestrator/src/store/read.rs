//! Reads without a lock: the result may be outdated by the time it is used.

use serde::Serialize;
use solehold_sql::Error;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::model::job::{Job, JobState, Labels};
use crate::store::{
    NOW_MS, Store,
    rows::{job_state, labels_of},
};

/// A job in a list. The fields are those of [`Job`].
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    pub id: String,
    pub partition: i32,
    /// The present epoch of the partition.
    pub epoch: Option<i64>,
    /// The highest attempt of its stages.
    pub attempts: i32,
    pub key: String,
    pub labels: Labels,
    pub state: JobState,
    pub progress: f64,
    pub reason: Option<String>,
    pub created_ms: i64,
    pub finished_ms: Option<i64>,
}

/// Remaining work of an orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemainingWork {
    /// Jobs in state `running`.
    pub running: i64,
    /// Tasks, events and copies of dead letters that were not sent.
    pub unsent: i64,
    /// Dead letters that are neither redriven nor discarded.
    pub letters: i64,
}

impl Store {
    /// Counts the remaining work of all partitions.
    pub(crate) async fn remaining_work(&self, client: &Client) -> Result<RemainingWork, Error> {
        let count = format!(
            "SELECT (SELECT count(*) FROM {} WHERE state = $1), (SELECT count(*) FROM {}), \
             (SELECT count(*) FROM {} WHERE resolved_ms IS NULL)",
            self.table("jobs"),
            self.table("outbox"),
            self.table("letters")
        );
        let row = client.query_typed_one(&count, &[(&JobState::Running.name(), Type::TEXT)]).await?;
        Ok(RemainingWork { running: row.get(0), unsent: row.get(1), letters: row.get(2) })
    }

    /// Jobs in the order of their ids, after this id.
    pub async fn list_jobs(
        &self,
        state: Option<JobState>,
        after: &str,
        limit: i64,
    ) -> Result<Vec<JobSummary>, Error> {
        let client = self.pool.get().await?;
        let state = state.map(JobState::name);
        let of_state = if state.is_some() { "state = $1" } else { "$1::text IS NULL" };
        let read = format!(
            "SELECT job_id, partition, key, labels, state, reason, created_ms, finished_ms, \
             (SELECT coalesce(avg(progress), 0) FROM {0} AS s WHERE s.job_id = j.job_id), \
             (SELECT coalesce(max(attempt), 0) FROM {0} AS s WHERE s.job_id = j.job_id), \
             (SELECT max(epoch) FROM {1} AS p WHERE p.partition = j.partition) \
             FROM {2} AS j WHERE {of_state} AND job_id > $2 ORDER BY job_id LIMIT $3",
            self.table("stages"),
            self.table("partitions"),
            self.table("jobs"),
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&state, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let rows = client.query_typed(&read, &parameters).await?;
        let summary = |row: &tokio_postgres::Row| {
            Ok(JobSummary {
                id: row.get(0),
                partition: row.get(1),
                key: row.get(2),
                labels: labels_of(row.try_get(3)?)?,
                state: job_state(row.get(4))?,
                reason: row.get(5),
                created_ms: row.get(6),
                finished_ms: row.get(7),
                progress: row.get(8),
                attempts: row.get(9),
                epoch: row.get(10),
            })
        };
        rows.iter().map(summary).collect()
    }

    pub async fn job(&self, id: &str) -> Result<Option<(Job, i32)>, Error> {
        let client = self.pool.get().await?;
        let kept = self.load(&client, &[id]).await?.pop();
        Ok(kept.map(|kept| (kept.job, kept.partition)))
    }

    /// Those of these jobs that exist.
    pub async fn jobs(&self, ids: &[&str]) -> Result<Vec<Job>, Error> {
        let client = self.pool.get().await?;
        Ok(self.load(&client, ids).await?.into_iter().map(|kept| kept.job).collect())
    }

    /// The job, stage and attempt of stages whose deadline has passed.
    pub async fn overdue(
        &self,
        client: &Client,
        partition: i32,
        limit: i64,
    ) -> Result<Vec<(String, String, u32)>, Error> {
        let read = format!(
            "SELECT job_id, stage, attempt FROM {} WHERE partition = $1 AND deadline_ms IS NOT NULL \
             AND deadline_ms <= {NOW_MS} ORDER BY deadline_ms LIMIT $2",
            self.table("stages")
        );
        let rows = client.query_typed(&read, &[(&partition, Type::INT4), (&limit, Type::INT8)]).await?;
        let overdue = rows.iter().map(|row| (row.get(0), row.get(1), row.get::<_, i32>(2).unsigned_abs()));
        Ok(overdue.collect())
    }
}
