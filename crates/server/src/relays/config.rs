//! The configuration of relays.

use std::{fmt, time::Duration};

use secrecy::{ExposeSecret, SecretString};
use solehold_core::key::Name;

use super::topic::{Style, Topic};

pub const RELAYS_MAX: usize = 16;

/// One relay: its destination, and the events that it sends.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Replicas that share a store share a relay by its name, and its cursor is stored under it.
    pub name: Name,
    pub to: DestinationConfig,
    pub start_at: StartAt,
    pub tenant: Option<Name>,
    pub kind: Option<Name>,
    /// Whether to send renewals, too: live, and without retries (rule 19).
    pub renewals: bool,
    pub when_refused: WhenRefused,
}

/// Where a relay begins when it has never run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With events that are committed from now on.
    #[default]
    Now,
    /// With the oldest event that the store has kept.
    Oldest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenRefused {
    /// After this many attempts it goes to the dead letters, and the next event of its resource is sent.
    DeadLetter { attempts: u32 },
    /// It is retried without a limit, and its resource waits; when the window of the relay is full, all wait.
    Block,
}

impl Default for WhenRefused {
    fn default() -> Self {
        Self::DeadLetter { attempts: 5 }
    }
}

#[derive(Debug, Clone)]
pub enum DestinationConfig {
    RabbitMq(RabbitMqConfig),
    Mqtt(MqttConfig),
    Webhook(WebhookConfig),
}

#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// `amqp://` or `amqps://`, with user, password and virtual host.
    pub url: DestinationUrl,
    /// The durable topic exchange that is declared and published to.
    pub exchange: String,
    pub routing_key: Topic,
}

impl RabbitMqConfig {
    pub const EXCHANGE: &'static str = "solehold.events";
    pub const ROUTING_KEY: &'static str = "leases.{tenant}.{site}.{kind}.{key}.{event}";

    pub fn new(url: DestinationUrl) -> Self {
        let routing_key = Topic::new(Self::ROUTING_KEY, Style::Words).expect("a good template");
        Self { url, exchange: Self::EXCHANGE.to_owned(), routing_key }
    }

    /// The exchange and the queue that dead letters go to.
    pub fn dead_letters(&self) -> String {
        format!("{}.dead", self.exchange)
    }
}

#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// `mqtt://` or `mqtts://`, with user and password.
    pub url: DestinationUrl,
    pub topic: Topic,
}

impl MqttConfig {
    pub const TOPIC: &'static str = "leases/{tenant}/{site}/{kind}/{key}/{event}";

    pub fn new(url: DestinationUrl) -> Self {
        Self { url, topic: Topic::new(Self::TOPIC, Style::Levels).expect("a good template") }
    }
}

#[derive(Debug, Clone)]
pub struct WebhookConfig {
    pub url: DestinationUrl,
    pub secret: SecretString,
    pub timeout: Duration,
}

impl WebhookConfig {
    pub const TIMEOUT: Duration = Duration::from_secs(10);
    /// The least length of a secret: one that can be guessed signs nothing.
    pub const SECRET_BYTES_MIN: usize = 32;
}

/// Why a URL is invalid. Each message continues a sentence about the URL, and does not repeat it: it may have a
/// password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DestinationUrlError {
    #[error("is not a URL ({error}); {example}")]
    NotUrl { error: String, example: String },
    #[error("is a URL of the scheme {scheme:?}; {example}")]
    Scheme { scheme: String, example: String },
    #[error("names no host; {example}")]
    NoHost { example: String },
}

/// A URL that may have a password in it, and is shown without.
#[derive(Clone)]
pub struct DestinationUrl {
    whole: SecretString,
    shown: String,
}

impl DestinationUrl {
    /// Checks that it is a URL of one of these schemes, with a host.
    pub fn new(text: &str, schemes: &[&str]) -> Result<Self, DestinationUrlError> {
        let example = || format!("write {}://HOST", schemes.join("://HOST or "));
        let url = reqwest::Url::parse(text)
            .map_err(|error| DestinationUrlError::NotUrl { error: error.to_string(), example: example() })?;
        if !schemes.contains(&url.scheme()) {
            let scheme = url.scheme().to_owned();
            return Err(DestinationUrlError::Scheme { scheme, example: example() });
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| DestinationUrlError::NoHost { example: example() })?;
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
    fn an_error_does_not_repeat_the_url() {
        for (text, words) in [
            ("hunter2", "is not a URL"),
            ("http://u:hunter2@mq", "scheme \"http\"; write amqp://HOST or amqps://HOST"),
            ("amqp:///hunter2", "names no host"),
        ] {
            let error = DestinationUrl::new(text, &["amqp", "amqps"]).expect_err(text).to_string();
            assert!(error.contains(words) && !error.contains("hunter2"), "{error}");
        }
    }
}
