//! `solehold orchestrator begin-anew`: continues with a topic that was deleted and created again.

use std::{path::Path, time::Duration};

use solehold_sql::partitions::{Partition, PartitionRow};

use super::start::open;
use crate::{
    config::{self, Flags, Settings},
    error::RunError,
    store::{BegunAnew, Store},
};
use solehold_kafka::{ConsumerSettings, Identity, identify};

/// Resets the partitions to their first message. Without `force`, the topic must be provably another one: commands of
/// the same topic would be consumed again. Running owners are fenced, and start over.
pub async fn begin_anew(path: &Path, flags: Flags, force: bool) -> Result<BegunAnew, RunError> {
    let settings = config::load(path, |file| flags.apply(file))?;
    let (store, _) = open(&settings, Duration::ZERO).await?;
    let rows = rows(&settings, &store).await.map_err(RunError::database)?;
    if !force {
        check_is_another(&settings, rows).await?;
    }
    let ConsumerSettings { group, topic, .. } = &settings.consumer;
    store.begin_anew(group, topic).await.map_err(RunError::database)
}

/// The rows of all partitions. Missing rows are created, so that those partitions also start at their first message,
/// not at the position of the consumer group.
async fn rows(
    settings: &Settings,
    store: &Store,
) -> Result<Vec<(Partition, PartitionRow)>, solehold_sql::Error> {
    let client = store.pool.get().await?;
    let mut rows = Vec::new();
    for number in 0..settings.consumer.partitions {
        let partition = Partition {
            group: settings.consumer.group.clone(),
            topic: settings.consumer.topic.clone(),
            number,
        };
        let row = store.partitions.look(&**client, &partition).await?;
        rows.push((partition, row));
    }
    Ok(rows)
}

/// Rejects a topic that is, or may be, the same.
async fn check_is_another(settings: &Settings, rows: Vec<(Partition, PartitionRow)>) -> Result<(), RunError> {
    let topic = &settings.consumer.topic;
    let mut is_another = false;
    for (partition, row) in rows {
        let number = partition.number;
        let brokers = settings.kafka.brokers.clone();
        let asked = tokio::task::spawn_blocking(move || identify(&brokers, &partition, &row)).await;
        let asked = asked.map_err(|error| RunError::Failed(error.to_string()))?;
        match asked.map_err(|error| RunError::Unavailable(format!("kafka: {error}")))? {
            Identity::Same => {
                return Err(RunError::Usage(format!(
                    "topic {topic} was not created again: partition {number} has a message that took effect. Nothing was \
                     changed, since its commands would take effect again; use --force to begin anew nevertheless"
                )));
            }
            Identity::Another(why) => {
                tracing::info!(partition = number, reason = why, "topic was created again");
                is_another = true;
            }
            Identity::Unknown => {}
        }
    }
    if is_another {
        return Ok(());
    }
    Err(RunError::Usage(format!(
        "cannot verify that topic {topic} was created again: no partition ends before its position, and none has a \
         message to compare. Nothing was changed; use --force to begin anew nevertheless"
    )))
}
