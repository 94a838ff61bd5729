//! One transaction of a partition's owner: [`decide`] is called for one input after the other, and all changes are
//! written together by [`Batch::write`].
//!
//! ```text
//!   take    messages of the topic: marked in the inbox, then applied, parked, or kept as dead letters
//!   read    entries of the mailbox (mail.rs)
//!   apply   one input to one job, in memory
//!   write   jobs, stages, outbox, dead letters, and mail to other partitions
//! ```

mod arrival;
mod mail;

pub(crate) use self::arrival::Arrival;

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
use tokio_postgres::Client;

use crate::model::{
    command::{Command, CommandKind, ImportedMark, Mapping},
    job::{Effect, Input, Job, JobState, Rejection, decide},
    pipeline::Pipeline,
    task::bounded_reason as bounded,
};
use crate::store::{
    DeadLetter, DeadLetterId, DeadLetterState, EVENTS, IMPORTED, KnownDeadLetter, LETTERS, Mail, MailBody,
    Origin, OutboxKind, OutboxRow, Store,
};

/// What a transaction did, for metrics and notifications. Each command counts once, when it arrives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Commands that took effect.
    pub commands: u64,
    /// Commands that had taken effect before.
    pub duplicates: u64,
    pub dead: u64,
    pub parked: u64,
    /// Forwarded commands that came back as dead letters.
    pub returned: u64,
    /// Mail whose job no longer exists: the job, and the name of the mail.
    pub without_job: Vec<(String, String)>,
    pub mailed: Vec<i32>,
    /// Jobs that ended, and how long they took in milliseconds.
    pub finished: Vec<(JobState, i64)>,
}

/// What becomes of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Taken,
    /// It had taken effect before.
    Duplicate,
    /// It waits behind a dead letter of its key.
    Parked,
    /// It is a dead letter, for this reason.
    Dead(String),
    /// It is a dead letter, for this reason: its job is unknown.
    NoSuchJob(String),
}

/// The offsets of messages, and what becomes of them.
pub(crate) type Judged = Vec<(i64, Verdict)>;

/// A job before and after the batch.
struct Entry {
    before: Option<Job>,
    now: Option<Job>,
    partition: i32,
}

/// The configuration that commands are applied with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub mapping: &'a Mapping,
    pub pipeline: &'a Arc<Pipeline>,
    /// Whether events are published.
    pub has_events: bool,
    /// Whether copies of dead letters are published.
    pub has_dead_letters: bool,
}

/// The changes of one transaction, until they are written.
pub(crate) struct Batch<'a> {
    store: &'a Store,
    client: &'a Client,
    tenure: &'a Tenure,
    rules: Rules<'a>,
    now_ms: i64,
    jobs: HashMap<String, Entry>,
    outbox: Vec<OutboxRow>,
    dead_letters: Vec<DeadLetter>,
    /// Mail, and the partitions that it is for.
    mail: Vec<(i32, Mail)>,
    /// The generation of the topic, once it was read.
    generation: Option<i64>,
    tally: Tally,
}

impl<'a> Batch<'a> {
    /// Begins in a transaction that has checked the epoch. The time is read under the lock of the partition's row.
    pub(crate) async fn begin(
        store: &'a Store,
        client: &'a Client,
        tenure: &'a Tenure,
        rules: Rules<'a>,
    ) -> Result<Self, Error> {
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let now_ms = client.query_typed_one(clock, &[]).await?.get(0);
        Ok(Self {
            store,
            client,
            tenure,
            rules,
            now_ms,
            jobs: HashMap::new(),
            outbox: Vec::new(),
            dead_letters: Vec::new(),
            mail: Vec::new(),
            generation: None,
            tally: Tally::default(),
        })
    }

    fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// The generation of the topic. It is read on first use, under the lock of the partition's row.
    async fn generation(&mut self) -> Result<i64, Error> {
        if let Some(generation) = self.generation {
            return Ok(generation);
        }
        let read = self.store.partitions.generation(self.client, &self.tenure.partition).await?;
        Ok(*self.generation.insert(read))
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

    /// Applies an input to a job that was loaded, or is new.
    pub(crate) fn apply(&mut self, id: &str, input: &Input) -> Result<(), Rejection> {
        let mine = self.partition();
        let entry =
            self.jobs.entry(id.to_owned()).or_insert(Entry { before: None, now: None, partition: mine });
        let was = entry.now.clone();
        let decided = match decide(was.clone(), input, self.now_ms) {
            Ok(decided) => decided,
            Err(rejection) => {
                if entry.now.is_none() {
                    self.jobs.remove(id);
                }
                return Err(rejection);
            }
        };
        let job = decided.job;
        let has_ended = job.finished_ms.is_some() && was.as_ref().is_none_or(|was| was.finished_ms.is_none());
        if has_ended {
            self.tally.finished.push((job.state, self.now_ms - job.created_ms));
        }
        entry.now = Some(job);
        for effect in decided.effects {
            self.outbox.extend(self.rules.row(id, effect));
        }
        Ok(())
    }

    /// Takes messages, in the order of their positions.
    pub(crate) async fn take(&mut self, arrivals: Vec<Arrival>) -> Result<Judged, Error> {
        let mut judged = Vec::with_capacity(arrivals.len());
        let mut rest = arrivals;
        while !rest.is_empty() {
            // Each key once: a command may depend on the one before it.
            let mut keys = HashSet::new();
            let (now, later): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|arrival| keys.insert(arrival.key.clone()));
            self.take_distinct(now, &mut judged).await?;
            rest = later;
        }
        Ok(judged)
    }

