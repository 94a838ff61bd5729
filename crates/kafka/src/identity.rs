//! Whether a topic is still the one whose messages took effect.

use std::time::Duration;

use rdkafka::{
    Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaResult,
};
use solehold_clock::BootTime;
use solehold_sql::partitions::{Partition, PartitionRow};

use super::{Brokers, HEARD_WITHIN, Trouble, poll::owned};

/// How long the broker may take for one answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// What a partition of a topic is, by its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// It has a message that took effect.
    Same,
    /// It is that of a topic which was made anew, for this reason.
    Another(String),
    /// Nothing has taken effect, or what has is deleted.
    Unknown,
}

/// Compares the messages of a partition with what took effect. It waits for the broker: call it on a thread for that.
pub fn identify(brokers: &Brokers, partition: &Partition, row: &PartitionRow) -> Result<Identity, String> {
    let mut config = brokers.client().map_err(|error| error.to_string())?;
    config.set("group.id", &partition.group).set("enable.auto.commit", "false");
    // It is assigned a partition and never joins its group.
    let client =
        Asking::from_config_and_context(&config, Trouble::kept()).map_err(|error| error.to_string())?;
    compare(&client, partition, row).map_err(|error| {
        client.poll(HEARD_WITHIN);
        client.context().last().map_or_else(|| error.to_string(), |reason| reason.text)
    })
}

type Asking = BaseConsumer<Trouble>;

fn compare(client: &Asking, partition: &Partition, row: &PartitionRow) -> KafkaResult<Identity> {
    let Some(next) = row.next_offset else { return Ok(Identity::Unknown) };
    let Partition { topic, number, .. } = partition;
    let (low, high) = client.fetch_watermarks(topic, *number, ANSWERED_WITHIN)?;
    if next > high {
        let why = format!("everything below offset {next} took effect, and the broker has {low} to {high}");
        return Ok(Identity::Another(why));
    }
    let Some(landmark) = row.landmark.filter(|landmark| (low..high).contains(&landmark.offset)) else {
        return Ok(Identity::Unknown);
    };
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, *number, Offset::Offset(landmark.offset))?;
    client.assign(&list)?;
    let until = BootTime::now().plus(ANSWERED_WITHIN);
    loop {
        let left = until.since(BootTime::now());
        if left.is_zero() {
            return Ok(Identity::Unknown);
        }
        let Some(message) = client.poll(left).transpose()?.map(|message| owned(&message)) else { continue };
        return Ok(match message.offset == landmark.offset {
            true if message.digest() == landmark.digest => Identity::Same,
            true => Identity::Another(format!("offset {} has another message", landmark.offset)),
            false => Identity::Unknown,
        });
    }
}
