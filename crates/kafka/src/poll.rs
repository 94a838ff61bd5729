//! The polling thread: every request to librdkafka's consumer goes through it, except synchronous commits.

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
    broker_errors::{self, BrokerErrors},
    lane::{Arrival, Flow},
    shared::{Fetching, LaneCell, Leave, Moment, Shared},
};

/// How long a poll waits for a message, and an order for the thread.
const POLL: Duration = Duration::from_millis(20);
/// How often positions are committed to the broker.
const DISPLAY_EVERY: Duration = Duration::from_secs(1);
/// How often those are committed again that have not changed. A former owner that was paused may commit an older one
/// late, and the broker forgets positions that are not committed for a while.
const REPEAT_EVERY: Duration = Duration::from_secs(10);
/// Orders that may wait for the thread.
pub(super) const ORDERS_MAX: usize = 4_096;
const WATERMARKS_MAX: Duration = Duration::from_secs(5);
const SEEK_MAX: Duration = Duration::from_secs(5);

/// A request of a partition's task to the polling thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Fetch the messages of a partition from this offset.
    Fetch { number: i32, serial: u64, offset: i64, cell: Arc<LaneCell> },
    /// Stop fetching them.
    Unfetch { number: i32, serial: u64 },
    /// Resume fetching after a pause.
    Resume { number: i32, serial: u64 },
    /// End the thread.
    Stop,
}

/// librdkafka reported an error from which its client does not recover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the Kafka client failed permanently: {reason} ({code})")]
pub(super) struct ClientFailed {
    code: RDKafkaErrorCode,
    reason: String,
}

pub(super) struct Callbacks {
    pub shared: Arc<Shared>,
    pub errors: BrokerErrors,
}

pub(super) type Client = BaseConsumer<Callbacks>;

impl ClientContext for Callbacks {
    fn stats(&self, statistics: Statistics) {
        let Some(topic) = statistics.topics.get(&self.shared.topic) else { return };
        for partition in topic.partitions.values().filter(|partition| partition.hi_offset >= 0) {
            self.shared.metrics.end_is(partition.partition, partition.hi_offset);
        }
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        broker_errors::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.errors.record(&error, reason);
    }
}

impl ConsumerContext for Callbacks {
    fn rebalance(&self, client: &Client, what: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let numbers: HashSet<i32> = partitions.elements().iter().map(|element| element.partition()).collect();
        self.shared.metrics.rebalances.inc();
        let done = match what {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assigned(client, &numbers),
            // Read before unassigning, which resets it.
            _ => self.revoked(client, &numbers, client.assignment_lost()),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "rebalance failed");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, positions: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::debug!(%error, "cannot commit positions to the broker; retrying");
            again(&self.shared, positions);
        }
    }
}

impl Callbacks {
    /// Nothing is fetched yet: where to begin is known when the epoch has been raised.
    fn assigned(&self, client: &Client, numbers: &HashSet<i32>) -> KafkaResult<()> {
        tracing::info!(topic = self.shared.topic, partitions = ?sorted(numbers), "consumer group assigned partitions");
        self.shared.at(Moment::Assigned);
        let accepted = client.incremental_assign(&TopicPartitionList::new());
        if let Some(start) = self.shared.start.get() {
            numbers.iter().for_each(|number| start(*number));
        }
        self.shared.metrics.set_assigned(true);
        accepted
    }

