//! How to connect to the broker.

use std::{fmt, time::Duration};

use percent_encoding::percent_decode_str;
use reqwest::Url;
use rumqttc::{AckMode, AsyncClient, EventLoop, MqttOptions, Transport};
use secrecy::{ExposeSecret, SecretString};

/// The largest packet of MQTT. The gate accepts every packet and refuses messages that are too large itself: a packet
/// that the client rejects would break the connection, and be redelivered.
const PACKET_BYTES_MAX: usize = 268_435_455;
const KEEP_ALIVE_SECONDS: u16 = 15;
/// Publications that are sent and not confirmed.
const IN_FLIGHT_MAX: u16 = 2_000;
/// Requests that wait for the connection.
pub(crate) const REQUESTS_MAX: usize = 512;
/// Requests that are written at once.
const BATCH_MAX: usize = 128;

/// Why the settings of a broker are invalid. Each message continues a sentence about the setting, and does not repeat
/// the URL: it may have a password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerSettingError {
    #[error("is not a URL ({0}); {EXAMPLE}")]
    NotUrl(String),
    /// The URL is neither `mqtt` nor `mqtts`.
    #[error("is a URL of the scheme {0:?}; {EXAMPLE}")]
    Scheme(String),
    #[error("names no host; {EXAMPLE}")]
    NoHost,
    /// A password was given, and the URL has no user.
    #[error("a password needs a user: write mqtt://USER@HOST")]
    NoUser,
    /// Certificates were given for a connection without TLS.
    #[error("a certificate is for TLS: write mqtts://HOST")]
    NoTls,
}

const EXAMPLE: &str = "write mqtt://HOST or mqtts://USER:PASSWORD@HOST:PORT";

#[derive(Clone)]
pub struct Broker {
    url: Url,
    password: Option<SecretString>,
    ca_certs: Option<Vec<u8>>,
}

impl Broker {
    /// `mqtt://` or `mqtts://`, with user and password if the broker wants them.
    pub fn new(url: &str) -> Result<Self, BrokerSettingError> {
        let url = Url::parse(url).map_err(|error| BrokerSettingError::NotUrl(error.to_string()))?;
        if !["mqtt", "mqtts"].contains(&url.scheme()) {
            return Err(BrokerSettingError::Scheme(url.scheme().to_owned()));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(BrokerSettingError::NoHost);
        }
        Ok(Self { url, password: None, ca_certs: None })
    }

    /// With a password that is not in the URL.
    pub fn password(mut self, password: String) -> Result<Self, BrokerSettingError> {
        if self.url.username().is_empty() {
            return Err(BrokerSettingError::NoUser);
        }
        self.password = Some(SecretString::from(password));
        Ok(self)
    }

    /// Trusts only these certificates, PEM, instead of the system's.
    pub fn ca_certs(mut self, pem: Vec<u8>) -> Result<Self, BrokerSettingError> {
        if self.url.scheme() != "mqtts" {
            return Err(BrokerSettingError::NoTls);
        }
        self.ca_certs = Some(pem);
        Ok(self)
    }

    /// A connection that is not open yet. `keeps`: whether the broker keeps the session after a disconnect.
    pub(crate) fn connection(
        &self,
        client_id: &str,
        keeps: bool,
    ) -> Result<(AsyncClient, EventLoop), BrokerError> {
        let is_tls = self.url.scheme() == "mqtts";
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = self.url.port().unwrap_or(if is_tls { 8_883 } else { 1_883 });
        let mut options = MqttOptions::new(client_id, (host, port));
        options
            .set_keep_alive(KEEP_ALIVE_SECONDS)
            .set_clean_session(!keeps)
            .set_max_packet_size(PACKET_BYTES_MAX, PACKET_BYTES_MAX)
            .set_inflight(IN_FLIGHT_MAX)
            .set_max_request_batch(BATCH_MAX)
            .set_read_batch_size(BATCH_MAX)
            .set_ack_mode(AckMode::Manual);
        if is_tls {
            let tls = match &self.ca_certs {
                Some(pem) => Ok(Transport::tls(pem.clone(), None, None)),
                None => Transport::try_tls_with_default_config(),
            };
            options.set_transport(tls.map_err(|error| BrokerError::Lost(format!("TLS: {error}")))?);
        }
        if !self.url.username().is_empty() {
            let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            let password = match &self.password {
                Some(password) => password.expose_secret().to_owned(),
                None => plain(self.url.password().unwrap_or_default()),
            };
            options.set_credentials(plain(self.url.username()), password);
        }
        let built = AsyncClient::builder(options).capacity(REQUESTS_MAX).try_build();
        built.map_err(|error| BrokerError::Lost(error.to_string()))
    }
}

/// Scheme, host and port.
impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.url.port().map_or_else(String::new, |port| format!(":{port}"));
        write!(f, "{}://{}{port}", self.url.scheme(), self.url.host_str().unwrap_or_default())
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// It could not be opened, or has ended.
    #[error("{0}")]
    Lost(String),
    #[error("the broker did not answer within {0:?}")]
    Silent(Duration),
    /// The broker does not let the gate read.
    #[error(
        "the broker refuses the subscription to {0}: its access control must let the gate's user read it"
    )]
    MayNotRead(String),
    /// The broker acknowledges publications and drops them.
    #[error(
        "messages that the gate publishes to {0} do not arrive: the broker's access control must let the gate's user \
         write and read it (an MQTT 3.1.1 broker acknowledges even messages that it drops)"
    )]
    MayNotWrite(String),
    /// The broker sends more without acknowledgement than the gate may hold.
    #[error(
        "the broker sent {messages} messages without an acknowledgement, which is more than the gate may hold; it will \
         redeliver them. Lower max_inflight_messages so that it sends fewer at once"
    )]
    Overfull { messages: usize },
}

impl From<rumqttc::ConnectionError> for BrokerError {
    fn from(error: rumqttc::ConnectionError) -> Self {
        use rumqttc::{ConnectionError, StateError};
        match error {
            ConnectionError::MqttState(StateError::ConnectionAborted) => {
                Self::Lost("the broker closed the connection".to_owned())
            }
            ConnectionError::ConnectionRefused(code) => {
                Self::Lost(format!("the broker refused the connection ({code:?}): check user and password"))
            }
            error => Self::Lost(error.to_string()),
        }
    }
}

impl From<rumqttc::ClientError> for BrokerError {
    fn from(error: rumqttc::ClientError) -> Self {
        Self::Lost(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_shown_without_its_password() {
        let broker = Broker::new("mqtts://gate:hunter2@mq.local:8884").expect("good");
        assert_eq!(format!("{broker} {broker:?}"), "mqtts://mq.local:8884 mqtts://mq.local:8884");
        for (url, words) in [
            ("hunter2", "is not a URL"),
            ("http://u:hunter2@mq", "the scheme \"http\""),
            ("mqtt:///hunter2", "names no host"),
        ] {
            let why = Broker::new(url).expect_err(url).to_string();
            assert!(why.contains(words) && !why.contains("hunter2"), "{why}");
        }
        let plain = Broker::new("mqtt://mq.local").expect("good");
        assert!(plain.clone().password("x".to_owned()).is_err() && plain.ca_certs(Vec::new()).is_err());
    }
}
