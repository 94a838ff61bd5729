//! The thread that polls: everything that is asked of librdkafka's consumer goes through it, but for commits.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use rdkafka::{
    ClientContext, Message as _, Offset, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
    message::{BorrowedMessage, Headers as _},
    types::RDKafkaRespErr,
};
use solehold_clock::BootTime;
use tokio::sync::mpsc;

use super::{
    Message,
    desk::{Desk, Fetching, LaneCell, Leave, Moment},
    lane::{Arrival, Flow},
    trouble::{self, Trouble},
};

/// Orders wait this long for a message to come.
const POLL: Duration = Duration::from_millis(20);
/// How often the broker is told positions.
const DISPLAY_EVERY: Duration = Duration::from_secs(1);
/// Orders that may wait for the thread.
pub(super) const ORDERS_MAX: usize = 4_096;
const WATERMARKS_MAX: Duration = Duration::from_secs(5);
const SEEK_MAX: Duration = Duration::from_secs(5);

/// What the thread is told by the tasks of partitions.
#[derive(Debug)]
pub(super) enum Order {
    /// Fetch the messages of a partition from this offset on.
    Fetch { number: i32, serial: u64, offset: i64, cell: Arc<LaneCell> },
    /// Fetch no more of them.
    Unfetch { number: i32, serial: u64 },
    /// Fetch them again, after a pause.
    Resume { number: i32, serial: u64 },
    /// End.
    Stop,
}

/// The callbacks of librdkafka.
pub(super) struct Callbacks {
    pub desk: Arc<Desk>,
    pub trouble: Trouble,
}

/// librdkafka's consumer.
pub(super) type Client = BaseConsumer<Callbacks>;

impl ClientContext for Callbacks {
    fn stats(&self, statistics: Statistics) {
        let Some(topic) = statistics.topics.get(&self.desk.topic) else { return };
        for partition in topic.partitions.values().filter(|partition| partition.hi_offset >= 0) {
            self.desk.figures.end_is(partition.partition, partition.hi_offset);
        }
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        trouble::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.trouble.met(&error, reason);
    }
}

impl ConsumerContext for Callbacks {
    fn rebalance(&self, client: &Client, what: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let numbers: HashSet<i32> = partitions.elements().iter().map(|element| element.partition()).collect();
        self.desk.figures.rebalanced();
        let done = match what {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assigned(client, &numbers),
            // Asked first: letting go of a partition resets it.
            _ => self.revoked(client, &numbers, client.assignment_lost()),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a rebalance was not carried out");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, positions: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "the broker has not taken positions, which it only displays");
            again(&self.desk, positions);
        }
    }
}

impl Callbacks {
    /// Nothing is fetched yet: where to begin is known when the epoch has been raised.
    fn assigned(&self, client: &Client, numbers: &HashSet<i32>) -> KafkaResult<()> {
        tracing::info!(topic = self.desk.topic, partitions = ?sorted(numbers), "the group assigned partitions");
        self.desk.at(Moment::Assigned);
        let accepted = client.incremental_assign(&TopicPartitionList::new());
        if let Some(start) = self.desk.start.get() {
            numbers.iter().for_each(|number| start(*number));
        }
        self.desk.figures.told(true);
        accepted
    }

    fn revoked(&self, client: &Client, numbers: &HashSet<i32>, is_lost: bool) -> KafkaResult<()> {
        let partitions = sorted(numbers);
        tracing::info!(topic = self.desk.topic, ?partitions, is_lost, "the group took partitions back");
        self.desk.at(if is_lost { Moment::Lost } else { Moment::Revoked });
        if is_lost {
            self.desk.figures.lost(numbers.len() as u64);
            self.desk.figures.told(false);
            // Others may have them already: nothing is finished, and nothing is committed.
            self.desk.let_go(numbers, Leave::Drop);
            let mut positions = self.desk.positions.lock();
            positions.retain(|number, _| !numbers.contains(number));
        } else {
            self.desk.let_go(numbers, Leave::Finish);
            display(client, &self.desk);
        }
        let mut fetching = self.desk.fetching.lock();
        for number in numbers {
            if fetching.remove(number).is_some_and(|was| was.is_paused) {
                let _ = client.resume(&only(&self.desk.topic, *number));
            }
        }
        // What the client has, not what it was ordered to have: it refuses all if one is not assigned to it.
        let assigned = client.assignment()?;
        let mut dropped = TopicPartitionList::new();
        for element in assigned.elements().iter().filter(|element| numbers.contains(&element.partition())) {
            dropped.add_partition(&self.desk.topic, element.partition());
        }
        client.incremental_unassign(&dropped)
    }
}

