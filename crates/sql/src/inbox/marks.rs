//! Marks in batches: for messages of a partition, many of which take effect in one transaction.
//!
//! A mark is a command that is done from the beginning: the transaction of its effect makes it. It keeps the position
//! of its message, so that it is deleted only when the message cannot come again.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use tokio_postgres::{Client, GenericClient, types::Type};

use super::{AGE, Inbox, Key, NOW, PayloadHash};
use crate::Error;

/// A message that takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub key: Key,
    pub payload: PayloadHash,
    /// Where it stands in its partition. No two marks of a batch have the same position.
    pub position: i64,
}

/// What a mark met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marked {
    /// Nothing: the command is new.
    New,
    /// The same command: it has taken effect before.
    Seen,
    /// A command of the same name that says something else.
    Conflict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedMark {
    pub scope: String,
    pub command: String,
    pub id: String,
    /// Where its message stood; none if that is not known.
    pub position: Option<i64>,
    /// When it was made, in milliseconds since 1970.
    pub done_ms: i64,
}

/// The parts of marks, one array for each column.
struct Columns<'a> {
    scopes: Vec<&'a str>,
    commands: Vec<&'a str>,
    ids: Vec<&'a str>,
    hashes: Vec<&'a [u8]>,
    positions: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn new(marks: impl Iterator<Item = &'a Mark> + Clone) -> Self {
        Self {
            scopes: marks.clone().map(|mark| mark.key.scope.as_str()).collect(),
            commands: marks.clone().map(|mark| mark.key.command.as_str()).collect(),
            ids: marks.clone().map(|mark| mark.key.id.as_str()).collect(),
            hashes: marks.clone().map(|mark| &mark.payload.0[..]).collect(),
            positions: marks.map(|mark| mark.position).collect(),
        }
    }

    fn parameters(&self) -> [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 5] {
        [
            (&self.scopes, Type::TEXT_ARRAY),
            (&self.commands, Type::TEXT_ARRAY),
            (&self.ids, Type::TEXT_ARRAY),
            (&self.hashes, Type::BYTEA_ARRAY),
            (&self.positions, Type::INT8_ARRAY),
        ]
    }
}

/// The position of an imported mark: its message has none that is known.
const NO_POSITION: i64 = -1;

