//! Events to an exchange of RabbitMQ: persistent, confirmed, and refused if no queue takes them.
//!
//! RabbitMQ also confirms a message that it could route to no queue and dropped. With `mandatory` it returns
//! such a message before it confirms it. lapin hands a returned message out with the next confirmation of the same
//! channel, whichever message that one is for, so a channel has one message in flight, and many channels make for many
//! messages.

use std::time::Duration;

use async_trait::async_trait;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ErrorKind, ExchangeKind,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use parking_lot::Mutex;
use solehold_core::key::Name;
use solehold_process::{
    amqp,
    deadline::{DeadlineError, within},
};

use super::{Destination, Message, config::RabbitMqConfig, link::SharedLink, window::Failure};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a confirmation may take: RabbitMQ confirms when the message is on disk, at each replica of the queue.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Stored on disk.
const PERSISTENT: u8 = 2;
/// Dead letters that are kept; beyond it RabbitMQ drops the oldest.
const DEAD_LETTERS_MAX: i64 = 100_000;

/// The finding of a check on an exchange that exists. AMQP has no query for the queues that are bound to it.
const EXCHANGE_EXISTS: &str = "which exists; whether a queue is bound to it cannot be seen from here, and events that no queue takes are refused";
/// The finding on an exchange that does not exist.
const EXCHANGE_MISSING: &str = "which does not exist yet: the server makes it at the start, and every event is refused until a queue is bound to it";

pub struct RabbitMq {
    relay: Name,
    config: RabbitMqConfig,
    link: SharedLink<AmqpLink>,
}

/// A connection, and its channels that have no message in flight.
struct AmqpLink {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
}

impl AmqpLink {
    async fn channel(&self) -> lapin::Result<Channel> {
        if let Some(channel) = self.idle.lock().pop() {
            return Ok(channel);
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    fn give_back(&self, channel: Channel) {
        self.idle.lock().push(channel);
    }
}

impl RabbitMq {
    pub fn new(relay: &Name, config: &RabbitMqConfig) -> Self {
        Self { relay: relay.clone(), config: config.clone(), link: SharedLink::default() }
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let name = format!("solehold relay {}", self.relay);
        Ok(within("connecting", CONNECT_WITHIN, amqp::connect(self.config.url.reveal(), &name, None)).await?)
    }

    async fn connect(&self) -> Result<AmqpLink, Failure> {
        let link = AmqpLink { connection: self.connection().await?, idle: Mutex::default() };
        let declare = async {
            let channel = link.channel().await?;
            let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
            let exchange = self.config.exchange.as_str().into();
            channel.exchange_declare(exchange, ExchangeKind::Topic, durable, FieldTable::default()).await?;
            link.give_back(channel);
            Ok(())
        };
        within("declaring the exchange", CONNECT_WITHIN, declare).await?;
        Ok(link)
    }

    /// Publishes to an exchange, on a channel that has no other message in flight.
    async fn send(
        &self,
        exchange: &str,
        message: &Message,
        properties: BasicProperties,
    ) -> Result<(), Failure> {
        let link = self.link.get(|link| link.connection.status().connected(), self.connect()).await?;
        let routing_key = self.config.routing_key.of(message);
        let publish = async {
            let channel = link.channel().await?;
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let to = ShortString::from(exchange);
            let key = ShortString::from(routing_key.as_str());
            let confirmed = channel.basic_publish(to, key, options, &message.body, properties).await?.await?;
            // Only now is the channel free: a sender that is cancelled before this drops its channel.
            link.give_back(channel);
            Ok(confirmed)
        };
        match within("publishing", CONFIRM_WITHIN, publish).await {
            Ok(confirmed) => judge(confirmed, exchange, &routing_key),
            Err(failure) => {
                self.link.forget(&link).await;
                Err(failure.into())
            }
        }
    }

    fn properties(message: &Message) -> BasicProperties {
        BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT)
            .with_message_id(message.id.to_string().into())
            .with_timestamp(message.at.0 / 1_000)
            .with_type(message.event.into())
            .with_app_id("solehold".into())
    }

    async fn declare_dead_letters(&self) -> Result<(), Failure> {
        let link = self.link.get(|link| link.connection.status().connected(), self.connect()).await?;
        let name = ShortString::from(self.config.dead_letters().as_str());
        let declare = async {
            let channel = link.channel().await?;
            let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
            let fanout = ExchangeKind::Fanout;
            let none = FieldTable::default();
            channel.exchange_declare(name.clone(), fanout, durable, none.clone()).await?;
            let mut bound = FieldTable::default();
            bound.insert("x-max-length".into(), AMQPValue::LongLongInt(DEAD_LETTERS_MAX));
            channel.queue_declare(name.clone(), QueueDeclareOptions::durable(), bound).await?;
            channel
                .queue_bind(name.clone(), name.clone(), "".into(), QueueBindOptions::default(), none)
                .await?;
            link.give_back(channel);
            Ok(())
        };
        Ok(within("declaring the dead letters", CONNECT_WITHIN, declare).await?)
    }
}

#[async_trait]
impl Destination for RabbitMq {
    async fn publish(&self, message: &Message) -> Result<(), Failure> {
        self.send(&self.config.exchange, message, Self::properties(message)).await
    }

    /// To an exchange and a queue of their own, with the reason as a header.
    async fn dead_letter(&self, message: &Message, why: &str) -> Result<(), Failure> {
        self.declare_dead_letters().await?;
        let mut headers = FieldTable::default();
        headers.insert("solehold-reason".into(), AMQPValue::LongString(why.into()));
        let relay = self.relay.as_str();
        headers.insert("solehold-relay".into(), AMQPValue::LongString(relay.into()));
        let properties = Self::properties(message).with_headers(headers);
        self.send(&self.config.dead_letters(), message, properties).await
    }

    async fn check(&self) -> Result<String, Failure> {
        let connection = self.connection().await?;
        let declare = async {
            let channel = connection.create_channel().await?;
            let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let exchange = self.config.exchange.as_str().into();
            Ok(channel.exchange_declare(exchange, ExchangeKind::Topic, passive, FieldTable::default()).await)
        };
        match within("looking for the exchange", CONNECT_WITHIN, declare).await? {
            Ok(()) => Ok(EXCHANGE_EXISTS.to_owned()),
            Err(error) if is_not_found(&error) => Ok(EXCHANGE_MISSING.to_owned()),
            Err(error) => Err(Failure::Away(format!("looking for the exchange: {error}"))),
        }
    }
}

fn is_not_found(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if error.kind() == &AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND))
}

/// A confirmation alone is not enough: a message that no queue took is confirmed, too.
fn judge(confirmed: Confirmation, exchange: &str, routing_key: &str) -> Result<(), Failure> {
    match confirmed {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
            let code = returned.reply_code;
            let text = returned.reply_text;
            let why = format!(
                "RabbitMQ returned it ({code} {text}): no queue is bound to the exchange {exchange} for {routing_key}"
            );
            Err(Failure::Refused(why))
        }
        Confirmation::Nack(None) => Err(Failure::Busy("RabbitMQ could not store it".to_owned())),
        Confirmation::NotRequested => Err(Failure::Away("the channel does not confirm".to_owned())),
    }
}

impl From<DeadlineError<amqp::Error>> for Failure {
    fn from(error: DeadlineError<amqp::Error>) -> Self {
        Self::Away(error.to_string())
    }
}
