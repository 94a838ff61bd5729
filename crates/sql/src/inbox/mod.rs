//! Commands that may arrive twice take effect once.
//!
//! ```text
//!   begin(key, payload) ──> Started(ticket) ── the effect and complete(ticket, result) commit in one transaction ──> done
//!                     ├──> Done(result)        the same command, done before: its result again
//!                     ├──> InProgress          another worker has it, until a deadline by the database's clock
//!                     └──> Conflict            the same key with another payload
//! ```
//!
//! A ticket has an epoch. A worker that takes over an expired one gets a larger epoch, and the old ticket can no longer
//! complete anything: its transaction sees [`ClaimOutcome::Lost`] and must roll back.
//!
//! Where an effect has one transaction and no other worker can be at it, such as that of a partition's message, a
//! command needs no ticket: [`Inbox::mark_all`] marks many at once.

#[cfg(feature = "axum")]
pub mod http;
mod marks;

use std::time::Duration;

use serde_json::Value;
use tokio_postgres::{Client, GenericClient, types::Type};

pub use self::marks::{ListedMark, Mark, Marked};
use crate::{
    ClaimOutcome, Error, LossReason,
    claims::Parameter,
    ident,
    limits::{INBOX_KEY_BYTES_MAX, INBOX_RESULT_BYTES_MAX, LEASE_MAX, LEASE_MIN},
};

/// How often `begin` looks again when the row it met has gone.
const LOOKS: usize = 10;

/// Between the two parts of an id, such as that of a job and that of one command to it: marks are listed and cleared by
/// either part. No id that people write has it, so that two pairs are never the same id.
pub const ID_SEPARATOR: char = '\u{1f}';
/// When a command ended, or was given up.
const AGE: &str = "COALESCE(done_at, until)";
/// When the statement began: one value for all of it, so that an index can be searched by it, which `clock_timestamp()`
/// cannot be. Where the statement waits, this is older than the clock, and less is deleted.
const NOW: &str = "statement_timestamp()";

/// What names a command: who sent it, what it is, and the id that the sender gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    scope: String,
    command: String,
    id: String,
}

impl Key {
    /// Scope (such as a tenant), command type and id; each at most 512 bytes, the last two not empty. An id may be two
    /// with an [`ID_SEPARATOR`] between them.
    pub fn new(scope: &str, command: &str, id: &str) -> Result<Self, Error> {
        for (what, value, may_be_empty) in
            [("scope", scope, true), ("command type", command, false), ("command id", id, false)]
        {
            let wrong = value.len() > INBOX_KEY_BYTES_MAX
                || value.contains('\0')
                || (value.is_empty() && !may_be_empty);
            if wrong {
                let least = if may_be_empty { 0 } else { 1 };
                let wanted = format!("use {least} to {INBOX_KEY_BYTES_MAX} bytes without zero bytes");
                return Err(Error::invalid(what, value, wanted));
            }
        }
        Ok(Self { scope: scope.to_owned(), command: command.to_owned(), id: id.to_owned() })
    }
}

/// What a payload is recognized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadHash([u8; 32]);

impl PayloadHash {
    pub fn of(payload: &[u8]) -> Self {
        Self(*blake3::hash(payload).as_bytes())
    }
}

/// The right to carry out a command, until another worker takes it over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    key: Key,
    epoch: i64,
}

impl Ticket {
    /// Larger at each attempt, never used twice for a key.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }
}

/// The answer to [`Inbox::begin`].
#[derive(Debug, Clone, PartialEq)]
pub enum CommandStatus {
    Started(Ticket),
    /// It was carried out before, with this result.
    Done(Value),
    /// Another worker is carrying it out.
    InProgress {
        /// When their time is up.
        retry_after: Duration,
    },
    /// The key was used for another payload.
    Conflict,
}

#[derive(Debug, Clone)]
pub struct Inbox {
    table: String,
    begin: String,
    look: String,
    complete: String,
    abandon: String,
    prune: String,
}

