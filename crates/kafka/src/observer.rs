//! Reads the messages that a consumer group has passed, without being a member of it: nothing is subscribed to, and
//! nothing is committed.

use std::time::Duration;

use rdkafka::{
    Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
};
use solehold_clock::BootTime;

use super::{BrokerErrors, Brokers, BrokersError, Message, REPORTED_WITHIN, poll::owned};

/// How long the broker may take for one answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often the committed offsets are read.
const COMMITTED_EVERY: Duration = Duration::from_millis(250);
const POLL_WITHIN: Duration = Duration::from_millis(50);
/// How long the broker may be away before observing fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much is fetched ahead.
const FETCHED_KBYTES_MAX: &str = "16384";

#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    #[error(transparent)]
    Settings(#[from] BrokersError),
    /// The topic is missing, has another number of partitions, or is not the one that the group has consumed.
    #[error("{0}")]
    Topic(String),
    /// No broker can be used, for the reason that librdkafka reported.
    #[error("{0}")]
    Broker(String),
}

/// A reader of the messages below a group's committed offsets.
pub struct Observer {
    client: BaseConsumer<BrokerErrors>,
    topic: String,
    /// In the order of their numbers.
    partitions: Vec<Observed>,
    committed_at: BootTime,
    /// When the broker answered last.
    answered_at: BootTime,
}

#[derive(Debug, Default)]
struct Observed {
    /// The first offset that is read.
    first: i64,
    /// Everything below was read.
    next: i64,
    committed: Option<i64>,
    /// What was committed when observing began.
    target: i64,
    /// The first message that the group has not passed. Fetching is paused meanwhile.
    ahead: Option<Message>,
    is_at_end: bool,
}

impl Observer {
    /// Begins with the first message of each partition, or with the `last` ones that the group has passed. Blocks while
    /// it waits for the broker.
    pub fn open(
        brokers: &Brokers,
        group: &str,
        topic: &str,
        partitions: i32,
        last: Option<i64>,
    ) -> Result<Self, ObserverError> {
        let mut config = brokers.client()?;
        config.set("group.id", group).set("auto.offset.reset", "earliest");
        // It is assigned partitions, never joins the group, and stores no offsets.
        config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        config.set("enable.partition.eof", "true").set("queued.max.messages.kbytes", FETCHED_KBYTES_MAX);
        let client = BaseConsumer::from_config_and_context(&config, BrokerErrors::kept());
        let client = client.map_err(|error| ObserverError::Broker(error.to_string()))?;
        let now = BootTime::now();
        let mut observer = Self {
            client,
            topic: topic.to_owned(),
            partitions: (0..partitions).map(|_| Observed::default()).collect(),
            committed_at: now,
            answered_at: now,
        };
        observer.check_topic(partitions)?;
        observer.begin(group, last)?;
        Ok(observer)
    }

    /// Lists all topics: old brokers create a missing topic whose metadata is requested.
    fn check_topic(&self, partitions: i32) -> Result<(), ObserverError> {
        let metadata =
            self.client.fetch_metadata(None, ANSWERED_WITHIN).map_err(|error| self.broker(&error))?;
        let found = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let topic = &self.topic;
        match found.map(|topic| topic.partitions().len()) {
            None => Err(ObserverError::Topic(format!("topic {topic} does not exist"))),
            Some(count) if usize::try_from(partitions) == Ok(count) => Ok(()),
            Some(count) => Err(ObserverError::Topic(format!(
                "topic {topic} has {count} partitions, and kafka.partitions is {partitions}"
            ))),
        }
    }

    fn begin(&mut self, group: &str, last: Option<i64>) -> Result<(), ObserverError> {
        self.read_committed().map_err(|error| self.broker(&error))?;
        let mut list = TopicPartitionList::new();
        for number in 0..self.partitions.len() {
            let (low, high) = self.watermarks(number).map_err(|error| self.broker(&error))?;
            let topic = &self.topic;
            let at = &mut self.partitions[number];
            if let Some(committed) = at.committed.filter(|committed| *committed > high) {
                return Err(ObserverError::Topic(format!(
                    "group {group} has committed offset {committed} of partition {number}, and the broker has {low} to \
                     {high}: topic {topic} was deleted and created again"
                )));
            }
            at.target = at.committed.unwrap_or(low);
            at.first = last.map_or(low, |last| low.max(at.target.saturating_sub(last)));
            at.next = at.first;
            let added = list.add_partition_offset(topic, id(number), Offset::Offset(at.first));
            added.map_err(|error| self.broker(&error))?;
        }
        self.client.assign(&list).map_err(|error| self.broker(&error))
    }

