//! One task: claim a batch, complete it, again.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use solehold_sql::{ClaimOutcome, Claims, Owner, Transition, limits::CLAIMS_AT_ONCE};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Statement, types::Type};

const LEASE: Duration = Duration::from_secs(30);
/// The turns that `Claims` takes by itself, for the tasks that call the functions.
static TURNS: Semaphore = Semaphore::const_new(CLAIMS_AT_ONCE);

/// Whose SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Ours.
    Ours,
    /// The SQL functions, as a program in any language calls them.
    Functions,
    /// Ours, but a claim always begins at the lower end of the index.
    OursWithoutFloor,
    /// The hand-written SQL: claim by owner and application clock, then one compare-and-set for each row.
    HandWritten,
    /// The same with one statement for a batch.
    HandWrittenBatched,
}

impl Way {
    /// As it stands in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "solehold-sql",
            Self::Functions => "the SQL functions of solehold-sql",
            Self::OursWithoutFloor => "solehold-sql without its floor",
            Self::HandWritten => "hand-written SQL",
            Self::HandWrittenBatched => "hand-written SQL, transitions batched",
        }
    }

    /// Whether the table is that of the hand-written SQL.
    pub fn is_hand_written(self) -> bool {
        matches!(self, Self::HandWritten | Self::HandWrittenBatched)
    }
}

/// A task's connection and statements.
pub struct Task {
    client: Client,
    owner: Owner,
    way: Way,
    hand_written: Option<[Statement; 3]>,
}

const HAND_WRITTEN_CLAIM: &str = "WITH open AS (SELECT id FROM app.jobs WHERE status = 'pending' \
      AND (lease_until IS NULL OR lease_until <= $1) ORDER BY created_at, id LIMIT $4 FOR UPDATE SKIP LOCKED) \
    UPDATE app.jobs p SET lease_owner = $2, lease_until = $3 FROM open WHERE p.id = open.id RETURNING p.id, p.payload";
const HAND_WRITTEN_TRANSITION: &str = "UPDATE app.jobs SET status = $4, lease_owner = NULL, lease_until = NULL \
    WHERE id = $1 AND lease_owner = $2 AND status = $3";
const HAND_WRITTEN_TRANSITION_ALL: &str = "UPDATE app.jobs SET status = $4, lease_owner = NULL, lease_until = NULL \
    WHERE id = ANY($1) AND lease_owner = $2 AND status = $3";

impl Task {
    /// Connects. The hand-written statements are prepared; ours never are.
    pub async fn new(url: &str, name: &str, way: Way) -> Result<Self> {
        let client = crate::queue::connect(url).await?;
        let hand_written = if way.is_hand_written() {
            Some([
                client.prepare(HAND_WRITTEN_CLAIM).await?,
                client.prepare(HAND_WRITTEN_TRANSITION).await?,
                client.prepare(HAND_WRITTEN_TRANSITION_ALL).await?,
            ])
        } else {
            None
        };
        Ok(Self { client, owner: Owner::new(name)?, way, hand_written })
    }

    /// One batch claimed and completed; how many rows.
    pub async fn turn(&self, claims: &Claims, batch: usize) -> Result<usize> {
        match &self.hand_written {
            Some(statements) => self.hand_written_turn(statements, batch).await,
            None if self.way == Way::Functions => self.functions_turn(batch).await,
            None => self.our_turn(claims, batch).await,
        }
    }

    /// Not prepared, like those of the crate.
    async fn functions_turn(&self, batch: usize) -> Result<usize> {
        let owner = self.owner.as_str();
        let claim = "SELECT claim_id, claim_epoch, payload FROM app.jobs_claim($1, $2, $3)";
        let limit = batch as i32;
        let seconds = LEASE.as_secs_f64();
        let asked = [(&owner as _, Type::TEXT), (&limit as _, Type::INT4), (&seconds as _, Type::FLOAT8)];
        let turn = TURNS.acquire().await?;
        let rows = self.client.query_typed(claim, &asked).await?;
        drop(turn);
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let epochs: Vec<i64> = rows.iter().map(|row| row.get(1)).collect();
        let froms = vec!["pending"; rows.len()];
        let tos = vec!["confirmed"; rows.len()];
        let complete = "SELECT id, outcome FROM app.jobs_complete_all($1, $2, $3, $4, $5)";
        let numbers = Type::INT8_ARRAY;
        let texts = Type::TEXT_ARRAY;
        let asked = [
            (&owner as _, Type::TEXT),
            (&ids as _, numbers.clone()),
            (&epochs as _, numbers),
            (&froms as _, texts.clone()),
            (&tos as _, texts),
        ];
        let outcomes = self.client.query_typed(complete, &asked).await?;
        let is_done = outcomes.iter().all(|row| row.get::<_, &str>(1) == "done");
        ensure!(is_done && outcomes.len() == rows.len(), "a claim was lost: {outcomes:?}");
        Ok(rows.len())
    }

    async fn our_turn(&self, claims: &Claims, batch: usize) -> Result<usize> {
        let fresh;
        let claims = match self.way {
            Way::OursWithoutFloor => {
                fresh = crate::queue::claims()?;
                &fresh
            }
            _ => claims,
        };
        let rows = claims.claim(&self.client, batch, &self.owner, LEASE).await?;
        let changes: Vec<Transition> =
            rows.iter().map(|row| Transition::new(&row.proof, "pending", "confirmed")).collect();
        let outcomes = claims.transition_all(&self.client, &changes).await?;
        ensure!(outcomes.iter().all(ClaimOutcome::is_done), "a claim was lost: {outcomes:?}");
        Ok(rows.len())
    }

    async fn hand_written_turn(&self, [claim, one, all]: &[Statement; 3], batch: usize) -> Result<usize> {
        let now = SystemTime::now();
        let owner = self.owner.as_str();
        let rows = self.client.query(claim, &[&now, &owner, &(now + LEASE), &(batch as i64)]).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if self.way == Way::HandWrittenBatched {
            return Ok(self.client.execute(all, &[&ids, &owner, &"pending", &"confirmed"]).await? as usize);
        }
        for id in &ids {
            self.client.execute(one, &[id, &owner, &"pending", &"confirmed"]).await?;
        }
        Ok(ids.len())
    }
}