impl Inbox {
    /// The inbox in this table, `table` or `schema.table`.
    pub fn new(table: &str) -> Result<Self, Error> {
        let table = ident::table(table)?;
        let mine = "scope = $1 AND command = $2 AND id = $3";
        Ok(Self {
            // An epoch starts from the time in microseconds, so that it stays above those of rows that were pruned.
            begin: format!(
                "INSERT INTO {table} AS inbox (scope, command, id, payload_hash, epoch, until) VALUES ($1, $2, $3, $4, \
                 (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp() + $5 * interval '1 millisecond') \
                 ON CONFLICT (scope, command, id) DO UPDATE SET epoch = GREATEST(inbox.epoch + 1, EXCLUDED.epoch), until = EXCLUDED.until \
                 WHERE inbox.done_at IS NULL AND inbox.until <= clock_timestamp() AND inbox.payload_hash = EXCLUDED.payload_hash \
                 RETURNING epoch"
            ),
            look: format!(
                "SELECT payload_hash, done_at IS NOT NULL, result, \
                 GREATEST(extract(epoch FROM until - clock_timestamp()), 0)::float8, epoch FROM {table} WHERE {mine}"
            ),
            complete: format!(
                "UPDATE {table} SET done_at = clock_timestamp(), result = $5, until = NULL \
                 WHERE {mine} AND epoch = $4 AND done_at IS NULL"
            ),
            abandon: format!(
                "UPDATE {table} SET until = clock_timestamp() WHERE {mine} AND epoch = $4 AND done_at IS NULL"
            ),
            prune: format!(
                "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} \
                 WHERE {AGE} < {NOW} - $1 * interval '1 millisecond' \
                 ORDER BY {AGE} LIMIT $2 FOR UPDATE SKIP LOCKED))"
            ),
            table,
        })
    }

