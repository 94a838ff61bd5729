//! Jobs in PostgreSQL, in a schema of their own.
//!
//! ```text
//!   partitions   who may write for a partition, and its position     (crates/sql)
//!   inbox        which commands have taken effect                    (crates/sql)
//!   pipelines    the stages that jobs started with, by digest
//!   jobs, stages the state of jobs
//!   mailbox      reports and requests for jobs, until the owner of their partition applies them
//!   unreadable_mail  mail that could not take effect, and why
//!   outbox       tasks, events and copies of dead letters, until they are sent and confirmed
//!   letters      dead letters: rejected commands, and commands that are parked behind them
//! ```
//!
//! Every transaction that changes jobs first checks the epoch of its partition, and holds the lock of that row until it
//! ends. Not stored: how a task was sent, and reports of old attempts.

mod dead_letters;
mod floor;
mod mailbox;
mod old_jobs;
mod outbox;
mod read;
mod rows;
mod shadow;

use std::{collections::HashMap, sync::Arc};

use deadpool_postgres::Pool;
use parking_lot::Mutex;
use solehold_sql::{Error, inbox::Inbox, partitions::Partitions};
use tokio_postgres::{Client, types::Type};

pub(crate) use self::{
    dead_letters::KnownDeadLetter,
    floor::{Floor, FullReads},
    outbox::{EVENTS, LETTERS},
    shadow::{ShadowSchema, create_shadow, drop_shadow},
};
pub use self::{
    dead_letters::{BegunAnew, DeadLetter, DeadLetterId, DeadLetterState, InvalidDeadLetterId},
    mailbox::{Delivered, Mail, MailBody, MailPage, Origin},
    outbox::{OutboxKind, OutboxRow},
    read::{JobSummary, RemainingWork},
};
use crate::model::pipeline::Pipeline;

/// The scope of marks that were imported from the former system. The scope of other marks is their partition.
pub(crate) const IMPORTED: &str = "imported";
/// How many pipelines are cached.
const PIPELINES_KEPT: usize = 1_000;
/// A pipeline that jobs begin with is marked as used this often.
const USED_EVERY_MS: i64 = 60 * 60 * 1_000;
/// The database's time at the start of the statement, in milliseconds. Unlike `clock_timestamp()` it is constant, so an
/// index can be searched by it. It may lag behind the clock if the statement waits, so use it only to select rows older
/// than a given age, or candidates that are checked again.
const NOW_MS: &str = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint";

/// The outcome of [`Store::prepare`].
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prepared {
    /// The tables exist and belong to this orchestrator.
    Ready,
    /// The schema has the jobs of another orchestrator, of this group and topic.
    InUse { group: String, topic: String },
}

#[derive(Debug)]
pub struct Store {
    pub pool: Pool,
    schema: String,
    /// The owners and positions of partitions.
    pub partitions: Partitions,
    /// Marks of commands that have taken effect.
    pub inbox: Inbox,
    pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
}

impl Store {
    /// The tables in a schema, whose name was checked by the configuration.
    pub fn new(pool: Pool, schema: &str) -> Result<Self, Error> {
        Ok(Self {
            pool,
            schema: schema.to_owned(),
            partitions: Partitions::new(&format!("{schema}.partitions"))?,
            inbox: Inbox::new(&format!("{schema}.inbox"))?,
            pipelines: Mutex::default(),
        })
    }

    /// The LISTEN channel for notifications of new mail.
    pub fn channel(&self) -> String {
        format!("{}_mail", self.schema)
    }

    fn table(&self, name: &str) -> String {
        format!("\"{}\".{name}", self.schema)
    }

    /// Creates missing tables. Several processes may do so at once. A schema belongs to one group and topic.
    pub async fn prepare(&self, group: &str, topic: &str) -> Result<Prepared, Error> {
        let mut client = self.pool.get().await?;
        let tx = client.transaction().await?;
        let schema = &self.schema;
        let lock = format!("solehold orchestrator {schema}");
        tx.query_typed("SELECT pg_advisory_xact_lock(hashtext($1))", &[(&lock, Type::TEXT)]).await?;
        let partitions = self.partitions.schema();
        let inbox = self.inbox.migration();
        let first = format!("CREATE SCHEMA IF NOT EXISTS OURS;\n{partitions};\n{inbox};\n{SCHEMA}");
        // A step is complete if its last table, index or column exists. `CREATE INDEX IF NOT EXISTS` alone would wait
        // for every writer, and deadlock with some, only to find that there is nothing to do.
        let steps = [
            ("letters", first.as_str()),
            ("jobs_finished", JOBS_FINISHED),
            ("pipelines_used", PIPELINES_USED),
            ("unreadable_mail", UNREADABLE_MAIL),
            ("letters_waiting", LETTERS_WAITING),
            ("letters_resolved", CLEANING),
            ("jobs.labels", LABELS),
        ];
        for (last, tables) in steps {
            let (of, column) = last.split_once('.').map_or((last, None), |(of, column)| (of, Some(column)));
            let is_made = "SELECT to_regclass($1) IS NOT NULL AND ($2::text IS NULL OR EXISTS (SELECT FROM pg_attribute \
                           WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped))";
            let of = self.table(of);
            let is_made = tx.query_typed_one(is_made, &[(&of, Type::TEXT), (&column, Type::TEXT)]).await?;
            if !is_made.get::<_, bool>(0) {
                tx.batch_execute(&tables.replace("OURS", &format!("\"{schema}\""))).await?;
            }
        }
        let about = format!(
            "INSERT INTO {} (consumer_group, topic) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            self.table("about")
        );
        tx.execute_typed(&about, &[(&group, Type::TEXT), (&topic, Type::TEXT)]).await?;
        let read = format!("SELECT consumer_group, topic FROM {}", self.table("about"));
        let row = tx.query_one(&read, &[]).await?;
        tx.commit().await?;
        if row.get::<_, &str>(0) == group && row.get::<_, &str>(1) == topic {
            return Ok(Prepared::Ready);
        }
        Ok(Prepared::InUse { group: row.get(0), topic: row.get(1) })
    }