    async fn take_distinct(&mut self, arrivals: Vec<Arrival>, judged: &mut Judged) -> Result<(), Error> {
        let positions: Vec<i64> = arrivals.iter().map(|arrival| arrival.position).collect();
        let keys: Vec<&str> = arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
        let mut known =
            self.store.known_dead_letters(self.client, self.partition(), &positions, &keys).await?;
        known.parked.extend(self.dead_letters.iter().map(|letter| letter.key.clone()));
        let arrivals = self.without_dead_letters(arrivals, &known.dead_letters).await?;
        let (parked, free): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| known.parked.contains(&arrival.key));
        let mut judged_now = self.park(parked).await?;
        let verdicts = self.judge(&free).await?;
        for (arrival, verdict) in free.into_iter().zip(verdicts) {
            let position = arrival.position;
            match &verdict {
                Verdict::Taken => self.tally.commands += 1,
                Verdict::Duplicate => self.tally.duplicates += 1,
                Verdict::Parked => self.tally.parked += 1,
                Verdict::Dead(reason) | Verdict::NoSuchJob(reason) => {
                    self.tally.dead += 1;
                    self.keep(arrival, DeadLetterState::Dead, reason).await?;
                }
            }
            judged_now.push((position, verdict));
        }
        judged.append(&mut judged_now);
        Ok(())
    }

    /// Drops messages that are dead letters already. If another message is at the position of a dead letter, the topic
    /// was recreated without `begin-anew`: all dead letters of the partition belong to the former topic.
    async fn without_dead_letters(
        &mut self,
        arrivals: Vec<Arrival>,
        kept: &[KnownDeadLetter],
    ) -> Result<Vec<Arrival>, Error> {
        if kept.is_empty() {
            return Ok(arrivals);
        }
        let present = self.generation().await?;
        let kept: HashMap<i64, &KnownDeadLetter> =
            (kept.iter().filter(|letter| letter.generation == present))
                .map(|letter| (letter.position, letter))
                .collect();
        let is_other = |arrival: &&Arrival| {
            let letter = kept.get(&arrival.position);
            letter.is_some_and(|letter| !letter.is_of(arrival.digest, arrival.payload.as_deref()))
        };
        if let Some(other) = arrivals.iter().find(is_other) {
            let generation = self.store.partitions.raise_generation(self.client, self.tenure).await?;
            let partition = self.partition();
            let offset = other.position;
            tracing::warn!(
                partition,
                offset,
                generation,
                "topic was recreated: another message had this offset; keeping the dead letters of the former topic"
            );
            self.generation = Some(generation);
            return Ok(arrivals);
        }
        let (known, new): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| kept.contains_key(&arrival.position));
        self.tally.duplicates += known.len() as u64;
        Ok(new)
    }

    /// The positions of commands whose marks are in the inbox.
    async fn seen(&self, marks: &[Mark]) -> Result<HashSet<i64>, Error> {
        let met = self.store.inbox.look_for(self.client, marks).await?;
        let seen = marks.iter().zip(met).filter(|(_, met)| *met == Marked::Seen);
        Ok(seen.map(|(mark, _)| mark.position).collect())
    }

    /// Commands that took effect under an earlier version, whose marks did not contain the job. The same payload has
    /// the same job.
    async fn seen_by_former_names(&self, arrivals: &[Arrival]) -> Result<HashSet<i64>, Error> {
        let has_own_id = |command: &&Command| command.id() != command.job_id;
        let former = |arrival: &Arrival| {
            let command = arrival.command.as_ref().ok().filter(has_own_id)?;
            self.mark_named(arrival, command.kind, command.id())
        };
        let marks: Vec<Mark> = arrivals.iter().filter_map(former).collect();
        self.seen(&marks).await
    }

    /// Commands that the former system has processed, by the marks imported from it.
    async fn seen_by_import(&self, arrivals: &[Arrival]) -> Result<HashSet<i64>, Error> {
        let mut names = Vec::new();
        let mut positions = Vec::new();
        for arrival in arrivals {
            let of = arrival.command.as_ref().map(ImportedMark::names_of).unwrap_or_default();
            positions.extend(of.iter().map(|_| arrival.position));
            names.extend(of);
        }
        let found = self.store.inbox.imported(self.client, IMPORTED, &names).await?;
        Ok(found.into_iter().map(|place| positions[place]).collect())
    }

    /// Adds to the reason of commands for unknown jobs whether the former system has those jobs.
    async fn explain_unknown_jobs(
        &self,
        arrivals: &[Arrival],
        verdicts: &mut [Verdict],
    ) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut reasons = Vec::new();
        for (arrival, verdict) in arrivals.iter().zip(verdicts) {
            if let (Ok(command), Verdict::NoSuchJob(reason)) = (&arrival.command, verdict) {
                names.push(ImportedMark::name_of_job(&command.job_id));
                reasons.push(reason);
            }
        }
        for place in self.store.inbox.imported(self.client, IMPORTED, &names).await? {
            reasons[place].push_str(
                ". The former system has the job, by an imported mark: send the command there, and discard this letter",
            );
        }
        Ok(())
    }

    /// Parks commands that have not taken effect before.
    async fn park(&mut self, arrivals: Vec<Arrival>) -> Result<Judged, Error> {
        let marks: Vec<Mark> = arrivals.iter().filter_map(|arrival| self.mark(arrival)).collect();
        let mut seen = self.seen(&marks).await?;
        seen.extend(self.seen_by_former_names(&arrivals).await?);
        seen.extend(self.seen_by_import(&arrivals).await?);
        let mut judged = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            let position = arrival.position;
            if seen.contains(&position) {
                self.tally.duplicates += 1;
                judged.push((position, Verdict::Duplicate));
                continue;
            }
            self.tally.parked += 1;
            let reason = "an earlier command of the same key is a dead letter";
            self.keep(arrival, DeadLetterState::Parked, reason).await?;
            judged.push((position, Verdict::Parked));
        }
        Ok(judged)
    }

    /// Keeps a message as a dead letter.
    async fn keep(&mut self, arrival: Arrival, state: DeadLetterState, reason: &str) -> Result<(), Error> {
        let generation = match arrival.generation {
            Some(generation) => generation,
            None => self.generation().await?,
        };
        self.dead_letters.push(DeadLetter {
            id: DeadLetterId { partition: self.partition(), generation, position: arrival.position },
            key: arrival.key,
            payload: arrival.payload,
            digest: Some(arrival.digest),
            state,
            reason: bounded(reason),
            at_ms: self.now_ms,
        });
        Ok(())
    }

    fn mark(&self, arrival: &Arrival) -> Option<Mark> {
        let command = arrival.command.as_ref().ok()?;
        self.mark_named(arrival, command.kind, &command.name())
    }

    fn mark_named(&self, arrival: &Arrival, kind: CommandKind, name: &str) -> Option<Mark> {
        let key = Key::new(&self.partition().to_string(), kind.name(), name).ok()?;
        let payload = PayloadHash::of(arrival.payload.as_deref().unwrap_or_default());
        Some(Mark { key, payload, position: arrival.position })
    }

    /// Marks commands in the inbox and applies the new ones. A rejected command keeps no mark: it may be redriven.
    async fn judge(&mut self, arrivals: &[Arrival]) -> Result<Vec<Verdict>, Error> {
        let mut seen = self.seen_by_former_names(arrivals).await?;
        seen.extend(self.seen_by_import(arrivals).await?);
        let others = arrivals.iter().filter(|arrival| !seen.contains(&arrival.position));
        let marks: Vec<Mark> = others.filter_map(|arrival| self.mark(arrival)).collect();
        let met = self.store.inbox.mark_all(self.client, &marks).await?;
        let mut met: HashMap<i64, Marked> = marks.iter().map(|mark| mark.position).zip(met).collect();
        met.extend(seen.into_iter().map(|position| (position, Marked::Seen)));
        let is_new = |arrival: &&Arrival| met.get(&arrival.position) == Some(&Marked::New);
        let ids = arrivals.iter().filter(is_new).filter_map(|arrival| arrival.command.as_ref().ok());
        self.load(ids.map(|command| command.job_id.as_str())).await?;
        let mut verdicts = Vec::with_capacity(arrivals.len());
        let mut rejected = Vec::new();
        for arrival in arrivals {
            let verdict = match (&arrival.command, met.get(&arrival.position)) {
                (Err(reason), _) => Verdict::Dead(reason.clone()),
                (Ok(_), Some(Marked::Seen)) => Verdict::Duplicate,
                (Ok(command), Some(Marked::Conflict)) => Verdict::Dead(format!(
                    "an earlier {} of job {} with the id {} had another content",
                    command.kind.name(),
                    command.job_id,
                    command.id()
                )),
                (Ok(command), Some(Marked::New)) => self.command(arrival, command).await?,
                (Ok(command), None) => {
                    Verdict::Dead(format!("{:?} is too long for an inbox mark", command.name()))
                }
            };
            if let Verdict::Dead(_) | Verdict::NoSuchJob(_) = &verdict
                && is_new(&arrival)
            {
                rejected.extend(self.mark(arrival));
            }
            verdicts.push(verdict);
        }
        self.store.inbox.unmark(self.client, &rejected).await?;
        self.explain_unknown_jobs(arrivals, &mut verdicts).await?;
        Ok(verdicts)
    }

    async fn command(&mut self, arrival: &Arrival, command: &Command) -> Result<Verdict, Error> {
        // An existing job ignores a CREATE, whichever partition it belongs to.
        let home = self.home_of(&command.job_id).filter(|_| command.kind != CommandKind::Create);
        let Some(home) = home.filter(|home| *home != self.partition()) else {
            let is_unknown = command.kind != CommandKind::Create && !self.jobs.contains_key(&command.job_id);
            return Ok(match self.carry_out(command) {
                Ok(()) => Verdict::Taken,
                Err(Rejection(reason)) if is_unknown => Verdict::NoSuchJob(reason),
                Err(Rejection(reason)) => Verdict::Dead(reason),
            });
        };
        if let Some(Rejection(reason)) = self.mismatch(command) {
            return Ok(Verdict::Dead(reason));
        }
        // The topic had fewer partitions when the job was created: its owner is another one.
        let origin = Origin {
            partition: self.partition(),
            generation: match arrival.generation {
                Some(generation) => generation,
                None => self.generation().await?,
            },
            position: arrival.position,
            digest: arrival.digest,
            payload: String::from_utf8_lossy(arrival.payload.as_deref().unwrap_or_default()).into_owned(),
        };
        let body = MailBody::Command { command: command.clone(), origin: Some(origin) };
        let mail = Mail::to_job(&command.job_id, body);
        self.mail.push((home, mail));
        Ok(Verdict::Taken)
    }

    /// The partition of a job that was loaded.
    fn home_of(&self, job: &str) -> Option<i32> {
        self.jobs.get(job).map(|entry| entry.partition)
    }

    fn mismatch(&self, command: &Command) -> Option<Rejection> {
        let job = self.jobs.get(&command.job_id).and_then(|entry| entry.now.as_ref());
        job.and_then(|job| command.mismatch(job)).map(Rejection)
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Rejection> {
        if let Some(rejection) = self.mismatch(command) {
            return Err(rejection);
        }
        self.apply(&command.job_id, &command.input(self.rules.pipeline)).map_err(|Rejection(reason)| {
            Rejection(format!("{} of job {}: {reason}", command.kind.name(), command.job_id))
        })
    }

    fn copy_dead_letter(&mut self, key: &str, DeadLetterId { position, generation, .. }: DeadLetterId) {
        if self.rules.has_dead_letters {
            let kind = OutboxKind::DeadLetter { position, generation };
            self.outbox.push(OutboxRow { channel: LETTERS, job_id: key.to_owned(), kind });
        }
    }

    /// Writes all changes. The caller commits.
    pub(crate) async fn write(mut self) -> Result<Tally, Error> {
        let dead: Vec<(String, DeadLetterId)> = (self.dead_letters.iter())
            .filter(|letter| letter.state == DeadLetterState::Dead)
            .map(|letter| (letter.key.clone(), letter.id))
            .collect();
        dead.iter().for_each(|(key, id)| self.copy_dead_letter(key, *id));
        let store = self.store;
        let client = self.client;
        if !self.dead_letters.is_empty() {
            store.insert_dead_letters(client, &self.dead_letters).await?;
        }
        if !self.mail.is_empty() {
            // Sorted by job, so that two deliveries rarely wait for each other; commands for a job keep their order.
            self.mail.sort_by(|a, b| (a.0, &a.1.subject).cmp(&(b.0, &b.1.subject)));
            for (partition, mail) in &self.mail {
                store.deliver_to(client, *partition, mail).await?;
            }
            self.tally.mailed = self.mail.iter().map(|(partition, _)| *partition).collect();
            self.tally.mailed.dedup();
        }
        self.write_jobs().await?;
        if !self.outbox.is_empty() {
            let count = i64::try_from(self.outbox.len()).unwrap_or(i64::MAX);
            let fenced = || Error::Effect("the partition has another owner".to_owned());
            let first = store.partitions.draw(client, self.tenure, count).await?.ok_or_else(fenced)?;
            store.insert_outbox(client, self.tenure, first, &self.outbox).await?;
        }
        Ok(self.tally)
    }

    async fn write_jobs(&self) -> Result<(), Error> {
        let store = self.store;
        let client = self.client;
        let partition = self.partition();
        let mut new = Vec::new();
        let mut changed = Vec::new();
        let mut stages = Vec::new();
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

impl Rules<'_> {
    fn row(self, job: &str, effect: Effect) -> Option<OutboxRow> {
        let (channel, kind) = match effect {
            Effect::Send { task, by } => (by.name(), OutboxKind::Send(task)),
            Effect::Revoke { task, by } => (by.name(), OutboxKind::Revoke(task)),
            Effect::Event(event) if self.has_events => {
                (EVENTS, OutboxKind::Event(serde_json::to_value(event).unwrap_or(Value::Null)))
            }
            Effect::Event(_) => return None,
        };
        Some(OutboxRow { channel, job_id: job.to_owned(), kind })
    }
}
