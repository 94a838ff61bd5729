//! The batching driver: concurrent commands join one batch, and one batch is one commit.
//!
//! There are two lanes. Commands that may make events take the clock's row and so are serialized anyway; renewals are
//! not, and never wait behind them. A lane works on one batch at a time; what arrives meanwhile is the next batch. An
//! idle lane starts at once.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use solehold_core::{
    call::Call,
    command::Footprint,
    decide_all,
    event::Change,
    key::SessionId,
    ledger::{FoundLate, Ledger},
    limits,
    outcome::{Outcome, Refusal},
    session::Standing,
    time::Moment,
};
use solehold_trace::{Span, TraceContext};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    task::JoinHandle,
};

use crate::{
    clock::BootTime,
    error::EngineError,
    health::Health,
    observe::{Lane, Observer},
    store::{BatchDecision, Decider, Store, StoreError},
};

/// Bounds of the driver.
#[derive(Debug, Clone, Copy)]
pub struct DriverLimits {
    /// A batch with this many commands takes no more; commands that were submitted together are in one batch.
    pub batch_max: usize,
    /// Most commands queued in one lane; beyond that the answer is [`EngineError::Overloaded`]. Commands that are
    /// submitted together need places for all of them.
    pub queue_max: usize,
    /// A lane under load waits at most this long for a batch to fill; an idle one does not wait.
    pub wait_max: Duration,
}

impl Default for DriverLimits {
    fn default() -> Self {
        Self { batch_max: 1_024, queue_max: 16_384, wait_max: Duration::from_micros(200) }
    }
}

/// Commands that were submitted together, in order. They are at most one batch, and never split over two.
struct Job {
    calls: Vec<Call>,
    reply: oneshot::Sender<Result<Vec<Outcome>, EngineError>>,
    /// The span that waits for them, and since when, if spans are recorded.
    trace: Option<(TraceContext, BootTime)>,
    _places: OwnedSemaphorePermit,
}

#[derive(Debug, Clone)]
struct Intake {
    jobs: mpsc::Sender<Job>,
    /// One permit for each command that may be queued.
    places: Arc<Semaphore>,
}

/// Queues commands and returns their outcomes.
#[derive(Debug, Clone)]
pub struct Driver {
    news: Intake,
    quiet: Intake,
    health: Arc<Health>,
    stop: watch::Sender<bool>,
    limits: DriverLimits,
}

impl Driver {
    /// Starts the lanes over a store. They end after [`Self::stop`], when all queued commands are answered.
    pub fn start(
        store: Arc<dyn Store>,
        health: Arc<Health>,
        observer: Arc<dyn Observer>,
        limits: DriverLimits,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let stop = watch::Sender::new(false);
        let mut workers = Vec::new();
        let mut start = |lane: Lane| {
            // A job has at least one permit, so the channel has room for all jobs that have permits.
            let (sender, jobs) = mpsc::channel(limits.queue_max);
            let store = store.clone();
            let health = health.clone();
            let observer = observer.clone();
            let worker = Worker { store, health, observer, limits, lane, before: 0 };
            workers.push(tokio::spawn(worker.run(jobs, stop.subscribe())));
            Intake { jobs: sender, places: Arc::new(Semaphore::new(limits.queue_max)) }
        };
        let news = start(Lane::News);
        let quiet = start(Lane::Quiet);
        (Self { news, quiet, health, stop, limits }, workers)
    }

    /// Accepts no more commands; the queued ones are answered.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Submits a command and waits for its outcome.
    pub async fn submit(&self, call: Call) -> Result<Outcome, EngineError> {
        let lane = self.intake(Lane::of([&call.command]));
        let place = self.places(lane, 1)?;
        let mut outcomes = self.answered(lane, vec![call], place).await?;
        outcomes.pop().ok_or(EngineError::Stopping)
    }

    /// Submits commands that are decided in their order, and waits for all outcomes. They are taken in together or not
    /// at all, and go through one lane, whatever they are: across two there would be no order. What is more than a
    /// batch goes batch by batch, and ends at the first that is not answered.
    pub async fn submit_all(&self, mut calls: Vec<Call>) -> Vec<Result<Outcome, EngineError>> {
        let count = calls.len();
        let lane = self.intake(Lane::of(calls.iter().map(|call| &call.command)));
        let mut places = match self.places(lane, count) {
            Ok(places) => places,
            Err(error) => return vec![Err(error); count],
        };
        let mut outcomes = Vec::with_capacity(count);
        while !calls.is_empty() {
            let rest = calls.split_off(calls.len().min(self.limits.batch_max.max(1)));
            let Some(taken) = places.split(calls.len()) else { break };
            match self.answered(lane, calls, taken).await {
                Ok(answers) => outcomes.extend(answers.into_iter().map(Ok)),
                Err(error) => {
                    outcomes.resize(count, Err(error));
                    break;
                }
            }
            calls = rest;
        }
        outcomes
    }

