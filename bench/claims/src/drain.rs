//! One task: claim a batch, complete it, again.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use solehold_sql::{ClaimOutcome, Claims, Owner, Transition};
use tokio_postgres::{Client, Statement};

const LEASE: Duration = Duration::from_secs(30);

/// Whose SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Ours.
    Ours,
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
            None => self.our_turn(claims, batch).await,
        }
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
