//! The task of a partition under one tenure: messages, transactions, and the background task of the application.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use deadpool_postgres::Pool;
use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use solehold_clock::{Backoff, BootTime};
use solehold_sql::{
    Error,
    partitions::{Partition, Partitions, Standing, Tenure},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    ConsumerSettings, Done, Failure, Handler, Message,
    group::note,
    lane::{Batch, Flow, Retry},
    poll::{Client, Order},
    shared::{LaneCell, Leave, Shared},
    winning::NotWon,
};

/// Between two attempts at a transaction that PostgreSQL could not execute.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };
/// How often a single message is committed before it counts as one that cannot be.
const COMMITS_MAX: u32 = 3;
/// How often the epoch is read. Transactions check it too, but without messages there are none.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the tasks of all partitions of a consumer share.
pub(super) struct TaskContext<H> {
    pub settings: ConsumerSettings,
    /// The name of the consumer in the rows of its partitions, and as a holder of leases.
    pub owner: String,
    pub handler: Arc<H>,
    pub pool: Pool,
    pub partitions: Partitions,
    pub shared: Arc<Shared>,
    pub orders: mpsc::Sender<Order>,
    /// The polling thread owns it: it is closed where it is polled.
    pub client: Weak<Client>,
}

impl<H> TaskContext<H> {
    pub fn partition(&self, number: i32) -> Partition {
        let ConsumerSettings { group, topic, .. } = &self.settings;
        Partition { group: group.clone(), topic: topic.clone(), number }
    }
}

/// How a tenure ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Messages in progress are finished and committed.
    Left,
    /// Messages in progress were dropped.
    Dropped,
    /// Another consumer has raised the epoch.
    Fenced,
    /// The topic is another one of the same name.
    Foreign,
    /// The background task of the application panicked.
    Broken(String),
    /// No more messages arrive, or the background task ended, for this reason; another tenure may help.
    Stalled(String),
}

type Worked<E> = (Message, Result<E, Failure>);
type Transacted<E> = (Batch, Vec<Done<E>>, Result<Standing, Error>);

/// Processes the messages of a partition until its task should leave, or the tenure is over.
pub(super) async fn serve<H: Handler>(
    context: &Arc<TaskContext<H>>,
    tenure: &Tenure,
    serial: u64,
    cell: &LaneCell,
    mut leave: watch::Receiver<Leave>,
) -> Ended {
    let (leaving, receiver) = watch::channel(false);
    let handler = context.handler.clone();
    let task_tenure = tenure.clone();
    let task = tokio::spawn(async move { handler.attend(task_tenure, receiver).await });
    let mut background = BackgroundTask { task, has_ended: false };
    let mut work = Work {
        context,
        tenure,
        serial,
        cell,
        running: FuturesUnordered::new(),
        effects: HashMap::new(),
        commits: HashMap::new(),
        failures: 0,
        transaction: None,
    };
    let mut fenced = Box::pin(until_fenced(context, tenure));
    loop {
        work.begin();
        let now = *leave.borrow_and_update();
        match now {
            Leave::Drop => return Ended::Dropped,
            Leave::Finish => {
                leaving.send_replace(true);
                cell.lane.lock().end();
                if cell.lane.lock().is_quiet() {
                    break;
                }
            }
            Leave::Stay => {}
        }
        tokio::select! {
            biased;
            changed = leave.changed() => if changed.is_err() { return Ended::Dropped },
            ended = background.ended(), if !background.has_ended => match ended {
                Some(why) => return Ended::Broken(why),
                None if now.is_stay() => return background_ended(context, tenure).await,
                None => {}
            },
            () = &mut fenced => return Ended::Fenced,
            over = work.step() => if let Some(ended) = over { return ended },
        }
    }
    if background.has_ended {
        return Ended::Left;
    }
    tokio::select! {
        ended = background.ended() => ended.map_or(Ended::Left, Ended::Broken),
        _ = leave.wait_for(|leave| *leave == Leave::Drop) => Ended::Dropped,
    }
}

