//! The background work for one partition, as long as this process owns it.
//!
//! ```text
//!   mail        reads the mailbox, applies reports and requests        at a signal, or every POLL_EVERY
//!   deadlines   times out attempts                                     every SWEEP_EVERY
//!   cleaning    deletes old marks, dead letters and jobs               every CLEANING_EVERY
//!   outbox      sends tasks, events and copies of dead letters         at a signal, or every POLL_EVERY
//! ```
//!
//! Nothing is kept in memory that a new owner would need: it continues with the jobs as the last owner committed them.

mod handler;
mod mail;
mod upkeep;

use std::{sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_kafka::Leaving;
use solehold_sql::partitions::Tenure;
use tokio::sync::watch;

use crate::{
    model::limits::{CLEANING_EVERY, POLL_EVERY, SWEEP_EVERY},
    notifier::PartitionSignals,
    orchestrator::{Next, Orchestrator, StepError},
    outbox::{Channel, OutboxSender},
    store::Floor,
};

/// The pause after a failure of the database, or between two batches of deletions.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a step may still take when the partition is given up. The next owner repeats a step that was cut off.
const LEAVING_WITHIN: Duration = Duration::from_millis(300);

/// A background task of a partition, with its state from one step to the next.
enum BackgroundTask<'a> {
    Mail(Floor),
    Deadlines,
    Cleaning,
    Outbox(Box<OutboxSender<'a>>),
}

/// Works for one partition until it is given up or fenced.
pub(crate) struct PartitionOwner<'a> {
    orchestrator: &'a Orchestrator,
    tenure: &'a Tenure,
    signals: Arc<PartitionSignals>,
}

impl<'a> PartitionOwner<'a> {
    pub fn new(orchestrator: &'a Orchestrator, tenure: &'a Tenure) -> Self {
        let signals = orchestrator.mailbox().notifier.register(tenure.partition.number);
        Self { orchestrator, tenure, signals }
    }

    fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// Runs all background tasks until `leaving`, or until the partition is found to have another owner.
    pub async fn run(&self, leaving: Leaving) {
        let senders = Channel::all(&self.orchestrator.parts).into_iter().map(|channel| {
            let sender = OutboxSender::new(self.orchestrator, self.tenure, channel);
            BackgroundTask::Outbox(Box::new(sender))
        });
        let tasks =
            [BackgroundTask::Mail(Floor::default()), BackgroundTask::Deadlines, BackgroundTask::Cleaning];
        let tasks = tasks.into_iter().chain(senders);
        let all = futures_util::future::try_join_all(tasks.map(|task| self.repeat(&leaving, task)));
        let mut given_up = leaving.clone();
        let cut_off = async {
            // An error means that the consumer is gone, which also gives the partition up.
            let _ = given_up.wait_for(|leaving| *leaving).await;
            tokio::time::sleep(LEAVING_WITHIN).await;
        };
        tokio::select! {
            ended = all => {
                if ended.is_err() {
                    let partition = self.partition();
                    tracing::info!(partition, "partition has a new owner; stopping its background work");
                }
            }
            () = cut_off => {}
        }
    }

    /// Repeats a task's steps until `leaving`: at once while there is more, at a signal, and at its interval.
    async fn repeat(&self, leaving: &Leaving, mut task: BackgroundTask<'a>) -> Result<(), StepError> {
        let (mut signal, every) = match &task {
            BackgroundTask::Mail(_) => (self.signals.mail.subscribe(), POLL_EVERY),
            BackgroundTask::Deadlines => (no_signal(), SWEEP_EVERY),
            BackgroundTask::Cleaning => (no_signal(), CLEANING_EVERY),
            BackgroundTask::Outbox(_) => (self.signals.outbox.subscribe(), POLL_EVERY),
        };
        let mut leaving = leaving.clone();
        while !*leaving.borrow() {
            signal.mark_unchanged();
            let done = match &mut task {
                BackgroundTask::Mail(floor) => self.read_mail(floor).await,
                BackgroundTask::Deadlines => self.time_out_attempts().await,
                BackgroundTask::Cleaning => self.clean().await,
                BackgroundTask::Outbox(sender) => sender.send().await,
            };
            let (wait, ignores_signals) = match done {
                Ok(Next::Now) => continue,
                Ok(Next::Idle) => (every, false),
                Ok(Next::At(time)) => (time.since(BootTime::now()).min(every), false),
                Ok(Next::Paused) => (PAUSE, true),
                Err(StepError::Fenced) => return Err(StepError::Fenced),
                Err(StepError::Database(error)) => {
                    let partition = self.partition();
                    tracing::warn!(partition, %error, "partition's background work failed; retrying");
                    (PAUSE, true)
                }
            };
            let signalled = async {
                if ignores_signals || signal.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = signalled => {}
                _ = leaving.wait_for(|leaving| *leaving) => {}
            }
        }
        Ok(())
    }
}

impl Drop for PartitionOwner<'_> {
    fn drop(&mut self) {
        self.orchestrator.mailbox().notifier.deregister(self.partition(), &self.signals);
    }
}

fn no_signal() -> watch::Receiver<u64> {
    watch::channel(0).1
}
