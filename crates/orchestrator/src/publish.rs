//! Publishes events and copies of dead letters.

use std::time::Duration;

use async_trait::async_trait;
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord, Producer},
};
use serde_json::json;

use crate::{dispatch::DispatchError, store::DeadLetter};
use solehold_kafka::{BrokerErrors, Brokers, SettingsError};

const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Messages with the same key stay in order.
    pub key: String,
    pub payload: Vec<u8>,
    pub headers: Vec<(&'static str, String)>,
}

#[async_trait]
pub trait Publish: Send + Sync {
    /// Publishes messages of different keys, and returns in the same order whether each is confirmed.
    async fn publish(&self, topic: &str, messages: &[Outgoing]) -> Vec<Result<(), DispatchError>>;

    /// Whether the brokers support headers.
    fn has_headers(&self) -> bool;
}

impl Outgoing {
    /// A copy of a dead letter: its payload with the reason in headers, or in an envelope if headers are unsupported.
    pub fn of_dead_letter(letter: &DeadLetter, topic: &str, has_headers: bool) -> Self {
        let key = letter.key.clone();
        let payload = letter.payload.clone().unwrap_or_default();
        if has_headers {
            let headers = vec![
                ("reason", letter.reason.clone()),
                ("topic", topic.to_owned()),
                ("partition", letter.id.partition.to_string()),
                ("offset", letter.id.position.to_string()),
            ];
            return Self { key, payload, headers };
        }
        let envelope = json!({
            "reason": letter.reason, "topic": topic, "partition": letter.id.partition, "offset": letter.id.position,
            "key": key, "payload": String::from_utf8_lossy(&payload),
        });
        Self { key, payload: envelope.to_string().into_bytes(), headers: Vec::new() }
    }
}

pub struct KafkaPublisher {
    producer: FutureProducer<BrokerErrors>,
    has_headers: bool,
}

impl std::fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaPublisher").field("has_headers", &self.has_headers).finish_non_exhaustive()
    }
}

impl KafkaPublisher {
    /// A producer for these brokers. Nothing is connected yet.
    pub fn new(brokers: &Brokers, has_headers: bool) -> Result<Self, SettingsError> {
        let mut config = brokers.client()?;
        config
            .set("message.timeout.ms", CONFIRMED_WITHIN.as_millis().to_string())
            .set("acks", "all")
            .set("linger.ms", "2");
        let producer = config.create_with_context(BrokerErrors::logged())?;
        Ok(Self { producer, has_headers })
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        // The next owner of the partition sends unconfirmed messages again.
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
            async move { sent.await.map(drop).map_err(|(error, _)| dispatch_error(&error)) }
        });
        futures_util::future::join_all(sends).await
    }

    fn has_headers(&self) -> bool {
        self.has_headers
    }
}

fn dispatch_error(error: &KafkaError) -> DispatchError {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidTopic) => {
            DispatchError::Refused(error.to_string())
        }
        _ => DispatchError::Unreachable(error.to_string()),
    }
}
