//! Relays: send events to RabbitMQ, MQTT or a webhook, at least once and in order per resource (rules 18, 19 and 20).
//!
//! ```text
//!   store: events commit with the state, in revision order -- this is the outbox
//!     |  watch                                                            ^ cursor: a record, fenced by the token
//!   Tenure (one replica at a time, under a lease `relay/NAME`)            |
//!     Window: which event to send next, which are confirmed --------------+
//!     |  Message: the event in JSON, with an id that is the same on every attempt
//!   Destination: RabbitMQ | MQTT | webhook
//! ```
//! Every replica also publishes the renewals that it served (`renewals`), and reads the cursors of all relays
//! (`progress`): for the metrics, and so that the store keeps events that are not sent yet.

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
mod tenure;
mod topic;
mod webhook;
mod window;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use solehold_core::key::{Name, ResourceKey};
use solehold_engine::Engine;
use tokio::task::JoinSet;

pub use config::{
    DestinationConfig, DestinationUrl, DestinationUrlError, MqttConfig, RELAYS_MAX, RabbitMqConfig,
    RelayConfig, StartAt, WebhookConfig, WhenRefused,
};
use message::Message;
pub use topic::{Style, Topic, TopicError};
use window::Failure;

use crate::{context::Context, metrics::Metrics};

/// The tenant of the relays' own leases, and their kind.
const TENANT: &str = "solehold";
const KIND: &str = "relay";
/// The finding of a check on a destination that accepts connections.
const IS_THERE: &str = "which can be reached";
/// How long relays may wait for confirmations when the server stops.
const STOP_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("this program was built without {what}: build it with the feature {feature}")]
    NotBuilt { what: &'static str, feature: &'static str },
    #[error(transparent)]
    Http(reqwest::Error),
    #[error("{0}")]
    Destination(String),
}

#[derive(Debug, thiserror::Error)]
#[error("relay {relay}: {error}")]
pub struct StartRelayError {
    relay: Name,
    error: RelayError,
}

/// Where messages are sent to. It connects when it needs to.
#[async_trait]
pub(crate) trait Destination: Send + Sync {
    /// Sends a message, and returns when it is confirmed.
    async fn publish(&self, message: &Message) -> Result<(), Failure>;

    /// Keeps a refused message for operators, beside the log.
    async fn dead_letter(&self, _message: &Message, _why: &str) -> Result<(), Failure> {
        Ok(())
    }

    /// Connects, and changes nothing. Returns the finding, as the end of a sentence about the destination.
    async fn check(&self) -> Result<String, Failure>;
}

pub(crate) struct Relay {
    config: RelayConfig,
    key: ResourceKey,
    engine: Engine,
    destination: Box<dyn Destination>,
    metrics: Arc<Metrics>,
}

impl Relay {
    fn new(config: &RelayConfig, context: &Context) -> Result<Self, RelayError> {
        let name = |text| Name::new(text).expect("a short name");
        let key = ResourceKey::new(name(TENANT), name(KIND), config.name.clone());
        Ok(Self {
            config: config.clone(),
            key,
            engine: context.engine().clone(),
            destination: destination(&config.name, &config.to)?,
            metrics: context.metrics.clone(),
        })
    }

    fn name(&self) -> &str {
        self.config.name.as_str()
    }

    /// Whether it sends events of a resource. Events of the relays' own leases are not sent.
    fn wants(&self, key: &ResourceKey) -> bool {
        let is_ours = key.tenant == self.key.tenant && key.kind == self.key.kind;
        !is_ours
            && self.config.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
            && self.config.kind.as_ref().is_none_or(|kind| *kind == key.kind)
    }
}

fn destination(relay: &Name, config: &DestinationConfig) -> Result<Box<dyn Destination>, RelayError> {
    let _ = relay;
    Ok(match config {
        DestinationConfig::Webhook(config) => {
            Box::new(webhook::Webhook::new(config).map_err(RelayError::Http)?)
        }
        #[cfg(feature = "relay-amqp")]
        DestinationConfig::RabbitMq(config) => Box::new(rabbitmq::RabbitMq::new(relay, config)),
        #[cfg(not(feature = "relay-amqp"))]
        DestinationConfig::RabbitMq(_) => {
            return Err(RelayError::NotBuilt { what: "RabbitMQ", feature: "relay-amqp" });
        }
        #[cfg(feature = "relay-mqtt")]
        DestinationConfig::Mqtt(config) => Box::new(mqtt::Mqtt::new(config)),
        #[cfg(not(feature = "relay-mqtt"))]
        DestinationConfig::Mqtt(_) => {
            return Err(RelayError::NotBuilt { what: "MQTT", feature: "relay-mqtt" });
        }
    })
}

/// Connects to the destination of a relay, and changes nothing there. Returns the finding, as the end of a sentence
/// about the destination.
pub async fn check(config: &RelayConfig) -> Result<String, RelayError> {
    let destination = destination(&config.name, &config.to)?;
    destination.check().await.map_err(|failure| RelayError::Destination(failure.why().to_owned()))
}

#[derive(Debug, Default)]
pub(crate) struct Relays {
    /// They wait for confirmations before they end.
    tenures: JoinSet<()>,
    _helpers: JoinSet<()>,
}

impl Relays {
    /// Starts all configured relays. Events that are committed from now on will be sent.
    pub async fn start(configs: &[RelayConfig], context: &Context) -> Result<Self, StartRelayError> {
        let mut relays = Self::default();
        let mut names = Vec::new();
        for config in configs {
            let failed = |error| StartRelayError { relay: config.name.clone(), error };
            let relay = Arc::new(Relay::new(config, context).map_err(failed)?);
            if let Err(error) = cursor::begin(&relay.engine, &config.name, config.start_at).await {
                tracing::warn!(relay = relay.name(), %error, "cannot create the cursor of the relay; retrying");
            }
            tracing::info!(relay = relay.name(), to = %config.to, "relay started");
            context.metrics.relay_starts(relay.name());
            names.push(config.name.clone());
            if config.renewals {
                relays._helpers.spawn(renewals::publish(relay.clone()));
            }
            relays.tenures.spawn(tenure::compete(relay, context.node_id.clone(), context.stopping()));
        }
        if !names.is_empty() {
            relays._helpers.spawn(progress::follow(context.clone(), names));
        }
        Ok(relays)
    }

    /// Waits until they have ended, after the server has announced that it stops.
    pub async fn ended(mut self) {
        let ended = async { while self.tenures.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_GRACE, ended).await.is_err() {
            tracing::warn!("a relay did not stop in time; events without a confirmation will be sent again");
        }
    }
}
