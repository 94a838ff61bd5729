//! What the orchestrator would do with a command: its own decisions, in a schema of their own.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use deadpool_postgres::Object;
use solehold_kafka::Message;
use solehold_sql::{
    Error,
    partitions::{Partition, Raised, Tenure},
};

use crate::{
    batch::{Arrival, Batch, Judged, Rules, Verdict},
    config::Settings,
    error::RunError,
    model::command::Command,
    operations::start,
    store::{ShadowSchema, Store, create_shadow, drop_shadow},
};

/// A message, and what the orchestrator would do with it.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub timestamp_ms: Option<i64>,
    pub command: Option<Command>,
    /// The job, even of a message that is no valid command, if it names one.
    pub job: Option<String>,
    pub verdict: Verdict,
    /// Whether its job is unknown, and may have begun before the first offset that was read.
    pub may_have_begun: bool,
}

pub(super) struct Decider {
    settings: Settings,
    store: Arc<Store>,
    /// By partition.
    tenures: Vec<Tenure>,
    /// Holds the schema.
    session: Object,
    /// Tasks that were not sent.
    pub tasks: u64,
}

impl Decider {
    /// Creates the schema.
    pub async fn open(settings: &Settings) -> Result<Self, RunError> {
        let mut settings = settings.clone();
        let schema = format!("{}_shadow", settings.postgres.schema);
        settings.postgres.schema.clone_from(&schema);
        let (pool, _) = start::pool(&settings.postgres)?;
        let session = pool.get().await.map_err(RunError::database)?;
        match create_shadow(&session, &schema).await.map_err(RunError::database)? {
            ShadowSchema::Created => {}
            ShadowSchema::InUse => {
                return Err(RunError::Usage(format!(
                    "another shadow uses the schema {schema}: wait for its end, or stop it"
                )));
            }
            ShadowSchema::Foreign => {
                return Err(RunError::Usage(format!(
                    "the schema {schema} exists, and is not one that a shadow has left: rename or drop it"
                )));
            }
        }
        let (store, _) = start::open(&settings, settings.postgres.wait).await?;
        let tenures = tenures(&settings, &store).await.map_err(RunError::database)?;
        Ok(Self { settings, store, tenures, session, tasks: 0 })
    }

    /// Drops the schema.
    pub async fn close(&self) -> Result<(), RunError> {
        drop_shadow(&self.session, &self.settings.postgres.schema).await.map_err(RunError::database)
    }

    /// Decides messages of one partition in their order. `first` is the first offset of the partition that is read.
    pub async fn decide(
        &mut self,
        partition: i32,
        first: i64,
        messages: &[Message],
    ) -> Result<Vec<Decided>, RunError> {
        let mapping = self.settings.commands.clone();
        let mut decided = Vec::with_capacity(messages.len());
        for some in with_distinct_keys(messages) {
            let arrivals = some.iter().map(|message| {
                let parsed = mapping.parse(message.payload.as_deref(), message.key.as_deref());
                Arrival::of(message, parsed.map_err(|error| error.to_string()))
            });
            let arrivals: Vec<Arrival> = arrivals.collect();
            let judged = self.judge_all(partition, first, arrivals.clone()).await?;
            let mut verdicts: HashMap<i64, Verdict> = judged.into_iter().collect();
            for (arrival, message) in arrivals.into_iter().zip(some) {
                let Some(verdict) = verdicts.remove(&arrival.position) else { continue };
                let command = arrival.command.ok();
                let job = match &command {
                    Some(command) => Some(command.job_id.clone()),
                    None => message.payload.as_deref().and_then(|payload| mapping.job_of(payload)),
                };
                decided.push(Decided {
                    partition,
                    offset: arrival.position,
                    key: arrival.key,
                    timestamp_ms: message.timestamp_ms,
                    command,
                    job,
                    may_have_begun: may_have_begun(first, &verdict),
                    verdict,
                });
            }
        }
        Ok(decided)
    }