    /// At most `max` messages that the group has passed, of all partitions, each partition in order. Waits up to
    /// `within` for the first.
    pub fn read(&mut self, max: usize, within: Duration) -> Result<Vec<Message>, ObserverError> {
        let mut passed = Vec::new();
        let until = BootTime::now().plus(within);
        loop {
            if BootTime::now().since(self.committed_at) >= COMMITTED_EVERY {
                self.read_committed_again()?;
                self.release(max, &mut passed)?;
            }
            let left = until.since(BootTime::now());
            if passed.len() >= max || left.is_zero() {
                return Ok(passed);
            }
            match self.client.poll(POLL_WITHIN.min(left)).map(|polled| polled.map(|message| owned(&message)))
            {
                None if passed.is_empty() => {}
                None => return Ok(passed),
                Some(Ok(message)) => passed.extend(self.fetched(message)?),
                Some(Err(KafkaError::PartitionEOF(number))) => {
                    if let Some(at) = place(number).and_then(|number| self.partitions.get_mut(number)) {
                        at.is_at_end = true;
                    }
                }
                // librdkafka reconnects; committed offsets cannot be read meanwhile.
                Some(Err(_)) => {}
            }
        }
    }

    /// A fetched message, if the group has passed it. Otherwise it is kept until then.
    fn fetched(&mut self, message: Message) -> Result<Option<Message>, ObserverError> {
        let number = message.partition;
        let Some(at) = place(number).and_then(|number| self.partitions.get_mut(number)) else {
            return Ok(None);
        };
        at.is_at_end = false;
        if at.committed.is_some_and(|committed| message.offset < committed) {
            at.next = message.offset + 1;
            return Ok(Some(message));
        }
        at.ahead = Some(message);
        let paused = self.client.pause(&self.only(number));
        paused.map_err(|error| self.broker(&error))?;
        Ok(None)
    }

    /// Hands out messages that the group has passed by now.
    fn release(&mut self, max: usize, passed: &mut Vec<Message>) -> Result<(), ObserverError> {
        for number in 0..self.partitions.len() {
            if passed.len() >= max {
                break;
            }
            let at = &mut self.partitions[number];
            let is_passed = |message: &mut Message| at.committed.is_some_and(|next| message.offset < next);
            let Some(message) = at.ahead.take_if(is_passed) else { continue };
            at.next = message.offset + 1;
            passed.push(message);
            let resumed = self.client.resume(&self.only(id(number)));
            resumed.map_err(|error| self.broker(&error))?;
        }
        Ok(())
    }

    /// Whether everything was read that was committed when observing began.
    pub fn is_caught_up(&self) -> bool {
        self.partitions.iter().all(|at| at.next >= at.target || at.ahead.is_some() || at.is_at_end)
    }

    /// The first offset of a partition that is read.
    pub fn first(&self, partition: i32) -> i64 {
        place(partition).and_then(|number| self.partitions.get(number)).map_or(0, |at| at.first)
    }

    /// How many messages the group has not passed, by their offsets.
    pub fn not_passed(&self) -> Result<i64, ObserverError> {
        let mut count = 0;
        for (number, at) in self.partitions.iter().enumerate() {
            let (low, high) = self.watermarks(number).map_err(|error| self.broker(&error))?;
            count += high.saturating_sub(at.committed.unwrap_or(low)).max(0);
        }
        Ok(count)
    }

    fn watermarks(&self, number: usize) -> KafkaResult<(i64, i64)> {
        self.client.fetch_watermarks(&self.topic, id(number), ANSWERED_WITHIN)
    }

    fn read_committed_again(&mut self) -> Result<(), ObserverError> {
        match self.read_committed() {
            Err(error) if BootTime::now().since(self.answered_at) >= PATIENCE => Err(self.broker(&error)),
            _ => Ok(()),
        }
    }

    fn read_committed(&mut self) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        for number in 0..self.partitions.len() {
            list.add_partition(&self.topic, id(number));
        }
        let committed = self.client.committed_offsets(list, ANSWERED_WITHIN);
        self.committed_at = BootTime::now();
        for element in committed?.elements() {
            element.error()?;
            let at = place(element.partition()).and_then(|number| self.partitions.get_mut(number));
            if let (Some(at), Offset::Offset(offset)) = (at, element.offset()) {
                at.committed = Some(offset);
            }
        }
        self.answered_at = BootTime::now();
        Ok(())
    }

    fn only(&self, number: i32) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.topic, number);
        list
    }

    /// The error of librdkafka, or what it reported about the broker behind it.
    fn broker(&self, error: &KafkaError) -> ObserverError {
        self.client.poll(REPORTED_WITHIN);
        let reported = self.client.context().last().map(|problem| problem.text);
        ObserverError::Broker(reported.unwrap_or_else(|| error.to_string()))
    }
}

fn id(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn place(number: i32) -> Option<usize> {
    usize::try_from(number).ok()
}
