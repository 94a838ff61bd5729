//! What people and programs read: it takes no lock and may be a moment old.

use solehold_sql::Error;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use super::{
    Store,
    rows::{job_state, labels_of},
};
use crate::{
    command::Labels,
    job::{Job, JobState},
};

/// Which jobs.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// In this state only.
    pub state: Option<JobState>,
    /// After this id.
    pub after: Option<String>,
    /// At most so many.
    pub limit: i64,
}

/// A job as lists show it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    /// Its id.
    pub id: String,
    /// Its partition.
    pub partition: i32,
    /// The key of its commands.
    pub key: String,
    /// What it is about, and whose it is.
    pub labels: Labels,
    /// How it stands.
    pub state: JobState,
    /// How far it is, from 0 to 1.
    pub progress: f64,
    /// Why it failed.
    pub reason: Option<String>,
    /// When it was created.
    pub created_ms: i64,
    /// When it ended.
    pub finished_ms: Option<i64>,
}

/// What an orchestrator still has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// Jobs that are under way.
    pub running: i64,
    /// Entries of the outbox.
    pub unsent: i64,
    /// Letters that nobody has decided on.
    pub letters: i64,
}

impl Store {
    /// What is left to do, in all partitions.
    pub(crate) async fn left(&self, client: &Client) -> Result<Left, Error> {
        let count = format!(
            "SELECT (SELECT count(*) FROM {} WHERE state = $1), (SELECT count(*) FROM {}), \
             (SELECT count(*) FROM {} WHERE resolved_ms IS NULL)",
            self.table("jobs"),
            self.table("outbox"),
            self.table("letters")
        );
        let row = client.query_typed_one(&count, &[(&JobState::Running.name(), Type::TEXT)]).await?;
        Ok(Left { running: row.get(0), unsent: row.get(1), letters: row.get(2) })
    }

    /// Jobs in the order of their ids.
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<Vec<JobSummary>, Error> {
        let client = self.pool.get().await?;
        let state = filter.state.map(JobState::name);
        let after = filter.after.as_deref().unwrap_or_default();
        let of_state = if state.is_some() { "state = $1" } else { "$1::text IS NULL" };
        let read = format!(
            "SELECT job_id, partition, key, labels, state, reason, created_ms, finished_ms, \
             (SELECT coalesce(avg(progress), 0) FROM {} AS s WHERE s.job_id = j.job_id) \
             FROM {} AS j WHERE {of_state} AND job_id > $2 ORDER BY job_id LIMIT $3",
            self.table("stages"),
            self.table("jobs"),
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&state, Type::TEXT), (&after, Type::TEXT), (&filter.limit, Type::INT8)];
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
            })
        };
        rows.iter().map(summary).collect()
    }

    /// One job, and its partition.
    pub async fn job(&self, id: &str) -> Result<Option<(Job, i32)>, Error> {
        let client = self.pool.get().await?;
        let kept = self.load(&client, &[id]).await?.pop();
        Ok(kept.map(|kept| (kept.job, kept.partition)))
    }

    /// Several jobs, as far as there are any.
    pub async fn jobs(&self, ids: &[&str]) -> Result<Vec<Job>, Error> {
        let client = self.pool.get().await?;
        Ok(self.load(&client, ids).await?.into_iter().map(|kept| kept.job).collect())
    }
}
