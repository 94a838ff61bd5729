//! Dead letters: commands that were rejected, and commands of the same key that are parked behind them, so that a
//! CANCEL does not overtake its CREATE.
//!
//! A dead letter is identified by its message: partition, offset and the generation of the topic, since a topic that
//! was recreated has other messages at the same offsets. Tables, routes and the command line call it a letter.

use std::{collections::HashSet, fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use solehold_sql::Error;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use crate::model::job::millis;
use crate::store::{NOW_MS, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterState {
    /// It was rejected. Later commands of its key wait until an operator redrives or discards it.
    Dead,
    /// It waits behind a dead letter of the same key.
    Parked,
    /// It was applied again.
    Redriven,
    /// An operator dropped it.
    Discarded,
}

impl DeadLetterState {
    const ALL: [Self; 4] = [Self::Dead, Self::Parked, Self::Redriven, Self::Discarded];

    pub fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }
}

/// Identifies a dead letter: `PARTITION-OFFSET`, and `-GENERATION` unless that is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadLetterId {
    pub partition: i32,
    /// How often the topic had been recreated.
    pub generation: i64,
    /// The offset of its message.
    pub position: i64,
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.partition, self.position)?;
        if self.generation > 0 { write!(f, "-{}", self.generation) } else { Ok(()) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid letter id {0:?}: use PARTITION-OFFSET, as in 3-1207")]
pub struct InvalidDeadLetterId(pub String);

impl FromStr for DeadLetterId {
    type Err = InvalidDeadLetterId;

    fn from_str(text: &str) -> Result<Self, InvalidDeadLetterId> {
        let parsed = || {
            let mut parts = text.splitn(3, '-');
            let partition = parts.next()?.parse::<u32>().ok()?;
            let position = parts.next()?.parse::<u64>().ok()?;
            let generation = parts.next().map_or(Some(0), |part| part.parse::<u64>().ok())?;
            Some(Self {
                partition: i32::try_from(partition).ok()?,
                generation: i64::try_from(generation).ok()?,
                position: i64::try_from(position).ok()?,
            })
        };
        parsed().ok_or_else(|| InvalidDeadLetterId(text.to_owned()))
    }
}

/// A rejected or parked command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: DeadLetterId,
    pub key: String,
    pub payload: Option<Vec<u8>>,
    /// Distinguishes its message from another one at its offset. Missing in rows of an earlier version.
    pub digest: Option<i64>,
    pub state: DeadLetterState,
    /// Why it is dead, or what it is parked behind.
    pub reason: String,
    /// Since when.
    pub at_ms: i64,
}

const COLUMNS: &str = "partition, position, key, payload, state, reason, at_ms, generation, digest";

/// The outcome of [`Store::begin_anew`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BegunAnew {
    pub topic: String,
    pub group: String,
    /// Partitions that were reset.
    pub partitions: u64,
    /// Dead letters of the former topic that were kept.
    pub dead: i64,
    /// Parked commands of the former topic that were kept.
    pub parked: i64,
}

/// Dead letters that matter for a batch of messages.
#[derive(Debug, Default)]
pub(crate) struct KnownDeadLetters {
    /// Dead letters at the positions of the messages, in any state.
    pub dead_letters: Vec<KnownDeadLetter>,
    /// Keys of the messages that have an unresolved dead letter.
    pub parked: HashSet<String>,
}

/// A dead letter at the position of a message.
#[derive(Debug)]
pub(crate) struct KnownDeadLetter {
    pub generation: i64,
    pub position: i64,
    digest: Option<i64>,
    /// Its payload, if it has no digest.
    payload: Option<Vec<u8>>,
}

impl KnownDeadLetter {
    /// Whether it is this message, not another one at the same position.
    pub fn is_of(&self, digest: i64, payload: Option<&[u8]>) -> bool {
        self.digest.map_or_else(|| self.payload.as_deref() == payload, |kept| kept == digest)
    }
}