/// Waits until the epoch has been raised, even without a new owner.
async fn until_fenced<H: Handler>(context: &TaskContext<H>, tenure: &Tenure) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if is_fenced(context, tenure).await {
            return;
        }
    }
}

/// Whether the epoch has been raised; false if PostgreSQL cannot be reached.
async fn is_fenced<H: Handler>(context: &TaskContext<H>, tenure: &Tenure) -> bool {
    let look = async {
        let client = context.pool.get().await?;
        context.partitions.look(&**client, &tenure.partition).await
    };
    match look.await {
        Ok(row) => row.epoch != tenure.epoch,
        Err(error) => {
            tracing::debug!(partition = %tenure.partition, %error, "cannot read the epoch of the partition; retrying");
            false
        }
    }
}

/// Why the background task returned early: it may have found another epoch.
async fn background_ended<H: Handler>(context: &TaskContext<H>, tenure: &Tenure) -> Ended {
    if is_fenced(context, tenure).await {
        return Ended::Fenced;
    }
    Ended::Stalled("the background task of the partition returned early".to_owned())
}

/// The background task of the application; dropping this aborts it.
struct BackgroundTask {
    task: JoinHandle<()>,
    has_ended: bool,
}

impl BackgroundTask {
    /// Waits for its end, once. Returns the reason if it panicked.
    async fn ended(&mut self) -> Option<String> {
        let ended = (&mut self.task).await;
        self.has_ended = true;
        ended.err().map(|error| format!("the background task of a partition failed: {error}"))
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work<'a, H: Handler> {
    context: &'a Arc<TaskContext<H>>,
    tenure: &'a Tenure,
    serial: u64,
    cell: &'a LaneCell,
    running: FuturesUnordered<BoxFuture<'static, Worked<H::Effect>>>,
    /// The effects of processed messages, until they are committed.
    effects: HashMap<i64, Done<H::Effect>>,
    /// Failed commits of messages that have a transaction of their own.
    commits: HashMap<i64, u32>,
    /// Consecutive transactions that PostgreSQL could not execute.
    failures: u32,
    transaction: Option<BoxFuture<'static, Transacted<H::Effect>>>,
}

impl<H: Handler> Work<'_, H> {
    /// Begins messages, and a transaction if none is open.
    fn begin(&mut self) {
        let now = BootTime::now();
        let mut lane = self.cell.lane.lock();
        while let Some(message) = lane.begin(now) {
            let handler = self.context.handler.clone();
            let work = async move {
                let worked = handler.work(&message).await;
                (message, worked)
            };
            self.running.push(work.boxed());
        }
        if self.transaction.is_none()
            && let Some(batch) = lane.batch()
        {
            let done = batch.offsets.iter().filter_map(|offset| self.effects.remove(offset)).collect();
            let context = self.context.clone();
            let tenure = self.tenure.clone();
            let pause = (self.failures > 0).then(|| RETRY.wait(self.failures, rand::random()));
            self.transaction = Some(transact(context, tenure, batch, done, pause).boxed());
        }
    }

    /// Waits for the next event and handles it.
    async fn step(&mut self) -> Option<Ended> {
        if self.cell.is_foreign.load(Ordering::SeqCst) {
            return Some(Ended::Foreign);
        }
        if let Some(why) = self.cell.stalled() {
            return Some(Ended::Stalled(why));
        }
        let retry = self.cell.lane.lock().next_retry();
        let retry = async {
            match retry {
                Some(time) => tokio::time::sleep(time.since(BootTime::now())).await,
                None => pending().await,
            }
        };
        let transaction = async {
            match &mut self.transaction {
                Some(transaction) => transaction.await,
                None => pending().await,
            }
        };
        tokio::select! {
            transacted = transaction => {
                self.transaction = None;
                return self.transacted(transacted).await;
            }
            Some((message, worked)) = self.running.next() => self.worked(message, worked),
            () = self.cell.wake.notified() => {}
            () = retry => {}
        }
        None
    }

