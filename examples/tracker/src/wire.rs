//! Publishing by MQTT.

use std::time::Duration;

use anyhow::{Context, Result};
use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, Incoming, MqttOptions, PublishOptions, QoS};
use serde::Serialize;
use tokio::time::timeout;

use crate::tracks::Track;

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
    pub fn new(options: MqttOptions) -> Self {
        let (client, events) = AsyncClient::builder(options).capacity(64).build();
        tokio::spawn(drive(events));
        Self { client }
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
    let mut told = false;
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Incoming::ConnAck(_))) => told = false,
            Ok(_) => {}
            // Nobody publishes any more.
            Err(ConnectionError::RequestsDone) => return,
            Err(error) => {
                if !told {
                    tell(&error);
                    told = true;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

fn tell(error: &ConnectionError) {
    match error {
        ConnectionError::ConnectionRefused(code) => {
            tracing::warn!(
                ?code,
                "the broker refused the connection: check its user and password; trying again"
            );
        }
        error => tracing::warn!(%error, "there is no connection to the broker; trying again"),
    }
}
