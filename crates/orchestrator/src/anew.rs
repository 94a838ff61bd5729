//! `solehold orchestrator begin-anew`: lets an orchestrator go on with a topic that was deleted and made anew.

use std::{path::Path, time::Duration};

use solehold_sql::partitions::{Partition, PartitionRow};

use crate::running::{BegunAnew, Flags, RunError};
use crate::{
    config::{self, Settings},
    run::{apply, open},
    store::Store,
};
use solehold_kafka::{Identity, identify};

/// Lets the partitions begin with the first message that is there. Without `force`, the topic must be seen to be
/// another one: commands of one that is the same would come again. Owners that still run are fenced, and begin again.
pub async fn begin_anew(path: &Path, flags: Flags, force: bool) -> Result<BegunAnew, RunError> {
    let settings = config::load(path, |file| apply(flags, file))?;
    let (store, _) = open(&settings, Duration::ZERO).await?;
    let rows = rows(&settings, &store).await.map_err(of_database)?;
    if !force {
        make_sure(&settings, rows).await?;
    }
    store.begin_anew(&settings.kafka.group, &settings.kafka.topic).await.map_err(of_database)
}

fn of_database(error: solehold_sql::Error) -> RunError {
    RunError::Unavailable(format!("the database of jobs: {error}"))
}

/// The rows of all partitions. Those of partitions that nobody ever had are made, so that they begin anew, too, and not
/// where the consumer group was.
async fn rows(
    settings: &Settings,
    store: &Store,
) -> Result<Vec<(Partition, PartitionRow)>, solehold_sql::Error> {
    let client = store.pool().get().await?;
    let mut rows = Vec::new();
    for number in 0..settings.kafka.partitions {
        let (group, topic) = (settings.kafka.group.clone(), settings.kafka.topic.clone());
        let partition = Partition { group, topic, number };
        let row = store.partitions().look(&**client, &partition).await?;
        rows.push((partition, row));
    }
    Ok(rows)
}

/// Refuses a topic that is the same, or may be.
async fn make_sure(settings: &Settings, rows: Vec<(Partition, PartitionRow)>) -> Result<(), RunError> {
    let topic = &settings.kafka.topic;
    let mut is_another = false;
    for (partition, row) in rows {
        let number = partition.number;
        let brokers = settings.kafka.brokers.clone();
        let asked = tokio::task::spawn_blocking(move || identify(&brokers, &partition, &row)).await;
        let asked = asked.map_err(|error| RunError::Failed(error.to_string()))?;
        match asked.map_err(|error| RunError::Unavailable(format!("kafka: {error}")))? {
            Identity::Same => {
                return Err(RunError::Usage(format!(
                    "topic {topic} was not made anew: partition {number} has a message that took effect. Nothing was \
                     changed, since commands that took effect would come again; --force begins anew all the same"
                )));
            }
            Identity::Another(why) => {
                tracing::info!(partition = number, why, "the topic was made anew");
                is_another = true;
            }
            Identity::Unknown => {}
        }
    }
    if is_another {
        return Ok(());
    }
    Err(RunError::Usage(format!(
        "it cannot be seen that topic {topic} was made anew: no partition is behind its position, and none has a message \
         that could be compared. Nothing was changed; --force begins anew all the same"
    )))
}
