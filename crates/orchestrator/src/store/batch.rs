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

use super::{
    IMPORTED, Letter, LetterId, LetterState, Mail, MailBody, NOW_MS, Origin, OutboxKind, OutboxRow, Store,
    letters::KnownLetter,
};
use crate::{
    command::{Command, CommandKind, Mapping},
    cutover::Former,
    job::{Effect, Input, Job, JobState, Refusal, decide},
    pipeline::Pipeline,
    task::bounded_reason as bounded,
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
    /// Commands that had been forwarded, and became dead letters after all.
    pub returned: u64,
    /// Mail that had no effect since its job is gone: the job, and what the mail is.
    pub without_job: Vec<(String, String)>,
    /// Partitions that have new mail.
    pub mailed: Vec<i32>,
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
    /// What tells it from another message at its position.
    pub digest: i64,
    /// The generation of its topic, if it is a letter already; the present one if not.
    pub generation: Option<i64>,
    /// What it says, or why it says nothing.
    pub command: Result<Command, String>,
}

/// What a command came to.
pub(super) enum Verdict {
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
    pub(super) store: &'a Store,
    pub(super) client: &'a Client,
    tenure: &'a Tenure,
    /// Where the parts of commands are.
    pub(super) mapping: &'a Mapping,
    /// The stages of new jobs.
    pipeline: &'a Arc<Pipeline>,
    outlets: Outlets,
    pub(super) now_ms: i64,
    jobs: HashMap<String, Entry>,
    outbox: Vec<OutboxRow>,
    letters: Vec<Letter>,
    /// Mail, and the partitions whose owners are to read it.
    pub(super) mail: Vec<(i32, Mail)>,
    /// The generation of the topic, once it was read.
    generation: Option<i64>,
    pub(super) tally: Tally,
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
        (mapping, pipeline): (&'a Mapping, &'a Arc<Pipeline>),
        outlets: Outlets,
    ) -> Result<Self, Error> {
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
        let now_ms = client.query_typed_one(clock, &[]).await?.get(0);
        Ok(Self {
            store,
            client,
            tenure,
            mapping,
            pipeline,
            outlets,
            now_ms,
            jobs: HashMap::new(),
            outbox: Vec::new(),
            letters: Vec::new(),
            mail: Vec::new(),
            generation: None,
            tally: Tally::default(),
        })
    }

    pub(super) fn partition(&self) -> i32 {
        self.tenure.partition.number
    }

    /// The generation of the topic: read when it is needed for the first time, under the lock of the partition's row.
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
        let arrivals = self.without_letters(arrivals, &known.letters).await?;
        let (parked, free): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| known.parked.contains(&arrival.key));
        self.park(parked).await?;
        let verdicts = self.judge(&free).await?;
        for (arrival, verdict) in free.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Taken => self.tally.commands += 1,
                Verdict::Duplicate => self.tally.duplicates += 1,
                Verdict::Dead(reason) => {
                    self.tally.dead += 1;
                    self.keep(arrival, LetterState::Dead, &reason).await?;
                }
            }
        }
        Ok(())
    }

    /// Drops messages that are letters already. Where another message has the position of a letter, the topic was made
    /// anew and nobody said so: all letters of the partition are those of the topic before it.
    async fn without_letters(
        &mut self,
        arrivals: Vec<Arrival>,
        kept: &[KnownLetter],
    ) -> Result<Vec<Arrival>, Error> {
        if kept.is_empty() {
            return Ok(arrivals);
        }
        let present = self.generation().await?;
        let kept: HashMap<i64, &KnownLetter> = (kept.iter().filter(|letter| letter.generation == present))
            .map(|letter| (letter.position, letter))
            .collect();
        let is_other = |arrival: &&Arrival| {
            let letter = kept.get(&arrival.position);
            letter.is_some_and(|letter| !letter.is_of(arrival.digest, arrival.payload.as_deref()))
        };
        if let Some(other) = arrivals.iter().find(is_other) {
            let generation = self.store.partitions.raise_generation(self.client, self.tenure).await?;
            let (partition, offset) = (self.partition(), other.position);
            tracing::warn!(
                partition,
                offset,
                generation,
                "the topic was made anew: a letter of another message has this offset; letters before are kept"
            );
            self.generation = Some(generation);
            return Ok(arrivals);
        }
        let (known, new): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| kept.contains_key(&arrival.position));
        self.tally.duplicates += known.len() as u64;
        Ok(new)
    }

    /// The positions of commands that have taken effect before, by these marks.
    async fn seen(&self, marks: &[Mark]) -> Result<HashSet<i64>, Error> {
        let met = self.store.inbox.look_for(self.client, marks).await?;
        let seen = marks.iter().zip(met).filter(|(_, met)| *met == Marked::Seen);
        Ok(seen.map(|(mark, _)| mark.position).collect())
    }

    /// Commands that took effect before their marks had the job in their names. The same name is enough to find them,
    /// and the same payload has the same job.
    async fn seen_by_former_names(&self, arrivals: &[Arrival]) -> Result<HashSet<i64>, Error> {
        let has_own_id = |command: &&Command| command.id() != command.job_id;
        let former = |arrival: &Arrival| {
            let command = arrival.command.as_ref().ok().filter(has_own_id)?;
            self.mark_named(arrival, command.kind, command.id())
        };
        let marks: Vec<Mark> = arrivals.iter().filter_map(former).collect();
        self.seen(&marks).await
    }

    /// Commands that the system before this one has processed, by the marks that were imported from it.
    async fn seen_by_import(&self, arrivals: &[Arrival]) -> Result<HashSet<i64>, Error> {
        let (mut names, mut positions) = (Vec::new(), Vec::new());
        for arrival in arrivals {
            let of = arrival.command.as_ref().map(Former::names_of).unwrap_or_default();
            positions.extend(of.iter().map(|_| arrival.position));
            names.extend(of);
        }
        let found = self.store.inbox.imported(self.client, IMPORTED, &names).await?;
        Ok(found.into_iter().map(|place| positions[place]).collect())
    }

    /// Says of commands to jobs that are not known whether the system before this one has those jobs.
    async fn explain_unknown_jobs(
        &self,
        arrivals: &[Arrival],
        verdicts: &mut [Verdict],
    ) -> Result<(), Error> {
        let (mut names, mut reasons) = (Vec::new(), Vec::new());
        for (arrival, verdict) in arrivals.iter().zip(verdicts) {
            if let (Ok(command), Verdict::Dead(reason)) = (&arrival.command, verdict)
                && command.kind != CommandKind::Create
                && !self.jobs.contains_key(&command.job_id)
            {
                names.push(Former::name_of_job(&command.job_id));
                reasons.push(reason);
            }
        }
        for place in self.store.inbox.imported(self.client, IMPORTED, &names).await? {
            reasons[place].push_str(
                ". The system before this one has it, by an imported mark: do it there, and discard this letter",
            );
        }
        Ok(())
    }

    /// Parks what has not taken effect before.
    async fn park(&mut self, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let marks: Vec<Mark> = arrivals.iter().filter_map(|arrival| self.mark(arrival)).collect();
        let mut seen = self.seen(&marks).await?;
        seen.extend(self.seen_by_former_names(&arrivals).await?);
        seen.extend(self.seen_by_import(&arrivals).await?);
        for arrival in arrivals {
            if seen.contains(&arrival.position) {
                self.tally.duplicates += 1;
                continue;
            }
            self.tally.parked += 1;
            let reason = "a command of the same key before it is a dead letter";
            self.keep(arrival, LetterState::Parked, reason).await?;
        }
        Ok(())
    }

    /// Keeps a message as a letter.
    pub(super) async fn keep(
        &mut self,
        arrival: Arrival,
        state: LetterState,
        reason: &str,
    ) -> Result<(), Error> {
        let generation = match arrival.generation {
            Some(generation) => generation,
            None => self.generation().await?,
        };
        self.letters.push(Letter {
            partition: self.partition(),
            generation,
            position: arrival.position,
            key: arrival.key,
            payload: arrival.payload,
            digest: Some(arrival.digest),
            state,
            reason: bounded(reason),
            at_ms: self.now_ms,
        });
        Ok(())
    }

    pub(super) fn mark(&self, arrival: &Arrival) -> Option<Mark> {
        let command = arrival.command.as_ref().ok()?;
        self.mark_named(arrival, command.kind, &command.name())
    }

    fn mark_named(&self, arrival: &Arrival, kind: CommandKind, name: &str) -> Option<Mark> {
        let key = Key::new(&self.partition().to_string(), kind.name(), name).ok()?;
        let payload = PayloadHash::of(arrival.payload.as_deref().unwrap_or_default());
        Some(Mark { key, payload, position: arrival.position })
    }

    /// Marks commands and applies those that are new. A command that is refused keeps no mark: it may work later.
    pub(super) async fn judge(&mut self, arrivals: &[Arrival]) -> Result<Vec<Verdict>, Error> {
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
        let (mut verdicts, mut refused) = (Vec::with_capacity(arrivals.len()), Vec::new());
        for arrival in arrivals {
            let verdict = match (&arrival.command, met.get(&arrival.position)) {
                (Err(reason), _) => Verdict::Dead(reason.clone()),
                (Ok(_), Some(Marked::Seen)) => Verdict::Duplicate,
                (Ok(command), Some(Marked::Conflict)) => Verdict::Dead(format!(
                    "another {} of job {} with the id {} came before, and said something else",
                    command.kind.name(),
                    command.job_id,
                    command.id()
                )),
                (Ok(command), Some(Marked::New)) => self.command(arrival, command).await?,
                (Ok(command), None) => {
                    Verdict::Dead(format!("{:?} cannot be kept as a mark", command.name()))
                }
            };
            if let Verdict::Dead(_) = &verdict
                && is_new(&arrival)
            {
                refused.extend(self.mark(arrival));
            }
            verdicts.push(verdict);
        }
        self.store.inbox.unmark(self.client, &refused).await?;
        self.explain_unknown_jobs(arrivals, &mut verdicts).await?;
        Ok(verdicts)
    }

    async fn command(&mut self, arrival: &Arrival, command: &Command) -> Result<Verdict, Error> {
        // A job that there is already ignores a CREATE, wherever it is.
        let home = self.home_of(&command.job_id).filter(|_| command.kind != CommandKind::Create);
        let Some(home) = home.filter(|home| *home != self.partition()) else {
            return Ok(self.carry_out(command).map_or_else(Verdict::Dead, |()| Verdict::Taken));
        };
        if let Some(reason) = self.not_for(command) {
            return Ok(Verdict::Dead(reason));
        }
        // The topic has more partitions than when the job was created; its owner is another.
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
    pub(super) fn home_of(&self, job: &str) -> Option<i32> {
        self.jobs.get(job).map(|entry| entry.partition)
    }

    /// Why a command may do nothing to its job, if it may not.
    fn not_for(&self, command: &Command) -> Option<String> {
        let job = self.jobs.get(&command.job_id).and_then(|entry| entry.now.as_ref());
        job.and_then(|job| command.not_for(job))
    }

    /// Does what a command says, or says why it cannot be.
    pub(super) fn carry_out(&mut self, command: &Command) -> Result<(), String> {
        if let Some(reason) = self.not_for(command) {
            return Err(reason);
        }
        let applied = self.apply(&command.job_id, &command.input(self.pipeline));
        applied.map_err(|refusal| format!("{} of job {}: {refusal}", command.kind.name(), command.job_id))
    }

    pub(super) fn copy_letter(&mut self, key: &str, LetterId { position, generation, .. }: LetterId) {
        if self.outlets.letters {
            let kind = OutboxKind::Letter { position, generation };
            self.outbox.push(OutboxRow { channel: LETTERS, job_id: key.to_owned(), kind });
        }
    }

    /// Writes everything. The caller commits.
    pub(crate) async fn write(mut self) -> Result<Tally, Error> {
        let dead: Vec<(String, LetterId)> = (self.letters.iter())
            .filter(|letter| letter.state == LetterState::Dead)
            .map(|letter| (letter.key.clone(), letter.id()))
            .collect();
        dead.iter().for_each(|(key, id)| self.copy_letter(key, *id));
        let (store, client, partition) = (self.store, self.client, self.partition());
        if !self.letters.is_empty() {
            store.insert_letters(client, &self.letters).await?;
        }
        if !self.mail.is_empty() {
            // By jobs, so that two deliveries rarely wait for each other; commands to a job stay in their order.
            self.mail.sort_by(|a, b| (a.0, &a.1.subject).cmp(&(b.0, &b.1.subject)));
            for (partition, mail) in &self.mail {
                store.deliver_to(client, *partition, mail).await?;
            }
            self.tally.mailed = self.mail.iter().map(|(partition, _)| *partition).collect();
            self.tally.mailed.dedup();
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
