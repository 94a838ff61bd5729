//! The consumer's side of a partition: parses commands, commits batches of them, and starts the partition's owner.

use deadpool_postgres::Transaction;
use solehold_kafka::{Done, Failure, Handler, Leaving, Message};
use solehold_sql::{Error, partitions::Tenure};

use super::PartitionOwner;
use crate::{
    batch::{Arrival, Tally},
    model::{command::Command, limits},
    orchestrator::Orchestrator,
};

impl Handler for Orchestrator {
    type Effect = Command;
    type Receipt = Tally;

    async fn work(&self, message: &Message) -> Result<Command, Failure> {
        let parsed = self.parts.commands.parse(message.payload.as_deref(), message.key.as_deref());
        parsed.map_err(|error| Failure::Poison(error.to_string()))
    }

    async fn commit(
        &self,
        transaction: &Transaction<'_>,
        tenure: &Tenure,
        done: &[Done<Command>],
    ) -> Result<Tally, Error> {
        let client = tokio_postgres::GenericClient::client(&**transaction);
        let mut batch = self.batch(client, tenure).await?;
        let arrivals = done.iter().map(|done| Arrival {
            position: done.message.offset,
            key: key_of(&done.message),
            payload: done.message.payload.as_ref().map(|payload| payload.to_vec()),
            digest: done.message.digest(),
            generation: None,
            command: done.effect.clone().map_err(|failure| failure.to_string()),
        });
        batch.take(arrivals.collect()).await?;
        batch.write().await
    }

    fn committed(&self, tenure: &Tenure, tally: Tally) {
        self.after_commit(tenure, &tally);
    }

    async fn attend(&self, tenure: Tenure, leaving: Leaving) {
        PartitionOwner::new(self, &tenure).run(leaving).await;
    }
}

/// The key of a message as text that fits into an index. PostgreSQL stores no zero characters.
fn key_of(message: &Message) -> String {
    let key = message.key.as_deref().unwrap_or_default();
    let text = String::from_utf8_lossy(key).replace('\0', "\u{fffd}");
    if text.len() <= limits::KEY_BYTES_MAX {
        return text;
    }
    let kept: String = text.chars().take(limits::KEY_CHARS_KEPT).collect();
    format!("{kept}... ({} bytes)", key.len())
}
