//! The outbox table: tasks, events and copies of dead letters to send. A row is written together with the change that
//! causes it, and deleted once its receiver has confirmed it.
//!
//! The number of a row is drawn under the lock of its partition's row. So numbers are in the order of commits: no row
//! appears later with a lower number than one that was read. Each channel (a dispatcher, the events, the dead letters)
//! is sent separately, so that a stuck channel does not hold up the others.

use std::ops::Range;

use serde_json::{Value, json};
use solehold_sql::{Error, partitions::Tenure};
use tokio_postgres::{
    Client,
    types::{ToSql, Type},
};

use crate::model::task::TaskId;
use crate::store::Store;

#[derive(Debug, Clone, PartialEq)]
pub enum OutboxKind {
    /// Send the task.
    Send(TaskId),
    /// Request workers to drop the task.
    Revoke(TaskId),
    /// Publish the event.
    Event(Value),
    /// Publish a copy of the dead letter at this position.
    DeadLetter { position: i64, generation: i64 },
}

#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// The name of a dispatcher, or `events` or `letters`.
    pub channel: &'static str,
    /// Rows of one job are sent one after another. For a dead letter, its key.
    pub job_id: String,
    pub kind: OutboxKind,
}

/// The channels of the outbox besides the dispatchers.
pub(crate) const EVENTS: &str = "events";
pub(crate) const LETTERS: &str = "letters";

impl Store {
    pub(crate) async fn insert_outbox(
        &self,
        client: &Client,
        tenure: &Tenure,
        first: i64,
        rows: &[OutboxRow],
    ) -> Result<(), Error> {
        let channels: Vec<&str> = rows.iter().map(|row| row.channel).collect();
        let jobs: Vec<&str> = rows.iter().map(|row| row.job_id.as_str()).collect();
        let mut kinds: Vec<&str> = Vec::with_capacity(rows.len());
        let mut stages: Vec<Option<&str>> = Vec::with_capacity(rows.len());
        let mut attempts: Vec<Option<i32>> = Vec::with_capacity(rows.len());
        let mut documents: Vec<Option<Value>> = Vec::with_capacity(rows.len());
        for row in rows {
            let (kind, task, document) = match &row.kind {
                OutboxKind::Send(task) => ("send", Some(task), None),
                OutboxKind::Revoke(task) => ("revoke", Some(task), None),
                OutboxKind::Event(document) => ("event", None, Some(document.clone())),
                OutboxKind::DeadLetter { position, generation: 0 } => ("letter", None, Some(json!(position))),
                OutboxKind::DeadLetter { position, generation } => {
                    ("letter", None, Some(json!([position, generation])))
                }
            };
            kinds.push(kind);
            stages.push(task.map(|task| task.stage.as_str()));
            attempts.push(task.map(|task| i32::try_from(task.attempt).unwrap_or(i32::MAX)));
            documents.push(document);
        }
        let insert = format!(
            "INSERT INTO {} (partition, channel, sequence, job_id, kind, stage, attempt, document) \
             SELECT $1, channel, $2 + place - 1, job, kind, stage, attempt, document \
             FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::json[]) \
             WITH ORDINALITY AS given (channel, job, kind, stage, attempt, document, place)",
            self.table("outbox")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 8] = [
            (&tenure.partition.number, Type::INT4),
            (&first, Type::INT8),
            (&channels, Type::TEXT_ARRAY),
            (&jobs, Type::TEXT_ARRAY),
            (&kinds, Type::TEXT_ARRAY),
            (&stages, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&documents, Type::JSON_ARRAY),
        ];
        client.execute_typed(&insert, &parameters).await?;
        Ok(())
    }

    /// The first rows of a channel whose numbers are in this range, with their numbers.
    pub async fn outbox(
        &self,
        client: &Client,
        partition: i32,
        channel: &'static str,
        numbers: Range<i64>,
        limit: i64,
    ) -> Result<Vec<(i64, OutboxRow)>, Error> {
        let read = format!(
            "SELECT sequence, job_id, kind, stage, attempt, document FROM {} WHERE partition = $1 AND channel = $2 \
             AND sequence >= $3 AND sequence < $4 ORDER BY sequence LIMIT $5",
            self.table("outbox")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&partition, Type::INT4),
            (&channel, Type::TEXT),
            (&numbers.start, Type::INT8),
            (&numbers.end, Type::INT8),
            (&limit, Type::INT8),
        ];
        let rows = client.query_typed(&read, &parameters).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let job_id: String = row.get(1);
            let task = || TaskId {
                job: job_id.clone(),
                stage: row.get::<_, Option<String>>(3).unwrap_or_default(),
                attempt: row.get::<_, Option<i32>>(4).unwrap_or_default().unsigned_abs(),
            };
            let document = || row.try_get::<_, Option<Value>>(5).map(Option::unwrap_or_default);
            let kind = match row.get::<_, &str>(2) {
                "send" => OutboxKind::Send(task()),
                "revoke" => OutboxKind::Revoke(task()),
                "letter" => dead_letter(&document()?),
                _ => OutboxKind::Event(document()?),
            };
            found.push((row.get(0), OutboxRow { channel, job_id: job_id.clone(), kind }));
        }
        Ok(found)
    }

    /// The channels that have something to send, of all partitions. It goes from the first row of one channel to that
    /// of the next, however many there are between them.
    pub async fn channels(&self) -> Result<Vec<String>, Error> {
        let client = self.pool.get().await?;
        let read = format!(
            "WITH RECURSIVE found AS ((SELECT partition, channel FROM {0} ORDER BY partition, channel LIMIT 1) \
             UNION ALL SELECT next.* FROM found, LATERAL (SELECT partition, channel FROM {0} AS outbox \
             WHERE (outbox.partition, outbox.channel) > (found.partition, found.channel) \
             ORDER BY partition, channel LIMIT 1) AS next) SELECT DISTINCT channel FROM found",
            self.table("outbox")
        );
        let rows = client.query_typed(&read, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    pub async fn delete_outbox(
        &self,
        client: &Client,
        tenure: &Tenure,
        channel: &str,
        sequences: &[i64],
    ) -> Result<(), Error> {
        let delete = format!(
            "DELETE FROM {} WHERE partition = $1 AND channel = $2 AND sequence = ANY($3)",
            self.table("outbox")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&tenure.partition.number, Type::INT4), (&channel, Type::TEXT), (&sequences, Type::INT8_ARRAY)];
        client.execute_typed(&delete, &parameters).await?;
        Ok(())
    }
}

/// Reads the position of a dead letter, with the generation of its topic unless that is the first.
fn dead_letter(document: &Value) -> OutboxKind {
    let (position, generation) = match document {
        Value::Array(parts) => (parts.first(), parts.get(1)),
        position => (Some(position), None),
    };
    let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or_default();
    OutboxKind::DeadLetter { position: number(position), generation: number(generation) }
}
