//! One cycle: from the claim to the last result.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use solehold_clock::BootTime;
use tokio::{
    sync::watch,
    task::{AbortHandle, Id, JoinError, JoinSet},
};

use super::{Observation, Observer, ObserverError, Reconciler, Summary, settle::Verdict};
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

/// A finished cycle.
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
        let asked = BootTime::now();
        let rows = Self::claim(reconciler).await?;
        let mut cycle = Self {
            reconciler,
            summary: Summary::new(&reconciler.config.states),
            deadline: reconciler.config.trusted_until(asked),
            waiting: VecDeque::with_capacity(rows.len()),
            running: JoinSet::new(),
            rows: HashMap::new(),
            verdicts: Vec::new(),
            unreachable_reason: None,
            unreachable_pause: reconciler.unreachable_pause(),
        };
        cycle.summary.claimed = rows.len() as u64;
        for row in rows {
            cycle.take(row);
        }
        cycle.observe_all(stopped).await?;
        cycle.settle().await?;
        Ok(CycleReport {
            began: asked,
            summary: cycle.summary,
            unreachable_reason: cycle.unreachable_reason,
            unreachable_pause: cycle.unreachable_pause,
        })
    }

    async fn claim(reconciler: &Reconciler<O>) -> Result<Vec<ClaimedRow>, Error> {
        let config = &reconciler.config;
        let client = reconciler.pool.get().await?;
        let client: &tokio_postgres::Client = &client;
        let claim = || reconciler.claims.claim(client, config.batch_size, &config.worker, config.lease);
        retry::on_contention(claim).await
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

    async fn observe_all(&mut self, stopped: &mut watch::Receiver<bool>) -> Result<(), Error> {
        // Often enough that one failed attempt does not lose the claims.
        let mut upkeep = tokio::time::interval(self.reconciler.config.lease / 4);
        upkeep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        upkeep.tick().await;
        loop {
            if *stopped.borrow() {
                self.return_waiting().await?;
            }
            self.start_waiting();
            if self.running.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some(ended) = self.running.join_next_with_id() => self.ended(ended),
                _ = upkeep.tick() => self.keep_up().await,
                _ = stopped.changed(), if !*stopped.borrow() => {}
            }
        }
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.reconciler.config.concurrency {
            let Some(row) = self.waiting.pop_front() else { return };
            let (observer, seen) = (self.reconciler.observer.clone(), row.clone());
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

    /// Writes what is known, and extends what is not; what can no longer be trusted is stopped.
    async fn keep_up(&mut self) {
        let left = self.left();
        let settled = tokio::time::timeout(left, self.settle()).await;
        if let Err(error) = settled.unwrap_or_else(|_| Err(no_answer(left))) {
            tracing::warn!(worker_id = %self.reconciler.config.worker, %error, "results could not be written");
        }
        if let Err(error) = self.extend().await {
            tracing::warn!(worker_id = %self.reconciler.config.worker, %error, "claims could not be extended");
        }
        if BootTime::now() >= self.deadline {
            self.drop_all();
        }
    }

    async fn extend(&mut self) -> Result<(), Error> {
        let observed = self.rows.values().map(|(row, _)| row);
        let proofs: Vec<_> = observed.chain(&self.waiting).map(|row| row.proof.clone()).collect();
        let asked = BootTime::now();
        let client = self.within_trust(self.reconciler.pool.get()).await??;
        let client: &tokio_postgres::Client = &client;
        let extend = self.reconciler.claims.extend(client, &proofs, self.reconciler.config.lease);
        let outcomes = self.within_trust(extend).await??;
        let lost: Vec<_> =
            proofs.into_iter().zip(outcomes).filter(|(_, outcome)| !outcome.is_done()).collect();
        for (proof, outcome) in lost {
            tracing::info!(row = %proof.id, epoch = proof.epoch, ?outcome, "a claim was lost");
            self.summary.lost += 1;
            self.waiting.retain(|row| row.proof.id != proof.id);
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

    /// A database that does not answer must not keep the work going past its time.
    async fn within_trust<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let left = self.left();
        tokio::time::timeout(left, work).await.map_err(|_| no_answer(left))
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

    async fn return_waiting(&mut self) -> Result<(), Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let proofs: Vec<_> = self.waiting.drain(..).map(|row| row.proof.clone()).collect();
        let client = self.reconciler.pool.get().await?;
        let client: &tokio_postgres::Client = &client;
        let outcomes = self.reconciler.claims.release(client, &proofs).await?;
        self.summary.returned += outcomes.iter().filter(|outcome| outcome.is_done()).count() as u64;
        Ok(())
    }
}

fn no_answer(within: Duration) -> Error {
    Error::Connection(format!("no answer within {within:?}"))
}