impl Store {
    pub(crate) async fn known_dead_letters(
        &self,
        client: &Client,
        partition: i32,
        positions: &[i64],
        keys: &[&str],
    ) -> Result<KnownDeadLetters, Error> {
        let read = format!(
            "SELECT generation, position, digest, CASE WHEN digest IS NULL THEN payload END, NULL FROM {0} \
             WHERE partition = $1 AND position = ANY($2) UNION ALL \
             SELECT DISTINCT NULL::bigint, NULL::bigint, NULL::bigint, NULL::bytea, key FROM {0} \
             WHERE partition = $1 AND key = ANY($3) AND resolved_ms IS NULL",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&positions, Type::INT8_ARRAY), (&keys, Type::TEXT_ARRAY)];
        let rows = client.query_typed(&read, &parameters).await?;
        let letter = |row: &Row| {
            let generation = row.get::<_, Option<i64>>(0)?;
            Some(KnownDeadLetter {
                generation,
                position: row.get(1),
                digest: row.get(2),
                payload: row.get(3),
            })
        };
        Ok(KnownDeadLetters {
            dead_letters: rows.iter().filter_map(letter).collect(),
            parked: rows.iter().filter_map(|row| row.get::<_, Option<String>>(4)).collect(),
        })
    }

    /// Inserts dead letters. One that was redriven and rejected again is unresolved again.
    pub(crate) async fn insert_dead_letters(
        &self,
        client: &Client,
        letters: &[DeadLetter],
    ) -> Result<(), Error> {
        let insert = format!(
            "INSERT INTO {} ({COLUMNS}) SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bytea[], \
             $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[]) \
             ON CONFLICT (partition, generation, position) \
             DO UPDATE SET state = EXCLUDED.state, reason = EXCLUDED.reason, resolved_ms = NULL",
            self.table("letters")
        );
        let partitions: Vec<i32> = letters.iter().map(|letter| letter.id.partition).collect();
        let positions: Vec<i64> = letters.iter().map(|letter| letter.id.position).collect();
        let keys: Vec<&str> = letters.iter().map(|letter| letter.key.as_str()).collect();
        let payloads: Vec<Option<&[u8]>> = letters.iter().map(|letter| letter.payload.as_deref()).collect();
        let states: Vec<&str> = letters.iter().map(|letter| letter.state.name()).collect();
        let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
        let times: Vec<i64> = letters.iter().map(|letter| letter.at_ms).collect();
        let generations: Vec<i64> = letters.iter().map(|letter| letter.id.generation).collect();
        let digests: Vec<Option<i64>> = letters.iter().map(|letter| letter.digest).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 9] = [
            (&partitions, Type::INT4_ARRAY),
            (&positions, Type::INT8_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&payloads, Type::BYTEA_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&times, Type::INT8_ARRAY),
            (&generations, Type::INT8_ARRAY),
            (&digests, Type::INT8_ARRAY),
        ];
        client.execute_typed(&insert, &parameters).await?;
        Ok(())
    }

    pub async fn dead_letter(&self, client: &Client, id: DeadLetterId) -> Result<Option<DeadLetter>, Error> {
        let read = format!(
            "SELECT {COLUMNS} FROM {} WHERE partition = $1 AND generation = $2 AND position = $3",
            self.table("letters")
        );
        let row = client.query_typed_opt(&read, &id_parameters(&id)).await?;
        row.as_ref().map(letter_of).transpose()
    }

    /// The unresolved dead letters of a key, in order.
    pub async fn open_dead_letters(
        &self,
        client: &Client,
        partition: i32,
        key: &str,
        limit: i64,
    ) -> Result<Vec<DeadLetter>, Error> {
        // The subquery uses the index for the order: a key may have many dead letters.
        let read = format!(
            "SELECT {COLUMNS} FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE partition = $1 AND key = $2 \
             AND resolved_ms IS NULL ORDER BY generation, position LIMIT $3)) ORDER BY generation, position",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&key, Type::TEXT), (&limit, Type::INT8)];
        client.query_typed(&read, &parameters).await?.iter().map(letter_of).collect()
    }

    /// Unresolved dead letters of all partitions, after this id; without their payloads, if they are not wanted.
    pub async fn list_dead_letters(
        &self,
        client: &Client,
        after: Option<DeadLetterId>,
        limit: i64,
        with_payload: bool,
    ) -> Result<Vec<DeadLetter>, Error> {
        let columns =
            if with_payload { COLUMNS.to_owned() } else { COLUMNS.replace("payload", "NULL::bytea") };
        let read = format!(
            "SELECT {columns} FROM {} WHERE resolved_ms IS NULL AND (partition, generation, position) > ($1, $2, $3) \
             ORDER BY partition, generation, position LIMIT $4",
            self.table("letters")
        );
        let after = after.unwrap_or(DeadLetterId { partition: -1, generation: 0, position: 0 });
        let [partition, generation, position] = id_parameters(&after);
        let parameters = [partition, generation, position, (&limit as _, Type::INT8)];
        client.query_typed(&read, &parameters).await?.iter().map(letter_of).collect()
    }

    pub(crate) async fn settle_dead_letter(
        &self,
        client: &Client,
        letter: &DeadLetter,
        state: DeadLetterState,
        reason: &str,
        now_ms: i64,
    ) -> Result<(), Error> {
        let resolved_ms =
            matches!(state, DeadLetterState::Redriven | DeadLetterState::Discarded).then_some(now_ms);
        let write = format!(
            "UPDATE {} SET state = $4, reason = $5, resolved_ms = $6 \
             WHERE partition = $1 AND generation = $2 AND position = $3",
            self.table("letters")
        );
        let [partition, generation, position] = id_parameters(&letter.id);
        let name = state.name();
        let parameters = [
            partition,
            generation,
            position,
            (&name as _, Type::TEXT),
            (&reason as _, Type::TEXT),
            (&resolved_ms as _, Type::INT8),
        ];
        client.execute_typed(&write, &parameters).await?;
        Ok(())
    }

    /// Resets all partitions to the first message of a topic that was recreated, in its next generation. The
    /// transaction waits for those of the owners and fences them.
    pub async fn begin_anew(&self, group: &str, topic: &str) -> Result<BegunAnew, Error> {
        let mut client = self.pool.get().await?;
        let tx = client.transaction().await?;
        let partitions = self.partitions.begin_anew(&*tx, group, topic).await?;
        let count = format!(
            "SELECT count(*) FILTER (WHERE state = 'dead'), count(*) FILTER (WHERE state = 'parked') FROM {} \
             WHERE resolved_ms IS NULL",
            self.table("letters")
        );
        let kept = tx.query_one(&count, &[]).await?;
        tx.commit().await?;
        let topic = topic.to_owned();
        Ok(BegunAnew { topic, group: group.to_owned(), partitions, dead: kept.get(0), parked: kept.get(1) })
    }

    /// Deletes dead letters that were resolved longer ago than `older_than` and whose messages cannot be delivered
    /// again: they lie behind the position, or in an earlier generation of the topic.
    pub async fn prune_dead_letters(
        &self,
        client: &Client,
        partition: i32,
        below: i64,
        older_than: Duration,
        limit: i64,
    ) -> Result<u64, Error> {
        let prune = format!(
            "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE partition = $1 \
             AND (position < $2 OR generation < (SELECT max(generation) FROM {1} WHERE partition = $1)) \
             AND resolved_ms < {NOW_MS} - $3 ORDER BY resolved_ms LIMIT $4 FOR UPDATE SKIP LOCKED))",
            self.table("letters"),
            self.table("partitions")
        );
        let age_ms = millis(older_than);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] =
            [(&partition, Type::INT4), (&below, Type::INT8), (&age_ms, Type::INT8), (&limit, Type::INT8)];
        Ok(client.execute_typed(&prune, &parameters).await?)
    }
}

