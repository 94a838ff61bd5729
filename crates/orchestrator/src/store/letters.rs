//! Commands that cannot take effect, and those that are parked behind them: a CANCEL must not overtake its CREATE.
//!
//! A letter is named by its message: partition and offset, and the generation of the topic, since a topic that was made
//! anew has other messages at the same offsets.

use std::{collections::HashSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use solehold_sql::Error;
use std::time::Duration;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{NOW_MS, Store};
use crate::running::BegunAnew;

/// How a letter stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LetterState {
    /// It cannot take effect; its key waits for someone to decide.
    Dead,
    /// It waits behind another.
    Parked,
    /// It took effect after all.
    Redriven,
    /// It was dropped.
    Discarded,
}

impl LetterState {
    const ALL: [Self; 4] = [Self::Dead, Self::Parked, Self::Redriven, Self::Discarded];

    /// Its name on the wire and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }
}

/// What names a letter: `PARTITION-OFFSET`, and `-GENERATION` unless that is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LetterId {
    /// Its partition.
    pub partition: i32,
    /// How often the topic had been made anew.
    pub generation: i64,
    /// The offset of its message.
    pub position: i64,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.partition, self.position)?;
        if self.generation > 0 { write!(f, "-{}", self.generation) } else { Ok(()) }
    }
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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
        parsed().ok_or_else(|| format!("{text:?} is not a letter's id, PARTITION-OFFSET as in 3-1207"))
    }
}

/// A letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its partition.
    pub partition: i32,
    /// How often the topic had been made anew.
    pub generation: i64,
    /// Its offset there.
    pub position: i64,
    /// The key of its message.
    pub key: String,
    /// What it says.
    pub payload: Option<Vec<u8>>,
    /// What tells its message from another one at its offset. Missing in letters of an earlier version.
    pub digest: Option<i64>,
    /// How it stands.
    pub state: LetterState,
    /// Why it is dead, or what it is parked behind.
    pub reason: String,
    /// Since when.
    pub at_ms: i64,
}

impl Letter {
    /// What names it.
    pub fn id(&self) -> LetterId {
        LetterId { partition: self.partition, generation: self.generation, position: self.position }
    }
}

const LETTER: &str = "partition, position, key, payload, state, reason, at_ms, generation, digest";

/// What is known of messages before they are judged.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Letters at their positions, whatever became of them.
    pub letters: Vec<KnownLetter>,
    /// Keys that are parked.
    pub parked: HashSet<String>,
}

/// A letter at the position of a message.
#[derive(Debug)]
pub(super) struct KnownLetter {
    pub generation: i64,
    pub position: i64,
    digest: Option<i64>,
    /// What it says, if it has no digest.
    payload: Option<Vec<u8>>,
}

impl KnownLetter {
    /// Whether it is of this message, and not of another one at the same position.
    pub fn is_of(&self, digest: i64, payload: Option<&[u8]>) -> bool {
        self.digest.map_or_else(|| self.payload.as_deref() == payload, |kept| kept == digest)
    }
}

