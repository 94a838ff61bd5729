//! One transaction of a partition's owner: what happens to jobs, decided one after the other and written together.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;
use solehold_sql::{
    Error,
    inbox::{Key, Mark, Marked, PayloadHash},
    partitions::Tenure,
};
use tokio_postgres::{Client, types::Type};

use super::{Letter, LetterState, Mail, MailBody, NOW_MS, OutboxKind, OutboxRow, Store};
use crate::orchestrator::{
    command::{Command, CommandKind},
    job::{Effect, Input, Job, JobState, Refusal, decide},
    limits::{REASON_BYTES_MAX, REDRIVE_BATCH},
    pipeline::Pipeline,
};

/// What a transaction came to, for metrics. Each command counts once, when it arrives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands that took effect.
    pub commands: u64,
    /// Commands that had taken effect before.
    pub duplicates: u64,
    /// Commands that became dead letters.
    pub dead: u64,
    /// Commands that were parked behind one.
    pub parked: u64,
    /// Jobs that ended, and how long they took.
    pub finished: Vec<(JobState, i64)>,
}

/// A message before it is judged.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub position: i64,
    /// The key of its message.
    pub key: String,
    pub payload: Option<Vec<u8>>,
    /// What it says, or why it says nothing.
    pub command: Result<Command, String>,
}

/// What a command came to.
enum Verdict {
    Taken,
    Duplicate,
    Dead(String),
}

struct Entry {
    before: Option<Job>,
    now: Option<Job>,
    partition: i32,
}

/// Where effects go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outlets {
    pub events: bool,
    pub letters: bool,
}

/// A transaction in the making.
pub struct Batch<'a> {
    store: &'a Store,
    client: &'a Client,
    tenure: &'a Tenure,
    pipeline: &'a Arc<Pipeline>,
    outlets: Outlets,
    now_ms: i64,
    jobs: HashMap<String, Entry>,
    outbox: Vec<OutboxRow>,
    letters: Vec<Letter>,
    mail: Vec<Mail>,
    tally: Tally,
}

/// The channels of the outbox beside the ways to workers.
pub(crate) const EVENTS: &str = "events";
pub(crate) const LETTERS: &str = "letters";

impl<'a> Batch<'a> {
    /// Begins, in a transaction that has checked the epoch. The time is read under its lock.
    pub(crate) async fn begin(
        store: &'a Store,
        client: &'a Client,
        tenure: &'a Tenure,
        pipeline: &'a Arc<Pipeline>,
        outlets: Outlets,
    ) -> Result<Self, Error> {
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let now_ms = client.query_typed_one(clock, &[]).await?.get(0);
        Ok(Self {
            store,
            client,
            tenure,
            pipeline,
            outlets,
            now_ms,
            jobs: HashMap::new(),
            outbox: Vec::new(),
            letters: Vec::new(),
            mail: Vec::new(),
            tally: Tally::default(),
        })
    }

    fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// Loads jobs that are not loaded yet.
    pub(crate) async fn load(&mut self, ids: impl IntoIterator<Item = &str>) -> Result<(), Error> {
        let wanted: HashSet<&str> = ids.into_iter().filter(|id| !self.jobs.contains_key(*id)).collect();
        let wanted: Vec<&str> = wanted.into_iter().collect();
        for kept in self.store.load(self.client, &wanted).await? {
            let entry =
                Entry { before: Some(kept.job.clone()), now: Some(kept.job), partition: kept.partition };
            if let Some(job) = &entry.now {
                self.jobs.insert(job.id.clone(), entry);
            }
        }
        Ok(())
    }

    /// What happens to a job that was loaded, or is new.
    pub(crate) fn apply(&mut self, id: &str, input: &Input) -> Result<(), Refusal> {
        let mine = self.partition();
        let entry =
            self.jobs.entry(id.to_owned()).or_insert(Entry { before: None, now: None, partition: mine });
        let was = entry.now.clone();
        let decided = match decide(was.clone(), input, self.now_ms) {
            Ok(decided) => decided,
            Err(refusal) => {
                if entry.now.is_none() {
                    self.jobs.remove(id);
                }
                return Err(refusal);
            }
        };
        let job = decided.job;
        let has_ended = job.finished_ms.is_some() && was.as_ref().is_none_or(|was| was.finished_ms.is_none());
        if has_ended {
            self.tally.finished.push((job.state, self.now_ms - job.created_ms));
        }
        entry.now = Some(job);
        for effect in decided.effects {
            self.outbox.extend(self.outlets.row(id, effect));
        }
        Ok(())
    }

