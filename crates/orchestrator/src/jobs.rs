//! The owner's side: commands become jobs, and reports move them on.

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::Transaction;
use prometheus_client::metrics::counter::Counter;
use solehold_sql::{
    Error,
    partitions::{Standing, Tenure},
    retry,
};
use tokio_postgres::Client;

use crate::{
    Report, ReportKind,
    attend::Attendance,
    command::{Command, Mapping},
    dispatch::{Reports, Ways},
    limits,
    metrics::Figures,
    pipeline::Pipeline,
    publish::Publish,
    store::{Arrival, Batch, Mail, Outlets, Store, Tally},
    wake::Wakes,
};
use solehold_kafka::{Done, Failure, Handler, Leaving, Message};

/// What an orchestrator works with.
#[derive(Clone)]
pub struct Parts {
    /// Where jobs are kept, and where mail to them goes.
    pub desk: Arc<Desk>,
    /// Where the parts of commands are.
    pub commands: Arc<Mapping>,
    /// The stages of new jobs.
    pub pipeline: Arc<Pipeline>,
    /// How workers are reached.
    pub dispatchers: Ways,
    /// Where events and letters go.
    pub publisher: Arc<dyn Publish>,
    /// The topic of events.
    pub events_topic: Option<String>,
    /// The topic of copies of dead letters.
    pub dead_letter_topic: Option<String>,
    /// How long inbox marks are kept.
    pub inbox_retention: std::time::Duration,
    /// How long jobs are kept after their end: no less than their marks.
    pub job_retention: std::time::Duration,
}

/// Takes mail for jobs, whoever owns their partitions.
#[derive(Debug)]
pub struct Desk {
    store: Arc<Store>,
    wakes: Wakes,
    /// Mail that had no effect, since its job is gone.
    without_job: Counter,
}

impl Desk {
    /// For the jobs in this store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, wakes: Wakes::default(), without_job: Counter::default() }
    }

    /// Where jobs are kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Hints of new mail.
    pub fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// Puts mail into the boxes of jobs, and wakes their owners.
    pub async fn deliver_mail(&self, mail: Vec<Mail>) -> Result<(), Error> {
        if mail.is_empty() {
            return Ok(());
        }
        let client = self.store.pool().get().await?;
        let delivered = retry::on_contention(|| self.store.deliver(&client, mail.clone())).await?;
        drop(client);
        self.wakes.mail(&delivered.partitions);
        self.report_without_job(&delivered.without_job);
        Ok(())
    }

    /// The same, one by one if PostgreSQL cannot keep one of them: that one is dropped, and keeps nothing back.
    async fn deliver_some(&self, mail: Vec<Mail>) -> Result<(), Error> {
        match self.deliver_mail(mail.clone()).await {
            Err(error) if is_of_a_value(&error) => {
                for entry in mail {
                    let (job, name) = (entry.subject.clone(), entry.name.clone());
                    match self.deliver_mail(vec![entry]).await {
                        Err(error) if is_of_a_value(&error) => {
                            tracing::error!(job, name, %error, "a report cannot be kept and was dropped");
                        }
                        delivered => delivered?,
                    }
                }
                Ok(())
            }
            delivered => delivered,
        }
    }

    /// Counts mail that had no effect, since its job is gone, and logs it: one line for all that came together.
    fn report_without_job(&self, mail: &[(String, String)]) {
        if let Some((job, name)) = mail.first() {
            self.without_job.inc_by(mail.len() as u64);
            tracing::warn!(count = mail.len(), job, mail = name, "mail had no effect, since its job is gone");
        }
    }
}

#[async_trait]
impl Reports for Desk {
    async fn deliver(&self, reports: Vec<Report>) -> Result<(), Error> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for report in reports.into_iter().filter(is_sound) {
            let (report, excess) = report.bounded();
            if let Some(reason) = excess {
                tracing::warn!(task = %report.id, reason, "the attempt of a task counts as failed");
            }
            let size = match &report.kind {
                ReportKind::Succeeded { result } => result.to_string().len(),
                _ => limits::REASON_BYTES_MAX,
            };
            let is_full = some.len() >= limits::MAILBOX_BATCH.unsigned_abs() as usize;
            if is_full || bytes + size > limits::DELIVERY_BYTES_MAX {
                self.deliver_some(std::mem::take(&mut some)).await?;
                bytes = 0;
            }
            bytes += size;
            some.push(Mail::report(report));
        }
        self.deliver_some(some).await
    }
}