    fn revoked(&self, client: &Client, numbers: &HashSet<i32>, is_lost: bool) -> KafkaResult<()> {
        let partitions = sorted(numbers);
        tracing::info!(topic = self.shared.topic, ?partitions, is_lost, "consumer group revoked partitions");
        self.shared.at(if is_lost { Moment::Lost } else { Moment::Revoked });
        if is_lost {
            self.shared.metrics.lost.inc_by(numbers.len() as u64);
            self.shared.metrics.set_assigned(false);
            // Other members may have them already: finish and commit nothing.
            self.shared.end_tasks(numbers, Leave::Drop);
            let mut positions = self.shared.positions.lock();
            positions.retain(|number, _| !numbers.contains(number));
        } else {
            self.shared.end_tasks(numbers, Leave::Finish);
            display(client, &self.shared);
        }
        let mut fetching = self.shared.fetching.lock();
        for number in numbers {
            if fetching.remove(number).is_some_and(|was| was.is_paused) {
                let _ = client.resume(&only(&self.shared.topic, *number));
            }
        }
        // The actual assignment: librdkafka refuses the whole list if one partition is not assigned.
        let assigned = client.assignment()?;
        let mut dropped = TopicPartitionList::new();
        for element in assigned.elements().iter().filter(|element| numbers.contains(&element.partition())) {
            dropped.add_partition(&self.shared.topic, element.partition());
        }
        client.incremental_unassign(&dropped)
    }
}

pub(super) fn poll(client: &Client, mut orders: mpsc::Receiver<Order>) -> Result<(), ClientFailed> {
    let shared = client.context().shared.clone();
    let mut displayed = BootTime::now();
    let mut repeated = displayed;
    let mut has_logged_protocol = false;
    loop {
        match client.poll(POLL) {
            Some(Ok(message)) => deliver(client, &shared, &message),
            Some(Err(error)) => poll_failed(client, &shared, &error, &mut has_logged_protocol)?,
            None => {}
        }
        let now = BootTime::now();
        shared.metrics.polled(now);
        while let Ok(order) = orders.try_recv() {
            if matches!(order, Order::Stop) {
                display(client, &shared);
                return Ok(());
            }
            if matches!(order, Order::Unfetch { .. }) {
                // Before the next owner commits its own position.
                display(client, &shared);
            }
            carry_out(client, &shared, order);
        }
        if now.since(displayed) >= DISPLAY_EVERY {
            displayed = now;
            if now.since(repeated) >= REPEAT_EVERY {
                repeated = now;
                repeat(&shared);
            }
            display(client, &shared);
            if let Some((code, reason)) = client.client().fatal_error() {
                return Err(ClientFailed { code, reason });
            }
        }
    }
}

fn deliver(client: &Client, shared: &Shared, message: &BorrowedMessage<'_>) {
    let number = message.partition();
    let mut fetching = shared.fetching.lock();
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
        shared.metrics.pauses.inc();
        if let Err(error) = client.pause(&only(&shared.topic, number)) {
            stall(shared, &mut fetching, number, format!("fetching cannot be paused: {error}"));
        }
    }
}

fn poll_failed(
    client: &Client,
    shared: &Shared,
    error: &KafkaError,
    has_logged_protocol: &mut bool,
) -> Result<(), ClientFailed> {
    match error {
        KafkaError::MessageConsumptionFatal(code) => {
            let reason = client.client().fatal_error().map(|(_, reason)| reason).unwrap_or_default();
            return Err(ClientFailed { code: *code, reason });
        }
        KafkaError::MessageConsumption(
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange,
        ) => {
            out_of_range(client, shared);
        }
        KafkaError::MessageConsumption(RDKafkaErrorCode::InconsistentGroupProtocol) => {
            if !*has_logged_protocol {
                *has_logged_protocol = true;
                tracing::error!(
                    topic = shared.topic,
                    "the consumer group has members with another assignment strategy; this consumer joins when they \
                     are stopped"
                );
            }
        }
        error => tracing::debug!(%error, "poll failed; retrying"),
    }
    Ok(())
}

