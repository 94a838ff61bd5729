//! What an owner does for a partition beside taking its messages, as long as the partition is its own: read the
//! mailbox, send the outbox, sweep deadlines, delete old marks, letters and jobs. All of it goes on continuously, so
//! that a new owner needs no pass of recovery: it finds jobs as the last one committed them, and goes on.

use std::{sync::Arc, time::Duration};

use solehold_clock::BootTime;
use solehold_sql::partitions::Tenure;
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::{
    floor::Floor,
    job::Input,
    jobs::{Jobs, StepError},
    limits::{CLEANING_BATCH, CLEANING_EVERY, MAILBOX_BATCH, POLL_EVERY, SWEEP_BATCH, SWEEP_EVERY},
    sender::{Channel, Sending},
    store::{Batch, IMPORTED, Mail, Mailbox},
    wake::Bells,
};
use solehold_kafka::Leaving;

/// After a failure of the database or a broker, or between bites of what is not urgent.
const PAUSE: Duration = Duration::from_millis(500);
/// What is under way may take this long when the partition is to be given up; what is cut off is done again by the
/// next owner.
const LEAVING_WITHIN: Duration = Duration::from_millis(300);

/// What a step came to.
pub(super) enum Next {
    /// There may be more.
    More,
    /// There is nothing to do now.
    Idle,
    /// There is more that is not urgent.
    Pause,
    /// There is something to do again at this time, and before it if the bell rings.
    At(BootTime),
}

/// What is done continuously, and what is remembered of it from one time to the next.
enum Chore<'a> {
    /// Read the mailbox.
    Mail(Floor),
    /// Look for attempts that have taken too long.
    Sweep,
    /// Delete what can no longer be needed.
    Clean,
    /// Send one channel of the outbox.
    Send(&'a Channel, Box<Sending>),
}

/// The care of one partition.
pub(super) struct Attendance<'a> {
    pub jobs: &'a Jobs,
    pub tenure: &'a Tenure,
    bells: Arc<Bells>,
}

impl<'a> Attendance<'a> {
    pub fn new(jobs: &'a Jobs, tenure: &'a Tenure) -> Self {
        let bells = jobs.desk().wakes().enter(tenure.partition.number);
        Self { jobs, tenure, bells }
    }

    pub fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// Goes on until the partition is given up, or is found to have another owner.
    pub async fn run(&self, leaving: Leaving) {
        let mut told = leaving.clone();
        let channels = Channel::of(self.jobs);
        let sends = channels.iter().map(|channel| Chore::Send(channel, Box::default()));
        let chores = [Chore::Mail(Floor::default()), Chore::Sweep, Chore::Clean].into_iter().chain(sends);
        let all = futures_util::future::try_join_all(chores.map(|chore| self.repeat(&leaving, chore)));
        let gone = async {
            // An error means that there is no one left who could say so: the same.
            let _ = told.wait_for(|leaving| *leaving).await;
            tokio::time::sleep(LEAVING_WITHIN).await;
        };
        tokio::select! {
            ended = all => {
                if ended.is_err() {
                    tracing::info!(partition = %self.partition(), "the partition has another owner");
                }
            }
            () = gone => {}
        }
    }

    /// Does a chore until `leaving`, when there is something to do: at once while there is more, at its bell, and from
    /// time to time in any case.
    async fn repeat(&self, leaving: &Leaving, mut chore: Chore<'_>) -> Result<(), StepError> {
        let (mut bell, every) = match &chore {
            Chore::Mail(_) => (self.bells.mail.listen(), POLL_EVERY),
            Chore::Sweep => (never(), SWEEP_EVERY),
            Chore::Clean => (never(), CLEANING_EVERY),
            Chore::Send(..) => (self.bells.outbox.listen(), POLL_EVERY),
        };
        let mut leaving = leaving.clone();
        while !*leaving.borrow() {
            bell.mark_unchanged();
            let done = match &mut chore {
                Chore::Mail(floor) => self.read_mail(floor).await,
                Chore::Sweep => self.sweep().await,
                Chore::Clean => self.clean().await,
                Chore::Send(channel, sending) => channel.send(self, sending).await,
            };
            let (wait, is_deaf) = match done {
                Ok(Next::More) => continue,
                Ok(Next::Idle) => (every, false),
                Ok(Next::At(time)) => (time.since(BootTime::now()).min(every), false),
                Ok(Next::Pause) => (PAUSE, true),
                Err(StepError::Fenced) => return Err(StepError::Fenced),
                Err(error) => {
                    tracing::warn!(partition = %self.partition(), %error, "jobs wait for the database");
                    (PAUSE, true)
                }
            };
            let rung = async {
                if is_deaf || bell.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = rung => {}
                _ = leaving.wait_for(|leaving| *leaving) => {}
            }
        }
        Ok(())
    }