    fn worked(&mut self, message: Message, worked: Result<H::Effect, Failure>) {
        let mut lane = self.cell.lane.lock();
        let offset = message.offset;
        if let Err(Failure::Again(why)) = &worked
            && let Retry::NotBefore(_) = lane.fail(offset, BootTime::now(), rand::random())
        {
            self.context.shared.metrics.retries.inc();
            tracing::debug!(
                partition = message.partition,
                offset,
                why,
                "processing a message failed; retrying"
            );
            return;
        }
        lane.finish(offset);
        self.effects.insert(offset, Done { message, effect: worked });
    }

    async fn transacted(&mut self, (batch, done, result): Transacted<H::Effect>) -> Option<Ended> {
        let number = self.tenure.partition.number;
        let metrics = &self.context.shared.metrics;
        let error = match result {
            Ok(Standing::Ours) => {
                self.failures = 0;
                let dead_letters = done.iter().filter(|done| done.effect.is_err()).count();
                if batch.offsets.iter().any(|offset| self.commits.get(offset) > Some(&COMMITS_MAX)) {
                    metrics.runs(number);
                }
                self.commits.retain(|offset, _| !batch.offsets.contains(offset));
                metrics.committed(number, done.len() as u64, dead_letters as u64, batch.next_offset);
                self.context.shared.positions.lock().insert(number, batch.next_offset);
                let flow = {
                    let mut lane = self.cell.lane.lock();
                    lane.committed(&batch.offsets);
                    lane.flow()
                };
                if flow == Some(Flow::Resume) {
                    let _ = self.context.orders.send(Order::Resume { number, serial: self.serial }).await;
                }
                return None;
            }
            Ok(Standing::Fenced) => {
                metrics.fenced.inc();
                return Some(Ended::Fenced);
            }
            Err(error) => error,
        };
        let is_of_the_data = error.is_of_the_data();
        self.failures = if is_of_the_data { 0 } else { self.failures + 1 };
        let messages = batch.offsets.len();
        tracing::warn!(partition = number, messages, %error, "transaction was rolled back; retrying");
        let is_alone = messages == 1;
        for mut message in done {
            let offset = message.message.offset;
            if is_of_the_data && is_alone {
                let commits = self.commits.entry(offset).or_default();
                *commits += 1;
                if *commits > COMMITS_MAX {
                    let why = format!(
                        "message {offset} can be committed neither as an effect nor as a dead letter: {error}"
                    );
                    note(self.context, number, 0, NotWon::Stopped(why));
                }
                if *commits >= COMMITS_MAX {
                    message.effect = Err(Failure::Poison(format!(
                        "the effect of the message cannot be committed: {error}"
                    )));
                    // Not even the dead letter can be committed: back off, so that PostgreSQL is not flooded.
                    self.failures = *commits - COMMITS_MAX;
                }
            }
            self.effects.insert(offset, message);
        }
        self.cell.lane.lock().returned(&batch.offsets, is_of_the_data);
        None
    }
}

/// One transaction: the epoch and the position, then the effects of the application.
async fn transact<H: Handler>(
    context: Arc<TaskContext<H>>,
    tenure: Tenure,
    batch: Batch,
    done: Vec<Done<H::Effect>>,
    pause: Option<Duration>,
) -> Transacted<H::Effect> {
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
    }
    let commit = async {
        let mut client = context.pool.get().await?;
        let transaction = client.transaction().await?;
        let advanced =
            context.partitions.advance(&*transaction, &tenure, batch.next_offset, batch.checkpoint);
        let standing = advanced.await?;
        if standing == Standing::Fenced {
            return Ok(Standing::Fenced);
        }
        let receipt = context.handler.commit(&transaction, &tenure, &done).await?;
        transaction.commit().await?;
        context.handler.committed(&tenure, receipt);
        Ok::<_, Error>(Standing::Ours)
    };
    let result = commit.await;
    (batch, done, result)
}
