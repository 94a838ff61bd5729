//! A broker, a server, scenes, trackers, a gate, and a consumer on either side of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, PublishOptions, QoS};
use serde_json::{Value, json};
use solehold_testkit::{Mosquitto, Program, Solehold, TempDir, free_port, package_file, wait_for};
use tokio::{sync::watch, task::JoinSet};

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub fn is_full() -> bool {
    std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full")
}

/// A server that can go away and come back where it was.
pub struct Server {
    address: SocketAddr,
    data: TempDir,
    running: Option<Solehold>,
    http: Client,
}

impl Server {
    /// One that is not there yet.
    pub fn away() -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let http = Client::builder().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { address, data: TempDir::new()?, running: None, http })
    }

    pub async fn with_scenes(count: usize) -> Result<Self> {
        let mut server = Self::away()?;
        server.come_back().await?;
        server.declare(count).await?;
        // A tracker that was restarted gets its share back soon, and not after a minute.
        let url = format!("{}/api/v1/placement", server.url());
        server.http.put(url).json(&json!({ "settle_ms": 500 })).send().await?.error_for_status()?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn come_back(&mut self) -> Result<()> {
        let builder = Solehold::builder().data_dir(self.data.path()).listen(self.address);
        self.running = Some(builder.start().await?);
        Ok(())
    }

    pub async fn go_away(&mut self) -> Result<()> {
        self.running.take().context("it runs")?.terminate().await?;
        Ok(())
    }

    pub async fn declare(&self, count: usize) -> Result<()> {
        for number in 0..count {
            let url = format!("{}/api/v1/scenes/{}", self.url(), scene(number));
            let answer = self.http.put(url).json(&json!({})).send().await?;
            ensure!(answer.status().is_success(), "not declared: {}", answer.text().await?);
        }
        Ok(())
    }

    /// Who holds which scene.
    pub async fn owners(&self) -> Result<BTreeMap<String, Option<String>>> {
        let url = format!("{}/api/v1/scenes", self.url());
        let scenes: Vec<Value> = self.http.get(url).send().await?.error_for_status()?.json().await?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let owner = |scene: &Value| Some((text(&scene["scene_id"])?, text(&scene["holder_id"])));
        Ok(scenes.iter().filter_map(owner).collect())
    }

    /// How many scenes each tracker has.
    pub async fn loads(&self) -> Result<BTreeMap<String, usize>> {
        let mut loads = BTreeMap::new();
        for holder in self.owners().await?.into_values().flatten() {
            *loads.entry(holder).or_default() += 1;
        }
        Ok(loads)
    }

    /// Waits until the scenes are owned as they should be.
    pub async fn owned(
        &self,
        what: &str,
        is_good: impl Fn(&BTreeMap<String, Option<String>>) -> bool,
    ) -> Result<()> {
        wait_for(what, PATIENCE, async || self.owners().await.is_ok_and(|owners| is_good(&owners))).await
    }

    /// The lease on a scene.
    pub async fn lease(&self, scene: &str) -> Result<Value> {
        let url = format!("{}/api/v1/scenes/{scene}/lease", self.url());
        Ok(self.http.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// Acquires a scene for the test itself; the answer is its version.
    pub async fn acquire(&self, scene: &str) -> Result<u64> {
        let url = format!("{}/api/v1/scenes/{scene}/lease", self.url());
        let ask = json!({ "holder_id": "test", "ttl_ms": 300_000 });
        let answer: Value = self.http.post(url).json(&ask).send().await?.json().await?;
        answer["version"].as_u64().with_context(|| format!("not acquired: {answer}"))
    }

    /// Ends the lease on a scene as an administrator does.
    pub async fn revoke(&self, scene: &str) -> Result<()> {
        let url = format!("{}/api/v1/resources/scene/{scene}/lease/revoke", self.url());
        let answer = self.http.post(url).json(&json!({ "reason": "a test" })).send().await?;
        ensure!(answer.status().is_success(), "not revoked: {}", answer.text().await?);
        Ok(())
    }

    /// The events of scenes from a revision on: revision, time, scene and name.
    pub async fn events(&self, from: u64) -> Result<Vec<(u64, Value, String, String)>> {
        let url = format!("{}/api/v1/admin/export", self.url());
        let text = self.http.get(url).send().await?.error_for_status()?.text().await?;
        let mut events = Vec::new();
        for line in text.lines() {
            let row: Value = serde_json::from_str(line)?;
            let event = &row["event"];
            let what = event["what"].as_object().and_then(|what| what.keys().next().cloned());
            let key = event["key"]["key"].as_str();
            let (Some(what), Some(key), Some(revision)) = (what, key, event["revision"].as_u64()) else {
                continue;
            };
            if event["key"]["kind"] == json!("scene") && revision >= from {
                events.push((revision, event["at"].clone(), key.to_owned(), what));
            }
        }
        events.sort_by_key(|(revision, ..)| *revision);
        Ok(events)
    }

    /// How often a scene was without an owner since a revision, and how often one was handed over.
    pub async fn gaps(&self, from: u64) -> Result<(usize, usize)> {
        let events = self.events(from).await?;
        let ends = ["released", "expired", "revoked", "stolen"];
        let mut gaps = 0;
        let mut hand_overs = 0;
        for (at, (revision, time, scene, what)) in events.iter().enumerate() {
            if !ends.contains(&what.as_str()) {
                continue;
            }
            let next =
                events[at + 1..].iter().find(|(.., key, what)| key == scene && what != "state_changed");
            match next {
                // In the same commit, which has one time.
                Some((_, next_time, _, what)) if what == "acquired" && next_time == time => hand_overs += 1,
                next => {
                    println!("{scene}: {what} at revision {revision}, then {next:?}");
                    gaps += 1;
                }
            }
        }
        Ok((gaps, hand_overs))
    }

    pub async fn last_revision(&self) -> Result<u64> {
        Ok(self.events(0).await?.last().map_or(0, |(revision, ..)| *revision))
    }
}

pub fn scene(number: usize) -> String {
    format!("scene-{number:02}")
}

/// Which program a tracker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Rust,
    Python,
}

/// The program, without arguments, and without settings from the environment of the test.
pub fn program(kind: Kind) -> Command {
    let mut command = match kind {
        Kind::Rust => Command::new(env!("CARGO_BIN_EXE_tracker")),
        Kind::Python => {
            let mut python = Command::new("python3");
            python.arg(package_file("tracker.py"));
            python
        }
    };
    for name in ["SOLEHOLD_SERVER", "SOLEHOLD_API_KEY", "SOLEHOLD_CA_CERT", "SOLEHOLD_MQTT_URL"] {
        command.env_remove(name);
    }
    command
}

/// Starts a tracker, and waits for the line that it begins with.
pub async fn tracker(
    kind: Kind,
    server: &Server,
    broker: &Mosquitto,
    id: &str,
    more: &[&str],
    ready: &str,
) -> Result<Program> {
    let mut command = program(kind);
    let at = format!("127.0.0.1:{}", broker.port());
    command.args(["--server", &server.url(), "--broker", &at, "--id", id]).args(more);
    Program::start("tracker", &command, ready).await
}

/// Starts a gate, and waits until messages flow.
pub async fn gate(server: &Server, broker: &Mosquitto) -> Result<Program> {
    let mut command = Command::new(Solehold::binary()?);
    command.args(["gate", "mqtt", "--server", &server.url(), "--broker", &broker.url()]);
    command.args([
        "--topics",
        "scenescape/data/scene/{key}/+",
        "--kind",
        "scene",
        "--token-field",
        "_version",
    ]);
    command.args(["--listen", "127.0.0.1:0", "--ttl", "2s", "--cache-ttl", "4s"]);
    let gate = Program::start("gate", &command, "solehold gate mqtt serves metrics on ").await?;
    wait_for("messages to flow", PATIENCE, async || gate.logs().contains("connected to the broker")).await?;
    Ok(gate)
}

/// A message as a consumer got it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub scene: String,
    pub version: u64,
    pub sequence: u64,
    pub tracker: String,
    pub ids: Vec<String>,
}

