//! Many operations, few requests: what comes while a request is under way goes together in the next one.
//!
//! A lone operation does not wait: an idle lane sends at once. Acquires, renewals and releases have a lane each, since
//! they are different requests, so that letting go never queues behind asking for more.

use std::{
    collections::VecDeque,
    fmt,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use solehold_trace::TraceContext;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
};

use crate::authority::{Authority, AuthorityError, Completion, Operation, Reply};

/// Most operations in one request: with names of any length its body stays below the server's bound.
pub const BATCH_MAX: usize = 500;
/// Most operations of one lane that wait or are under way; past it the caller waits, too.
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

#[derive(Debug)]
struct QueuedOperation {
    operation: Operation,
    sent: Sent,
    /// The span of the caller.
    trace: Option<TraceContext>,
    reply: oneshot::Sender<Reply<Completion>>,
    _place: OwnedSemaphorePermit,
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
    acquires: Arc<OperationLane>,
    renewals: Arc<OperationLane>,
    releases: Arc<OperationLane>,
}

impl Coalescer {
    /// Its requests are made in the current runtime, and end with it.
    pub fn start(authority: &Arc<dyn Authority>) -> Self {
        let lane = || {
            Arc::new(OperationLane {
                authority: authority.clone(),
                runtime: Handle::current(),
                places: Arc::new(Semaphore::new(QUEUE_MAX)),
                queue: Mutex::default(),
            })
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
        let place = lane.places.clone().acquire_owned().await;
        let _place = place.map_err(|_| stopped("the client has stopped"))?;
        lane.put(QueuedOperation { operation, sent, trace, reply, _place });
        answer.await.map_err(|_| stopped("the request was given up"))?
    }
}

/// Operations of one sort, which wait to be sent together.
struct OperationLane {
    authority: Arc<dyn Authority>,
    runtime: Handle,
    /// One permit for each operation that may be here.
    places: Arc<Semaphore>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedOperation>,
    /// Tasks that send, or are about to.
    deliveries: usize,
    /// One of them was started and has taken nothing yet.
    is_starting: bool,
    /// The last request that was begun takes long: it holds up no other.
    is_slow: bool,
}

impl Queue {
    /// Whether what waits may be sent beside `others`.
    fn may_go(&self, others: usize) -> bool {
        let is_full = self.waiting.len() >= BATCH_MAX;
        !self.waiting.is_empty() && (others == 0 || (is_full || self.is_slow) && others < IN_FLIGHT_MAX)
    }
}

impl OperationLane {
    fn put(self: &Arc<Self>, operation: QueuedOperation) {
        self.queue.lock().waiting.push_back(operation);
        self.start_delivery();
    }

    /// Starts to send what waits, if it need not wait for what is under way. It is taken when the task runs: until then
    /// others join it.
    fn start_delivery(self: &Arc<Self>) {
        {
            let mut queue = self.queue.lock();
            if queue.is_starting || !queue.may_go(queue.deliveries) {
                return;
            }
            queue.is_starting = true;
            queue.deliveries += 1;
        }
        self.runtime.spawn(Delivery { lane: self.clone(), is_over: false }.run());
    }
}

impl fmt::Debug for OperationLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationLane").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Sends one request after the other, until nothing waits that it may send.
struct Delivery {
    lane: Arc<OperationLane>,
    is_over: bool,
}

impl Delivery {
    async fn run(mut self) {
        let mut next = Some(self.first());
        while let Some(batch) = next {
            self.send(batch).await;
            next = self.next();
        }
    }

    /// Sends a batch. Others go beside it if it is full, or takes long.
    async fn send(&self, batch: Vec<QueuedOperation>) {
        self.lane.start_delivery();
        let mut sending = pin!(send(&*self.lane.authority, batch));
        tokio::select! {
            biased;
            () = &mut sending => {}
            () = tokio::time::sleep(SLOW) => {
                self.lane.queue.lock().is_slow = true;
                self.lane.start_delivery();
                sending.await;
            }
        }
    }

    /// What waits now.
    fn first(&self) -> Vec<QueuedOperation> {
        let mut queue = self.lane.queue.lock();
        queue.is_starting = false;
        Self::take(&mut queue)
    }

    /// What came meanwhile. If there is nothing, or others send it, this one is over.
    fn next(&mut self) -> Option<Vec<QueuedOperation>> {
        let mut queue = self.lane.queue.lock();
        if !queue.is_starting && queue.may_go(queue.deliveries - 1) {
            return Some(Self::take(&mut queue));
        }
        self.is_over = true;
        queue.deliveries -= 1;
        None
    }

    fn take(queue: &mut Queue) -> Vec<QueuedOperation> {
        queue.is_slow = false;
        let count = queue.waiting.len().min(BATCH_MAX);
        queue.waiting.drain(..count).collect()
    }
}

impl Drop for Delivery {
    /// The runtime has ended, or sending has panicked: nobody else may be there to send what waits.
    fn drop(&mut self) {
        if !self.is_over {
            let mut queue = self.lane.queue.lock();
            queue.deliveries -= 1;
            queue.is_starting = false;
            let given_up = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(given_up);
        }
    }
}

async fn send(authority: &dyn Authority, mut batch: Vec<QueuedOperation>) {
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
