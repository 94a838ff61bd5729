//! Writes the results of observers: changes, effects, deferrals and failures, in one transaction.

use std::{sync::Arc, time::Duration};

use solehold_clock::{BootTime, RetryPauses};

use super::{
    AppliedTransition, Observation, Observer, ObserverError, Summary, connection::Connection, cycle::Cycle,
};
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
    /// Rows that are postponed at no cost: the observer was unreachable, or the limit on burials was reached.
    postponed: Vec<(Proof, Duration)>,
    /// How many of those that are postponed were to be buried.
    unburied: u64,
    buried: Vec<(Proof, String)>,
}

impl<O: Observer> Cycle<'_, O> {
    /// Writes all verdicts, trying again while the claims may be trusted.
    pub(super) async fn settle(&mut self) -> Result<(), Error> {
        let mut pauses = RetryPauses::default();
        while let Err(error) = self.settle_once().await {
            if self.verdicts.is_empty() || self.left() <= PAUSE {
                // Their rows can be claimed again when their leases have expired.
                self.summary.lost += self.verdicts.drain(..).len() as u64;
                return Err(error);
            }
            if error.is_contention() {
                pauses.pause().await;
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Tries once to write all verdicts. Those that are worth another attempt are kept.
    pub(super) async fn settle_once(&mut self) -> Result<(), Error> {
        if self.verdicts.is_empty() {
            return Ok(());
        }
        let verdicts = std::mem::take(&mut self.verdicts);
        match self.write(&verdicts).await {
            Ok(summary) => {
                self.count(&verdicts, summary);
                Ok(())
            }
            // One row that cannot be written must not hold up the others.
            Err(error) if error.is_of_the_data() && verdicts.len() > 1 => {
                tracing::warn!(%error, rows = verdicts.len(), "cannot write results in one batch; writing them one by one");
                self.settle_each(verdicts).await
            }
            Err(error) if error.is_of_the_data() && verdicts.iter().any(Verdict::moves) => {
                self.not_written(verdicts, &error).await
            }
            Err(Error::Unreachable(reason)) => self.not_reached(verdicts, &reason).await,
            Err(error) if error.is_of_the_data() => {
                self.summary.lost += verdicts.len() as u64;
                Err(error)
            }
            Err(error) => {
                self.verdicts = verdicts;
                Err(error)
            }
        }
    }

    async fn settle_each(&mut self, verdicts: Vec<Verdict>) -> Result<(), Error> {
        let mut verdicts = verdicts.into_iter();
        while let Some(verdict) = verdicts.next() {
            self.verdicts.push(verdict);
            if let Err(error) = Box::pin(self.settle_once()).await {
                self.verdicts.extend(verdicts);
                return Err(error);
            }
        }
        Ok(())
    }

    /// A row whose result cannot be written is a row that failed.
    async fn not_written(&mut self, verdicts: Vec<Verdict>, error: &Error) -> Result<(), Error> {
        let failed = |verdict: Verdict| Verdict {
            observation: Err(ObserverError::row(format!("its result cannot be written: {error}"))),
            ..verdict
        };
        self.verdicts.extend(verdicts.into_iter().map(failed));
        Box::pin(self.settle_once()).await
    }

    /// Effects that could not reach something cost their rows no more than an observation that could not.
    async fn not_reached(&mut self, verdicts: Vec<Verdict>, reason: &str) -> Result<(), Error> {
        let postponed = |verdict: Verdict| {
            if verdict.moves() {
                Verdict { observation: Err(ObserverError::unreachable(reason)), ..verdict }
            } else {
                verdict
            }
        };
        self.verdicts.extend(verdicts.into_iter().map(postponed));
        Box::pin(self.settle_once()).await
    }

    fn count(&mut self, verdicts: &[Verdict], written: Summary) {
        for verdict in verdicts {
            match &verdict.observation {
                Ok(_) => self.summary.scanned += 1,
                Err(ObserverError::Unreachable(cause)) => {
                    self.summary.unreachable += 1;
                    self.unreachable_reason.get_or_insert_with(|| cause.to_string());
                    tracing::debug!(row = %verdict.row.id(), %cause, "observation postponed");
                }
                Err(error) => {
                    self.summary.errors += 1;
                    let attempts = verdict.row.attempts;
                    tracing::debug!(row = %verdict.row.id(), attempts, %error, "observation failed");
                }
            }
        }
        for (state, rows) in written.moved {
            *self.summary.moved.entry(state).or_default() += rows;
        }
        self.summary.skipped += written.skipped;
        self.summary.lost += written.lost;
        self.summary.buried += written.buried;
        self.summary.unburied += written.unburied;
        if self.reconciler.burials.lock().count(written.buried, written.unburied) {
            tracing::warn!(
                worker_id = %self.reconciler.config.worker,
                burials_per_hour = self.reconciler.config.burials_per_hour,
                unburied = written.unburied,
                "burial limit reached; further rows stay open and will be retried"
            );
        }
    }

    async fn write(&self, verdicts: &[Verdict]) -> Result<Summary, Error> {
        let began = BootTime::now();
        let mut connection = Connection::get(&self.reconciler.pool).await?;
        let written = self.write_with(&mut connection, verdicts).await;
        connection.finish();
        let took_us = BootTime::now().since(began).as_micros() as u64;
        tracing::trace!(rows = verdicts.len(), took_us, "wrote results");
        written
    }

    async fn write_with(&self, client: &mut Connection, verdicts: &[Verdict]) -> Result<Summary, Error> {
        let plan = self.plan(verdicts);
        let claims = &self.reconciler.claims;
        let observer = &self.reconciler.observer;
        let mut summary = Summary::default();
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
            observer.effects(&tx, &applied).await.map_err(ObserverError::of_an_effect)?;
        }
        let unchanged = claims.defer(&*tx, &plan.unchanged, Attempts::Reset).await?;
        let failed = claims.defer(&*tx, &plan.failed, Attempts::Count).await?;
        let postponed = claims.defer(&*tx, &plan.postponed, Attempts::Restore).await?;
        let buried = match plan.buried.as_slice() {
            [] => Vec::new(),
            rows => claims.bury(&*tx, rows).await?,
        };
        tx.commit().await?;
        summary.skipped = done(&unchanged);
        summary.buried = done(&buried);
        summary.unburied = plan.unburied;
        let all = [&outcomes, &unchanged, &failed, &postponed, &buried];
        summary.lost = all.iter().map(|outcomes| outcomes.len() as u64 - done(outcomes)).sum();
        Ok(summary)
    }

    fn plan<'a>(&self, verdicts: &'a [Verdict]) -> Plan<'a> {
        let config = &self.reconciler.config;
        let can_bury = self.reconciler.claims.table().dead.is_some();
        let mut burials_left = self.reconciler.burials.lock().left(BootTime::now());
        let mut plan = Plan::default();
        for Verdict { row, observation } in verdicts {
            let proof = row.proof.clone();
            let is_last = row.attempts as i64 >= i64::from(config.attempts_max);
            let hopeless = match observation {
                Ok(Observation::Hopeless { reason }) => Some(reason.clone()),
                Err(ObserverError::Row(cause)) if is_last => {
                    Some(format!("failed {} times, at last: {cause}", row.attempts))
                }
                _ => None,
            };
            match (observation, hopeless) {
                (_, Some(reason)) if can_bury && burials_left > 0 => {
                    burials_left -= 1;
                    plan.buried.push((proof, reason));
                }
                (_, Some(_)) if can_bury => {
                    plan.unburied += 1;
                    plan.postponed.push((proof, config.backoff_max));
                }
                (Ok(Observation::Unchanged), _) => plan.unchanged.push((proof, config.recheck)),
                (Ok(Observation::Moved { to, set }), _) => {
                    let transition = Transition::new(&proof, row.state.as_deref(), to);
                    let transition =
                        set.iter().fold(transition, |t, (column, value)| t.set(column, value.clone()));
                    plan.moves.push((row, transition));
                }
                (Ok(Observation::Hopeless { .. }), _) => plan.failed.push((proof, config.backoff_max)),
                (Err(ObserverError::Unreachable(_)), _) => {
                    plan.postponed.push((proof, self.unreachable_pause));
                }
                (Err(ObserverError::Row(_)), _) => plan.failed.push((proof, config.backoff(row.attempts))),
            }
        }
        plan
    }
}

fn done(outcomes: &[ClaimOutcome]) -> u64 {
    outcomes.iter().filter(|outcome| outcome.is_done()).count() as u64
}
