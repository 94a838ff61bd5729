//! The relays of the configuration file.

use std::{
    fmt, fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use secrecy::SecretString;
use serde::Deserialize;
use solehold_core::key::Name;
use solehold_server::relays::{
    DestinationConfig, DestinationUrl, MqttConfig, RELAYS_MAX, RabbitMqConfig, RelayConfig, StartAt, Style,
    Topic, WebhookConfig, WhenRefused,
};

use super::layer::Span;
use crate::error::ValueError;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "RelayText")]
pub struct RelayLayer(RelayText);

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayText {
    name: RelayName,
    rabbitmq: Option<RabbitMqText>,
    mqtt: Option<MqttText>,
    webhook: Option<WebhookText>,
    start_at: Option<StartAtText>,
    tenant: Option<Name>,
    kind: Option<Name>,
    renewals: Option<bool>,
    when_refused: Option<RefusedText>,
    attempts: Option<NonZeroU32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RabbitMqText {
    url: Option<SecretText>,
    url_file: Option<PathBuf>,
    exchange: Option<String>,
    routing_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct MqttText {
    url: Option<SecretText>,
    url_file: Option<PathBuf>,
    topic: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookText {
    url: Option<SecretText>,
    url_file: Option<PathBuf>,
    secret_file: PathBuf,
    timeout: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StartAtText {
    Now,
    Oldest,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RefusedText {
    DeadLetter,
    Block,
}

/// The name of a relay: a label of metrics, too.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct RelayName(Name);

impl TryFrom<String> for RelayName {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match Name::new(&text) {
            Ok(name) if is_plain => Ok(Self(name)),
            _ => Err(format!(
                "{text:?} is not a name for a relay; write letters, digits, dashes, dots and underscores"
            )
            .into()),
        }
    }
}

/// A text that may have a password in it.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

enum UrlPlace<'a> {
    Here(&'a SecretText),
    File(&'a Path),
}

impl RelayText {
    fn fault(&self, what: impl fmt::Display) -> ValueError {
        format!("relay {}: {what}", self.name.0).into()
    }

    fn url(&self) -> Result<(UrlPlace<'_>, &'static [&'static str]), ValueError> {
        let (url, file, schemes): (_, _, &[&str]) = match (&self.rabbitmq, &self.mqtt, &self.webhook) {
            (Some(to), None, None) => (&to.url, &to.url_file, &["amqp", "amqps"]),
            (None, Some(to), None) => (&to.url, &to.url_file, &["mqtt", "mqtts"]),
            (None, None, Some(to)) => (&to.url, &to.url_file, &["http", "https"]),
            _ => return Err(self.fault("give it one of rabbitmq, mqtt and webhook")),
        };
        match (url, file) {
            (Some(url), None) => Ok((UrlPlace::Here(url), schemes)),
            (None, Some(file)) => Ok((UrlPlace::File(file), schemes)),
            _ => Err(self.fault("give it a url, or a url_file that has the URL")),
        }
    }
}

/// What can be said without reading another file.
impl TryFrom<RelayText> for RelayLayer {
    type Error = ValueError;

    fn try_from(text: RelayText) -> Result<Self, ValueError> {
        if let (UrlPlace::Here(url), schemes) = text.url()? {
            DestinationUrl::new(&url.0, schemes).map_err(|what| text.fault(format!("its url {what}")))?;
        }
        let routing_key = text.rabbitmq.as_ref().and_then(|to| to.routing_key.as_deref());
        let topic = text.mqtt.as_ref().and_then(|to| to.topic.as_deref());
        let templates = [(routing_key, Style::Words), (topic, Style::Levels)];
        for (template, style) in templates {
            template
                .map(|template| Topic::new(template, style))
                .transpose()
                .map_err(|what| text.fault(what.to_string()))?;
        }
        let exchange = text.rabbitmq.as_ref().and_then(|to| to.exchange.as_deref());
        if exchange.is_some_and(|name| name.is_empty() || name.len() > 200 || name.starts_with("amq.")) {
            return Err(
                text.fault("its exchange needs a name of 1 to 200 bytes that does not begin with amq.")
            );
        }
        if text.when_refused == Some(RefusedText::Block) && text.attempts.is_some() {
            return Err(
                text.fault("attempts are for when_refused: dead_letter; with block there is no bound")
            );
        }
        if text.webhook.as_ref().and_then(|to| to.timeout).is_some_and(|Span(time)| time.is_zero()) {
            return Err(text.fault("its timeout must be more than nothing"));
        }
        Ok(Self(text))
    }
}

impl RelayLayer {
    /// What the server needs to know; reads the files that are named.
    fn settle(&self) -> Result<RelayConfig, ValueError> {
        let text = &self.0;
        let (place, schemes) = text.url()?;
        let url = match place {
            UrlPlace::Here(url) => url.0.clone(),
            UrlPlace::File(file) => read(file).map_err(|what| text.fault(what))?,
        };
        let url = DestinationUrl::new(&url, schemes);
        let url = url.map_err(|what| text.fault(format!("its url {what}")))?;
        let when_refused = match (text.when_refused, text.attempts) {
            (Some(RefusedText::Block), _) => WhenRefused::Block,
            (_, Some(attempts)) => WhenRefused::DeadLetter { attempts: attempts.get() },
            (_, None) => WhenRefused::default(),
        };
        Ok(RelayConfig {
            name: text.name.0.clone(),
            to: self.destination(url).map_err(|what| text.fault(what))?,
            start_at: match text.start_at {
                Some(StartAtText::Oldest) => StartAt::Oldest,
                Some(StartAtText::Now) | None => StartAt::Now,
            },
            tenant: text.tenant.clone(),
            kind: text.kind.clone(),
            renewals: text.renewals.unwrap_or_default(),
            when_refused,
        })
    }

    fn destination(&self, url: DestinationUrl) -> Result<DestinationConfig, ValueError> {
        let RelayText { rabbitmq, mqtt, webhook, .. } = &self.0;
        if let Some(to) = rabbitmq {
            let mut config = RabbitMqConfig::new(url);
            config.exchange = to.exchange.clone().unwrap_or(config.exchange);
            if let Some(template) = &to.routing_key {
                config.routing_key = Topic::new(template, Style::Words).map_err(|error| error.to_string())?;
            }
            return Ok(DestinationConfig::RabbitMq(config));
        }
        if let Some(to) = mqtt {
            let mut config = MqttConfig::new(url);
            if let Some(template) = &to.topic {
                config.topic = Topic::new(template, Style::Levels).map_err(|error| error.to_string())?;
            }
            return Ok(DestinationConfig::Mqtt(config));
        }
        let to = webhook.as_ref().ok_or("give it one of rabbitmq, mqtt and webhook")?;
        let secret = read(&to.secret_file)?;
        if secret.len() < WebhookConfig::SECRET_BYTES_MIN {
            let file = to.secret_file.display();
            let least = WebhookConfig::SECRET_BYTES_MIN;
            return Err(
                format!("the secret in {file} has {} bytes; it needs {least} or more", secret.len()).into()
            );
        }
        let timeout = to.timeout.map_or(WebhookConfig::TIMEOUT, |Span(timeout)| timeout);
        Ok(DestinationConfig::Webhook(WebhookConfig { url, secret: SecretString::from(secret), timeout }))
    }
}

pub fn settle(layers: &[RelayLayer]) -> Result<Vec<RelayConfig>, ValueError> {
    if layers.len() > RELAYS_MAX {
        return Err(format!("there are {} relays; a server runs {RELAYS_MAX} at most", layers.len()).into());
    }
    for (at, layer) in layers.iter().enumerate() {
        if layers[..at].iter().any(|other| other.0.name == layer.0.name) {
            return Err(layer.0.fault("there are two of this name; give each its own"));
        }
    }
    layers.iter().map(RelayLayer::settle).collect()
}

/// The text of a file, without the line break at its end.
fn read(file: &Path) -> Result<String, ValueError> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() { Err(format!("{} is empty", file.display()).into()) } else { Ok(text.to_owned()) }
}