/// The broker does not have the next offset of a partition, and librdkafka has stopped fetching it without reporting
/// which partition that is. Ends the tenures that may be affected; the next tenure finds out why.
fn out_of_range(client: &Client, shared: &Shared) {
    let topic = &shared.topic;
    let mut fetching = shared.fetching.lock();
    let mut unknown = None::<String>;
    let live = fetching.iter().filter(|(_, of)| !of.is_stalled);
    let live: Vec<(i32, i64)> = live.map(|(number, of)| (*number, of.next)).collect();
    for (number, next) in live {
        if let Some(why) = &unknown {
            stall(shared, &mut fetching, number, why.clone());
            continue;
        }
        match client.fetch_watermarks(topic, number, WATERMARKS_MAX) {
            Ok((low, high)) if (low..=high).contains(&next) => {
                // Fails if this partition is the one, and changes nothing otherwise.
                if let Err(error) = client.seek(topic, number, Offset::Offset(next), SEEK_MAX) {
                    let why = format!("librdkafka stopped fetching its messages: {error}");
                    stall(shared, &mut fetching, number, why);
                }
            }
            Ok((low, high)) => {
                let why = format!("the broker does not have offset {next}; its offsets are {low} to {high}");
                stall(shared, &mut fetching, number, why);
            }
            Err(error) => {
                let why = format!("cannot query the offsets of the broker: {error}");
                stall(shared, &mut fetching, number, why.clone());
                unknown = Some(why);
            }
        }
    }
}

/// Ends the tenure of a partition whose messages do not arrive.
fn stall(shared: &Shared, fetching: &mut HashMap<i32, Fetching>, number: i32, why: String) {
    if let Some(fetched) = fetching.get_mut(&number) {
        fetched.is_stalled = true;
        shared.metrics.stalls.inc();
        fetched.cell.stall(why);
    }
}

fn carry_out(client: &Client, shared: &Shared, order: Order) {
    let topic = &shared.topic;
    let mut fetching = shared.fetching.lock();
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
            (number, done.map(|()| shared.metrics.runs(number)))
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
        tracing::debug!(partition = number, %error, "librdkafka rejected a request; ending the tenure");
        stall(
            shared,
            &mut fetching,
            number,
            format!("the messages of the partition cannot be fetched: {error}"),
        );
    }
}

/// Begins to fetch at an offset. Seeks in a partition that is already assigned, since unassigning it could end a
/// rebalance whose callback has not run yet; if that fails, the partition is unassigned and assigned again.
fn fetch(client: &Client, topic: &str, number: i32, offset: i64, is_assigned: bool) -> KafkaResult<()> {
    let assign = || {
        let mut one = TopicPartitionList::new();
        one.add_partition_offset(topic, number, Offset::Offset(offset))?;
        client.incremental_assign(&one)
    };
    let done =
        if is_assigned { client.seek(topic, number, Offset::Offset(offset), SEEK_MAX) } else { assign() };
    done.or_else(|error| {
        tracing::debug!(partition = number, %error, "cannot seek; assigning the partition again");
        let _ = client.incremental_unassign(&only(topic, number));
        assign()
    })
}

/// Commits positions to the broker, for display: the positions in PostgreSQL are the ones that count.
fn display(client: &Client, shared: &Shared) {
    let positions = std::mem::take(&mut *shared.positions.lock());
    if positions.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::new();
    for (number, position) in positions {
        let _ = list.add_partition_offset(&shared.topic, number, Offset::Offset(position));
    }
    if let Err(error) = client.commit(&list, CommitMode::Async) {
        tracing::debug!(%error, "cannot commit positions to the broker; retrying");
        again(shared, &list);
    }
}

/// Commits the positions of all partitions that are ours once more.
fn repeat(shared: &Shared) {
    let ours = shared.entered();
    let fetching = shared.fetching.lock();
    let mut positions = shared.positions.lock();
    for (number, of) in fetching.iter().filter(|(number, of)| ours.contains(number) && !of.is_stalled) {
        let reached = of.cell.lane.lock().position();
        let newest = positions.entry(*number).or_insert(reached);
        *newest = (*newest).max(reached);
    }
}

/// Commits positions of partitions that are still ours later. A newer position may have been committed meanwhile, and
/// the broker would accept the older one after it: so the newest is committed again.
fn again(shared: &Shared, positions: &TopicPartitionList) {
    let ours = shared.entered();
    let fetching = shared.fetching.lock();
    let mut later = shared.positions.lock();
    for element in positions.elements().iter().filter(|element| ours.contains(&element.partition())) {
        let Offset::Offset(offset) = element.offset() else { continue };
        // Not fetched yet: its tenure has just begun.
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