    /// Messages that PostgreSQL rejects are dead letters, as they are for a consumer.
    async fn judge_all(
        &mut self,
        partition: i32,
        first: i64,
        arrivals: Vec<Arrival>,
    ) -> Result<Judged, RunError> {
        match self.judge(partition, first, arrivals.clone()).await {
            Err(error) if error.is_of_the_data() => {}
            judged => return judged.map_err(RunError::database),
        }
        let mut all = Vec::with_capacity(arrivals.len());
        for mut arrival in arrivals {
            let mut judged = self.judge(partition, first, vec![arrival.clone()]).await;
            if let Err(error) = &judged
                && error.is_of_the_data()
            {
                arrival.command = Err(format!("the effect of the message cannot be committed: {error}"));
                judged = self.judge(partition, first, vec![arrival]).await;
            }
            all.extend(judged.map_err(RunError::database)?);
        }
        Ok(all)
    }

    /// One transaction, of messages with different keys.
    async fn judge(&mut self, partition: i32, first: i64, arrivals: Vec<Arrival>) -> Result<Judged, Error> {
        let Some(tenure) = usize::try_from(partition).ok().and_then(|number| self.tenures.get(number)) else {
            return Ok(Vec::new());
        };
        let rules = Rules {
            mapping: &self.settings.commands,
            pipeline: &self.settings.pipeline,
            has_events: false,
            has_dead_letters: false,
        };
        let mut client = self.store.pool.get().await?;
        let tx = client.transaction().await?;
        // A crash loses nothing that matters.
        tx.batch_execute("SET LOCAL synchronous_commit = off").await?;
        let client = tokio_postgres::GenericClient::client(&*tx);
        let mut batch = Batch::begin(&self.store, client, tenure, rules).await?;
        let judged = batch.take(arrivals).await?;
        batch.write().await?;
        let tasks = self.store.discard_outbox(client).await?;
        let known = judged.iter().filter(|(_, verdict)| may_have_begun(first, verdict));
        let known: Vec<i64> = known.map(|(position, _)| *position).collect();
        self.store.discard_letters(client, partition, &known).await?;
        tx.commit().await?;
        self.tasks += tasks;
        Ok(judged)
    }
}

/// Whether a command may be rejected only because its job began before the first offset that was read.
fn may_have_begun(first: i64, verdict: &Verdict) -> bool {
    first > 0 && matches!(verdict, Verdict::NoSuchJob(_))
}

/// Parts in which each key occurs once. What is discarded after one of them parks nothing in the next.
fn with_distinct_keys(messages: &[Message]) -> Vec<&[Message]> {
    let mut parts = Vec::new();
    let mut keys = HashSet::new();
    let mut begin = 0;
    for (at, message) in messages.iter().enumerate() {
        if !keys.insert(message.key.as_deref()) {
            parts.push(&messages[begin..at]);
            keys.clear();
            keys.insert(message.key.as_deref());
            begin = at;
        }
    }
    parts.push(&messages[begin..]);
    parts
}

/// Takes all partitions of the schema.
async fn tenures(settings: &Settings, store: &Store) -> Result<Vec<Tenure>, Error> {
    let client = store.pool.get().await?;
    let mut tenures = Vec::new();
    for number in 0..settings.consumer.partitions {
        let partition = Partition {
            group: settings.consumer.group.clone(),
            topic: settings.consumer.topic.clone(),
            number,
        };
        let row = store.partitions.look(&**client, &partition).await?;
        let raised = store.partitions.raise_from(&**client, &partition, row.epoch, &settings.name, 0);
        match raised.await? {
            Raised::Ours(tenure) => tenures.push(tenure),
            Raised::Overtaken(row) => {
                return Err(Error::Effect(format!("partition {number} was taken by {}", row.owner)));
            }
        }
    }
    Ok(tenures)
}
