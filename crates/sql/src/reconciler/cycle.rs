//! One cycle: from the claim to the last result.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use solehold_clock::{AlarmClock, BootClock, BootTime};
use tokio::{
    sync::watch,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use super::{
    Observation, Observer, ObserverError, Reconciler, Summary,
    connection::{Connection, until},
    settle::Verdict,
};
use crate::{ClaimedRow, Error, retry};

type ObservationResult = Result<Observation, ObserverError>;

/// The rows of one cycle on their way.
pub(super) struct Cycle<'a, O> {
    pub(super) reconciler: &'a Reconciler<O>,
    pub(super) summary: Summary,
    /// Until when the claims may be trusted here.
    deadline: BootTime,
    waiting: VecDeque<Arc<ClaimedRow>>,
    running: JoinSet<ObservationResult>,
    rows: HashMap<Id, (Arc<ClaimedRow>, AbortHandle)>,
    /// What was found and is not written yet.
    pub(super) verdicts: Vec<Verdict>,
    /// Why the observer could not be reached, for the first row of which that is known.
    pub(super) unreachable_reason: Option<String>,
    /// How long rows wait that find the observer unreachable in this cycle.
    pub(super) unreachable_pause: Duration,
}

pub(super) struct CycleReport {
    pub(super) began: BootTime,
    pub(super) summary: Summary,
    pub(super) unreachable_reason: Option<String>,
    /// How long rows wait that find the observer unreachable in this cycle.
    pub(super) unreachable_pause: Duration,
}