/// Polls until it is told to stop. The error is one from which the client does not recover.
pub(super) fn poll(client: &Client, mut orders: mpsc::Receiver<Order>) -> Result<(), String> {
    let desk = client.context().desk.clone();
    let mut displayed = BootTime::now();
    let mut are_strangers_known = false;
    loop {
        match client.poll(POLL) {
            Some(Ok(message)) => deliver(client, &desk, &message),
            Some(Err(error)) => trouble(client, &desk, &error, &mut are_strangers_known)?,
            None => {}
        }
        let now = BootTime::now();
        desk.figures.polled(now);
        while let Ok(order) = orders.try_recv() {
            if matches!(order, Order::Stop) {
                display(client, &desk);
                return Ok(());
            }
            if matches!(order, Order::Unfetch { .. }) {
                // Now, and not after the next owner has told how far it is.
                display(client, &desk);
            }
            carry_out(client, &desk, order);
        }
        if now.since(displayed) >= DISPLAY_EVERY {
            displayed = now;
            display(client, &desk);
            if let Some((code, reason)) = client.client().fatal_error() {
                return Err(format!("the Kafka client has failed for good: {reason} ({code})"));
            }
        }
    }
}

fn deliver(client: &Client, desk: &Desk, message: &BorrowedMessage<'_>) {
    let number = message.partition();
    let mut fetching = desk.fetching.lock();
    let Some(fetched) = fetching.get_mut(&number).filter(|fetched| !fetched.is_stalled) else { return };
    let mut lane = fetched.cell.lane.lock();
    let arrival = lane.arrive(owned(message));
    let flow = lane.flow();
    drop(lane);
    fetched.next = message.offset() + 1;
    if arrival == Arrival::Foreign {
        fetched.cell.is_foreign.store(true, Ordering::SeqCst);
    }
    fetched.cell.wake.notify_one();
    if flow == Some(Flow::Pause) && !fetched.is_paused {
        fetched.is_paused = true;
        desk.figures.paused();
        if let Err(error) = client.pause(&only(&desk.topic, number)) {
            stall(desk, &mut fetching, number, format!("its messages cannot be paused: {error}"));
        }
    }
}

fn trouble(
    client: &Client,
    desk: &Desk,
    error: &KafkaError,
    are_strangers_known: &mut bool,
) -> Result<(), String> {
    match error {
        KafkaError::MessageConsumptionFatal(code) => {
            let reason = client.client().fatal_error().map(|(_, reason)| reason).unwrap_or_default();
            return Err(format!("the Kafka client has failed for good: {reason} ({code})"));
        }
        KafkaError::MessageConsumption(
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange,
        ) => {
            out_of_range(client, desk);
        }
        KafkaError::MessageConsumption(RDKafkaErrorCode::InconsistentGroupProtocol) => {
            if !std::mem::replace(are_strangers_known, true) {
                tracing::error!(
                    topic = desk.topic,
                    "the consumer group has members of another program, which assign partitions in another way: this \
                     one joins when they are stopped"
                );
            }
        }
        error => tracing::debug!(%error, "no messages"),
    }
    Ok(())
}

/// The client fetches nothing more of a partition, and does not report of which: the broker does not have the offset
/// that comes next. Tenures that this may be about end; why it is so is found out when they begin again.
fn out_of_range(client: &Client, desk: &Desk) {
    let topic = &desk.topic;
    let mut fetching = desk.fetching.lock();
    let mut unknown = None::<String>;
    let live = fetching.iter().filter(|(_, of)| !of.is_stalled);
    let live: Vec<(i32, i64)> = live.map(|(number, of)| (*number, of.next)).collect();
    for (number, next) in live {
        if let Some(why) = &unknown {
            stall(desk, &mut fetching, number, why.clone());
            continue;
        }
        match client.fetch_watermarks(topic, number, WATERMARKS_MAX) {
            Ok((low, high)) if (low..=high).contains(&next) => {
                // Fails if it is this one after all, and changes nothing otherwise.
                if let Err(error) = client.seek(topic, number, Offset::Offset(next), SEEK_MAX) {
                    let why = format!("its messages are no longer fetched: {error}");
                    stall(desk, &mut fetching, number, why);
                }
            }
            Ok((low, high)) => {
                let why = format!("the broker does not have offset {next}: it has {low} to {high}");
                stall(desk, &mut fetching, number, why);
            }
            Err(error) => {
                let why = format!("the broker does not say which messages it has: {error}");
                stall(desk, &mut fetching, number, why.clone());
                unknown = Some(why);
            }
        }
    }
}

/// Ends the tenure of a partition whose messages do not arrive.
fn stall(desk: &Desk, fetching: &mut HashMap<i32, Fetching>, number: i32, why: String) {
    if let Some(fetched) = fetching.get_mut(&number) {
        fetched.is_stalled = true;
        desk.figures.stalled();
        fetched.cell.stall(why);
    }
}