/// The types and ids of marks, which are checked.
fn columns<'a>(scope: &str, names: &'a [(&'a str, String)]) -> Result<(Vec<&'a str>, Vec<&'a str>), Error> {
    for (command, id) in names {
        Key::new(scope, command, id)?;
    }
    Ok(names.iter().map(|(command, id)| (*command, id.as_str())).unzip())
}

const GIVEN: &str = "unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[]) \
                     AS given (scope, command, id, hash, position)";

/// Whether $1 is the id, or a part of it: [`ID_SEPARATOR`](super::ID_SEPARATOR) is between them. An id of one part is
/// its own first.
const IS_ID: &str = "(split_part(id, E'\\x1f', 1) = $1 OR split_part(id, E'\\x1f', 2) = $1)";

impl Inbox {
    /// Marks commands as done, in the transaction of their effects, and says what each mark met, in the same order. Of
    /// two commands with the same name in one batch the first is new.
    pub async fn mark_all(
        &self,
        client: &(impl GenericClient + Sync),
        marks: &[Mark],
    ) -> Result<Vec<Marked>, Error> {
        if marks.is_empty() {
            return Ok(Vec::new());
        }
        let client = client.client();
        let table = &self.table;
        let insert = format!(
            "INSERT INTO {table} (scope, command, id, payload_hash, epoch, done_at, position) \
             SELECT scope, command, id, hash, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
             clock_timestamp(), position FROM {GIVEN} ORDER BY position ON CONFLICT DO NOTHING RETURNING position"
        );
        let rows = client.query_typed(&insert, &Columns::new(marks.iter()).parameters()).await?;
        let mut met: HashMap<i64, Marked> = rows.iter().map(|row| (row.get(0), Marked::New)).collect();
        let rest = marks.iter().filter(|mark| !met.contains_key(&mark.position));
        let rest = self.look_all(client, &Columns::new(rest)).await?;
        met.extend(rest);
        let of = |mark: &Mark| met.get(&mark.position).copied();
        let gone = || Error::Connection("a mark came and went; try again".into());
        marks.iter().map(|mark| of(mark).ok_or_else(gone)).collect()
    }

    /// What marks would meet, without making them.
    pub async fn look_for(
        &self,
        client: &(impl GenericClient + Sync),
        marks: &[Mark],
    ) -> Result<Vec<Marked>, Error> {
        let met: HashMap<i64, Marked> =
            self.look_all(client.client(), &Columns::new(marks.iter())).await?.into_iter().collect();
        Ok(marks.iter().map(|mark| met.get(&mark.position).copied().unwrap_or(Marked::New)).collect())
    }

    async fn look_all(&self, client: &Client, columns: &Columns<'_>) -> Result<Vec<(i64, Marked)>, Error> {
        if columns.positions.is_empty() {
            return Ok(Vec::new());
        }
        let look = format!(
            "SELECT given.position, kept.payload_hash = given.hash FROM {GIVEN} JOIN {} AS kept \
             USING (scope, command, id)",
            self.table
        );
        let rows = client.query_typed(&look, &columns.parameters()).await?;
        let met = |same: bool| if same { Marked::Seen } else { Marked::Conflict };
        Ok(rows.iter().map(|row| (row.get(0), met(row.get(1)))).collect())
    }

    /// Keeps marks of commands that took effect elsewhere: of each its type and its id are known, and nothing else.
    /// Their scope has no other marks. Returns how many are new.
    pub async fn import(
        &self,
        client: &(impl GenericClient + Sync),
        scope: &str,
        names: &[(&str, String)],
    ) -> Result<u64, Error> {
        let (commands, ids) = columns(scope, names)?;
        let insert = format!(
            "INSERT INTO {} (scope, command, id, payload_hash, epoch, done_at, position) SELECT $1, command, id, '', \
             (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp(), {NO_POSITION} \
             FROM unnest($2::text[], $3::text[]) AS given (command, id) ON CONFLICT DO NOTHING",
            self.table
        );
        let parameters =
            [(&scope as _, Type::TEXT), (&commands as _, Type::TEXT_ARRAY), (&ids as _, Type::TEXT_ARRAY)];
        Ok(client.client().execute_typed(&insert, &parameters).await?)
    }

    /// Which of these names have a mark in a scope of imported marks, by their places. It costs next to nothing if
    /// there are no such marks.
    pub async fn imported(
        &self,
        client: &(impl GenericClient + Sync),
        scope: &str,
        names: &[(&str, String)],
    ) -> Result<HashSet<usize>, Error> {
        if names.is_empty() {
            return Ok(HashSet::new());
        }
        let (commands, ids) = columns(scope, names)?;
        let find = format!(
            "SELECT given.place FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS given (command, id, place) \
             JOIN {0} AS kept ON kept.scope = $1 AND kept.command = given.command AND kept.id = given.id \
             WHERE EXISTS (SELECT FROM {0} WHERE scope = $1)",
            self.table
        );
        let parameters =
            [(&scope as _, Type::TEXT), (&commands as _, Type::TEXT_ARRAY), (&ids as _, Type::TEXT_ARRAY)];
        let rows = client.client().query_typed(&find, &parameters).await?;
        let place = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or_default();
        Ok(rows.iter().map(place).collect())
    }

    /// Takes marks back, such as those of commands that turned out to be refused. In the same transaction.
    pub async fn unmark(&self, client: &(impl GenericClient + Sync), marks: &[Mark]) -> Result<(), Error> {
        if marks.is_empty() {
            return Ok(());
        }
        let delete = format!(
            "DELETE FROM {} AS kept USING {GIVEN} WHERE kept.scope = given.scope AND kept.command = given.command \
             AND kept.id = given.id AND kept.payload_hash = given.hash",
            self.table
        );
        client.client().execute_typed(&delete, &Columns::new(marks.iter()).parameters()).await?;
        Ok(())
    }

    /// Deletes up to `limit` marks of a scope whose messages stood below `position` and that are older than
    /// `older_than`, and returns how many. A mark at or above the position may still be needed, however old it is.
    pub async fn prune_below(
        &self,
        client: &(impl GenericClient + Sync),
        scope: &str,
        position: i64,
        older_than: Duration,
        limit: i64,
    ) -> Result<u64, Error> {
        let table = &self.table;
        let prune = format!(
            "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE scope = $1 AND position < $2 \
             AND {AGE} < {NOW} - $3 * interval '1 millisecond' ORDER BY {AGE} LIMIT $4 FOR UPDATE SKIP LOCKED))"
        );
        let age_ms = older_than.as_secs_f64() * 1000.0;
        let parameters = [
            (&scope as _, Type::TEXT),
            (&position as _, Type::INT8),
            (&age_ms as _, Type::FLOAT8),
            (&limit as _, Type::INT8),
        ];
        Ok(client.client().execute_typed(&prune, &parameters).await?)
    }

    /// Marks in the order of their ids, those of one id (or of one part of it) or all, after the last one that was
    /// listed before.
    pub async fn list_marks(
        &self,
        client: &(impl GenericClient + Sync),
        id: Option<&str>,
        after: (&str, &str, &str),
        limit: i64,
    ) -> Result<Vec<ListedMark>, Error> {
        let list = format!(
            "SELECT scope, command, id, position, (extract(epoch FROM done_at) * 1000)::bigint FROM {} \
             WHERE done_at IS NOT NULL AND ($1::text IS NULL OR {IS_ID}) AND (scope, command, id) > ($2, $3, $4) \
             ORDER BY scope, command, id LIMIT $5",
            self.table
        );
        let parameters = [
            (&id as _, Type::TEXT),
            (&after.0 as _, Type::TEXT),
            (&after.1 as _, Type::TEXT),
            (&after.2 as _, Type::TEXT),
            (&limit as _, Type::INT8),
        ];
        let rows = client.client().query_typed(&list, &parameters).await?;
        let mark = |row: &tokio_postgres::Row| ListedMark {
            scope: row.get(0),
            command: row.get(1),
            id: row.get(2),
            position: row.get::<_, Option<i64>>(3).filter(|position| *position != NO_POSITION),
            done_ms: row.get(4),
        };
        Ok(rows.iter().map(mark).collect())
    }

    /// Deletes the marks of an id (or of one part of it), of one type of command or of all, and returns how many: those
    /// commands take effect again if they come again.
    pub async fn clear_marks(
        &self,
        client: &(impl GenericClient + Sync),
        id: &str,
        command: Option<&str>,
    ) -> Result<u64, Error> {
        let clear = format!(
            "DELETE FROM {} WHERE {IS_ID} AND done_at IS NOT NULL AND ($2::text IS NULL OR command = $2)",
            self.table
        );
        let parameters = [(&id as _, Type::TEXT), (&command as _, Type::TEXT)];
        Ok(client.client().execute_typed(&clear, &parameters).await?)
    }
}