    /// Takes messages, in the order of their positions.
    pub(crate) async fn take(&mut self, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let mut rest = arrivals;
        while !rest.is_empty() {
            // Each key once: what follows depends on what became of the one before.
            let mut keys = HashSet::new();
            let (now, later): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|arrival| keys.insert(arrival.key.clone()));
            self.take_distinct(now).await?;
            rest = later;
        }
        Ok(())
    }

    async fn take_distinct(&mut self, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let positions: Vec<i64> = arrivals.iter().map(|arrival| arrival.position).collect();
        let keys: Vec<&str> = arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
        let mut known = self.store.known_letters(self.client, self.partition(), &positions, &keys).await?;
        known.parked.extend(self.letters.iter().map(|letter| letter.key.clone()));
        let arrivals = arrivals.into_iter().filter(|arrival| {
            let is_letter = known.positions.contains(&arrival.position);
            self.tally.duplicates += u64::from(is_letter);
            !is_letter
        });
        let (parked, free): (Vec<_>, Vec<_>) =
            arrivals.collect::<Vec<_>>().into_iter().partition(|arrival| known.parked.contains(&arrival.key));
        self.park(parked).await?;
        let verdicts = self.judge(&free).await?;
        for (arrival, verdict) in free.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Taken => self.tally.commands += 1,
                Verdict::Duplicate => self.tally.duplicates += 1,
                Verdict::Dead(reason) => {
                    self.tally.dead += 1;
                    self.letters.push(self.letter(arrival, LetterState::Dead, reason));
                }
            }
        }
        Ok(())
    }

    /// Parks what has not taken effect before.
    async fn park(&mut self, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let marks: Vec<Mark> = arrivals.iter().filter_map(|arrival| self.mark(arrival)).collect();
        let met = self.store.inbox.look_for(self.client, &marks).await?;
        let seen: HashSet<i64> = (marks.iter().zip(met))
            .filter(|(_, met)| *met == Marked::Seen)
            .map(|(mark, _)| mark.position)
            .collect();
        for arrival in arrivals {
            if seen.contains(&arrival.position) {
                self.tally.duplicates += 1;
                continue;
            }
            self.tally.parked += 1;
            let reason = "a command of the same key before it is a dead letter".to_owned();
            self.letters.push(self.letter(arrival, LetterState::Parked, reason));
        }
        Ok(())
    }

    fn letter(&self, arrival: Arrival, state: LetterState, reason: String) -> Letter {
        Letter {
            partition: self.partition(),
            position: arrival.position,
            key: arrival.key,
            payload: arrival.payload,
            state,
            reason: bounded(&reason),
            at_ms: self.now_ms,
        }
    }

    fn mark(&self, arrival: &Arrival) -> Option<Mark> {
        let command = arrival.command.as_ref().ok()?;
        let key = Key::new(&self.partition().to_string(), command.kind.name(), command.id()).ok()?;
        let payload = PayloadHash::of(arrival.payload.as_deref().unwrap_or_default());
        Some(Mark { key, payload, position: arrival.position })
    }

    /// Marks commands and applies those that are new. A command that is refused keeps no mark: it may work later.
    async fn judge(&mut self, arrivals: &[Arrival]) -> Result<Vec<Verdict>, Error> {
        let marks: Vec<Mark> = arrivals.iter().filter_map(|arrival| self.mark(arrival)).collect();
        let met = self.store.inbox.mark_all(self.client, &marks).await?;
        let met: HashMap<i64, Marked> = marks.iter().map(|mark| mark.position).zip(met).collect();
        let is_new = |arrival: &&Arrival| met.get(&arrival.position) == Some(&Marked::New);
        let ids = arrivals.iter().filter(is_new).filter_map(|arrival| arrival.command.as_ref().ok());
        self.load(ids.map(|command| command.job_id.as_str())).await?;
        let (mut verdicts, mut refused) = (Vec::with_capacity(arrivals.len()), Vec::new());
        for arrival in arrivals {
            let verdict = match (&arrival.command, met.get(&arrival.position)) {
                (Err(reason), _) => Verdict::Dead(reason.clone()),
                (Ok(_), Some(Marked::Seen)) => Verdict::Duplicate,
                (Ok(command), Some(Marked::Conflict)) => Verdict::Dead(format!(
                    "another {} with the id {} came before, and said something else",
                    command.kind.name(),
                    command.id()
                )),
                (Ok(command), _) => self.command(command),
            };
            if let Verdict::Dead(_) = &verdict
                && is_new(&arrival)
            {
                refused.extend(self.mark(arrival));
            }
            verdicts.push(verdict);
        }
        self.store.inbox.unmark(self.client, &refused).await?;
        Ok(verdicts)
    }

    fn command(&mut self, command: &Command) -> Verdict {
        let elsewhere = self.jobs.get(&command.job_id).filter(|entry| entry.partition != self.partition());
        if elsewhere.is_some() && command.kind != CommandKind::Create {
            // The topic has more partitions than when the job was created; its owner is another.
            self.mail.push(Mail::to_job(&command.job_id, MailBody::Command { command: command.clone() }));
            return Verdict::Taken;
        }
        let wrong_key = self.jobs.get(&command.job_id).and_then(|entry| entry.now.as_ref());
        if let Some(job) = wrong_key.filter(|job| job.key() != command.key()) {
            return Verdict::Dead(format!("job {} has the key {}, not {}", job.id, job.key(), command.key()));
        }
        match self.apply(&command.job_id, &command.input(self.pipeline)) {
            Ok(()) => Verdict::Taken,
            Err(refusal) => {
                Verdict::Dead(format!("{} of job {}: {refusal}", command.kind.name(), command.job_id))
            }
        }
    }

    /// Does what mail says. Returns whether it is done; a long line of parked commands takes several transactions.
    pub(crate) async fn read(&mut self, mail: &Mail) -> Result<bool, Error> {
        let input = match &mail.body {
            MailBody::Report { stage, attempt, report } => {
                Input::Report { stage: stage.clone(), attempt: *attempt, kind: report.clone() }
            }
            MailBody::Command { command } => command.input(self.pipeline),
            MailBody::Cancel => Input::Cancel,
            MailBody::Retry => Input::Retry,
            MailBody::Redrive { position } => return self.redrive(*position, None).await,
            MailBody::Discard { position } => {
                return self.redrive(*position, Some(LetterState::Discarded)).await;
            }
        };
        if let Err(refusal) = self.apply(&mail.subject, &input) {
            tracing::debug!(job = mail.subject, name = mail.name, %refusal, "mail was refused");
        }
        Ok(true)
    }

    /// Applies a dead letter again, or drops it, and then what is parked behind it, until one is dead.
    async fn redrive(&mut self, position: i64, drop_as: Option<LetterState>) -> Result<bool, Error> {
        let partition = self.partition();
        let Some(letter) = self.store.letter(self.client, partition, position).await? else {
            return Ok(true);
        };
        let is_open = matches!(letter.state, LetterState::Dead | LetterState::Parked);
        if let Some(state) = drop_as.filter(|_| is_open) {
            self.store.settle_letter(self.client, &letter, state, &letter.reason, self.now_ms).await?;
        }
        if letter.state == LetterState::Parked {
            return Ok(true);
        }
        let open = self.store.open_letters(self.client, partition, &letter.key, REDRIVE_BATCH).await?;
        for letter in &open {
            let arrival = Arrival {
                position: letter.position,
                key: letter.key.clone(),
                payload: letter.payload.clone(),
                command: again(letter),
            };
            let verdict = self.judge(&[arrival]).await?.pop();
            let (state, reason) = match verdict {
                Some(Verdict::Dead(reason)) => (LetterState::Dead, bounded(&reason)),
                _ => (LetterState::Redriven, letter.reason.clone()),
            };
            self.store.settle_letter(self.client, letter, state, &reason, self.now_ms).await?;
            if state == LetterState::Dead {
                if letter.state == LetterState::Parked {
                    self.copy_letter(&letter.key, letter.position);
                }
                return Ok(true);
            }
        }
        Ok(i64::try_from(open.len()).unwrap_or(i64::MAX) < REDRIVE_BATCH)
    }

    fn copy_letter(&mut self, key: &str, position: i64) {
        if self.outlets.letters {
            let kind = OutboxKind::Letter(position);
            self.outbox.push(OutboxRow { channel: LETTERS, job_id: key.to_owned(), kind });
        }
    }

    /// Writes everything. The caller commits.
    pub(crate) async fn write(mut self) -> Result<Tally, Error> {
        let dead: Vec<(String, i64)> = (self.letters.iter())
            .filter(|letter| letter.state == LetterState::Dead)
            .map(|letter| (letter.key.clone(), letter.position))
            .collect();
        dead.iter().for_each(|(key, position)| self.copy_letter(key, *position));
        let (store, client, partition) = (self.store, self.client, self.partition());
        if !self.letters.is_empty() {
            store.insert_letters(client, &self.letters).await?;
        }
        if !self.mail.is_empty() {
            store.deliver(client, std::mem::take(&mut self.mail)).await?;
        }
        self.write_jobs(partition).await?;
        if !self.outbox.is_empty() {
            let count = i64::try_from(self.outbox.len()).unwrap_or(i64::MAX);
            let fenced = || Error::Effect("the partition has another owner".to_owned());
            let first = store.partitions.draw(client, self.tenure, count).await?.ok_or_else(fenced)?;
            store.insert_outbox(client, self.tenure, first, &self.outbox).await?;
        }
        Ok(self.tally)
    }

    async fn write_jobs(&self, partition: i32) -> Result<(), Error> {
        let (store, client) = (self.store, self.client);
        let (mut new, mut changed, mut stages) = (Vec::new(), Vec::new(), Vec::new());
        for entry in self.jobs.values() {
            let Some(job) = &entry.now else { continue };
            match &entry.before {
                None => new.push(job),
                Some(before) if before != job => changed.push(job),
                Some(_) => continue,
            }
            let was = |at: usize| entry.before.as_ref().map(|before| &before.stages[at]);
            stages.extend(
                (0..job.stages.len()).filter(|at| was(*at) != Some(&job.stages[*at])).map(|at| (job, at)),
            );
        }
        if !new.is_empty() {
            let mut digests = Vec::with_capacity(new.len());
            let mut known: Vec<(&Arc<Pipeline>, String)> = Vec::new();
            for job in &new {
                let found = known.iter().find(|(pipeline, _)| Arc::ptr_eq(pipeline, &job.pipeline));
                let digest = match found {
                    Some((_, digest)) => digest.clone(),
                    None => store.keep_pipeline(client, &job.pipeline).await?,
                };
                known.push((&job.pipeline, digest.clone()));
                known.truncate(8);
                digests.push(digest);
            }
            store.insert_jobs(client, partition, &new, &digests).await?;
        }
        if !changed.is_empty() {
            store.update_jobs(client, &changed).await?;
        }
        if !stages.is_empty() {
            store.write_stages(client, partition, &stages).await?;
        }
        Ok(())
    }
}