    /// Takes what others have to say to the jobs of the partition.
    async fn read_mail(&self, floor: &mut Floor) -> Result<Next, StepError> {
        let store = self.jobs.store();
        let partition = self.partition();
        let client = store.pool().get().await?;
        let read = floor.begin(BootTime::now());
        let Mailbox { mail, unreadable } =
            store.mailbox(&client, partition, read.from, MAILBOX_BATCH).await?;
        floor.answered(read, BootTime::now());
        drop(client);
        let arrivals = mail.iter().map(|(arrival, _)| *arrival);
        let Some(last) = arrivals.chain(unreadable.iter().map(|(arrival, _)| *arrival)).max() else {
            return Ok(Next::Idle);
        };
        let is_all = mail.len() + unreadable.len() < MAILBOX_BATCH.unsigned_abs() as usize;
        self.set_mail_aside(&unreadable).await?;
        let unfinished = match self.take_mail(&mail).await {
            // One entry that cannot take effect must not hold up the others.
            Err(StepError::Database(error)) if error.is_of_the_data() => {
                tracing::debug!(partition, %error, entries = mail.len(), "taking mail one by one");
                let mut unfinished = None;
                for entry in &mail {
                    match self.take_mail(std::slice::from_ref(entry)).await {
                        Err(StepError::Database(error)) if error.is_of_the_data() => {
                            self.set_mail_aside(&[(entry.0, error.to_string())]).await?;
                        }
                        taken => unfinished = unfinished.or(taken?),
                    }
                }
                unfinished
            }
            taken => taken?,
        };
        let below = unfinished.unwrap_or(last.saturating_add(1));
        floor.took(below, is_all && unfinished.is_none(), BootTime::now());
        Ok(Next::More)
    }

    /// Applies mail to the jobs of the partition, in one transaction. Returns the first entry that takes another one.
    async fn take_mail(&self, mail: &[(i64, Mail)]) -> Result<Option<i64>, StepError> {
        if mail.is_empty() {
            return Ok(None);
        }
        let (store, partition) = (self.jobs.store(), self.partition());
        let mut unfinished = None;
        self.jobs
            .under_epoch(self.tenure, async |batch, client| {
                batch.load(mail.iter().map(|(_, mail)| mail.subject.as_str())).await?;
                let mut done = Vec::with_capacity(mail.len());
                for (arrival, mail) in mail {
                    if batch.read(mail).await? {
                        done.push(*arrival);
                    } else {
                        unfinished = unfinished.or(Some(*arrival));
                    }
                }
                store.delete_mail(client, partition, &done).await
            })
            .await?;
        Ok(unfinished)
    }

    /// Records mail that cannot take effect, and takes it out of the mailbox.
    async fn set_mail_aside(&self, entries: &[(i64, String)]) -> Result<(), StepError> {
        if entries.is_empty() {
            return Ok(());
        }
        let (store, partition) = (self.jobs.store(), self.partition());
        let mut aside = Vec::new();
        self.jobs
            .under_epoch(self.tenure, async |_, client| {
                aside = store.set_mail_aside(client, partition, entries).await?;
                Ok(())
            })
            .await?;
        self.jobs.figures.unreadable(aside.len());
        for (subject, name, reason) in &aside {
            tracing::error!(partition, job = subject, name, reason, "mail cannot take effect; set aside");
        }
        Ok(())
    }