    /// Returns once both lanes have answered, whatever the store says; fails if one has died.
    pub async fn alive(&self) -> Result<(), EngineError> {
        for lane in [&self.news, &self.quiet] {
            // Behind what is queued: a lane that is busy answers later.
            let place = lane.places.clone().acquire_owned().await.map_err(|_| EngineError::Stopping)?;
            let _ = self.answered(lane, Vec::new(), place).await;
        }
        self.health.check_lanes()
    }

    fn intake(&self, lane: Lane) -> &Intake {
        match lane {
            Lane::News => &self.news,
            Lane::Quiet => &self.quiet,
        }
    }

    /// Places for `count` commands, if there are any left.
    fn places(&self, lane: &Intake, count: usize) -> Result<OwnedSemaphorePermit, EngineError> {
        self.health.check()?;
        let full = EngineError::Overloaded { places: self.limits.queue_max };
        let Ok(many) = u32::try_from(count) else { return Err(full) };
        lane.places.clone().try_acquire_many_owned(many).map_err(|_| full)
    }

    async fn answered(
        &self,
        lane: &Intake,
        calls: Vec<Call>,
        places: OwnedSemaphorePermit,
    ) -> Result<Vec<Outcome>, EngineError> {
        let (reply, outcomes) = oneshot::channel();
        let trace = if solehold_trace::is_on() { solehold_trace::current() } else { None };
        let trace = trace.map(|context| (context, BootTime::now()));
        lane.jobs
            .try_send(Job { calls, reply, trace, _places: places })
            .map_err(|_| EngineError::Stopping)?;
        // A lane answers whatever it took in, unless it panics: then it may have been committed.
        let panicked =
            || StoreError::Unknown("the engine failed while processing the command; see its log".to_owned());
        outcomes.await.unwrap_or_else(|_| Err(panicked().into()))
    }
}

/// Reports a lane that ends without having been told to: it no longer answers anything.
struct LaneWatch {
    health: Arc<Health>,
    lane: Lane,
    is_over: bool,
}

impl Drop for LaneWatch {
    fn drop(&mut self) {
        if !self.is_over {
            tracing::error!(lane = ?self.lane, "engine lane died; the process must be restarted");
            self.health.died(format!("the {:?} lane of the engine has died; restart the process", self.lane));
        }
    }
}

struct Worker {
    store: Arc<dyn Store>,
    health: Arc<Health>,
    observer: Arc<dyn Observer>,
    limits: DriverLimits,
    lane: Lane,
    /// How large the batch before was: a lone one does not wait for company.
    before: usize,
}

