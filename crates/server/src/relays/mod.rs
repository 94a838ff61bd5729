//! Relays: events go on to RabbitMQ, MQTT or a webhook, at least once and in order per resource (rules 18, 19 and 20).
//!
//! ```text
//!   store: events commit with the state, in revision order -- this is the outbox
//!     |  watch                                                            ^ cursor: a record, fenced by the lease's token
//!   Term (one replica at a time, under a lease `relay/NAME`)              |
//!     Window: what may be sent next, what is confirmed -------------------+
//!     |  Message: the event in JSON, with an id that is the same on every attempt
//!   Destination: RabbitMQ | MQTT | webhook
//! ```
//! Every replica also publishes the renewals that it served (`renewals`), and looks how far all relays have come
//! (`progress`): for the metrics, and so that the store keeps what is not sent yet.

mod config;
mod cursor;
#[cfg(any(feature = "relay-amqp", feature = "relay-mqtt"))]
mod link;
mod message;
#[cfg(feature = "relay-mqtt")]
mod mqtt;
mod progress;
#[cfg(feature = "relay-amqp")]
mod rabbitmq;
mod renewals;
mod sites;
mod term;
mod topic;
mod webhook;
mod window;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_core::{
    key::{Name, ResourceKey},
    time::Revision,
};
use solehold_engine::Engine;
use tokio::task::JoinSet;

pub use config::{
    DestinationConfig, DestinationUrl, MqttConfig, RELAYS_MAX, RabbitMqConfig, RelayConfig, StartAt,
    WebhookConfig, WhenRefused,
};
use message::Message;
pub use topic::{Style, Topic};
use window::Failure;

use crate::{Context, metrics::Metrics};

/// The tenant of the relays' own leases, and their kind.
const TENANT: &str = "solehold";
const KIND: &str = "relay";
/// What was found of a destination that takes connections.
const IS_THERE: &str = "which can be reached";
/// How long relays get to settle what is in flight when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Where messages are sent to. It connects by itself when it must.
#[async_trait]
pub(crate) trait Destination: Send + Sync {
    /// Sends a message, and returns when it is confirmed.
    async fn publish(&self, message: &Message) -> Result<(), Failure>;

    /// Keeps a message that was refused where people can find it. Unless it has a better place, that is the log.
    async fn dead_letter(&self, _message: &Message, _why: &str) -> Result<(), Failure> {
        Ok(())
    }

    /// Connects, and changes nothing. Returns what was found there, as the end of a sentence about the destination.
    async fn check(&self) -> Result<String, Failure>;
}

/// One relay of this replica.
pub(crate) struct Relay {
    config: RelayConfig,
    key: ResourceKey,
    engine: Engine,
    destination: Box<dyn Destination>,
    metrics: Arc<Metrics>,
}

impl Relay {
    fn new(config: &RelayConfig, context: &Context) -> Result<Self, String> {
        let name = |text| Name::new(text).expect("a short name");
        let key = ResourceKey { tenant: name(TENANT), kind: name(KIND), key: config.name.clone() };
        Ok(Self {
            config: config.clone(),
            key,
            engine: context.engine().clone(),
            destination: destination(&config.name, &config.to)?,
            metrics: context.metrics_handle(),
        })
    }

    fn name(&self) -> &str {
        self.config.name.as_str()
    }

    /// Whether it sends events of a resource. The relays' own leases are nobody else's business.
    fn wants(&self, key: &ResourceKey) -> bool {
        let is_ours = key.tenant == self.key.tenant && key.kind == self.key.kind;
        !is_ours
            && self.config.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
            && self.config.kind.as_ref().is_none_or(|kind| *kind == key.kind)
    }
}

fn destination(relay: &Name, config: &DestinationConfig) -> Result<Box<dyn Destination>, String> {
    let _ = relay;
    Ok(match config {
        DestinationConfig::Webhook(config) => Box::new(webhook::Webhook::new(config)?),
        #[cfg(feature = "relay-amqp")]
        DestinationConfig::RabbitMq(config) => Box::new(rabbitmq::RabbitMq::new(relay, config)),
        #[cfg(not(feature = "relay-amqp"))]
        DestinationConfig::RabbitMq(_) => return Err(lacks("RabbitMQ", "relay-amqp")),
        #[cfg(feature = "relay-mqtt")]
        DestinationConfig::Mqtt(config) => Box::new(mqtt::Mqtt::new(config)),
        #[cfg(not(feature = "relay-mqtt"))]
        DestinationConfig::Mqtt(_) => return Err(lacks("MQTT", "relay-mqtt")),
    })
}

#[cfg(not(all(feature = "relay-amqp", feature = "relay-mqtt")))]
fn lacks(what: &str, feature: &str) -> String {
    format!("this program was built without {what}: build it with the feature {feature}")
}

/// Connects to the destination of a relay, and changes nothing there. Returns what was found, as the end of a sentence
/// about the destination.
pub async fn check(config: &RelayConfig) -> Result<String, String> {
    let destination = destination(&config.name, &config.to)?;
    destination.check().await.map_err(|failure| failure.why().to_owned())
}

/// The relays of a running server.
#[derive(Debug, Default)]
pub(crate) struct Relays {
    /// They settle what is in flight before they end.
    terms: JoinSet<()>,
    _helpers: JoinSet<()>,
}

impl Relays {
    /// Starts all that are configured. What is committed from now on will be sent.
    pub async fn start(configs: &[RelayConfig], context: &Context) -> Result<Self, String> {
        let mut relays = Self::default();
        let mut names = Vec::new();
        for config in configs {
            let told = |what| format!("relay {}: {what}", config.name);
            let relay = Arc::new(Relay::new(config, context).map_err(told)?);
            if let Err(error) = cursor::begin(&relay.engine, &config.name, config.start_at).await {
                tracing::warn!(relay = relay.name(), %error, "the relay begins when the store takes writes");
            }
            tracing::info!(relay = relay.name(), to = %config.to, "events are relayed");
            names.push(config.name.clone());
            if config.renewals {
                relays._helpers.spawn(renewals::publish(relay.clone()));
            }
            relays.terms.spawn(term::stand(relay, context.node_id().to_owned(), context.stopping()));
        }
        if !names.is_empty() {
            relays._helpers.spawn(progress::follow(context.clone(), names));
        }
        Ok(relays)
    }

    /// Waits until they have ended, after the server has announced that it stops.
    pub async fn ended(mut self) {
        let ended = async { while self.terms.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
            tracing::warn!(
                "a relay did not end in time; what it had in flight is sent again by the next one"
            );
        }
    }
}

/// What is held back from compaction before the cursors were read: everything.
pub(crate) fn unsent_at_start(configs: &[RelayConfig]) -> Option<Revision> {
    (!configs.is_empty()).then_some(Revision(0))
}
