//! The work on a partition under one tenure: messages, transactions, and whatever else the application does for it.

use std::{
    collections::HashMap,
    future::pending,
    sync::{Arc, atomic::Ordering},
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
    partitions::{Partitions, Standing, Tenure},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{
    Done, Failure, Handler, Message,
    desk::{Desk, LaneCell, Leave},
    group::{NotWon, note},
    lane::{Batch, Flow, Retry},
    poll::Order,
};

/// Between two attempts at a transaction that PostgreSQL could not carry out.
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };
/// How often a single message is committed before it counts as one that cannot be.
const COMMITS_MAX: u32 = 3;
/// How often the epoch is looked at. Transactions check it too, but without messages there are none.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the tasks of partitions need.
pub(super) struct Office<H> {
    pub handler: Arc<H>,
    pub pool: Pool,
    pub partitions: Partitions,
    pub desk: Arc<Desk>,
    pub orders: mpsc::Sender<Order>,
}

/// How a tenure ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// What was under way is finished and committed.
    Left,
    /// Nothing was finished.
    Dropped,
    /// Somebody else has raised the epoch.
    Fenced,
    /// The topic is another one.
    Foreign,
    /// The application's own task failed.
    Broken(String),
    /// No more messages arrive, or nobody attends to the partition, for this reason; another attempt may be luckier.
    Stalled(String),
}

type Worked<E> = (Message, Result<E, Failure>);
type Transacted<E> = (Batch, Vec<Done<E>>, Result<Standing, Error>);

/// Works on a partition until it should be left, or the tenure is over.
pub(super) async fn serve<H: Handler>(
    office: &Arc<Office<H>>,
    tenure: &Tenure,
    serial: u64,
    cell: &LaneCell,
    mut leave: watch::Receiver<Leave>,
) -> Ended {
    let (leaving, told) = watch::channel(false);
    let (handler, of) = (office.handler.clone(), tenure.clone());
    let task = tokio::spawn(async move { handler.attend(of, told).await });
    let mut attending = Attending { task, has_ended: false };
    let mut work = Work {
        office,
        tenure,
        serial,
        cell,
        running: FuturesUnordered::new(),
        effects: HashMap::new(),
        commits: HashMap::new(),
        failures: 0,
        transaction: None,
    };
    let mut fenced = Box::pin(until_fenced(office, tenure));
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
            ended = attending.ended(), if !attending.has_ended => match ended {
                Some(why) => return Ended::Broken(why),
                None if now.is_stay() => return unattended(office, tenure).await,
                None => {}
            },
            () = &mut fenced => return Ended::Fenced,
            over = work.step() => if let Some(ended) = over { return ended },
        }
    }
    if attending.has_ended {
        return Ended::Left;
    }
    tokio::select! {
        ended = attending.ended() => ended.map_or(Ended::Left, Ended::Broken),
        _ = leave.wait_for(|leave| *leave == Leave::Drop) => Ended::Dropped,
    }
}

/// Waits until the epoch has been raised, be it without a new owner.
async fn until_fenced<H: Handler>(office: &Office<H>, tenure: &Tenure) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if is_fenced(office, tenure).await {
            return;
        }
    }
}

/// Whether the epoch has been raised, as far as PostgreSQL can be asked.
async fn is_fenced<H: Handler>(office: &Office<H>, tenure: &Tenure) -> bool {
    let look = async {
        let client = office.pool.get().await?;
        office.partitions.look(&**client, &tenure.partition).await
    };
    match look.await {
        Ok(row) => row.epoch != tenure.epoch,
        Err(error) => {
            tracing::debug!(partition = %tenure.partition, %error, "the epoch was not looked at");
            false
        }
    }
}

/// Why the application's own task ended by itself: it may have found another epoch.
async fn unattended<H: Handler>(office: &Office<H>, tenure: &Tenure) -> Ended {
    if is_fenced(office, tenure).await {
        return Ended::Fenced;
    }
    Ended::Stalled("what the application does for the partition ended by itself".to_owned())
}

/// The application's own task; it ends with this value.
struct Attending {
    task: JoinHandle<()>,
    has_ended: bool,
}

