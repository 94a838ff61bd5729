//! Celery's queues in RabbitMQ.
//!
//! RabbitMQ also confirms a message that it could not route to a queue. With `mandatory` it returns such a message
//! before the confirmation, and lapin attaches it to the next confirmation of the channel, for whichever message. So
//! returned messages are matched by id once the whole batch of a channel is confirmed.

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

use crate::dispatch::celery::{Broker, CeleryConfig, Message, REPORTS_MAX, control, read};
use crate::dispatch::{DispatchError, Reports};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a batch may take to be confirmed: RabbitMQ confirms messages once they are on disk at each replica.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
const PERSISTENT: u8 = 2;

pub struct RabbitMq {
    url: String,
    ca_cert: Option<Vec<u8>>,
    result_queue: String,
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
}

/// A connection, its idle channels, and the queues that are known to exist.
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

    /// Declares a queue unless it exists: durable and without arguments.
    async fn declare(&self, queue: &str) -> lapin::Result<()> {
        if self.queues.lock().contains(queue) {
            return Ok(());
        }
        let name = ShortString::from(queue);
        let none = FieldTable::default();
        let passive = QueueDeclareOptions { passive: true, ..Default::default() };
        // RabbitMQ closes a channel on which a missing queue was declared passively.
        let passive_channel = self.connection.create_channel().await?;
        if passive_channel.queue_declare(name.clone(), passive, none.clone()).await.is_err() {
            let channel = self.connection.create_channel().await?;
            channel.queue_declare(name, QueueDeclareOptions::durable(), none).await?;
        }
        self.queues.lock().insert(queue.to_owned());
        Ok(())
    }
}

impl RabbitMq {
    pub fn new(config: &CeleryConfig, ca_cert: Option<Vec<u8>>) -> Self {
        Self {
            url: config.broker.clone(),
            ca_cert,
            result_queue: config.result_queue().to_owned(),
            link: tokio::sync::Mutex::default(),
        }
    }

    async fn link(&self) -> Result<Arc<Link>, DispatchError> {
        let mut link = self.link.lock().await;
        if let Some(link) = link.as_ref().filter(|link| link.connection.status().connected()) {
            return Ok(Arc::clone(link));
        }
        let connect = async {
            let connection = connect(&self.url, "solehold orchestrator", self.ca_cert.as_deref()).await?;
            let link = Link { connection, idle: Mutex::default(), queues: Mutex::default() };
            // Before the first task: a worker's result for a missing queue is lost.
            link.declare(&self.result_queue).await?;
            Ok::<_, amqp::Error>(link)
        };
        let fresh = Arc::new(within("connecting to RabbitMQ", CONNECT_WITHIN, connect).await?);
        *link = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Makes the next user reconnect.
    async fn forget(&self, broken: &Arc<Link>) {
        let mut link = self.link.lock().await;
        if link.as_ref().is_some_and(|link| Arc::ptr_eq(link, broken)) {
            *link = None;
        }
    }

    /// Publishes messages and waits for all confirmations.
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

#[derive(Default)]
struct Published {
    /// Per message, in order.
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
            if published.returned.contains(&message.envelope.id) {
                let error = format!("RabbitMQ returned the task: it has no queue {:?}", message.queue);
                return Err(DispatchError::Unreachable(error));
            }
            if !is_stored {
                return Err(DispatchError::Unreachable("RabbitMQ could not store the task".to_owned()));
            }
            Ok(())
        };
        messages.iter().zip(&published.is_stored).map(judge).collect()
    }

    async fn broadcast(&self, what: &Value) -> Result<(), DispatchError> {
        let link = self.link().await?;
        let publishing = async {
            // Before the first worker there is no such exchange, and publishing to it closes the channel.
            let channel = link.connection.create_channel().await?;
            let mut headers = FieldTable::default();
            headers.insert("clock".into(), AMQPValue::LongInt(0));
            headers.insert("expires".into(), AMQPValue::LongInt(0));
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_content_encoding("utf-8".into())
                .with_headers(headers);
            let options = BasicPublishOptions::default();
            let body = what.to_string();
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let exchange = ShortString::from(control::EXCHANGE);
            channel.basic_publish(exchange, "".into(), options, body.as_bytes(), properties).await?.await?;
            Ok::<_, lapin::Error>(())
        };
        Ok(within("publishing to workers through RabbitMQ", CONNECT_WITHIN, publishing).await?)
    }

    async fn query(
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
        let (_channel, queue, mut deliveries) =
            within("querying workers through RabbitMQ", CONNECT_WITHIN, prepare).await?;
        self.broadcast(&control::query(method, arguments, queue.as_str())).await?;
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
    let queue = ShortString::from(queue);
    let options = BasicConsumeOptions::default();
    let deliveries = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
    Ok((channel, deliveries))
}

/// Delivers all results that have arrived, then acknowledges them.
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
            next.ok_or_else(|| unreachable("RabbitMQ cancelled the consumer of results".to_owned()))?;
        let delivery = delivery.map_err(|error| unreachable(format!("consuming results: {error}")))?;
        let id = delivery.properties.correlation_id().as_ref().map(ShortString::as_str);
        reports.extend(read(id, &delivery.data));
        last = Some(delivery);
    }
    to.deliver(reports).await.map_err(|error| unreachable(format!("cannot store reports: {error}")))?;
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