    /// Stores a pipeline, and returns its digest. It is looked up each time, since an earlier insert may have been
    /// rolled back. A recently used one is not deleted before the transaction ends, so that its row needs no lock,
    /// which would make all partitions wait for one another.
    pub(crate) async fn keep_pipeline(
        &self,
        client: &Client,
        pipeline: &Arc<Pipeline>,
    ) -> Result<String, Error> {
        let text = serde_json::to_string(pipeline).map_err(|error| Error::Effect(error.to_string()))?;
        let digest = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()));
        let table = self.table("pipelines");
        let is_recent =
            format!("SELECT FROM {table} WHERE digest = $1 AND used_ms > {NOW_MS} - {USED_EVERY_MS}");
        if client.query_typed_opt(&is_recent, &[(&digest, Type::TEXT)]).await?.is_some() {
            return Ok(digest);
        }
        let insert = format!(
            "INSERT INTO {table} (digest, stages) VALUES ($1, $2) \
             ON CONFLICT (digest) DO UPDATE SET used_ms = excluded.used_ms"
        );
        let stages = serde_json::to_value(pipeline).map_err(|error| Error::Effect(error.to_string()))?;
        client.execute_typed(&insert, &[(&digest, Type::TEXT), (&stages, Type::JSON)]).await?;
        Ok(digest)
    }

    async fn pipeline(&self, client: &Client, digest: &str) -> Result<Arc<Pipeline>, Error> {
        if let Some(known) = self.pipelines.lock().get(digest) {
            return Ok(known.clone());
        }
        let read = format!("SELECT stages FROM {} WHERE digest = $1", self.table("pipelines"));
        let row = client.query_typed_one(&read, &[(&digest, Type::TEXT)]).await?;
        let pipeline = serde_json::from_value(row.try_get(0)?);
        let pipeline: Arc<Pipeline> = Arc::new(pipeline.map_err(|error| Error::Effect(error.to_string()))?);
        let mut kept = self.pipelines.lock();
        if kept.len() >= PIPELINES_KEPT {
            kept.clear();
        }
        kept.insert(digest.to_owned(), pipeline.clone());
        Ok(pipeline)
    }
}

/// Deadlines and states change often: rows have room for their next versions.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS OURS.about (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), consumer_group text NOT NULL, topic text NOT NULL);
CREATE TABLE IF NOT EXISTS OURS.pipelines (digest text PRIMARY KEY, stages json NOT NULL);
CREATE TABLE IF NOT EXISTS OURS.jobs (
    job_id text PRIMARY KEY, partition integer NOT NULL, organization_id text NOT NULL, match_id text NOT NULL,
    input json NOT NULL, pipeline text NOT NULL, state text NOT NULL, reason text, revision bigint NOT NULL,
    created_ms bigint NOT NULL, finished_ms bigint) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS jobs_state ON OURS.jobs (state, job_id);
CREATE TABLE IF NOT EXISTS OURS.stages (
    job_id text NOT NULL, place integer NOT NULL, stage text NOT NULL, partition integer NOT NULL,
    state text NOT NULL, attempt integer NOT NULL, failures integer NOT NULL, progress double precision NOT NULL,
    result json, reason text, queued_ms bigint, started_ms bigint, finished_ms bigint, deadline_ms bigint,
    PRIMARY KEY (job_id, place)) WITH (fillfactor = 60);
CREATE INDEX IF NOT EXISTS stages_deadline ON OURS.stages (partition, deadline_ms) WHERE deadline_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS OURS.mailbox (
    partition integer NOT NULL, subject text NOT NULL, name text NOT NULL, body json NOT NULL,
    arrival bigint GENERATED BY DEFAULT AS IDENTITY, PRIMARY KEY (partition, subject, name));
