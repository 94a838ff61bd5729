//! Deletes jobs that ended long ago, by the database's clock, and pipelines that no job uses.

use std::time::Duration;

use solehold_sql::Error;
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::model::job::millis;
use crate::store::{NOW_MS, Store};

/// An unused pipeline is deleted when no job was created with it for this long: much longer than `USED_EVERY_MS` and
/// any transaction.
const UNUSED_FOR_MS: i64 = 24 * 60 * 60 * 1_000;

impl Store {
    /// The condition for deleting a job: it has no mail, and its key has no unresolved dead letter in any partition.
    fn is_old(&self) -> String {
        format!(
            "jobs.partition = $1 AND jobs.finished_ms < {NOW_MS} - $2 \
             AND NOT EXISTS (SELECT FROM {mailbox} AS mail WHERE mail.partition = $1 AND mail.subject = jobs.job_id) \
             AND NOT EXISTS (SELECT FROM {letters} AS letter WHERE letter.resolved_ms IS NULL \
             AND letter.key = jobs.key)",
            mailbox = self.table("mailbox"),
            letters = self.table("letters")
        )
    }

    /// Jobs of a partition that ended longer ago than `older_than`, the oldest first.
    pub async fn old_jobs(
        &self,
        client: &Client,
        partition: i32,
        older_than: Duration,
        limit: i64,
    ) -> Result<Vec<String>, Error> {
        let read = format!(
            "SELECT job_id FROM {} AS jobs WHERE {} ORDER BY jobs.finished_ms LIMIT $3",
            self.table("jobs"),
            self.is_old()
        );
        let age_ms = millis(older_than);
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&age_ms, Type::INT8), (&limit, Type::INT8)];
        let rows = client.query_typed(&read, &parameters).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Deletes these jobs and their stages if the condition still holds, in a transaction that has checked the epoch.
    pub async fn delete_jobs(
        &self,
        client: &Client,
        partition: i32,
        older_than: Duration,
        ids: &[String],
    ) -> Result<u64, Error> {
        let delete = format!(
            "WITH old AS (DELETE FROM {} AS jobs WHERE {} AND jobs.job_id = ANY($3) RETURNING job_id), \
             of_old AS (DELETE FROM {} AS stages USING old WHERE stages.job_id = old.job_id) SELECT count(*) FROM old",
            self.table("jobs"),
            self.is_old(),
            self.table("stages")
        );
        let age_ms = millis(older_than);
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&age_ms, Type::INT8), (&ids, Type::TEXT_ARRAY)];
        let deleted: i64 = client.query_typed_one(&delete, &parameters).await?.get(0);
        Ok(deleted.unsigned_abs())
    }

    /// Deletes at most `limit` unused pipelines; returns how many. The condition is checked again for a pipeline that a
    /// concurrent transaction marks as used.
    pub async fn delete_pipelines(&self, client: &Client, limit: i64) -> Result<u64, Error> {
        let delete = format!(
            "DELETE FROM {pipelines} AS unused WHERE unused.used_ms < {NOW_MS} - {UNUSED_FOR_MS} AND unused.digest IN \
             (SELECT old.digest FROM {pipelines} AS old WHERE old.used_ms < {NOW_MS} - {UNUSED_FOR_MS} \
             AND NOT EXISTS (SELECT FROM {jobs} AS jobs WHERE jobs.pipeline = old.digest) LIMIT $1)",
            pipelines = self.table("pipelines"),
            jobs = self.table("jobs"),
        );
        Ok(client.execute_typed(&delete, &[(&limit, Type::INT8)]).await?)
    }
}