impl Worker {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>, mut stop: watch::Receiver<bool>) {
        let mut alive = LaneWatch { health: self.health.clone(), lane: self.lane, is_over: false };
        loop {
            let first = tokio::select! {
                job = jobs.recv() => job,
                // The sender of this signal lives in every driver, so that an error means the same as the signal.
                _ = stop.wait_for(|stop| *stop), if !jobs.is_closed() => {
                    jobs.close();
                    continue;
                }
            };
            let Some(first) = first else {
                alive.is_over = true;
                return;
            };
            let batch = self.fill(first, &mut jobs).await;
            // The lane outlives a batch that panics. Its replies are dropped, from which callers learn that the
            // outcome is unknown, and the store is asked whether it still answers.
            if AssertUnwindSafe(self.work(batch)).catch_unwind().await.is_err() {
                tracing::error!(lane = ?self.lane, "batch panicked; its outcome is unknown");
                self.health.heard::<()>(&Err(StoreError::Unknown("a batch panicked".to_owned())));
            }
        }
    }

    /// Everything that is queued, within the bounds. Under load it gives others a moment to join.
    async fn fill(&mut self, first: Job, jobs: &mut mpsc::Receiver<Job>) -> Vec<Job> {
        let mut count = first.calls.len();
        let mut batch = vec![first];
        let began = BootTime::now();
        loop {
            while count < self.limits.batch_max
                && let Ok(job) = jobs.try_recv()
            {
                count += job.calls.len();
                batch.push(job);
            }
            let may_fill = count < self.before.min(self.limits.batch_max);
            if !may_fill || BootTime::now().since(began) >= self.limits.wait_max {
                self.before = count;
                return batch;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The span of a batch, below the first request in it and linked to the others.
    fn span(&self, jobs: &[Job]) -> Span {
        let mut traces = jobs.iter().filter_map(|job| job.trace).filter(|(context, _)| context.is_sampled);
        let Some((first, since)) = traces.next() else { return Span::default() };
        let mut span = Span::child("driver.batch", Some(first));
        span.set("solehold.lane", self.lane.as_str());
        span.set("solehold.queue.wait_us", BootTime::now().since(since).as_micros() as u64);
        traces.for_each(|(context, _)| span.link(context));
        span
    }

    async fn work(&self, mut jobs: Vec<Job>) {
        // Commands of a caller that has disconnected are dropped: no client would know of the grant.
        jobs.retain(|job| !job.reply.is_closed());
        if jobs.is_empty() {
            return;
        }
        let mut span = self.span(&jobs);
        let mut calls = Vec::new();
        let mut replies = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            replies.push((job.calls.len(), job.reply));
            calls.append(&mut job.calls);
        }
        // Only asked whether the lane is alive.
        if calls.is_empty() {
            for (_, reply) in replies {
                let _ = reply.send(Ok(Vec::new()));
            }
            return;
        }
        // What was taken in before the store was found not to answer does not wait for it either.
        let writable = self.store.check_writable().map_err(EngineError::from);
        if let Err(error) = self.health.check().and(writable) {
            for (_, reply) in replies {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        let mut footprint = Footprint::default();
        for call in &calls {
            call.command.footprint(&mut footprint);
        }
        let mut batch = Batch {
            calls,
            outcomes: Vec::new(),
            renewals: Vec::new(),
            sessions_over: Vec::new(),
            ttl_max_ms: self.store.ttl_max_ms(),
        };
        span.set("solehold.batch.commands", batch.calls.len() as u64);
        let mut transaction = Span::child("store.transact", span.context());
        transaction.set("db.system.name", self.store.name());
        let began = BootTime::now();
        let transact = self.store.transact(&footprint, self.lane, &mut batch);
        let result = solehold_trace::within(transaction.context(), transact).await;
        match &result {
            Ok(decided) => transaction.set("solehold.events", decided.events.len() as u64),
            Err(_) => transaction.fail(),
        }
        drop(transaction);
        self.observer.batch(self.lane, batch.calls.len(), BootTime::now().since(began));
        self.health.heard(&result);
        match result {
            Ok(decided) => {
                self.observer.committed(&decided.events, &batch.renewals);
                self.observer.sessions_over(&batch.sessions_over);
                let mut outcomes = batch.outcomes.into_iter();
                for (count, reply) in replies {
                    // A caller that went away meanwhile has a request id to ask again with.
                    let _ = reply.send(Ok(outcomes.by_ref().take(count).collect()));
                }
            }
            Err(error) => {
                for (_, reply) in replies {
                    let _ = reply.send(Err(error.clone().into()));
                }
            }
        }
    }
}

/// The calls of one batch and what became of them.
struct Batch {
    calls: Vec<Call>,
    outcomes: Vec<Outcome>,
    renewals: Vec<Change>,
    sessions_over: Vec<SessionId>,
    /// The longest ttl that the store allows (rule 23).
    ttl_max_ms: u64,
}

impl Batch {
    /// Refuses a ttl that is longer than the store allows.
    fn check_ttl(&self, call: &Call) -> Result<(), Refusal> {
        match call.command.asked_ttl_ms() {
            Some(given) if given > self.ttl_max_ms => Err(Refusal::OutOfBounds {
                what: "ttl_ms",
                given,
                least: limits::TTL_MS_MIN,
                most: self.ttl_max_ms,
            }),
            _ => Ok(()),
        }
    }
}

impl Decider for Batch {
    fn decide(&mut self, ledger: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate> {
        let allowed = self.calls.iter().filter(|call| self.check_ttl(call).is_ok());
        let decisions = decide_all(ledger, allowed, moment)?;
        let mut outcomes = decisions.outcomes.into_iter();
        let outcome =
            |call| self.check_ttl(call).map_or_else(|refusal| Some(Err(refusal)), |()| outcomes.next());
        self.outcomes = self.calls.iter().filter_map(outcome).collect();
        self.renewals.clear();
        self.sessions_over.clear();
        let mut events = Vec::new();
        for change in decisions.changes {
            match change {
                Change::Event(event) => events.push(event),
                Change::SessionRenewed { .. } | Change::LeaseRenewed { .. } => self.renewals.push(change),
                Change::SessionEnded(id) | Change::SessionStanding { id, standing: Standing::Superseded } => {
                    self.sessions_over.push(id);
                }
                _ => {}
            }
        }
        Ok(BatchDecision { events, revision: decisions.moment.revision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::BootClock, resident};

    /// Without a lane nothing is answered: the engine is not ready, and no caller is left waiting.
    #[tokio::test]
    async fn a_dead_lane_is_not_ready() {
        let store = resident::memory(BootClock).expect("memory");
        let health = Arc::new(Health::default());
        let limits = DriverLimits::default();
        let (driver, lanes) = Driver::start(store, health.clone(), Arc::new(()), limits);
        assert!(health.check().is_ok());
        for lane in lanes {
            lane.abort();
            assert!(lane.await.is_err());
        }
        assert!(health.check().is_err_and(|error| error.to_string().contains("lane of the engine has died")));
        let expire =
            solehold_core::command::Command::ExpireSession(solehold_core::key::SessionId(uuid::Uuid::nil()));
        assert!(driver.submit(expire.into()).await.is_err());
        assert!(driver.alive().await.is_err_and(|error| error.to_string().contains("has died")));
    }
}
