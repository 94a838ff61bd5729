//! Commands by a real broker, taken by the real consumer.

use std::{sync::Arc, time::Duration};

use rdkafka::{
    consumer::{BaseConsumer, Consumer as _},
    producer::{FutureProducer, FutureRecord},
};
use solehold_kafka::{Brokers, Consumer, ConsumerError, ConsumerSettings};
use solehold_testkit::{Kafka, wait_for};
use tokio::{sync::watch, task::JoinHandle};

use crate::kit::{GROUP, Kit, PATIENCE};

/// A topic of commands.
pub struct Broker {
    pub kafka: &'static Kafka,
    pub topic: String,
    partitions: i32,
    producer: FutureProducer,
}

impl Broker {
    pub async fn new(partitions: i32) -> Self {
        let kafka = Kafka::shared().await.unwrap();
        let topic = kafka.create_topic("commands", partitions).await.unwrap();
        Self { producer: producer(kafka), kafka, topic, partitions }
    }

    pub fn brokers(&self) -> Brokers {
        brokers(self.kafka)
    }

    /// Deletes the topic, and makes it again under its name.
    pub async fn make_anew(&mut self) {
        self.kafka.delete_topic(&self.topic).await.unwrap();
        self.kafka.create_topic_named(&self.topic, self.partitions).await.unwrap();
        self.producer = producer(self.kafka);
    }

    /// Sends a message, and returns its offset once it is there.
    pub async fn send(&self, partition: i32, key: Option<&[u8]>, payload: Option<&[u8]>) -> i64 {
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.topic).partition(partition);
        (record.key, record.payload) = (key, payload);
        let sent = self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error).unwrap();
        sent.offset
    }

    /// The offset behind the last message of a partition.
    pub fn end_of(&self, partition: i32) -> i64 {
        let asking: BaseConsumer = self.brokers().client().unwrap().create().unwrap();
        asking.fetch_watermarks(&self.topic, partition, PATIENCE).unwrap().1
    }

    /// Waits until everything that was sent to a partition has taken effect, or is a letter.
    pub async fn taken_when(&self, kit: &Kit, partition: i32) {
        let end = self.end_of(partition);
        let done = format!(
            "partitions WHERE topic = '{}' AND partition = {partition} AND next_offset = {end}",
            self.topic
        );
        let look = async || kit.count(&done).await == 1;
        wait_for("all messages of the partition to be taken", PATIENCE, look).await.unwrap();
    }

    /// A consumer of the topic in this process.
    pub fn consume(&self, kit: &Kit, name: &str) -> Consuming {
        let settings = ConsumerSettings {
            topic: self.topic.clone(),
            group: GROUP.to_owned(),
            partitions: self.partitions,
            session_timeout: Duration::from_secs(3),
            leave_timeout: Duration::from_millis(1_500),
            ..ConsumerSettings::default()
        };
        let consumer = Consumer {
            settings,
            brokers: self.brokers(),
            pool: kit.store().pool.clone(),
            partitions: kit.store().partitions.clone(),
            handler: Arc::new(kit.jobs.clone()),
            metrics: kit.jobs.metrics.consumer.clone(),
            name: name.to_owned(),
            leases: None,
            hook: None,
        };
        let (ending, told) = watch::channel(false);
        Consuming { ending, task: tokio::spawn(consumer.run(told)) }
    }
}

fn brokers(kafka: &Kafka) -> Brokers {
    let broker_version = kafka.broker_version().map(str::to_owned);
    Brokers { broker_version, ..Brokers::at(kafka.address()) }
}

fn producer(kafka: &Kafka) -> FutureProducer {
    brokers(kafka).client().unwrap().set("acks", "all").create().unwrap()
}

/// A consumer that runs.
pub struct Consuming {
    ending: watch::Sender<bool>,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Consuming {
    /// Ends it, as SIGTERM would.
    pub async fn end(self) {
        self.ending.send_replace(true);
        self.ended().await.unwrap();
    }

    /// Waits until it ends.
    pub async fn ended(self) -> Result<(), ConsumerError> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").expect("it does not panic")
    }
}
