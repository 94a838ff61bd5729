//! Celery's queues in RabbitMQ.
//!
//! RabbitMQ confirms a message that it could route to no queue, too. With `mandatory` it returns such a message before
//! it confirms it, and lapin hands it out with the next confirmation of the channel, whichever message that one is for.
//! So the whole batch of a channel is confirmed before it is told what was returned, by id.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, Consumer,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
        QueueDeclareOptions,
    },
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};
use parking_lot::Mutex;
use serde_json::Value;
use solehold_process::{
    amqp::{self, connect},
    deadline::within,
};

use super::{Broker, CeleryConfig, Message, REPORTS_MAX, control, read};
use crate::dispatch::{DispatchError, Reports};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a batch may take to be confirmed: RabbitMQ confirms what is on disk, at each replica of the queue.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Stored on disk.
const PERSISTENT: u8 = 2;

pub struct RabbitMq {
    url: String,
    ca_cert: Option<Vec<u8>>,
    result_queue: String,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

/// A connection, the channels on which nothing is in flight, and the queues that were seen.
struct Link {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
    queues: Mutex<HashSet<String>>,
}

impl Link {
    async fn channel(&self) -> lapin::Result<Channel> {
        let idle = self.idle.lock().pop();
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    fn give_back(&self, channel: Channel) {
        self.idle.lock().push(channel);
    }

    /// Makes sure that there is a queue: as its workers have declared it, or else durable and plain.
    async fn declare(&self, queue: &str) -> lapin::Result<()> {
        if self.queues.lock().contains(queue) {
            return Ok(());
        }
        let (name, none) = (ShortString::from(queue), FieldTable::default());
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        // A question about a queue that is not there ends its channel.
        let asking = self.connection.create_channel().await?;
        if asking.queue_declare(name.clone(), passive, none.clone()).await.is_err() {
            let channel = self.connection.create_channel().await?;
            channel.queue_declare(name, QueueDeclareOptions::durable(), none).await?;
        }
        self.queues.lock().insert(queue.to_owned());
        Ok(())
    }
}

impl RabbitMq {
    pub fn new(config: &CeleryConfig, ca_cert: Option<Vec<u8>>) -> Self {
        let (url, result_queue) = (config.broker.clone(), config.result_queue.clone());
        Self { url, ca_cert, result_queue, link: tokio::sync::Mutex::default() }
    }

    async fn link(&self) -> Result<Arc<Link>, DispatchError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| link.connection.status().connected()) {
            return Ok(Arc::clone(link));
        }
        let connect = async {
            let connection = connect(&self.url, "solehold orchestrator", self.ca_cert.as_deref()).await?;
            let link = Link { connection, idle: Mutex::default(), queues: Mutex::default() };
            // Before the first task: a worker's result for a queue that is not there is lost.
            link.declare(&self.result_queue).await?;
            Ok::<_, amqp::Error>(link)
        };
        let fresh = Arc::new(within("connecting to RabbitMQ", CONNECT_WITHIN, connect).await?);
        *link = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// The next user connects anew.
    async fn forget(&self, broken: &Arc<Link>) {
        let mut link = self.link.lock().await;
        if link.as_ref().is_some_and(|link| Arc::ptr_eq(link, broken)) {
            *link = None;
        }
    }

