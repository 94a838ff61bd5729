//! Whether a topic is still the one whose messages were committed, or was deleted and created again.

use std::time::Duration;

use rdkafka::{
    Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
};
use solehold_clock::BootTime;
use solehold_sql::partitions::{Partition, PartitionRow};

use super::{BrokerErrors, Brokers, BrokersError, REPORTED_WITHIN, poll::owned};

/// How long the broker may take for one answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Whether a partition is the one that was consumed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It has a message that was committed.
    Same,
    /// The topic was created again, for this reason.
    Another(String),
    /// No message was committed, or the broker has deleted it.
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Settings(#[from] BrokersError),
    /// No broker can be used, for the reason that librdkafka reported.
    #[error("{0}")]
    Broker(String),
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// Compares the messages of a partition with its row. Blocks while it waits for the broker.
pub fn identify(
    brokers: &Brokers,
    partition: &Partition,
    row: &PartitionRow,
) -> Result<Identity, IdentityError> {
    let mut config = brokers.client()?;
    config.set("group.id", &partition.group).set("enable.auto.commit", "false");
    // It is assigned a partition and never joins its group.
    let client = Reader::from_config_and_context(&config, BrokerErrors::kept())?;
    compare(&client, partition, row).map_err(|error| {
        client.poll(REPORTED_WITHIN);
        client.context().last().map_or(error.into(), |problem| IdentityError::Broker(problem.text))
    })
}

type Reader = BaseConsumer<BrokerErrors>;

fn compare(client: &Reader, partition: &Partition, row: &PartitionRow) -> KafkaResult<Identity> {
    let Some(next) = row.next_offset else { return Ok(Identity::Unknown) };
    let Partition { topic, number, .. } = partition;
    let (low, high) = client.fetch_watermarks(topic, *number, ANSWERED_WITHIN)?;
    if next > high {
        let why = format!("everything below offset {next} took effect, and the broker has {low} to {high}");
        return Ok(Identity::Another(why));
    }
    let Some(checkpoint) = row.checkpoint.filter(|checkpoint| (low..high).contains(&checkpoint.offset))
    else {
        return Ok(Identity::Unknown);
    };
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, *number, Offset::Offset(checkpoint.offset))?;
    client.assign(&list)?;
    let until = BootTime::now().plus(ANSWERED_WITHIN);
    loop {
        let left = until.since(BootTime::now());
        if left.is_zero() {
            return Ok(Identity::Unknown);
        }
        let Some(message) = client.poll(left).transpose()?.map(|message| owned(&message)) else { continue };
        return Ok(if message.offset != checkpoint.offset {
            Identity::Unknown
        } else if message.digest() == checkpoint.digest {
            Identity::Same
        } else {
            Identity::Another(format!("offset {} has another message", checkpoint.offset))
        });
    }
}
