//! Publishing by MQTT.

use std::time::Duration;

use anyhow::{Context, Result};
use rumqttc::{AsyncClient, EventLoop, MqttOptions, PublishOptions, QoS};
use serde::Serialize;
use tokio::time::timeout;

use crate::tracks::Track;

const PACKET_MAX: usize = 1024 * 1024;
/// How long the broker may take to confirm a message.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

/// Where the objects of a scene are, as consumers get it.
#[derive(Debug, Serialize)]
pub struct Message<'a> {
    /// Which scene.
    pub scene_id: &'a str,
    /// Counts the messages under one token.
    pub sequence: u64,
    /// Who sends, for people: consumers go by the version.
    pub tracker: &'a str,
    /// What is in it.
    pub data: Data<'a>,
    /// The fencing token of the lease.
    #[serde(rename = "_version")]
    pub version: u64,
}

/// The objects of a scene.
#[derive(Debug, Serialize)]
pub struct Data<'a> {
    /// Each with the id of its track.
    pub objects: &'a [Track],
}

/// A connection to the broker, which is made again when it is lost.
#[derive(Clone)]
pub struct Wire {
    client: AsyncClient,
}

impl Wire {
    /// Connects in the background.
    pub fn new(broker: &str, id: &str) -> Result<Self> {
        let (host, port) = broker.rsplit_once(':').context("--broker: write HOST:PORT")?;
        let port: u16 = port.parse().context("--broker: write HOST:PORT")?;
        let mut options = MqttOptions::new(id, (host.to_owned(), port));
        options.set_keep_alive(5).set_clean_session(false).set_max_packet_size(PACKET_MAX, PACKET_MAX);
        let (client, events) = AsyncClient::builder(options).capacity(64).build();
        tokio::spawn(drive(events));
        Ok(Self { client })
    }

    /// Publishes with QoS 1, and waits until the broker has it. While the broker is away nothing else is published for
    /// the scene: what a tracker has seen in the meantime is history.
    pub async fn publish(&self, message: &Message<'_>) -> Result<()> {
        let topic = format!("scenescape/data/scene/{}/person", message.scene_id);
        let body = serde_json::to_vec(message)?;
        let published = async {
            let options = PublishOptions::new(QoS::AtLeastOnce);
            self.client.publish_tracked(topic, body, options).await?.wait_async().await?;
            anyhow::Ok(())
        };
        timeout(CONFIRM_WITHIN, published).await.context("the broker did not confirm it in time")?
    }
}

async fn drive(mut events: EventLoop) {
    loop {
        if let Err(error) = events.poll().await {
            tracing::debug!(%error, "the broker is away");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