CREATE INDEX IF NOT EXISTS mailbox_arrival ON OURS.mailbox (partition, arrival);
CREATE TABLE IF NOT EXISTS OURS.outbox (
    partition integer NOT NULL, channel text NOT NULL, sequence bigint NOT NULL, job_id text NOT NULL,
    kind text NOT NULL, stage text, attempt integer, document json, PRIMARY KEY (partition, channel, sequence));
CREATE TABLE IF NOT EXISTS OURS.letters (
    partition integer NOT NULL, position bigint NOT NULL, key text NOT NULL, payload bytea,
    state text NOT NULL, reason text NOT NULL, at_ms bigint NOT NULL, resolved_ms bigint,
    PRIMARY KEY (partition, position));
";
/// Letters have the generation of their topic in their names, and an index has room for every key that is kept: at most
/// 1024 bytes, or 512 characters and the length (`owner::handler`). Writers lock partitions before letters, and so does
/// this.
const LETTERS_WAITING: &str = "
ALTER TABLE OURS.partitions ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0;
ALTER TABLE OURS.letters ADD COLUMN IF NOT EXISTS generation bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS digest bigint;
DROP INDEX IF EXISTS OURS.letters_open;
UPDATE OURS.letters SET key = left(key, 512) || '... (' || octet_length(key) || ' bytes)' WHERE octet_length(key) > 1024;
ALTER TABLE OURS.letters DROP CONSTRAINT IF EXISTS letters_pkey, DROP CONSTRAINT IF EXISTS letters_by_generation,
    ADD CONSTRAINT letters_by_generation PRIMARY KEY (partition, position, generation);
CREATE INDEX IF NOT EXISTS letters_waiting ON OURS.letters (partition, key, generation, position)
    WHERE resolved_ms IS NULL;";
/// Mail that could not take effect, so that it does not keep back what came after it.
const UNREADABLE_MAIL: &str = "CREATE TABLE IF NOT EXISTS OURS.unreadable_mail (
    number bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, partition integer NOT NULL, subject text NOT NULL,
    name text NOT NULL, body json NOT NULL, reason text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());";
/// Jobs that have ended, by when.
const JOBS_FINISHED: &str = "CREATE INDEX IF NOT EXISTS jobs_finished ON OURS.jobs (partition, finished_ms)
    WHERE finished_ms IS NOT NULL;";
/// What cleaning and lists look for: letters that were decided on, by when; open ones in the order of their ids, and by
/// their key in any partition; mail that was set aside, by when; marks by either part of their id.
const CLEANING: &str = "
CREATE INDEX IF NOT EXISTS inbox_id_first ON OURS.inbox (split_part(id, E'\\x1f', 1));
CREATE INDEX IF NOT EXISTS inbox_id_second ON OURS.inbox (split_part(id, E'\\x1f', 2));
CREATE INDEX IF NOT EXISTS unreadable_mail_at ON OURS.unreadable_mail (partition, at);
CREATE INDEX IF NOT EXISTS letters_unresolved ON OURS.letters (partition, generation, position)
    WHERE resolved_ms IS NULL;
CREATE INDEX IF NOT EXISTS letters_key ON OURS.letters USING hash (key) WHERE resolved_ms IS NULL;
CREATE INDEX IF NOT EXISTS letters_resolved ON OURS.letters (partition, resolved_ms) WHERE resolved_ms IS NOT NULL;";
/// Jobs have a key and any labels, where they had an organization and a match of which their key was made. Writers lock
/// partitions before anything else, and so does this.
const LABELS: &str = "
LOCK TABLE OURS.partitions IN EXCLUSIVE MODE;
ALTER TABLE OURS.jobs
    ALTER COLUMN match_id TYPE text USING organization_id || ':' || match_id,
    ALTER COLUMN organization_id TYPE json
        USING json_build_object('organization_id', organization_id, 'match_id', match_id);
ALTER TABLE OURS.jobs RENAME COLUMN match_id TO key;
ALTER TABLE OURS.jobs RENAME COLUMN organization_id TO labels;
UPDATE OURS.outbox SET document = (document::jsonb - 'organization_id' - 'match_id' || jsonb_build_object(
    'key', (document->>'organization_id') || ':' || (document->>'match_id'),
    'labels', json_build_object('organization_id', document->'organization_id', 'match_id', document->'match_id')))::json
    WHERE kind = 'event';";
/// Pipelines know when a job last began with them, and which jobs have them.
const PIPELINES_USED: &str = "
ALTER TABLE OURS.pipelines ADD COLUMN IF NOT EXISTS used_ms bigint NOT NULL
    DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
CREATE INDEX IF NOT EXISTS jobs_pipeline ON OURS.jobs (pipeline);
CREATE INDEX IF NOT EXISTS pipelines_used ON OURS.pipelines (used_ms);";
