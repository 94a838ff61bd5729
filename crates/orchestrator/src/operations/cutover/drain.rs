//! `solehold orchestrator drain`: finishes the running jobs without consuming commands.

use std::{path::Path, sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_kafka::Handler as _;
use solehold_sql::partitions::{Partition, Raised, Tenure};
use tokio::{sync::watch, task::JoinSet};

use super::PROGRESS_EVERY;
use crate::{
    config::{Flags, Settings},
    error::RunError,
    operations::{run::with_services, start::assemble},
    orchestrator::Orchestrator,
    store::RemainingWork,
};

/// How often the remaining work is counted.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// Owns every partition that has a position, outside of the consumer group, until no job is running or `ending`. No
/// other process of the orchestrator may run meanwhile: they would fence each other.
pub async fn drain(
    path: &Path,
    flags: Flags,
    say: impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<RemainingWork, RunError> {
    let assembled = assemble(path, flags, true).await?;
    let settings = assembled.settings.clone();
    let orchestrator = assembled.orchestrator.clone();
    // Always ready: it does not wait for an assignment.
    let readiness = Arc::new(|| None);
    with_services(assembled, readiness, &say, finish(&settings, &orchestrator, &say, ending)).await
}

async fn finish(
    settings: &Settings,
    orchestrator: &Orchestrator,
    say: &impl Fn(&str),
    ending: impl Future<Output = ()>,
) -> Result<RemainingWork, RunError> {
    let (leave, leaving) = watch::channel(false);
    let mut owners = JoinSet::new();
    for tenure in take(settings, orchestrator).await? {
        let orchestrator = orchestrator.clone();
        let leaving = leaving.clone();
        owners.spawn(async move {
            let number = tenure.partition.number;
            orchestrator.attend(tenure, leaving).await;
            number
        });
    }
    let remaining = tokio::select! {
        remaining = until_done(orchestrator, say) => remaining?,
        () = ending => count(orchestrator).await?,
        Some(ended) = owners.join_next() => {
            let number = ended.map_err(|error| RunError::Failed(error.to_string()))?;
            return Err(RunError::Usage(format!(
                "partition {number} has another owner: stop every other process of the orchestrator, and run drain again"
            )));
        }
    };
    leave.send_replace(true);
    while owners.join_next().await.is_some() {}
    Ok(remaining)
}

/// Takes over all partitions that have a position. The others have no jobs.
async fn take(settings: &Settings, orchestrator: &Orchestrator) -> Result<Vec<Tenure>, RunError> {
    let store = orchestrator.store();
    let partitions = &store.partitions;
    let mut taken = Vec::new();
    let client = store.pool.get().await.map_err(RunError::database)?;
    for number in 0..settings.consumer.partitions {
        let partition = Partition {
            group: settings.consumer.group.clone(),
            topic: settings.consumer.topic.clone(),
            number,
        };
        let row = partitions.look(&**client, &partition).await.map_err(RunError::database)?;
        let Some(position) = row.next_offset else { continue };
        let raised = partitions.raise_from(&**client, &partition, row.epoch, &settings.name, position);
        match raised.await.map_err(RunError::database)? {
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

async fn until_done(orchestrator: &Orchestrator, say: &impl Fn(&str)) -> Result<RemainingWork, RunError> {
    let mut shown = BootTime::now();
    loop {
        let left = count(orchestrator).await?;
        if left.running == 0 && left.unsent == 0 {
            return Ok(left);
        }
        if BootTime::now().since(shown) >= PROGRESS_EVERY {
            shown = BootTime::now();
            say(&format!("{} jobs running, {} messages to send", left.running, left.unsent));
        }
        tokio::time::sleep(COUNT_EVERY).await;
    }
}

async fn count(orchestrator: &Orchestrator) -> Result<RemainingWork, RunError> {
    let client = orchestrator.store().pool.get().await.map_err(RunError::database)?;
    orchestrator.store().remaining_work(&client).await.map_err(RunError::database)
}