impl Attending {
    /// Waits for its end, and says why if it was not a good one. To be asked once.
    async fn ended(&mut self) -> Option<String> {
        let ended = (&mut self.task).await;
        self.has_ended = true;
        ended.err().map(|error| format!("what the application does for a partition failed: {error}"))
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Work<'a, H: Handler> {
    office: &'a Arc<Office<H>>,
    tenure: &'a Tenure,
    serial: u64,
    cell: &'a LaneCell,
    running: FuturesUnordered<BoxFuture<'static, Worked<H::Effect>>>,
    /// What messages came to, until it is committed.
    effects: HashMap<i64, Done<H::Effect>>,
    /// How often messages that are alone in a transaction were tried.
    commits: HashMap<i64, u32>,
    /// Transactions in a row that PostgreSQL could not carry out.
    failures: u32,
    transaction: Option<BoxFuture<'static, Transacted<H::Effect>>>,
}

impl<H: Handler> Work<'_, H> {
    /// Begins what may begin.
    fn begin(&mut self) {
        let now = BootTime::now();
        let mut lane = self.cell.lane.lock();
        while let Some(message) = lane.begin(now) {
            let handler = self.office.handler.clone();
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
            let (office, tenure) = (self.office.clone(), self.tenure.clone());
            let pause = (self.failures > 0).then(|| RETRY.wait(self.failures, rand::random()));
            self.transaction = Some(transact(office, tenure, batch, done, pause).boxed());
        }
    }

    /// Waits for the next thing to happen, and takes note of it.
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
            self.office.desk.figures.retried();
            tracing::debug!(partition = message.partition, offset, why, "a message is tried again");
            return;
        }
        lane.finish(offset);
        self.effects.insert(offset, Done { message, effect: worked });
    }

    async fn transacted(&mut self, (batch, done, result): Transacted<H::Effect>) -> Option<Ended> {
        let number = self.tenure.partition.number;
        let figures = &self.office.desk.figures;
        let error = match result {
            Ok(Standing::Ours) => {
                self.failures = 0;
                let letters = done.iter().filter(|done| done.effect.is_err()).count();
                if batch.offsets.iter().any(|offset| self.commits.get(offset) > Some(&COMMITS_MAX)) {
                    figures.runs(number);
                }
                self.commits.retain(|offset, _| !batch.offsets.contains(offset));
                figures.committed(number, done.len() as u64, letters as u64, batch.next_offset);
                self.office.desk.positions.lock().insert(number, batch.next_offset);
                let flow = {
                    let mut lane = self.cell.lane.lock();
                    lane.committed(&batch.offsets);
                    lane.flow()
                };
                if flow == Some(Flow::Resume) {
                    let _ = self.office.orders.send(Order::Resume { number, serial: self.serial }).await;
                }
                return None;
            }
            Ok(Standing::Fenced) => {
                figures.fenced();
                return Some(Ended::Fenced);
            }
            Err(error) => error,
        };
        let is_of_the_data = error.is_of_the_data();
        self.failures = if is_of_the_data { 0 } else { self.failures + 1 };
        tracing::warn!(partition = number, messages = batch.offsets.len(), %error, "a transaction was rolled back");
        let is_alone = batch.offsets.len() == 1;
        for mut message in done {
            let offset = message.message.offset;
            if is_of_the_data && is_alone {
                let commits = self.commits.entry(offset).or_default();
                *commits += 1;
                if *commits > COMMITS_MAX {
                    let why = format!(
                        "message {offset} can neither take effect nor be kept as a dead letter: {error}"
                    );
                    note(self.office, number, 0, NotWon::Stopped(why));
                }
                if *commits >= COMMITS_MAX {
                    message.effect = Err(Failure::Poison(format!("its effect cannot be committed: {error}")));
                    // Not even the letter can be kept: then everything waits, and PostgreSQL is not flooded.
                    self.failures = *commits - COMMITS_MAX;
                }
            }
            self.effects.insert(offset, message);
        }
        self.cell.lane.lock().returned(&batch.offsets, is_of_the_data);
        None
    }
}

/// One transaction: the epoch and the position, then what the application commits.
async fn transact<H: Handler>(
    office: Arc<Office<H>>,
    tenure: Tenure,
    batch: Batch,
    done: Vec<Done<H::Effect>>,
    pause: Option<Duration>,
) -> Transacted<H::Effect> {
    if let Some(pause) = pause {
        tokio::time::sleep(pause).await;
    }
    let commit = async {
        let mut client = office.pool.get().await?;
        let transaction = client.transaction().await?;
        let (next, landmark) = (batch.next_offset, batch.landmark);
        let standing = office.partitions.advance(&*transaction, &tenure, next, landmark).await?;
        if standing == Standing::Fenced {
            return Ok(Standing::Fenced);
        }
        let receipt = office.handler.commit(&transaction, &tenure, &done).await?;
        transaction.commit().await?;
        office.handler.committed(&tenure, receipt);
        Ok::<_, Error>(Standing::Ours)
    };
    let result = commit.await;
    (batch, done, result)
}
