//! A consumer of a Kafka partition: the real lane and the real way to win a tenure (`solehold_kafka`), driven as the
//! consumer drives them, over a simulated broker and simulated tables.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_client::{
    chance::Chance as _,
    clock::{AlarmClock, Backoff, Clock},
};
use solehold_kafka::{
    ConsumerSettings, Message,
    lane::{Arrival, Batch, Bounds, Flow, Lane, Retry},
    winning::{self, Contest, Found, NotWon},
};
use solehold_sql::partitions::{PartitionRow, Raised, Standing, Tenure};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    chance::SeededChance,
    kafka::{Kafka, Told},
    process::Process,
    tables::{Change, Outcome, Tables, partition},
    virtual_time::pass,
};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// How long messages in progress may still take when the partition is revoked.
const LEAVE_MAX: Duration = Duration::from_secs(1);
const RETRY: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// How long a message takes to the broker, and back.
const LATENCY_MS: (u64, u64) = (1, 15);
/// How long it takes to process a message.
const WORK_MS: (u64, u64) = (1, 300);
/// How often messages are fetched, and how many at once.
const FETCH_EVERY_MS: (u64, u64) = (20, 120);
const FETCHED_MAX: usize = 4;

fn bounds() -> Bounds {
    let backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_millis(500) };
    Bounds { parallel: 3, messages: 6, bytes: 1 << 20, span: 8, batch: 3, attempts: 3, backoff }
}

/// What the task of the partition is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Stay,
    Finish,
    Drop,
}

/// How a tenure ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Left,
    Fenced,
}

/// What the client library knows of its membership.
#[derive(Debug, Clone, Copy, Default)]
struct Membership {
    member: u64,
    generation: u64,
}

pub struct Consumer {
    process: Arc<Process>,
    broker: Arc<Kafka>,
    tables: Arc<Tables>,
    chance: SeededChance,
    known: Mutex<Membership>,
}

impl Consumer {
    pub fn start(process: Arc<Process>, broker: Arc<Kafka>, tables: Arc<Tables>, chance: SeededChance) {
        let consumer = Arc::new(Self { process, broker, tables, chance, known: Mutex::default() });
        tokio::spawn(consumer.poll());
    }

    async fn rest(&self, time: Duration) {
        self.process.wait_until(self.process.now().plus(time)).await;
    }

    /// A message is on its way, whether the process stands still or not.
    async fn travel(&self) {
        pass(self.chance.millis(LATENCY_MS.0, LATENCY_MS.1)).await;
    }

    /// While things go wrong, a heartbeat or its answer is slow now and then: the group has moved on before the member
    /// hears of it, which reaches the database meanwhile.
    async fn heartbeat_travels(&self) {
        if self.broker.is_rough() && self.chance.one_in(10) {
            pass(self.chance.millis(500, 3_000)).await;
        }
        self.travel().await;
    }

    /// The polling thread: sends heartbeats, and runs the callbacks of a rebalance.
    async fn poll(self: Arc<Self>) {
        let mut membership = Membership::default();
        let mut has_joined = true;
        let mut holding: Option<(watch::Sender<Leave>, tokio::task::JoinHandle<()>)> = None;
        loop {
            self.process.running().await;
            self.heartbeat_travels().await;
            if membership.member == 0 {
                membership.member = self.broker.join(&self.process.name);
            }
            let told = self.broker.heartbeat(membership.member, has_joined);
            self.heartbeat_travels().await;
            self.process.running().await;
            match told {
                Told::Unknown => {
                    membership = Membership::default();
                    if let Some((leave, task)) = holding.take() {
                        leave.send_replace(Leave::Drop);
                        let _ = task.await;
                    }
                    has_joined = true;
                }
                Told::Rebalance => {
                    if let Some((leave, task)) = holding.take() {
                        self.revoke(leave, task).await;
                    }
                    has_joined = true;
                }
                Told::Stable { generation, is_assigned } => {
                    has_joined = false;
                    membership.generation = generation;
                    *self.known.lock() = membership;
                    if is_assigned && holding.is_none() {
                        let (leave, left) = watch::channel(Leave::Stay);
                        holding = Some((leave, tokio::spawn(self.clone().hold(membership.member, left))));
                    }
                }
            }
            self.rest(HEARTBEAT_EVERY).await;
        }
    }