/// Whether a value is at fault, or its size: not a table or a right that is missing, which someone can give back.
fn is_of_a_value(error: &Error) -> bool {
    error.code().is_some_and(|code| ["22", "54"].iter().any(|class| code.starts_with(class)))
}

/// What cannot be about any task is dropped, so that it does not keep the others back for good.
fn is_sound(report: &Report) -> bool {
    let fault = report.fault();
    if let Some(fault) = &fault {
        tracing::warn!(fault, "a report was dropped");
    }
    fault.is_none()
}

/// Jobs of the partitions that this process owns.
#[derive(Clone)]
pub struct Jobs {
    pub(super) parts: Parts,
    pub(super) figures: Arc<Figures>,
}

/// Why a step of an owner was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The partition has another owner.
    #[error("the partition has another owner")]
    Fenced,
    /// It may work later.
    #[error(transparent)]
    Database(#[from] Error),
}

impl From<tokio_postgres::Error> for StepError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<deadpool_postgres::PoolError> for StepError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Database(error.into())
    }
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jobs").field("store", self.store()).finish_non_exhaustive()
    }
}

impl Jobs {
    /// Jobs of these parts.
    pub fn new(parts: Parts) -> Self {
        let figures = Arc::new(Figures::new(parts.desk.without_job.clone()));
        Self { parts, figures }
    }

    /// What it works with.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Where jobs are kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.parts.desk.store
    }

    /// Where mail to jobs goes.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.parts.desk
    }

    /// What they have come to.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    fn outlets(&self) -> Outlets {
        Outlets { events: self.parts.events_topic.is_some(), letters: self.parts.dead_letter_topic.is_some() }
    }

    pub(super) async fn batch<'a>(
        &'a self,
        client: &'a Client,
        tenure: &'a Tenure,
    ) -> Result<Batch<'a>, Error> {
        let Parts { commands, pipeline, .. } = &self.parts;
        Batch::begin(self.store(), client, tenure, (commands, pipeline), self.outlets()).await
    }

    /// One transaction under the epoch.
    pub(super) async fn under_epoch(
        &self,
        tenure: &Tenure,
        work: impl AsyncFnOnce(&mut Batch<'_>, &Client) -> Result<(), Error>,
    ) -> Result<(), StepError> {
        let mut client = self.store().pool().get().await?;
        let tx = client.transaction().await?;
        if self.store().partitions().check(&*tx, tenure).await? == Standing::Fenced {
            return Err(StepError::Fenced);
        }
        let tally = {
            let client = tokio_postgres::GenericClient::client(&*tx);
            let mut batch = self.batch(client, tenure).await?;
            work(&mut batch, client).await?;
            batch.write().await?
        };
        tx.commit().await?;
        self.committed(tenure, tally);
        Ok(())
    }
}

impl Handler for Jobs {
    type Effect = Command;
    type Receipt = Tally;

    async fn work(&self, message: &Message) -> Result<Command, Failure> {
        self.parts.commands.read(message)
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
        self.figures.add(&tally);
        let desk = &self.parts.desk;
        desk.report_without_job(&tally.without_job);
        desk.wakes.outbox(tenure.partition.number);
        desk.wakes.mail(&tally.mailed);
    }

    async fn attend(&self, tenure: Tenure, leaving: Leaving) {
        Attendance::new(self, &tenure).run(leaving).await;
    }
}

/// The key of a message, as text of bounded length: an index has room for it. PostgreSQL keeps no zero characters.
fn key_of(message: &Message) -> String {
    let key = message.key.as_deref().unwrap_or_default();
    let text = String::from_utf8_lossy(key).replace('\0', "\u{fffd}");
    if text.len() <= limits::KEY_BYTES_MAX {
        return text;
    }
    let kept: String = text.chars().take(limits::KEY_CHARS_KEPT).collect();
    format!("{kept}... ({} bytes)", key.len())
}
