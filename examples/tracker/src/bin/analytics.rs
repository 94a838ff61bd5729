//! A consumer that counts objects per scene. It knows nothing of leases: behind the gate it need not.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use clap::Parser;
use rumqttc::{AsyncClient, Event, Incoming, QoS};
use serde_json::Value;
use solehold_example_tracker::broker::BrokerArgs;
use tokio::time::interval;

/// Counts what trackers see, per scene
#[derive(Debug, Parser)]
#[command(name = "analytics")]
struct Settings {
    #[command(flatten)]
    broker: BrokerArgs,
    /// The topics: below `gated/`, only what the gate lets pass
    #[arg(long, default_value = "gated/scenescape/data/scene/+/+")]
    topics: String,
    /// How often to draw
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    every: Duration,
}

/// What is known of a scene.
#[derive(Debug, Default)]
struct Scene {
    messages: u64,
    objects: usize,
    newest: u64,
    /// Messages of a tracker that had been followed by another one.
    stale: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let settings = Settings::parse();
    let options = settings.broker.options("analytics")?;
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    client.subscribe(&settings.topics, QoS::AtLeastOnce).await?;
    let mut scenes = BTreeMap::<String, Scene>::new();
    let mut draws = interval(settings.every);
    println!("analytics counts {}", settings.topics);
    loop {
        let event = std::pin::pin!(events.poll());
        let mut event = event;
        let event = loop {
            tokio::select! {
                event = &mut event => break event,
                _ = draws.tick() => draw(&scenes),
            }
        };
        match event {
            Ok(Event::Incoming(Incoming::Publish(publish))) => count(&mut scenes, &publish.payload),
            Ok(_) => {}
            Err(error) => {
                eprintln!("no connection to the broker: {error}; trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

fn count(scenes: &mut BTreeMap<String, Scene>, payload: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Value>(payload) else { return };
    let Some(id) = message["scene_id"].as_str() else { return };
    let scene = scenes.entry(id.to_owned()).or_default();
    let version = message["_version"].as_u64().unwrap_or_default();
    scene.messages += 1;
    scene.stale += u64::from(version < scene.newest);
    scene.newest = scene.newest.max(version);
    scene.objects = message["data"]["objects"].as_array().map_or(0, Vec::len);
}

fn draw(scenes: &BTreeMap<String, Scene>) {
    for (id, Scene { messages, objects, newest, stale }) in scenes {
        println!("{id}: {objects} objects, {messages} messages, version {newest}, stale {stale}");
    }
}
