//! Writes what observers found: changes, effects, deferrals and failures, in one transaction.

use std::{sync::Arc, time::Duration};

use solehold_clock::{BootTime, RetryPauses};

use super::{AppliedTransition, Observation, Observer, ObserverError, Summary, cycle::Cycle};
use crate::{Attempts, ClaimOutcome, ClaimedRow, Error, Proof, Transition};

/// How long to wait before a database that has gone is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// What an observer found out about a row.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) row: Arc<ClaimedRow>,
    pub(super) observation: Result<Observation, ObserverError>,
}

impl Verdict {
    fn moves(&self) -> bool {
        matches!(self.observation, Ok(Observation::Moved { .. }))
    }
}

/// What to write, sorted by kind.
#[derive(Default)]
struct Plan<'a> {
    moves: Vec<(&'a ClaimedRow, Transition)>,
    unchanged: Vec<(Proof, Duration)>,
    failed: Vec<(Proof, Duration)>,
    buried: Vec<(Proof, String)>,
}

impl<O: Observer> Cycle<'_, O> {
    /// Writes all verdicts, trying again while the claims may be trusted.
    pub(super) async fn settle(&mut self) -> Result<(), Error> {
        if self.verdicts.is_empty() {
            return Ok(());
        }
        let verdicts = std::mem::take(&mut self.verdicts);
        let mut pauses = RetryPauses::default();
        loop {
            match self.write(&verdicts).await {
                Ok(summary) => {
                    self.count(&verdicts, summary);
                    return Ok(());
                }
                // One row that cannot be written must not hold up the others.
                Err(error) if error.is_of_the_data() && verdicts.len() > 1 => {
                    tracing::warn!(%error, rows = verdicts.len(), "results cannot be written together: one by one");
                    return self.settle_each(verdicts).await;
                }
                Err(error) if error.is_of_the_data() && verdicts.iter().any(Verdict::moves) => {
                    return self.not_written(verdicts, &error).await;
                }
                Err(error) if error.is_contention() && self.left() > PAUSE => {
                    pauses.pause().await;
                }
                Err(error) if error.is_of_the_data() || self.left() <= PAUSE => {
                    // Their rows come back when their leases have run out.
                    self.summary.lost += verdicts.len() as u64;
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn settle_each(&mut self, verdicts: Vec<Verdict>) -> Result<(), Error> {
        for verdict in verdicts {
            self.verdicts.push(verdict);
            Box::pin(self.settle()).await?;
        }
        Ok(())
    }

    /// A row whose result cannot be written is a row that failed.
    async fn not_written(&mut self, verdicts: Vec<Verdict>, error: &Error) -> Result<(), Error> {
        let failed = |verdict: Verdict| Verdict {
            observation: Err(format!("its result cannot be written: {error}").into()),
            ..verdict
        };
        self.verdicts.extend(verdicts.into_iter().map(failed));
        Box::pin(self.settle()).await
    }

    fn count(&mut self, verdicts: &[Verdict], written: Summary) {
        for verdict in verdicts {
            match &verdict.observation {
                Ok(_) => self.summary.scanned += 1,
                Err(error) => {
                    self.summary.errors += 1;
                    let attempts = verdict.row.attempts;
                    tracing::debug!(row = %verdict.row.id(), attempts, %error, "an observation failed");
                }
            }
        }
        for (state, rows) in written.moved {
            *self.summary.moved.entry(state).or_default() += rows;
        }
        self.summary.skipped += written.skipped;
        self.summary.lost += written.lost;
        self.summary.buried += written.buried;
    }

    async fn write(&self, verdicts: &[Verdict]) -> Result<Summary, Error> {
        let began = BootTime::now();
        let plan = self.plan(verdicts);
        let (claims, observer) = (&self.reconciler.claims, &self.reconciler.observer);
        let mut summary = Summary::default();
        let mut client = self.reconciler.pool.get().await?;
        let tx = client.build_transaction().start().await?;
        let moves: Vec<Transition> = plan.moves.iter().map(|(_, transition)| transition.clone()).collect();
        // A worker that is paused from here on keeps its rows locked, but no longer than it could have kept them
        // claimed.
        let lease_ms = self.reconciler.config.lease.as_millis();
        let limit = format!("SET LOCAL idle_in_transaction_session_timeout = {lease_ms}");
        let (_, outcomes) = tokio::try_join!(
            async { Ok(tx.batch_execute(&limit).await?) },
            claims.transition_all(&*tx, &moves)
        )?;
        let mut applied = Vec::with_capacity(moves.len());
        for ((row, transition), outcome) in plan.moves.iter().zip(&outcomes) {
            if outcome.is_done() {
                applied.push(AppliedTransition { row, transition });
                summary.add_moved(transition.to());
            }
        }
        if !applied.is_empty() {
            observer.effects(&tx, &applied).await.map_err(|error| Error::Effect(error.to_string()))?;
        }
        let unchanged = claims.defer(&*tx, &plan.unchanged, Attempts::Reset).await?;
        let failed = claims.defer(&*tx, &plan.failed, Attempts::Count).await?;
        let buried = match plan.buried.as_slice() {
            [] => Vec::new(),
            rows => claims.bury(&*tx, rows).await?,
        };
        tx.commit().await?;
        summary.skipped = done(&unchanged);
        summary.buried = done(&buried);
        let all = [&outcomes, &unchanged, &failed, &buried];
        summary.lost = all.iter().map(|outcomes| outcomes.len() as u64 - done(outcomes)).sum();
        tracing::trace!(
            rows = verdicts.len(),
            took_us = BootTime::now().since(began).as_micros() as u64,
            "settled"
        );
        Ok(summary)
    }

    fn plan<'a>(&self, verdicts: &'a [Verdict]) -> Plan<'a> {
        let config = &self.reconciler.config;
        let can_bury = self.reconciler.claims.table().dead.is_some();
        let mut plan = Plan::default();
        for Verdict { row, observation } in verdicts {
            let proof = row.proof.clone();
            match observation {
                Ok(Observation::Unchanged) => plan.unchanged.push((proof, config.recheck)),
                Ok(Observation::Moved { to, set }) => {
                    let from = row.state.as_deref().unwrap_or_default();
                    let transition = Transition::new(&proof, from, to);
                    let transition =
                        set.iter().fold(transition, |t, (column, value)| t.set(column, value.clone()));
                    plan.moves.push((row, transition));
                }
                Ok(Observation::Hopeless { reason }) if can_bury => plan.buried.push((proof, reason.clone())),
                Err(error) if can_bury && row.attempts as i64 >= i64::from(config.attempts_max) => {
                    plan.buried.push((proof, format!("failed {} times, at last: {error}", row.attempts)));
                }
                Ok(Observation::Hopeless { .. }) => plan.failed.push((proof, config.backoff_max)),
                Err(_) => plan.failed.push((proof, config.backoff(row.attempts))),
            }
        }
        plan
    }
}

fn done(outcomes: &[ClaimOutcome]) -> u64 {
    outcomes.iter().filter(|outcome| outcome.is_done()).count() as u64
}