    /// The callback of a rebalance: waits until the partition was left, but not for ever.
    async fn revoke(&self, leave: watch::Sender<Leave>, mut task: tokio::task::JoinHandle<()>) {
        leave.send_replace(Leave::Finish);
        if tokio::time::timeout(LEAVE_MAX, &mut task).await.is_err() {
            leave.send_replace(Leave::Drop);
            let _ = task.await;
        }
    }

    /// Consumes the partition until it is revoked.
    async fn hold(self: Arc<Self>, member: u64, leave: watch::Receiver<Leave>) {
        let settings = ConsumerSettings::default();
        let partition = partition();
        let mut left = leave.clone();
        for failures in 1.. {
            let candidate = Candidate { consumer: &self, member, leave: leave.clone() };
            let won = tokio::select! {
                biased;
                _ = left.wait_for(|leave| *leave != Leave::Stay) => return,
                won = winning::win(&partition, &settings, &candidate) => won,
            };
            self.process.running().await;
            if let Ok((tenure, _)) = won
                && self.work(tenure, leave.clone()).await == Ended::Left
            {
                return;
            }
            let pause = RETRY.wait(failures.min(5), self.chance.unit());
            tokio::select! {
                biased;
                _ = left.wait_for(|leave| *leave != Leave::Stay) => return,
                () = self.rest(pause) => {}
            }
        }
    }

    /// Works under a tenure, until it is over or the partition is to be left.
    async fn work(&self, tenure: Tenure, mut leave: watch::Receiver<Leave>) -> Ended {
        let next = tenure.next_offset;
        let mut work = Work {
            consumer: self,
            lane: Lane::new(next, None, bounds()),
            fetched: next,
            is_paused: false,
            running: JoinSet::new(),
            finished: BTreeMap::new(),
            transactions: JoinSet::new(),
            mail: JoinSet::new(),
            tenure,
        };
        loop {
            let now = *leave.borrow_and_update();
            if now == Leave::Finish {
                work.lane.end();
            }
            if now == Leave::Drop || (now == Leave::Finish && work.lane.is_quiet()) {
                return Ended::Left;
            }
            work.begin(now);
            let turn = self.chance.millis(FETCH_EVERY_MS.0, FETCH_EVERY_MS.1);
            let step = tokio::select! {
                _ = leave.changed() => Step::Nothing,
                Some(Ok(worked)) = work.running.join_next() => Step::Worked(worked),
                Some(Ok(transacted)) = work.transactions.join_next() => Step::Transacted(transacted),
                Some(Ok(standing)) = work.mail.join_next() => Step::Mailed(standing),
                () = pass(turn) => Step::Fetch,
            };
            self.process.running().await;
            if work.step(step) == Some(Ended::Fenced) {
                return Ended::Fenced;
            }
        }
    }
}

/// A consumer as it wins the partition.
struct Candidate<'a> {
    consumer: &'a Consumer,
    member: u64,
    leave: watch::Receiver<Leave>,
}

impl Contest for Candidate<'_> {
    async fn row(&self) -> Result<PartitionRow, NotWon> {
        let row = self.consumer.tables.look().await;
        self.consumer.process.running().await;
        Ok(row)
    }

    async fn look(&self, row: PartitionRow) -> Result<Found, NotWon> {
        let broker = &self.consumer.broker;
        self.consumer.travel().await;
        let found = Found { row, committed: broker.committed(), watermarks: broker.watermarks() };
        self.consumer.travel().await;
        self.consumer.process.running().await;
        Ok(found)
    }

    async fn prove(&self, position: i64) -> Result<(), NotWon> {
        let Membership { member, generation } = *self.consumer.known.lock();
        self.consumer.travel().await;
        let taken = self.consumer.broker.commit(member, generation, position);
        self.consumer.travel().await;
        self.consumer.process.running().await;
        taken.map_err(NotWon::Again)
    }

    fn is_ours(&self) -> bool {
        *self.leave.borrow() == Leave::Stay
    }

    async fn raise(&self, seen: i64, first: i64) -> Result<Raised, NotWon> {
        let tables = self.consumer.tables.clone();
        let name = self.consumer.process.name.clone();
        let member = self.member;
        // It is on its way, whatever becomes of this task.
        let raise = tokio::spawn(async move { tables.raise_from(seen, &name, member, first).await });
        let raised = raise.await.map_err(|error| NotWon::Again(error.to_string()))?;
        self.consumer.process.running().await;
        Ok(raised)
    }
}