    /// Ends attempts that have taken too long. The machine judges; this only nominates.
    async fn sweep(&self) -> Result<Next, StepError> {
        let store = self.jobs.store();
        let client = store.pool().get().await?;
        let overdue = store.overdue(&client, self.partition(), SWEEP_BATCH).await?;
        drop(client);
        if overdue.is_empty() {
            return Ok(Next::Idle);
        }
        self.jobs
            .under_epoch(self.tenure, async |batch, _| {
                batch.load(overdue.iter().map(|(job, ..)| job.as_str())).await?;
                for (job, stage, attempt) in &overdue {
                    let input = Input::Timeout { stage: stage.clone(), attempt: *attempt };
                    if let Err(refusal) = batch.apply(job, &input) {
                        tracing::debug!(job, %refusal, "a timeout was refused");
                    }
                }
                Ok(())
            })
            .await?;
        self.jobs.figures.timeouts(overdue.len());
        Ok(Next::More)
    }

    /// Deletes a bite of what can no longer be needed: behind the position, and older than the retention.
    async fn clean(&self) -> Result<Next, StepError> {
        let parts = &self.jobs.parts;
        let client = self.jobs.store().pool().get().await?;
        let row = self.jobs.store().partitions().look(&**client, &self.tenure.partition).await?;
        if row.epoch != self.tenure.epoch {
            return Err(StepError::Fenced);
        }
        let Some(below) = row.next_offset else { return Ok(Next::Idle) };
        let (partition, retention) = (self.partition(), parts.inbox_retention);
        let scope = partition.to_string();
        self.jobs.store().inbox().prune_below(&**client, &scope, below, retention, CLEANING_BATCH).await?;
        // Whoever cleans a partition does so: of the messages of these marks nothing is known but their age.
        let imported = self.jobs.store().inbox();
        imported.prune_below(&**client, IMPORTED, i64::MAX, retention, CLEANING_BATCH).await?;
        let kept = parts.job_retention;
        self.jobs.store().prune_unreadable_mail(&client, partition, kept, CLEANING_BATCH).await?;
        self.jobs.store().prune_letters(&client, partition, below, retention, CLEANING_BATCH).await?;
        drop(client);
        self.forget_jobs().await
    }

    /// Deletes a bite of the jobs that ended long ago. This nominates; under the epoch it is judged again.
    async fn forget_jobs(&self) -> Result<Next, StepError> {
        let (store, retention) = (self.jobs.store(), self.jobs.parts.job_retention);
        let client = store.pool().get().await?;
        let old = store.old_jobs(&client, self.partition(), retention, CLEANING_BATCH).await?;
        if old.is_empty() {
            // Whoever cleans a partition does so: it is decided by rows alone.
            store.delete_pipelines(&client, CLEANING_BATCH).await?;
            return Ok(Next::Idle);
        }
        drop(client);
        let delete = async |_: &mut Batch<'_>, client: &Client| {
            let deleted = store.delete_jobs(client, self.partition(), retention, &old).await?;
            tracing::debug!(partition = self.partition(), deleted, "old jobs were deleted");
            Ok(())
        };
        self.jobs.under_epoch(self.tenure, delete).await?;
        Ok(Next::Pause)
    }

    /// Looks whether the partition has another owner, without a lock: to spare workers what they would get twice.
    pub async fn still_ours(&self) -> Result<(), StepError> {
        let store = self.jobs.store();
        let client = store.pool().get().await?;
        let row = store.partitions().look(&**client, &self.tenure.partition).await?;
        if row.epoch == self.tenure.epoch { Ok(()) } else { Err(StepError::Fenced) }
    }
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        self.jobs.desk().wakes().leave(self.partition(), &self.bells);
    }
}

/// A bell that nobody rings.
fn never() -> watch::Receiver<u64> {
    watch::channel(0).1
}