    /// Publishes and waits for all confirmations; the ids of what was returned.
    async fn publish(&self, link: &Link, messages: &[Message<'_>]) -> lapin::Result<Published> {
        for message in messages {
            link.declare(message.queue).await?;
        }
        let channel = link.channel().await?;
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let mut confirmations = Vec::with_capacity(messages.len());
        for Message { queue, envelope } in messages {
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_content_encoding("utf-8".into())
                .with_delivery_mode(PERSISTENT)
                .with_correlation_id(envelope.id.as_str().into())
                .with_message_id(envelope.id.as_str().into())
                .with_reply_to(self.result_queue.as_str().into())
                .with_headers(table(&envelope.headers));
            let queue = ShortString::from(*queue);
            let publishing = channel.basic_publish("".into(), queue, options, &envelope.body, properties);
            confirmations.push(publishing.await?);
        }
        let mut published = Published::default();
        for confirmation in confirmations {
            let (returned, is_stored) = match confirmation.await? {
                Confirmation::Ack(returned) => (returned, true),
                Confirmation::Nack(returned) => (returned, false),
                Confirmation::NotRequested => (None, false),
            };
            let id = returned.and_then(|returned| returned.properties.message_id().clone());
            published.returned.extend(id.map(|id| id.to_string()));
            published.is_stored.push(is_stored);
        }
        link.give_back(channel);
        Ok(published)
    }
}

/// What RabbitMQ said of a batch.
#[derive(Default)]
struct Published {
    /// In order.
    is_stored: Vec<bool>,
    returned: HashSet<String>,
}

#[async_trait]
impl Broker for RabbitMq {
    async fn send(&self, messages: &[Message<'_>]) -> Vec<Result<(), DispatchError>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let all = |error: DispatchError| messages.iter().map(|_| Err(error.clone())).collect();
        let link = match self.link().await {
            Ok(link) => link,
            Err(error) => return all(error),
        };
        let publishing = self.publish(&link, messages);
        let published = match within("publishing to RabbitMQ", CONFIRM_WITHIN, publishing).await {
            Ok(published) => published,
            Err(error) => {
                self.forget(&link).await;
                return all(error.into());
            }
        };
        if !published.returned.is_empty() {
            // A queue was deleted: look again before the next batch.
            link.queues.lock().clear();
        }
        let judge = |(message, is_stored): (&Message<'_>, &bool)| {
            let why = match published.returned.contains(&message.envelope.id) {
                true => format!("RabbitMQ returned the task: it has no queue {:?}", message.queue),
                false if !is_stored => "RabbitMQ could not store the task".to_owned(),
                false => return Ok(()),
            };
            Err(DispatchError::Unreachable(why))
        };
        messages.iter().zip(&published.is_stored).map(judge).collect()
    }

    async fn tell(&self, what: &Value) -> Result<(), DispatchError> {
        let link = self.link().await?;
        let telling = async {
            // Where no worker ever was there is no such exchange, and asking for it ends the channel.
            let channel = link.connection.create_channel().await?;
            let mut headers = FieldTable::default();
            headers.insert("clock".into(), AMQPValue::LongInt(0));
            headers.insert("expires".into(), AMQPValue::LongInt(0));
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_content_encoding("utf-8".into())
                .with_headers(headers);
            let (options, body) = (BasicPublishOptions::default(), what.to_string());
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let exchange = ShortString::from(control::EXCHANGE);
            channel.basic_publish(exchange, "".into(), options, body.as_bytes(), properties).await?.await?;
            Ok::<_, lapin::Error>(())
        };
        Ok(within("telling workers", CONNECT_WITHIN, telling).await?)
    }

    async fn ask(
        &self,
        method: &str,
        arguments: Value,
        patience: Duration,
    ) -> Result<Vec<Value>, DispatchError> {
        let link = self.link().await?;
        let prepare = async {
            let channel = link.connection.create_channel().await?;
            let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
            let queue = channel.queue_declare("".into(), options, FieldTable::default()).await?;
            let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
            let name = queue.name().clone();
            let answers =
                channel.basic_consume(name.clone(), "".into(), options, FieldTable::default()).await?;
            Ok::<_, lapin::Error>((channel, name, answers))
        };
        let (_channel, queue, mut deliveries) = within("asking workers", CONNECT_WITHIN, prepare).await?;
        self.tell(&control::ask(method, arguments, queue.as_str())).await?;
        let mut answers = Vec::new();
        let collecting = async {
            while let Some(Ok(delivery)) = deliveries.next().await {
                answers.extend(serde_json::from_slice::<Value>(&delivery.data).ok());
            }
        };
        let _ = tokio::time::timeout(patience, collecting).await;
        Ok(answers)
    }

    async fn results(&self, to: &dyn Reports) -> DispatchError {
        let link = match self.link().await {
            Ok(link) => link,
            Err(error) => return error,
        };
        let consuming = within("consuming results", CONNECT_WITHIN, consume(&link, &self.result_queue));
        let ended = match consuming.await {
            Ok((_channel, mut deliveries)) => loop {
                if let Err(error) = deliver(&mut deliveries, to).await {
                    break error;
                }
            },
            Err(error) => error.into(),
        };
        self.forget(&link).await;
        ended
    }
}

async fn consume(link: &Link, queue: &str) -> lapin::Result<(Channel, Consumer)> {
    let channel = link.connection.create_channel().await?;
    channel.basic_qos(2 * REPORTS_MAX, BasicQosOptions::default()).await?;
    let (queue, options) = (ShortString::from(queue), BasicConsumeOptions::default());
    let deliveries = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
    Ok((channel, deliveries))
}

/// Delivers everything that has come, and acknowledges it afterwards.
async fn deliver(deliveries: &mut Consumer, to: &dyn Reports) -> Result<(), DispatchError> {
    let unreachable = |error: String| DispatchError::Unreachable(error);
    let mut last: Option<Delivery> = None;
    let mut reports = Vec::new();
    for _ in 0..REPORTS_MAX {
        let next = match last {
            None => deliveries.next().await,
            Some(_) => match deliveries.next().now_or_never() {
                Some(next) => next,
                None => break,
            },
        };
        let delivery =
            next.ok_or_else(|| unreachable("RabbitMQ ended the consumer of results".to_owned()))?;
        let delivery = delivery.map_err(|error| unreachable(format!("consuming results: {error}")))?;
        let id = delivery.properties.correlation_id().as_ref().map(ShortString::as_str);
        reports.extend(read(id, &delivery.data));
        last = Some(delivery);
    }
    to.deliver(reports).await.map_err(|error| unreachable(format!("reports were not kept: {error}")))?;
    let Some(last) = last else { return Ok(()) };
    let acknowledged = last.acker.ack(BasicAckOptions { multiple: true }).await;
    acknowledged.map(|_| ()).map_err(|error| unreachable(format!("acknowledging results: {error}")))
}

fn table(headers: &serde_json::Map<String, Value>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.as_str().into(), field(value));
    }
    table
}

fn field(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(value) => match value.as_i64() {
            Some(whole) => AMQPValue::LongLongInt(whole),
            None => AMQPValue::Double(value.as_f64().unwrap_or_default()),
        },
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(values) => {
            let mut array = FieldArray::default();
            values.iter().for_each(|value| array.push(field(value)));
            AMQPValue::FieldArray(array)
        }
        Value::Object(members) => AMQPValue::FieldTable(table(members)),
    }
}