/// What a consumer got, in order.
#[derive(Debug, Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Seen>>>);

impl Inbox {
    pub fn all(&self) -> Vec<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Messages that came after one of a newer version for the same scene.
    pub fn stale(&self) -> Vec<Seen> {
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        let is_stale = |seen: &Seen| {
            let newest = newest.entry(seen.scene.clone()).or_default();
            *newest = seen.version.max(*newest);
            seen.version < *newest
        };
        let mut is_stale = is_stale;
        self.all().into_iter().filter(|seen| is_stale(seen)).collect()
    }

    /// The track ids of each scene.
    pub fn ids(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for seen in self.all() {
            ids.entry(seen.scene).or_default().extend(seen.ids);
        }
        ids
    }

    /// The sequence numbers of a scene under a version.
    pub fn sequences(&self, scene: &str, version: u64) -> BTreeSet<u64> {
        let of = self.all().into_iter().filter(|seen| seen.scene == scene && seen.version == version);
        of.map(|seen| seen.sequence).collect()
    }

    fn put(&self, payload: &[u8]) {
        let Ok(message) = serde_json::from_slice::<Value>(payload) else { return };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let objects = message["data"]["objects"].as_array().cloned().unwrap_or_default();
        let (Some(version), Some(sequence)) = (message["_version"].as_u64(), message["sequence"].as_u64())
        else {
            return;
        };
        let seen = Seen {
            scene: text(&message["scene_id"]),
            version,
            sequence,
            tracker: text(&message["tracker"]),
            ids: objects.iter().map(|object| text(&object["id"])).collect(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }
}

pub fn options(port: u16, id: &str) -> MqttOptions {
    let mut options = MqttOptions::new(id, ("127.0.0.1".to_owned(), port));
    options.set_keep_alive(5).set_clean_session(false).set_max_packet_size(1 << 20, 1 << 20);
    options
}

/// A consumer, whose session outlives the broker's restarts.
pub async fn consume(broker: &Mosquitto, id: &str, topics: &str) -> Result<(Inbox, JoinSet<()>)> {
    consume_by(options(broker.port(), id), topics).await
}

/// The same over a connection that may log in.
pub async fn consume_by(options: MqttOptions, topics: &str) -> Result<(Inbox, JoinSet<()>)> {
    let inbox = Inbox::default();
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    client.subscribe(topics, QoS::AtLeastOnce).await?;
    let (subscribed, mut is_subscribed) = watch::channel(false);
    let mut task = JoinSet::new();
    let own = inbox.clone();
    task.spawn(async move {
        let _client = client;
        loop {
            match events.poll().await {
                Ok(Event::Incoming(Incoming::SubAck(_))) => drop(subscribed.send(true)),
                Ok(Event::Incoming(Incoming::Publish(publish))) => own.put(&publish.payload),
                Ok(_) => {}
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    is_subscribed.wait_for(|is_subscribed| *is_subscribed).await?;
    Ok((inbox, task))
}

/// A publisher that knows when the broker has what it sent.
pub struct Publisher {
    client: AsyncClient,
    _driver: JoinSet<()>,
}

impl Publisher {
    pub fn new(broker: &Mosquitto) -> Self {
        let (client, mut events) = AsyncClient::builder(options(broker.port(), "test")).capacity(10).build();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            loop {
                if events.poll().await.is_err() {
                    tokio::task::yield_now().await;
                }
            }
        });
        Self { client, _driver: driver }
    }

    pub async fn send(&self, scene: &str, version: u64, sequence: u64) -> Result<()> {
        let body = json!({ "scene_id": scene, "sequence": sequence, "tracker": "test", "_version": version });
        let topic = format!("scenescape/data/scene/{scene}/person");
        let options = PublishOptions::new(QoS::AtLeastOnce);
        self.client.publish_tracked(topic, body.to_string(), options).await?.wait_async().await?;
        Ok(())
    }
}