impl<'a, O: Observer> Cycle<'a, O> {
    pub(super) async fn run(
        reconciler: &'a Reconciler<O>,
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<CycleReport, Error> {
        let began = BootTime::now();
        let (asked, rows) = Self::claim(reconciler, began, stopped).await?;
        let mut cycle = Self {
            reconciler,
            summary: Summary::new(&reconciler.config.states),
            deadline: reconciler.config.trusted_until(asked),
            waiting: VecDeque::with_capacity(rows.len()),
            running: JoinSet::new(),
            rows: HashMap::new(),
            verdicts: Vec::new(),
            unreachable_reason: None,
            unreachable_pause: {
                let backoff = reconciler.config.unreachable_backoff();
                reconciler.outages.lock().pause(backoff, rand::random())
            },
        };
        cycle.summary.claimed = rows.len() as u64;
        for row in rows {
            cycle.take(row);
        }
        cycle.observe_all(stopped).await;
        if !cycle.verdicts.is_empty() {
            until(cycle.deadline, cycle.settle()).await??;
        }
        Ok(CycleReport {
            began,
            summary: cycle.summary,
            unreachable_reason: cycle.unreachable_reason,
            unreachable_pause: cycle.unreachable_pause,
        })
    }

    /// The rows, and when they were asked for. A claim that takes longer than its lease is worth nothing; one that was
    /// not sent yet ends with a stop.
    async fn claim(
        reconciler: &Reconciler<O>,
        began: BootTime,
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<(BootTime, Vec<ClaimedRow>), Error> {
        let config = &reconciler.config;
        let claim = async {
            let connection = tokio::select! {
                connection = Connection::get(&reconciler.pool) => connection?,
                _ = stopped.wait_for(|stopped| *stopped) => return Ok((began, Vec::new())),
            };
            let client: &tokio_postgres::Client = &connection;
            let mut asked = BootTime::now();
            let claim = || {
                asked = BootTime::now();
                reconciler.claims.claim(client, config.batch_size, &config.worker, config.lease)
            };
            let rows = retry::on_contention(claim).await;
            connection.finish();
            Ok((asked, rows?))
        };
        until(began.plus(config.lease), claim).await?
    }

    /// A row that was claimed too often without a result is not tried again: each of its workers died of it, or was too
    /// slow.
    fn take(&mut self, row: ClaimedRow) {
        let max = self.reconciler.config.attempts_max;
        let row = Arc::new(row);
        if row.attempts as i64 > i64::from(max) && self.reconciler.claims.table().dead.is_some() {
            let reason =
                format!("claimed {max} times without a result: its workers died or lost their leases");
            self.verdicts.push(Verdict { row, observation: Ok(Observation::Hopeless { reason }) });
        } else {
            self.waiting.push_back(row);
        }
    }

    async fn observe_all(&mut self, stopped: &mut watch::Receiver<bool>) {
        // Often enough that one failed attempt does not lose the claims.
        let mut upkeep = tokio::time::interval(self.reconciler.config.lease / 4);
        upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        upkeep.tick().await;
        let mut expiry = BootClock.wait_until(self.deadline);
        loop {
            if self.left().is_zero() {
                self.drop_all();
                return self.running.shutdown().await;
            }
            if *stopped.borrow() {
                self.return_waiting().await;
            }
            self.start_waiting();
            if self.running.is_empty() {
                return;
            }
            tokio::select! {
                // The deadline comes first, however much else there is to do.
                biased;
                () = &mut expiry => {}
                Ok(()) = stopped.changed(), if !*stopped.borrow() => {}
                _ = upkeep.tick() => {
                    self.keep_up().await;
                    expiry = BootClock.wait_until(self.deadline);
                }
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
            }
        }
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.reconciler.config.concurrency {
            let Some(row) = self.waiting.pop_front() else { return };
            let observer = self.reconciler.observer.clone();
            let seen = row.clone();
            let handle = self.running.spawn(async move { observer.observe(&seen).await });
            self.rows.insert(handle.id(), (row, handle));
        }
    }

    fn ended(&mut self, ended: Result<(Id, ObservationResult), JoinError>) {
        let (id, observation) = match ended {
            Ok((id, observation)) => (id, observation),
            // Aborted because its claim was lost, and counted there.
            Err(error) if error.is_cancelled() => return,
            Err(error) => (error.id(), Err(ObserverError::row(format!("the observer panicked: {error}")))),
        };
        if let Some((row, _)) = self.rows.remove(&id) {
            self.verdicts.push(Verdict { row, observation });
        }
    }

    /// Writes the results so far and extends the other claims. Neither continues past the deadline.
    async fn keep_up(&mut self) {
        let worker_id = &self.reconciler.config.worker;
        let known = self.verdicts.len() as u64;
        if let Err(error) = until(self.deadline, self.settle_once()).await.unwrap_or_else(|given_up| {
            self.summary.lost += known;
            Err(given_up)
        }) {
            tracing::warn!(%worker_id, %error, "cannot write results; will retry while the leases last");
        }
        if let Err(error) = until(self.deadline, self.extend()).await.flatten() {
            tracing::warn!(%worker_id, %error, "cannot extend claims; will retry");
        }
    }

    /// Extends the claims on all rows of which no result is written yet.
    async fn extend(&mut self) -> Result<(), Error> {
        let rows = self.rows.values().map(|(row, _)| row).chain(&self.waiting);
        let rows = rows.chain(self.verdicts.iter().map(|verdict| &verdict.row));
        let proofs: Vec<_> = rows.map(|row| row.proof.clone()).collect();
        let connection = Connection::get(&self.reconciler.pool).await?;
        let client: &tokio_postgres::Client = &connection;
        let asked = BootTime::now();
        let outcomes = self.reconciler.claims.extend(client, &proofs, self.reconciler.config.lease).await;
        connection.finish();
        let lost: Vec<_> =
            proofs.into_iter().zip(outcomes?).filter(|(_, outcome)| !outcome.is_done()).collect();
        for (proof, outcome) in lost {
            tracing::info!(row = %proof.id, epoch = proof.epoch, ?outcome, "lost the claim on a row; dropping its result");
            self.summary.lost += 1;
            self.waiting.retain(|row| row.proof.id != proof.id);
            self.verdicts.retain(|verdict| verdict.row.proof.id != proof.id);
            self.rows.retain(|_, (row, handle)| {
                let same = row.proof.id == proof.id;
                if same {
                    handle.abort();
                }
                !same
            });
        }
        self.deadline = self.reconciler.config.trusted_until(asked);
        Ok(())
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.since(BootTime::now())
    }

    fn drop_all(&mut self) {
        let dropped = self.rows.len() + self.waiting.len() + self.verdicts.len();
        self.summary.lost += dropped as u64;
        for (_, (_, handle)) in self.rows.drain() {
            handle.abort();
        }
        self.waiting.clear();
        self.verdicts.clear();
    }

    /// Gives back what was not started. If that fails, it is claimed again when its leases have run out.
    async fn return_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let proofs: Vec<_> = self.waiting.drain(..).map(|row| row.proof.clone()).collect();
        let release = async {
            let connection = Connection::get(&self.reconciler.pool).await?;
            let client: &tokio_postgres::Client = &connection;
            let outcomes = self.reconciler.claims.release(client, &proofs).await;
            connection.finish();
            outcomes
        };
        match until(self.deadline, release).await.flatten() {
            Ok(outcomes) => {
                self.summary.returned += outcomes.iter().filter(|outcome| outcome.is_done()).count() as u64;
            }
            Err(error) => {
                let worker_id = &self.reconciler.config.worker;
                let rows = proofs.len();
                tracing::warn!(%worker_id, rows, %error, "cannot release claimed rows; their leases will expire");
                self.summary.lost += rows as u64;
            }
        }
    }
}