type Transacted = (Batch, Vec<(Message, Outcome)>, Result<Standing, String>);

enum Step {
    Nothing,
    Fetch,
    /// A message, and whether processing it has succeeded.
    Worked((Message, bool)),
    Transacted(Transacted),
    Mailed(Result<Standing, String>),
}

struct Work<'a> {
    consumer: &'a Consumer,
    tenure: Tenure,
    lane: Lane,
    fetched: i64,
    is_paused: bool,
    running: JoinSet<(Message, bool)>,
    /// Processed messages, until they are committed.
    finished: BTreeMap<i64, (Message, Outcome)>,
    transactions: JoinSet<Transacted>,
    mail: JoinSet<Result<Standing, String>>,
}

impl Work<'_> {
    fn begin(&mut self, leave: Leave) {
        let Consumer { process, tables, chance, .. } = self.consumer;
        while let Some(message) = self.lane.begin(process.now()) {
            let takes = chance.millis(WORK_MS.0, WORK_MS.1);
            let succeeds = !chance.one_in(6);
            self.running.spawn(async move {
                pass(takes).await;
                (message, succeeds)
            });
        }
        if self.transactions.is_empty()
            && let Some(batch) = self.lane.batch()
        {
            let done = batch.offsets.iter().filter_map(|offset| self.finished.remove(offset)).collect();
            let transaction = transact(tables.clone(), process.clone(), self.tenure.clone(), batch, done);
            self.transactions.spawn(transaction);
        }
        if leave == Leave::Stay && self.mail.is_empty() && tables.has_work() {
            let tables = tables.clone();
            let process = process.clone();
            let tenure = self.tenure.clone();
            self.mail.spawn(async move { tables.transact(&process, &tenure, None, Change::Mail).await });
        }
    }

    fn step(&mut self, step: Step) -> Option<Ended> {
        match step {
            Step::Nothing => {}
            Step::Fetch => self.fetch(),
            Step::Worked((message, succeeded)) => self.worked(message, succeeded),
            Step::Transacted((_, _, Ok(Standing::Fenced))) | Step::Mailed(Ok(Standing::Fenced)) => {
                return Some(Ended::Fenced);
            }
            Step::Transacted((batch, _, Ok(Standing::Ours))) => self.lane.committed(&batch.offsets),
            Step::Transacted((batch, done, Err(_))) => {
                let finished =
                    done.into_iter().map(|(message, outcome)| (message.offset, (message, outcome)));
                self.finished.extend(finished);
                self.lane.returned(&batch.offsets, self.consumer.chance.one_in(2));
            }
            Step::Mailed(_) => {}
        }
        match self.lane.flow() {
            Some(Flow::Pause) => self.is_paused = true,
            Some(Flow::Resume) => self.is_paused = false,
            None => {}
        }
        None
    }

    fn fetch(&mut self) {
        if self.is_paused {
            return;
        }
        for message in self.consumer.broker.fetch(self.fetched, FETCHED_MAX) {
            let offset = message.offset;
            if self.lane.arrive(message) == Arrival::Taken {
                self.fetched = offset + 1;
            }
        }
    }

    fn worked(&mut self, message: Message, succeeded: bool) {
        let Consumer { process, chance, .. } = self.consumer;
        let offset = message.offset;
        let mut outcome = Outcome::Done;
        if !succeeded {
            if let Retry::NotBefore(_) = self.lane.fail(offset, process.now(), chance.unit()) {
                return;
            }
            outcome = Outcome::Dead;
        }
        self.lane.finish(offset);
        self.finished.insert(offset, (message, outcome));
    }
}

async fn transact(
    tables: Arc<Tables>,
    process: Arc<Process>,
    tenure: Tenure,
    batch: Batch,
    done: Vec<(Message, Outcome)>,
) -> Transacted {
    let change = Change::Messages(done.clone());
    let result = tables.transact(&process, &tenure, Some(batch.next_offset), change).await;
    (batch, done, result)
}
