//! Where events and copies of dead letters go.

use std::time::Duration;

use async_trait::async_trait;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer},
};
use serde_json::json;

use crate::{dispatch::DispatchError, store::Letter};
use solehold_kafka::{Brokers, Trouble};

/// How long a message may take to be confirmed.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Messages with the same key stay in order.
    pub key: String,
    /// What it says.
    pub payload: Vec<u8>,
    /// What stands beside it.
    pub headers: Vec<(&'static str, String)>,
}

/// A way to publish.
#[async_trait]
pub trait Publish: Send + Sync {
    /// Publishes messages of different keys, and returns in the same order whether each is confirmed.
    async fn publish(&self, topic: &str, messages: &[Outgoing]) -> Vec<Result<(), DispatchError>>;

    /// Whether headers arrive.
    fn has_headers(&self) -> bool;
}

impl Outgoing {
    /// A copy of a dead letter: as it was, with the reason in headers, or in an envelope where there are none.
    pub fn of_letter(letter: &Letter, topic: &str, has_headers: bool) -> Self {
        let key = letter.key.clone();
        let payload = letter.payload.clone().unwrap_or_default();
        let (partition, offset) = (letter.partition.to_string(), letter.position.to_string());
        if has_headers {
            let headers = vec![
                ("reason", letter.reason.clone()),
                ("topic", topic.to_owned()),
                ("partition", partition),
                ("offset", offset),
            ];
            return Self { key, payload, headers };
        }
        let envelope = json!({
            "reason": letter.reason, "topic": topic, "partition": letter.partition, "offset": letter.position,
            "key": key, "payload": String::from_utf8_lossy(&payload),
        });
        Self { key, payload: envelope.to_string().into_bytes(), headers: Vec::new() }
    }
}

/// Publishes to Kafka.
pub struct KafkaPublisher {
    producer: FutureProducer<Trouble>,
    has_headers: bool,
}

impl std::fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaPublisher").field("has_headers", &self.has_headers).finish_non_exhaustive()
    }
}

impl KafkaPublisher {
    /// A producer for these brokers. Nothing is connected yet.
    pub fn new(brokers: &Brokers, has_headers: bool) -> Result<Self, String> {
        let mut config = brokers.client().map_err(|error| error.to_string())?;
        config
            .set("message.timeout.ms", CONFIRMED_WITHIN.as_millis().to_string())
            .set("acks", "all")
            .set("linger.ms", "2");
        let producer = config.create_with_context(Trouble::logged()).map_err(|error| error.to_string())?;
        Ok(Self { producer, has_headers })
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        // What is not confirmed is sent again by whoever has the partition next.
        self.producer.purge(rdkafka::producer::PurgeConfig::default().queue());
    }
}

#[async_trait]
impl Publish for KafkaPublisher {
    async fn publish(&self, topic: &str, messages: &[Outgoing]) -> Vec<Result<(), DispatchError>> {
        let sends = messages.iter().map(|message| {
            let mut headers = OwnedHeaders::new();
            for (key, value) in &message.headers {
                headers = headers.insert(Header { key, value: Some(value.as_bytes()) });
            }
            let mut record = FutureRecord::to(topic).key(&message.key).payload(&message.payload);
            if self.has_headers && !message.headers.is_empty() {
                record = record.headers(headers);
            }
            let sent = self.producer.send(record, CONFIRMED_WITHIN);
            async move { sent.await.map(drop).map_err(|(error, _)| of_error(&error)) }
        });
        futures_util::future::join_all(sends).await
    }

    fn has_headers(&self) -> bool {
        self.has_headers
    }
}

fn of_error(error: &KafkaError) -> DispatchError {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidTopic) => {
            DispatchError::Refused(error.to_string())
        }
        _ => DispatchError::Unreachable(error.to_string()),
    }
}
