//! The configuration of relays.

use std::{fmt, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use solehold_core::key::Name;

use super::topic::{Style, Topic};

/// The largest number of relays of one server.
pub const RELAYS_MAX: usize = 16;

/// One relay: where to, and of which events.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Its name: replicas that share a store share a relay by it, and its cursor is kept under it.
    pub name: Name,
    /// Where it sends events to.
    pub to: DestinationConfig,
    /// Where it begins when it has never run before.
    pub start_at: StartAt,
    /// Of this tenant only.
    pub tenant: Option<Name>,
    /// Of this kind only.
    pub kind: Option<Name>,
    /// Renewals, too: live, and never again (rule 19).
    pub renewals: bool,
    /// What becomes of an event that the destination refuses.
    pub when_refused: WhenRefused,
}

/// Where a relay begins when it has never run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With what happens from now on.
    #[default]
    Now,
    /// With the oldest event that the store has kept.
    Oldest,
}

/// What becomes of an event that the destination refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenRefused {
    /// After this many attempts it goes to the dead letters, and the next event of its resource is sent.
    DeadLetter {
        /// How often it is sent before.
        attempts: u32,
    },
    /// It is sent again for ever, and its resource waits; when the relay's window is full, all wait.
    Block,
}

impl Default for WhenRefused {
    fn default() -> Self {
        Self::DeadLetter { attempts: 5 }
    }
}

/// Where events are sent to.
#[derive(Debug, Clone)]
pub enum DestinationConfig {
    /// An exchange of RabbitMQ.
    RabbitMq(RabbitMqConfig),
    /// An MQTT broker.
    Mqtt(MqttConfig),
    /// An HTTP server.
    Webhook(WebhookConfig),
}

/// An exchange of RabbitMQ.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// `amqp://` or `amqps://`, with user, password and virtual host.
    pub url: DestinationUrl,
    /// The durable topic exchange that is declared and published to.
    pub exchange: String,
    /// The routing key.
    pub routing_key: Topic,
}

impl RabbitMqConfig {
    /// The exchange, if none is named.
    pub const EXCHANGE: &'static str = "solehold.events";
    /// The routing key, if none is given.
    pub const ROUTING_KEY: &'static str = "leases.{tenant}.{site}.{kind}.{key}.{event}";

    /// The exchange and the routing key that there are if none are given.
    pub fn new(url: DestinationUrl) -> Self {
        let routing_key = Topic::new(Self::ROUTING_KEY, Style::Words).expect("a good template");
        Self { url, exchange: Self::EXCHANGE.to_owned(), routing_key }
    }

    /// The exchange and the queue that dead letters go to.
    pub fn dead_letters(&self) -> String {
        format!("{}.dead", self.exchange)
    }
}

/// An MQTT broker.
#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// `mqtt://` or `mqtts://`, with user and password.
    pub url: DestinationUrl,
    /// The topic.
    pub topic: Topic,
}

impl MqttConfig {
    /// The topic, if none is given.
    pub const TOPIC: &'static str = "leases/{tenant}/{site}/{kind}/{key}/{event}";

    /// The topic that there is if none is given.
    pub fn new(url: DestinationUrl) -> Self {
        Self { url, topic: Topic::new(Self::TOPIC, Style::Levels).expect("a good template") }
    }
}

/// An HTTP server.
#[derive(Debug, Clone)]
pub struct WebhookConfig {
    /// Where to post.
    pub url: DestinationUrl,
    /// Signs what is posted.
    pub secret: SecretString,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl WebhookConfig {
    /// How long an answer may take, if nothing is said.
    pub const TIMEOUT: Duration = Duration::from_secs(10);
    /// The least length of a secret: one that can be guessed signs nothing.
    pub const SECRET_BYTES_MIN: usize = 32;
}

/// A URL that may have a password in it, and is shown without.
#[derive(Clone)]
pub struct DestinationUrl {
    whole: SecretString,
    shown: String,
}

impl DestinationUrl {
    /// Checks that it is a URL of one of these schemes, with a host.
    pub fn new(text: &str, schemes: &[&str]) -> Result<Self, String> {
        let example = format!("write {}://HOST", schemes.join("://HOST or "));
        // The text is not repeated: it may have a password in it.
        let url = reqwest::Url::parse(text).map_err(|error| format!("is not a URL ({error}); {example}"))?;
        if !schemes.contains(&url.scheme()) {
            return Err(format!("is a URL of the scheme {:?}; {example}", url.scheme()));
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| format!("names no host; {example}"))?;
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        let shown = format!("{}://{host}{port}", url.scheme());
        Ok(Self { whole: SecretString::from(text.to_owned()), shown })
    }

    /// The URL itself, password and all.
    pub(crate) fn reveal(&self) -> &str {
        self.whole.expose_secret()
    }

    /// The URL itself in its parts.
    #[cfg(feature = "relay-mqtt")]
    pub(crate) fn parts(&self) -> reqwest::Url {
        reqwest::Url::parse(self.reveal()).expect("it was parsed when it was made")
    }
}

/// Scheme, host and port.
impl fmt::Display for DestinationUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for DestinationUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for DestinationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RabbitMq(to) => write!(f, "RabbitMQ at {}, exchange {}", to.url, to.exchange),
            Self::Mqtt(to) => write!(f, "MQTT at {}", to.url),
            Self::Webhook(to) => write!(f, "webhook at {}", to.url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password_path_and_query() {
        let url = DestinationUrl::new("amqp://user:hunter2@mq.local:5673/vhost", &["amqp", "amqps"]);
        let url = url.expect("good");
        assert_eq!(format!("{url} {url:?}"), "amqp://mq.local:5673 amqp://mq.local:5673");
        assert!(url.reveal().contains("hunter2"));
        let hook = DestinationUrl::new("https://h.local/x?key=hunter2", &["http", "https"]).expect("good");
        assert_eq!(hook.to_string(), "https://h.local");
    }

    #[test]
    fn a_bad_url_is_told_without_repeating_it() {
        for (text, words) in [
            ("hunter2", "is not a URL"),
            ("http://u:hunter2@mq", "scheme \"http\"; write amqp://HOST or amqps://HOST"),
            ("amqp:///hunter2", "names no host"),
        ] {
            let error = DestinationUrl::new(text, &["amqp", "amqps"]).expect_err(text);
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
        }
    }
}