fn letter_of(row: &Row) -> Result<DeadLetter, Error> {
    let name: &str = row.get(4);
    let state = DeadLetterState::ALL.into_iter().find(|state| state.name() == name);
    Ok(DeadLetter {
        id: DeadLetterId { partition: row.get(0), position: row.get(1), generation: row.get(7) },
        key: row.get(2),
        payload: row.get(3),
        state: state.ok_or_else(|| Error::Effect(format!("unknown state {name:?} of a dead letter")))?,
        reason: row.get(5),
        at_ms: row.get(6),
        digest: row.get(8),
    })
}

fn id_parameters(id: &DeadLetterId) -> [(&(dyn ToSql + Sync), Type); 3] {
    [(&id.partition, Type::INT4), (&id.generation, Type::INT8), (&id.position, Type::INT8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_letter_is_read_as_it_is_shown() {
        for (text, partition, position, generation) in [("3-1207", 3, 1207, 0), ("0-0-2", 0, 0, 2)] {
            let id = DeadLetterId { partition, generation, position };
            assert_eq!((text.parse(), id.to_string()), (Ok(id), text.to_owned()));
        }
        for odd in ["", "3", "3-", "-1-2", "3--2", "3-1-", "3-1-2-3", "4294967295-1", "1-9223372036854775808"]
        {
            assert_eq!(odd.parse::<DeadLetterId>(), Err(InvalidDeadLetterId(odd.to_owned())));
        }
    }
}