impl Outlets {
    fn row(self, job: &str, effect: Effect) -> Option<OutboxRow> {
        let (channel, kind) = match effect {
            Effect::Send { task, by } => (by.name(), OutboxKind::Send(task)),
            Effect::Revoke { task, by } => (by.name(), OutboxKind::Revoke(task)),
            Effect::Event(event) if self.events => {
                (EVENTS, OutboxKind::Event(serde_json::to_value(event).unwrap_or(Value::Null)))
            }
            Effect::Event(_) => return None,
        };
        Some(OutboxRow { channel, job_id: job.to_owned(), kind })
    }
}

/// What a letter says, read again.
fn again(letter: &Letter) -> Result<Command, String> {
    let payload = letter.payload.as_deref().ok_or("the message is empty (a tombstone): a command is JSON")?;
    let command = Command::parse(payload)?;
    if command.key() != letter.key {
        return Err(letter.reason.clone());
    }
    Ok(command)
}

fn bounded(reason: &str) -> String {
    reason.replace('\0', "").chars().take(REASON_BYTES_MAX / 4).collect()
}

impl Store {
    /// Stages of a partition whose deadline has passed, for the sweeper to nominate.
    pub async fn overdue(
        &self,
        client: &Client,
        partition: i32,
        limit: i64,
    ) -> Result<Vec<(String, String, u32)>, Error> {
        let read = format!(
            "SELECT job_id, stage, attempt FROM {} WHERE partition = $1 AND deadline_ms IS NOT NULL \
             AND deadline_ms <= {NOW_MS} ORDER BY deadline_ms LIMIT $2",
            self.table("stages")
        );
        let rows = client.query_typed(&read, &[(&partition, Type::INT4), (&limit, Type::INT8)]).await?;
        let overdue = rows.iter().map(|row| (row.get(0), row.get(1), row.get::<_, i32>(2).unsigned_abs()));
        Ok(overdue.collect())
    }
}
