//! Events to an MQTT 3.1.1 broker, with quality of service 1: the broker confirms each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, PublishOptions, QoS, Transport};
use tokio::task::JoinSet;

use super::{
    Destination, IS_THERE, Message, config::MqttConfig, link::SharedLink, tenure::IN_FLIGHT_MAX,
    window::Failure,
};

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a confirmation may take.
const CONFIRM_WITHIN: Duration = Duration::from_secs(30);
/// Largest packet that is sent: a document has 64 KiB at most, and an event has two at most.
const PACKET_BYTES_MAX: usize = 1024 * 1024;
const KEEP_ALIVE_SECONDS: u16 = 15;

/// Publishes to an MQTT broker.
pub struct Mqtt {
    config: MqttConfig,
    link: SharedLink<MqttLink>,
}

/// A connection. When it breaks, every message in flight fails, and is sent again on the next one.
struct MqttLink {
    client: AsyncClient,
    is_up: Arc<AtomicBool>,
    _driver: JoinSet<()>,
}

impl Mqtt {
    pub fn new(config: &MqttConfig) -> Self {
        Self { config: config.clone(), link: SharedLink::default() }
    }

    fn options(&self) -> Result<MqttOptions, Failure> {
        let url = self.config.url.parts();
        let is_tls = url.scheme() == "mqtts";
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port().unwrap_or(if is_tls { 8_883 } else { 1_883 });
        // Unique for each connection: a broker closes an older one with the same client id.
        let mut options = MqttOptions::new(format!("solehold{:08x}", rand::random::<u32>()), (host, port));
        options.set_keep_alive(KEEP_ALIVE_SECONDS).set_clean_session(true);
        options.set_max_packet_size(PACKET_BYTES_MAX, PACKET_BYTES_MAX);
        if is_tls {
            let tls = Transport::try_tls_with_default_config();
            options.set_transport(tls.map_err(|error| Failure::Away(format!("TLS: {error}")))?);
        }
        if !url.username().is_empty() {
            let password = percent_decoded(url.password().unwrap_or_default());
            options.set_credentials(percent_decoded(url.username()), password);
        }
        Ok(options)
    }

    async fn connect(&self) -> Result<MqttLink, Failure> {
        let (client, mut events) =
            AsyncClient::builder(self.options()?).capacity(IN_FLIGHT_MAX).try_build().map_err(away)?;
        let connected = tokio::time::timeout(CONNECT_WITHIN, async {
            while !matches!(events.poll().await.map_err(away)?, Event::Incoming(Incoming::ConnAck(_))) {}
            Ok::<_, Failure>(())
        });
        connected.await.map_err(|_| Failure::Away("the broker did not respond in time".to_owned()))??;
        let is_up = Arc::new(AtomicBool::new(true));
        let mut driver = JoinSet::new();
        driver.spawn(drive(events, is_up.clone()));
        Ok(MqttLink { client, is_up, _driver: driver })
    }
}

/// Moves packets until the connection breaks, which fails every message in flight.
async fn drive(mut events: EventLoop, is_up: Arc<AtomicBool>) {
    loop {
        if let Err(error) = events.poll().await {
            is_up.store(false, Ordering::Release);
            tracing::debug!(%error, "connection to the MQTT broker was lost");
            return;
        }
    }
}

#[async_trait]
impl Destination for Mqtt {
    async fn publish(&self, message: &Message) -> Result<(), Failure> {
        let link = self.link.get(|link| link.is_up.load(Ordering::Acquire), self.connect()).await?;
        let topic = self.config.topic.of(message);
        let publish = async {
            let options = PublishOptions::new(QoS::AtLeastOnce);
            let notice =
                link.client.publish_tracked(topic, message.body.clone(), options).await.map_err(away)?;
            notice.wait_async().await.map_err(away)
        };
        let published = tokio::time::timeout(CONFIRM_WITHIN, publish).await;
        let failure = match published {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Away(format!("the broker did not confirm within {CONFIRM_WITHIN:?}")),
        };
        self.link.forget(&link).await;
        Err(failure)
    }

    async fn check(&self) -> Result<String, Failure> {
        self.connect().await.map(|_| IS_THERE.to_owned())
    }
}

fn away(error: impl std::fmt::Display) -> Failure {
    Failure::Away(error.to_string())
}

/// A part of a URL, decoded.
fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_have_any_character() {
        assert_eq!(percent_decoded("p%40ss%3Aw%C3%B6rd"), "p@ss:wörd");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
    }
}
