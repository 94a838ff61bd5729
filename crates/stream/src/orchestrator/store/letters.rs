//! Commands that cannot take effect, and those that are parked behind them: a CANCEL must not overtake its CREATE.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use solehold_sql::Error;
use std::time::Duration;
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{NOW_MS, Store};

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

/// A letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its partition.
    pub partition: i32,
    /// Its offset there.
    pub position: i64,
    /// The key of its message.
    pub key: String,
    /// What it says.
    pub payload: Option<Vec<u8>>,
    /// How it stands.
    pub state: LetterState,
    /// Why it is dead, or what it is parked behind.
    pub reason: String,
    /// Since when.
    pub at_ms: i64,
}

const LETTER: &str = "partition, position, key, payload, state, reason, at_ms";

/// What is known of messages before they are judged.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Positions that are letters already, whatever became of them.
    pub positions: HashSet<i64>,
    /// Keys that are parked.
    pub parked: HashSet<String>,
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
            "SELECT position, NULL FROM {0} WHERE partition = $1 AND position = ANY($2) UNION ALL \
             SELECT DISTINCT NULL::bigint, key FROM {0} WHERE partition = $1 AND key = ANY($3) AND resolved_ms IS NULL",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&partition, Type::INT4), (&positions, Type::INT8_ARRAY), (&keys, Type::TEXT_ARRAY)];
        let rows = client.query_typed(&read, &parameters).await?;
        Ok(Known {
            positions: rows.iter().filter_map(|row| row.get::<_, Option<i64>>(0)).collect(),
            parked: rows.iter().filter_map(|row| row.get::<_, Option<String>>(1)).collect(),
        })
    }

    pub(super) async fn insert_letters(&self, client: &Client, letters: &[Letter]) -> Result<(), Error> {
        let insert = format!(
            "INSERT INTO {} ({LETTER}) SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bytea[], \
             $5::text[], $6::text[], $7::bigint[]) ON CONFLICT DO NOTHING",
            self.table("letters")
        );
        let partitions: Vec<i32> = letters.iter().map(|letter| letter.partition).collect();
        let positions: Vec<i64> = letters.iter().map(|letter| letter.position).collect();
        let keys: Vec<&str> = letters.iter().map(|letter| letter.key.as_str()).collect();
        let payloads: Vec<Option<&[u8]>> = letters.iter().map(|letter| letter.payload.as_deref()).collect();
        let states: Vec<&str> = letters.iter().map(|letter| letter.state.name()).collect();
        let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
        let times: Vec<i64> = letters.iter().map(|letter| letter.at_ms).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&partitions, Type::INT4_ARRAY),
            (&positions, Type::INT8_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&payloads, Type::BYTEA_ARRAY),
            (&states, Type::TEXT_ARRAY),
            (&reasons, Type::TEXT_ARRAY),
            (&times, Type::INT8_ARRAY),
        ];
        client.execute_typed(&insert, &parameters).await?;
        Ok(())
    }

    /// One letter.
    pub async fn letter(
        &self,
        client: &Client,
        partition: i32,
        position: i64,
    ) -> Result<Option<Letter>, Error> {
        let read =
            format!("SELECT {LETTER} FROM {} WHERE partition = $1 AND position = $2", self.table("letters"));
        let row = client.query_typed_opt(&read, &[(&partition, Type::INT4), (&position, Type::INT8)]).await?;
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
        // The positions first, which the index has in order: there may be many letters of one key.
        let read = format!(
            "SELECT {LETTER} FROM {0} WHERE partition = $1 AND position = ANY(ARRAY(SELECT position FROM {0} \
             WHERE partition = $1 AND key = $2 AND resolved_ms IS NULL ORDER BY position LIMIT $3)) ORDER BY position",
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
        after: (i32, i64),
        limit: i64,
    ) -> Result<Vec<Letter>, Error> {
        let read = format!(
            "SELECT {LETTER} FROM {} WHERE resolved_ms IS NULL AND (partition, position) > ($1, $2) \
             ORDER BY partition, position LIMIT $3",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&after.0, Type::INT4), (&after.1, Type::INT8), (&limit, Type::INT8)];
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
            "UPDATE {} SET state = $3, reason = $4, resolved_ms = $5 WHERE partition = $1 AND position = $2",
            self.table("letters")
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&letter.partition, Type::INT4),
            (&letter.position, Type::INT8),
            (&state.name(), Type::TEXT),
            (&reason, Type::TEXT),
            (&resolved_ms, Type::INT8),
        ];
        client.execute_typed(&write, &parameters).await?;
        Ok(())
    }

    /// Deletes letters that were decided on long ago and whose messages cannot come again.
    pub async fn prune_letters(
        &self,
        client: &Client,
        partition: i32,
        below: i64,
        older_than: Duration,
        limit: i64,
    ) -> Result<u64, Error> {
        let prune = format!(
            "DELETE FROM {0} WHERE partition = $1 AND position = ANY(ARRAY(SELECT position FROM {0} WHERE partition = $1 \
             AND position < $2 AND resolved_ms < {NOW_MS} - $3 ORDER BY resolved_ms LIMIT $4))",
            self.table("letters")
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
    })
}