impl Store {
    pub(super) async fn known_letters(
        &self,
        client: &Client,
        partition: i32,
        positions: &[i64],
        keys: &[&str],
    ) -> Result<Known, Error> {
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
            Some(KnownLetter { generation, position: row.get(1), digest: row.get(2), payload: row.get(3) })
        };
        Ok(Known {
            letters: rows.iter().filter_map(letter).collect(),
            parked: rows.iter().filter_map(|row| row.get::<_, Option<String>>(4)).collect(),
        })
    }

    /// Keeps letters. One that was applied again, and could have no effect after all, is open again.
    pub(super) async fn insert_letters(&self, client: &Client, letters: &[Letter]) -> Result<(), Error> {
        let insert = format!(
            "INSERT INTO {} ({LETTER}) SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bytea[], \
             $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[]) \
             ON CONFLICT (partition, generation, position) \
             DO UPDATE SET state = EXCLUDED.state, reason = EXCLUDED.reason, resolved_ms = NULL",
            self.table("letters")
        );
        let partitions: Vec<i32> = letters.iter().map(|letter| letter.partition).collect();
        let positions: Vec<i64> = letters.iter().map(|letter| letter.position).collect();
        let keys: Vec<&str> = letters.iter().map(|letter| letter.key.as_str()).collect();
        let payloads: Vec<Option<&[u8]>> = letters.iter().map(|letter| letter.payload.as_deref()).collect();
        let states: Vec<&str> = letters.iter().map(|letter| letter.state.name()).collect();
        let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
        let times: Vec<i64> = letters.iter().map(|letter| letter.at_ms).collect();
        let generations: Vec<i64> = letters.iter().map(|letter| letter.generation).collect();
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

    /// One letter.
    pub async fn letter(&self, client: &Client, id: LetterId) -> Result<Option<Letter>, Error> {
        let read = format!(
            "SELECT {LETTER} FROM {} WHERE partition = $1 AND generation = $2 AND position = $3",
            self.table("letters")
        );
        let row = client.query_typed_opt(&read, &id_parameters(&id)).await?;
        row.as_ref().map(letter_of).transpose()
    }

    /// The letters of a key that nobody has decided on, in order.
    pub async fn open_letters(
        &self,
        client: &Client,
        partition: i32,
        key: &str,
        limit: i64,
    ) -> Result<Vec<Letter>, Error> {
        // The index has their places in order: there may be many letters of one key.
        let read = format!(
            "SELECT {LETTER} FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE partition = $1 AND key = $2 \
             AND resolved_ms IS NULL ORDER BY generation, position LIMIT $3)) ORDER BY generation, position",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&key, Type::TEXT), (&limit, Type::INT8)];
        client.query_typed(&read, &parameters).await?.iter().map(letter_of).collect()
    }

    /// Open letters of all partitions, after the last one that was listed before.
    pub async fn list_letters(
        &self,
        client: &Client,
        after: Option<LetterId>,
        limit: i64,
    ) -> Result<Vec<Letter>, Error> {
        let read = format!(
            "SELECT {LETTER} FROM {} WHERE resolved_ms IS NULL AND (partition, generation, position) > ($1, $2, $3) \
             ORDER BY partition, generation, position LIMIT $4",
            self.table("letters")
        );
        let after = after.unwrap_or(LetterId { partition: -1, generation: 0, position: 0 });
        let [partition, generation, position] = id_parameters(&after);
        let parameters = [partition, generation, position, (&limit as _, Type::INT8)];
        client.query_typed(&read, &parameters).await?.iter().map(letter_of).collect()
    }

    /// Writes how a letter stands.
    pub(super) async fn settle_letter(
        &self,
        client: &Client,
        letter: &Letter,
        state: LetterState,
        reason: &str,
        now_ms: i64,
    ) -> Result<(), Error> {
        let resolved_ms = matches!(state, LetterState::Redriven | LetterState::Discarded).then_some(now_ms);
        let write = format!(
            "UPDATE {} SET state = $4, reason = $5, resolved_ms = $6 \
             WHERE partition = $1 AND generation = $2 AND position = $3",
            self.table("letters")
        );
        let id = letter.id();
        let [partition, generation, position] = id_parameters(&id);
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

    /// Lets all partitions begin with the first message of a topic that was made anew, in its next generation, and
    /// returns what is kept. One transaction, which waits for those of the owners and fences them.
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
        let (dead, parked) = (kept.get(0), kept.get(1));
        tx.commit().await?;
        Ok(BegunAnew { topic: topic.to_owned(), group: group.to_owned(), partitions, dead, parked })
    }

    /// Deletes letters that were decided on long ago and whose messages cannot come again: they lie behind the
    /// position, or in an earlier generation of the topic.
    pub async fn prune_letters(
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
        let age_ms = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] =
            [(&partition, Type::INT4), (&below, Type::INT8), (&age_ms, Type::INT8), (&limit, Type::INT8)];
        Ok(client.execute_typed(&prune, &parameters).await?)
    }
}

fn letter_of(row: &Row) -> Result<Letter, Error> {
    let name: &str = row.get(4);
    let state = LetterState::ALL.into_iter().find(|state| state.name() == name);
    Ok(Letter {
        partition: row.get(0),
        position: row.get(1),
        key: row.get(2),
        payload: row.get(3),
        state: state.ok_or_else(|| Error::Effect(format!("there is no state {name:?} of a letter")))?,
        reason: row.get(5),
        at_ms: row.get(6),
        generation: row.get(7),
        digest: row.get(8),
    })
}

fn id_parameters(id: &LetterId) -> [(&(dyn ToSql + Sync), Type); 3] {
    [(&id.partition, Type::INT4), (&id.generation, Type::INT8), (&id.position, Type::INT8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_letter_is_read_as_it_is_shown() {
        for (text, partition, position, generation) in [("3-1207", 3, 1207, 0), ("0-0-2", 0, 0, 2)] {
            let id = LetterId { partition, generation, position };
            assert_eq!((text.parse(), id.to_string()), (Ok(id), text.to_owned()));
        }
        for odd in ["", "3", "3-", "-1-2", "3--2", "3-1-", "3-1-2-3", "4294967295-1", "1-9223372036854775808"]
        {
            let error = odd.parse::<LetterId>().expect_err(odd);
            assert!(error.contains("is not a letter's id, PARTITION-OFFSET as in 3-1207"), "{error}");
        }
    }
}