fn carry_out(client: &Client, desk: &Desk, order: Order) {
    let topic = &desk.topic;
    let mut fetching = desk.fetching.lock();
    let is_of = |fetching: &HashMap<i32, Fetching>, number: i32, serial: u64| {
        fetching.get(&number).is_some_and(|fetched| fetched.serial == serial)
    };
    let (number, done) = match order {
        Order::Fetch { number, serial, offset, cell } => {
            let fetched = Fetching { serial, cell, is_paused: false, next: offset, is_stalled: false };
            let former = fetching.insert(number, fetched);
            if former.as_ref().is_some_and(|former| former.is_paused) {
                let _ = client.resume(&only(topic, number));
            }
            let done = fetch(client, topic, number, offset, former.is_some());
            (number, done.map(|()| desk.figures.runs(number)))
        }
        Order::Unfetch { number, serial } if is_of(&fetching, number, serial) => {
            let was_paused = fetching.remove(&number).is_some_and(|fetched| fetched.is_paused);
            if was_paused {
                let _ = client.resume(&only(topic, number));
            }
            (number, client.incremental_unassign(&only(topic, number)))
        }
        Order::Resume { number, serial } if is_of(&fetching, number, serial) => {
            fetching.entry(number).and_modify(|fetched| fetched.is_paused = false);
            (number, client.resume(&only(topic, number)))
        }
        Order::Unfetch { .. } | Order::Resume { .. } | Order::Stop => return,
    };
    if let Err(error) = done {
        tracing::debug!(partition = number, %error, "the Kafka client refused an order");
        stall(desk, &mut fetching, number, format!("its messages cannot be fetched: {error}"));
    }
}

/// Begins to fetch at an offset. A partition that is assigned already is moved there, since to unassign it could end a
/// rebalance whose callback has not run yet; where the client does not do that, it is assigned anew.
fn fetch(client: &Client, topic: &str, number: i32, offset: i64, is_assigned: bool) -> KafkaResult<()> {
    let assign = || {
        let mut one = TopicPartitionList::new();
        one.add_partition_offset(topic, number, Offset::Offset(offset))?;
        client.incremental_assign(&one)
    };
    let done = match is_assigned {
        false => assign(),
        true => client.seek(topic, number, Offset::Offset(offset), SEEK_MAX),
    };
    done.or_else(|error| {
        tracing::debug!(partition = number, %error, "assigning the partition anew");
        let _ = client.incremental_unassign(&only(topic, number));
        assign()
    })
}

/// Tells the broker how far we are. Nobody relies on it.
fn display(client: &Client, desk: &Desk) {
    let positions = std::mem::take(&mut *desk.positions.lock());
    if positions.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::new();
    for (number, position) in positions {
        let _ = list.add_partition_offset(&desk.topic, number, Offset::Offset(position));
    }
    if let Err(error) = client.commit(&list, CommitMode::Async) {
        tracing::debug!(%error, "the broker is not told positions");
        again(desk, &list);
    }
}

/// Positions of partitions that are still ours are displayed later. A newer one may have been displayed meanwhile, and
/// the broker would take the older one after it: so the newest is displayed again.
fn again(desk: &Desk, positions: &TopicPartitionList) {
    let ours = desk.entered();
    let fetching = desk.fetching.lock();
    let mut later = desk.positions.lock();
    for element in positions.elements().iter().filter(|element| ours.contains(&element.partition())) {
        let Offset::Offset(offset) = element.offset() else { continue };
        // Not fetched yet: it was won a moment ago.
        let reached = fetching.get(&element.partition()).map(|of| of.cell.lane.lock().position());
        let newest = later.entry(element.partition()).or_insert(offset);
        *newest = (*newest).max(offset).max(reached.unwrap_or(offset));
    }
}

fn only(topic: &str, number: i32) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, number);
    list
}

fn sorted(numbers: &HashSet<i32>) -> Vec<i32> {
    let mut sorted: Vec<i32> = numbers.iter().copied().collect();
    sorted.sort_unstable();
    sorted
}

pub(super) fn owned(message: &BorrowedMessage<'_>) -> Message {
    let bytes = |part: Option<&[u8]>| part.map(Bytes::copy_from_slice);
    let headers = message.headers().map(|headers| {
        let value = |value: Option<&[u8]>| bytes(value).unwrap_or_default();
        headers.iter().map(|header| (header.key.to_owned(), value(header.value))).collect()
    });
    Message {
        topic: message.topic().into(),
        partition: message.partition(),
        offset: message.offset(),
        key: bytes(message.key()),
        payload: bytes(message.payload()),
        headers: headers.unwrap_or_default(),
        timestamp_ms: message.timestamp().to_millis(),
    }
}
