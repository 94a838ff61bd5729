//! Many operations, few requests: what comes while a request is under way goes together in the next one.
//!
//! A lone operation does not wait: an idle lane sends at once. Acquires, renewals and releases have a lane each, since
//! they are different requests, so that letting go never queues behind asking for more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use solehold_trace::TraceContext;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::authority::{Authority, AuthorityError, Completion, Operation, Reply};

/// Most operations in one request: with names of any length its body stays below the server's bound.
pub const BATCH_MAX: usize = 500;
/// Most operations that wait in one lane; past it the caller waits, too.
pub const QUEUE_MAX: usize = 10_000;
/// Most requests of one lane that are under way at once.
pub const IN_FLIGHT_MAX: usize = 4;
/// A request that takes longer than this does not hold up the next.
const SLOW: Duration = Duration::from_millis(20);

/// Whether an operation was sent. If it was not, it can be dropped without telling the authority.
#[derive(Debug, Clone, Default)]
pub struct Sent(Arc<AtomicBool>);

impl Sent {
    /// Whether it was sent, or may be.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// It was sent, or is about to be.
    pub fn mark(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct QueuedOperation {
    operation: Operation,
    sent: Sent,
    /// The span of the caller.
    trace: Option<TraceContext>,
    reply: oneshot::Sender<Reply<Completion>>,
}

impl QueuedOperation {
    /// Whether it goes out now. A caller that gives up drops the receiver first and looks at the mark then, so that one
    /// of the two sees what the other did.
    fn is_wanted(&self) -> bool {
        self.sent.mark();
        !self.reply.is_closed()
    }
}

#[derive(Debug)]
pub struct Coalescer {
    acquires: mpsc::Sender<QueuedOperation>,
    renewals: mpsc::Sender<QueuedOperation>,
    releases: mpsc::Sender<QueuedOperation>,
}

impl Coalescer {
    /// Starts its lanes in the current runtime; they end with it.
    pub fn start(authority: Arc<dyn Authority>) -> Self {
        let lane = || {
            let (entries, queue) = mpsc::channel(QUEUE_MAX);
            tokio::spawn(run(authority.clone(), queue));
            entries
        };
        Self { acquires: lane(), renewals: lane(), releases: lane() }
    }

    /// Does an operation, together with others. Dropped before it is sent, it is never sent.
    pub async fn submit(&self, operation: Operation) -> Reply<Completion> {
        self.submit_marked(operation, Sent::default()).await
    }

    /// The same, and leaves a mark when it is sent.
    pub async fn submit_marked(&self, operation: Operation, sent: Sent) -> Reply<Completion> {
        let lane = match operation {
            Operation::Acquire(_) => &self.acquires,
            Operation::Renew(_) => &self.renewals,
            Operation::Release { .. } => &self.releases,
        };
        let (reply, answer) = oneshot::channel();
        let stopped = |why: &str| AuthorityError::Unknown(why.to_owned());
        let trace = solehold_trace::current();
        lane.send(QueuedOperation { operation, sent, trace, reply })
            .await
            .map_err(|_| stopped("the client has stopped"))?;
        answer.await.map_err(|_| stopped("the request was given up"))?
    }
}

async fn run(authority: Arc<dyn Authority>, mut queue: mpsc::Receiver<QueuedOperation>) {
    let mut waiting: Vec<QueuedOperation> = Vec::new();
    let mut flights = JoinSet::new();
    loop {
        if waiting.is_empty() {
            match queue.recv().await {
                Some(entry) => waiting.push(entry),
                None => break,
            }
        }
        while waiting.len() < BATCH_MAX
            && let Ok(entry) = queue.try_recv()
        {
            waiting.push(entry);
        }
        while flights.try_join_next().is_some() {}
        let is_full = waiting.len() >= BATCH_MAX;
        let mut goes = flights.is_empty() || is_full && flights.len() < IN_FLIGHT_MAX;
        if !goes {
            tokio::select! {
                biased;
                _ = flights.join_next() => {}
                Some(entry) = queue.recv(), if !is_full => waiting.push(entry),
                () = tokio::time::sleep(SLOW) => goes = flights.len() < IN_FLIGHT_MAX,
            }
        }
        if goes {
            flights.spawn(send(authority.clone(), std::mem::take(&mut waiting)));
        }
    }
    // What is under way is answered.
    while flights.join_next().await.is_some() {}
}

async fn send(authority: Arc<dyn Authority>, mut batch: Vec<QueuedOperation>) {
    batch.retain(QueuedOperation::is_wanted);
    if batch.is_empty() {
        return;
    }
    // A request has one parent: of operations that go together, the first whose caller has a span.
    let trace = batch.iter().find_map(|entry| entry.trace);
    let submit = authority.submit(batch.iter().map(|entry| entry.operation.clone()).collect());
    let outcomes = solehold_trace::within(trace, submit).await;
    for (entry, outcome) in batch.into_iter().zip(outcomes) {
        // A caller that no longer waits has spent its request itself.
        let _ = entry.reply.send(outcome);
    }
}