    pub fn migration(&self) -> String {
        let table = &self.table;
        let name = table.rsplit('.').next().unwrap_or(table).trim_matches('"');
        let cut = &name[..name.len().min(50)];
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (scope text NOT NULL, command text NOT NULL, id text NOT NULL, \
             payload_hash bytea NOT NULL, epoch bigint NOT NULL, until timestamptz, done_at timestamptz, result jsonb, \
             position bigint, PRIMARY KEY (scope, command, id)); \
             ALTER TABLE {table} ADD COLUMN IF NOT EXISTS position bigint; \
             CREATE INDEX IF NOT EXISTS \"{cut}_age\" ON {table} (({AGE})); \
             CREATE INDEX IF NOT EXISTS \"{cut}_scope_age\" ON {table} (scope, ({AGE})) WHERE position IS NOT NULL; \
             CREATE INDEX IF NOT EXISTS \"{cut}_id_first\" ON {table} (split_part(id, E'\\x1f', 1)); \
             CREATE INDEX IF NOT EXISTS \"{cut}_id_second\" ON {table} (split_part(id, E'\\x1f', 2))"
        )
    }

    /// Begins a command, for at most `lease`. In a transaction, a second sender of the same command waits for it to
    /// end.
    pub async fn begin(
        &self,
        client: &(impl GenericClient + Sync),
        key: &Key,
        payload: PayloadHash,
        lease: Duration,
    ) -> Result<CommandStatus, Error> {
        Error::unless_within("lease", lease, LEASE_MIN..=LEASE_MAX)?;
        let client = client.client();
        let hash: &[u8] = &payload.0;
        let lease_ms = lease.as_secs_f64() * 1000.0;
        for _ in 0..LOOKS {
            let mut parameters = key_parameters(key);
            parameters.extend([(&hash as _, Type::BYTEA), (&lease_ms as _, Type::FLOAT8)]);
            if let Some(row) = client.query_typed_opt(&self.begin, &parameters).await? {
                return Ok(CommandStatus::Started(Ticket { key: key.clone(), epoch: row.try_get(0)? }));
            }
            if let Some(begun) = self.look(client, key, hash).await? {
                return Ok(begun);
            }
        }
        Err(Error::Connection("the command's row came and went; try again".into()))
    }

    /// What stands in the way; nothing if it has gone, or its time has just run out.
    async fn look(&self, client: &Client, key: &Key, hash: &[u8]) -> Result<Option<CommandStatus>, Error> {
        let Some(row) = client.query_typed_opt(&self.look, &key_parameters(key)).await? else {
            return Ok(None);
        };
        let theirs: &[u8] = row.try_get(0)?;
        let done: bool = row.try_get(1)?;
        if theirs != hash {
            return Ok(Some(CommandStatus::Conflict));
        }
        if done {
            return Ok(Some(CommandStatus::Done(row.try_get::<_, Option<Value>>(2)?.unwrap_or(Value::Null))));
        }
        let left: f64 = row.try_get::<_, Option<f64>>(3)?.unwrap_or(0.0);
        Ok((left > 0.0).then(|| CommandStatus::InProgress { retry_after: Duration::from_secs_f64(left) }))
    }

    /// Marks the command as done, with its result, in the transaction of its effect. If the ticket is lost, roll back.
    pub async fn complete(
        &self,
        client: &(impl GenericClient + Sync),
        ticket: &Ticket,
        result: &Value,
    ) -> Result<ClaimOutcome, Error> {
        let size = result.to_string().len();
        if size > INBOX_RESULT_BYTES_MAX {
            let wanted = format!("at most {INBOX_RESULT_BYTES_MAX}");
            return Err(Error::invalid("size of the result", size.to_string(), wanted));
        }
        let client = client.client();
        let mut parameters = ticket_parameters(ticket);
        parameters.push((result, Type::JSONB));
        let changed = client.execute_typed(&self.complete, &parameters).await?;
        self.outcome(client, ticket, changed).await
    }

    /// Gives the ticket back, so that the command may be tried again at once. What is done stays done.
    pub async fn abandon(
        &self,
        client: &(impl GenericClient + Sync),
        ticket: &Ticket,
    ) -> Result<ClaimOutcome, Error> {
        let client = client.client();
        let changed = client.execute_typed(&self.abandon, &ticket_parameters(ticket)).await?;
        self.outcome(client, ticket, changed).await
    }

    async fn outcome(&self, client: &Client, ticket: &Ticket, changed: u64) -> Result<ClaimOutcome, Error> {
        if changed > 0 {
            return Ok(ClaimOutcome::Done);
        }
        let row = client.query_typed_opt(&self.look, &key_parameters(&ticket.key)).await?;
        let epoch: Option<i64> = row.map(|row| row.try_get(4)).transpose()?;
        let why = match epoch {
            None => LossReason::Gone,
            Some(epoch) if epoch == ticket.epoch => LossReason::Ended,
            Some(epoch) => LossReason::Taken { owner: None, epoch },
        };
        Ok(ClaimOutcome::Lost { why })
    }

    /// Deletes up to `limit` commands that ended this long ago, and returns how many.
    pub async fn prune(
        &self,
        client: &(impl GenericClient + Sync),
        older_than: Duration,
        limit: i64,
    ) -> Result<u64, Error> {
        let age_ms = older_than.as_secs_f64() * 1000.0;
        let parameters = [(&age_ms as _, Type::FLOAT8), (&limit as _, Type::INT8)];
        Ok(client.client().execute_typed(&self.prune, &parameters).await?)
    }
}

fn key_parameters(key: &Key) -> Vec<Parameter<'_>> {
    vec![(&key.scope, Type::TEXT), (&key.command, Type::TEXT), (&key.id, Type::TEXT)]
}

fn ticket_parameters(ticket: &Ticket) -> Vec<Parameter<'_>> {
    let mut parameters = key_parameters(&ticket.key);
    parameters.push((&ticket.epoch, Type::INT8));
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_three_parts_with_bounds() {
        assert!(Key::new("", "create", "1").is_ok());
        let long = "x".repeat(INBOX_KEY_BYTES_MAX + 1);
        for (key, expected) in [
            (Key::new(&long, "c", "1"), "scope"),
            (Key::new("", "", "1"), "command type"),
            (Key::new("", "c", ""), "command id"),
            (Key::new("", "c", "a\0"), "command id"),
        ] {
            assert!(key.unwrap_err().to_string().contains(expected));
        }
        assert!(Inbox::new("a.b.c").is_err());
    }
}
