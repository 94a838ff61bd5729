//! `solehold orchestrator drain`: finishes the jobs that were begun, and takes no command.

use std::{path::Path, sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_sql::partitions::{Partition, Raised, Tenure};
use tokio::{sync::watch, task::JoinSet};

use super::{TELL_EVERY, of_database};
use crate::{
    Jobs,
    config::Settings,
    run::{make, with_services},
    running::{Drained, Flags, RunError},
    store::Left,
};
use solehold_kafka::Handler as _;

/// How often the jobs that are left are counted.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// Works for every partition that the orchestrator ever had, beside the consumer group and without its messages, until
/// no job is under way or `ending`. No process of the orchestrator may run meanwhile: one that does, and this, fence
/// each other.
pub async fn drain(
    path: &Path,
    flags: Flags,
    say: impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<Drained, RunError> {
    let made = make(path, flags, true).await?;
    let (settings, jobs) = (made.settings.clone(), made.jobs.clone());
    // It is ready as long as it runs: it waits for no partitions.
    let readiness = Arc::new(|| None);
    with_services(made, readiness, &say, finish(&settings, &jobs, &say, ending)).await
}

async fn finish(
    settings: &Settings,
    jobs: &Jobs,
    say: &impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<Drained, RunError> {
    let (leaving, told) = watch::channel(false);
    let mut attending = JoinSet::new();
    for tenure in take(settings, jobs).await? {
        let (jobs, told) = (jobs.clone(), told.clone());
        attending.spawn(async move {
            let number = tenure.partition.number;
            jobs.attend(tenure, told).await;
            number
        });
    }
    let left = tokio::select! {
        left = until_done(jobs, say) => left?,
        () = ending => count(jobs).await?,
        Some(ended) = attending.join_next() => {
            let number = ended.map_err(|error| RunError::Failed(error.to_string()))?;
            return Err(RunError::Usage(format!(
                "partition {number} has another owner: stop every process of the orchestrator, and begin again"
            )));
        }
    };
    leaving.send_replace(true);
    while attending.join_next().await.is_some() {}
    Ok(Drained { running: left.running, unsent: left.unsent, letters: left.letters })
}

/// Raises the epochs of all partitions that have a position. Nobody has the others' jobs, since there are none.
async fn take(settings: &Settings, jobs: &Jobs) -> Result<Vec<Tenure>, RunError> {
    let (partitions, mut taken) = (jobs.store().partitions(), Vec::new());
    let client = jobs.store().pool().get().await.map_err(of_database)?;
    for number in 0..settings.kafka.partitions {
        let (group, topic) = (settings.kafka.group.clone(), settings.kafka.topic.clone());
        let partition = Partition { group, topic, number };
        let row = partitions.look(&**client, &partition).await.map_err(of_database)?;
        let Some(position) = row.next_offset else { continue };
        let raised = partitions.raise_from(&**client, &partition, row.epoch, &settings.name, position);
        match raised.await.map_err(of_database)? {
            Raised::Ours(tenure) => taken.push(tenure),
            Raised::Overtaken(row) => {
                return Err(RunError::Usage(format!(
                    "partition {number} was just taken by {}: stop every process of the orchestrator",
                    row.owner
                )));
            }
        }
    }
    Ok(taken)
}

async fn until_done(jobs: &Jobs, say: &impl Fn(&str)) -> Result<Left, RunError> {
    let mut told = BootTime::now();
    loop {
        let left = count(jobs).await?;
        if left.running == 0 && left.unsent == 0 {
            return Ok(left);
        }
        if BootTime::now().since(told) >= TELL_EVERY {
            told = BootTime::now();
            say(&format!("{} jobs are under way, {} messages to send", left.running, left.unsent));
        }
        tokio::time::sleep(COUNT_EVERY).await;
    }
}

async fn count(jobs: &Jobs) -> Result<Left, RunError> {
    let client = jobs.store().pool().get().await.map_err(of_database)?;
    jobs.store().left(&client).await.map_err(of_database)
}
