//! The consumer's side of a partition: parses commands, commits batches of them, and starts the partition's owner.

use deadpool_postgres::Transaction;
use solehold_kafka::{Done, Failure, Handler, Leaving, Message};
use solehold_sql::{Error, partitions::Tenure};

use super::PartitionOwner;
use crate::{
    batch::{Arrival, Tally},
    model::command::Command,
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
        let arrivals = done.iter().map(|done| {
            Arrival::of(&done.message, done.effect.clone().map_err(|failure| failure.to_string()))
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
