//! A broker, a server, a gate, and clients that know nothing of it.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, Publish, PublishOptions, QoS};
use serde_json::{Value, json};
use solehold_testkit::{Mosquitto, Program, Solehold, TempDir, free_port, wait_for};
use tokio::{sync::watch, task::JoinSet};

use crate::common::BINARY;

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a gate that was killed keeps its shard.
pub const TTL: Duration = Duration::from_secs(2);
/// What the gates read.
pub const TOPICS: &str = "plant/line/{key}/+";
const PACKET_MAX: usize = 4 * 1024 * 1024;

/// A server that can go away and come back at the same address, with the same data.
pub struct Server {
    address: SocketAddr,
    data: TempDir,
    running: Option<Solehold>,
    http: Client,
}

impl Server {
    pub async fn start() -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let http = Client::builder().timeout(Duration::from_secs(30)).build()?;
        let mut server = Self { address, data: TempDir::new()?, running: None, http };
        server.come_back().await?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn go_away(&mut self) -> Result<()> {
        self.running.take().context("it runs")?.terminate().await?;
        Ok(())
    }

    pub async fn come_back(&mut self) -> Result<()> {
        let builder = Solehold::builder().binary(BINARY).data_dir(self.data.path());
        self.running = Some(builder.listen(self.address).start().await?);
        Ok(())
    }

    /// Acquires a resource of the kind `job`; the answer is its token.
    pub async fn acquire(&self, key: &str) -> Result<u64> {
        let lease = format!("{}/api/v1/resources/job/{key}/lease", self.url());
        let ask = json!({ "holder": format!("tracker-{key}"), "ttl_ms": 300_000 });
        let answer: Value = self.http.post(lease).json(&ask).send().await?.json().await?;
        answer["token"].as_u64().with_context(|| format!("not acquired: {answer}"))
    }

    /// The next holder of a resource: it is released and acquired; the answer is the new token.
    pub async fn pass_on(&self, key: &str, token: u64) -> Result<u64> {
        let lease = format!("{}/api/v1/resources/job/{key}/lease", self.url());
        let answer = self.http.delete(lease).json(&json!({ "token": token })).send().await?;
        ensure!(answer.status().is_success(), "not released: {}", answer.text().await?);
        self.acquire(key).await
    }
}

/// A gate as a process of its own.
pub struct Gate {
    pub program: Program,
    url: String,
    http: Client,
}

impl Gate {
    /// Starts one, with more arguments after the usual ones.
    pub async fn start(server: &Server, broker: &str, more: &[&str]) -> Result<Self> {
        let mut command = Command::new(BINARY);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_"))
        {
            command.env_remove(name);
        }
        command.args(["gate", "mqtt", "--server", &server.url(), "--broker", broker]);
        command.args([
            "--topics",
            TOPICS,
            "--kind",
            "job",
            "--listen",
            "127.0.0.1:0",
            "--dead-letter",
            "dead",
        ]);
        command.args(["--ttl", &format!("{}s", TTL.as_secs()), "--cache-ttl", "4s"]).args(more);
        let program = Program::start("gate", &command, "solehold gate mqtt serves metrics on ").await?;
        let url = program.said().trim().to_owned();
        let http = Client::builder().timeout(Duration::from_secs(10)).build()?;
        Ok(Self { program, url, http })
    }

    /// Starts one and waits until messages flow through it.
    pub async fn flowing(server: &Server, broker: &str, more: &[&str]) -> Result<Self> {
        let gate = Self::start(server, broker, more).await?;
        gate.measures("shards_connected", |count| count > 0.0).await?;
        Ok(gate)
    }

    pub async fn text(&self, path: &str) -> Result<String> {
        Ok(self.http.get(format!("{}{path}", self.url)).send().await?.text().await?)
    }

    /// One figure; `name` may have labels.
    pub async fn measured(&self, name: &str) -> Result<f64> {
        let text = self.text("/metrics").await?;
        let line = text.lines().find(|line| {
            let rest = line.strip_prefix("solehold_gate_").and_then(|line| line.strip_prefix(name));
            rest.is_some_and(|rest| rest.starts_with(' '))
        });
        let value = line.and_then(|line| line.rsplit(' ').next()).map(str::parse).transpose()?;
        value.with_context(|| format!("no figure {name} in\n{text}"))
    }

    /// Waits until a figure is as it should be.
    pub async fn measures(&self, name: &str, is_good: impl Fn(f64) -> bool) -> Result<f64> {
        let what = format!("{name} to be as it should");
        let measured = async || self.measured(name).await.ok().filter(|value| is_good(*value));
        wait_for(&what, PATIENCE, measured).await
    }

    pub async fn refused(&self, reason: &str) -> Result<f64> {
        self.measured(&format!("messages_refused_total{{reason=\"{reason}\"}}")).await
    }
}

/// What a consumer got, in the order in which it came.
#[derive(Debug, Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<Publish>>>);

impl Inbox {
    /// All that came on topics that begin like this: the topic and the payload.
    pub fn all(&self, prefix: &str) -> Vec<(String, String)> {
        let came = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = came.iter().map(|publish| (text(&publish.topic), text(&publish.payload)));
        all.filter(|(topic, _)| topic.starts_with(prefix) && !topic.contains("probe")).collect()
    }

    /// The numbers that came, in the member `n`.
    pub fn numbers(&self, prefix: &str) -> BTreeSet<u64> {
        let number =
            |(_, payload): (String, String)| serde_json::from_str::<Value>(&payload).ok()?["n"].as_u64();
        self.all(prefix).into_iter().filter_map(number).collect()
    }

    /// Waits until these numbers have come; says which lack if they do not.
    pub async fn has_all(&self, prefix: &str, numbers: std::ops::Range<u64>) -> Result<()> {
        let wanted: BTreeSet<u64> = numbers.collect();
        let came =
            wait_for("all messages", PATIENCE, async || self.numbers(prefix).is_superset(&wanted)).await;
        let lacking: Vec<u64> = wanted.difference(&self.numbers(prefix)).copied().collect();
        came.with_context(|| format!("{} of {} lack: {lacking:?}", lacking.len(), wanted.len()))
    }

    /// Waits until this number of messages has come.
    pub async fn count(&self, prefix: &str, count: usize) -> Result<Vec<(String, String)>> {
        let what = format!("{count} messages below {prefix}");
        wait_for(&what, PATIENCE, async || Some(self.all(prefix)).filter(|all| all.len() >= count)).await
    }
}

fn options(port: u16, id: &str, login: Option<(&str, &str)>) -> MqttOptions {
    let mut options = MqttOptions::new(id, ("127.0.0.1".to_owned(), port));
    options.set_keep_alive(5).set_max_packet_size(PACKET_MAX, PACKET_MAX);
    if let Some((user, password)) = login {
        options.set_credentials(user, password.to_owned());
    }
    options
}

/// A consumer of topics, whose session outlives the broker's restarts.
pub async fn subscribe_as(
    id: &str,
    port: u16,
    topics: &[&str],
    login: Option<(&str, &str)>,
) -> Result<(Inbox, JoinSet<()>)> {
    let inbox = Inbox::default();
    let mut options = options(port, id, login);
    options.set_clean_session(false);
    let (client, events) = AsyncClient::builder(options).capacity(10).build();
    for topic in topics {
        client.subscribe(*topic, QoS::AtLeastOnce).await?;
    }
    let (subscribed, mut answers) = watch::channel(0);
    let mut task = JoinSet::new();
    let own = inbox.clone();
    task.spawn(async move {
        // Dropping the client would end the event loop.
        let _client = client;
        receive(events, own, subscribed).await;
    });
    answers.wait_for(|answers| *answers == topics.len()).await?;
    Ok((inbox, task))
}

async fn receive(mut events: EventLoop, inbox: Inbox, subscribed: watch::Sender<usize>) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Incoming::SubAck(_))) => subscribed.send_modify(|count| *count += 1),
            Ok(Event::Incoming(Incoming::Publish(publish))) => {
                inbox.0.lock().unwrap_or_else(PoisonError::into_inner).push(publish);
            }
            Ok(_) => {}
            // The broker is away; it connects again.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

/// A publisher, which knows when the broker has what it sent.
pub struct Publisher {
    client: AsyncClient,
    _driver: JoinSet<()>,
}

impl Publisher {
    pub fn new(port: u16) -> Self {
        Self::logged_in(port, None)
    }

    pub fn logged_in(port: u16, login: Option<(&str, &str)>) -> Self {
        let (client, mut events) =
            AsyncClient::builder(options(port, "tracker", login)).capacity(100).build();
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

    /// Publishes and waits until the broker has it.
    pub async fn send(&self, topic: &str, payload: impl Into<Vec<u8>>) -> Result<()> {
        self.send_with(topic, payload, PublishOptions::new(QoS::AtLeastOnce)).await
    }

    /// Publishes many positions of some keys, without waiting for each; the broker has them when it has confirmed all.
    pub async fn flood(port: u16, keys: &[(String, u64)], count: usize) -> Result<()> {
        let mut options = options(port, "flood", None);
        options.set_inflight(1_000).set_max_request_batch(128);
        let (client, mut events) = AsyncClient::builder(options).capacity(1_000).build();
        let mut given = 0;
        let mut confirmed = 0;
        while confirmed < count {
            while given < count && given - confirmed < 1_000 {
                let (key, token) = &keys[given % keys.len()];
                let body = json!({ "line": key, "n": given, "data": { "objects": [] }, "token": token });
                client.try_publish(topic(key), body.to_string(), PublishOptions::new(QoS::AtLeastOnce))?;
                given += 1;
            }
            if let Event::Incoming(Incoming::PubAck(_)) = events.poll().await? {
                confirmed += 1;
            }
        }
        Ok(())
    }

    pub async fn send_with(
        &self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        options: PublishOptions,
    ) -> Result<()> {
        let notice = self.client.publish_tracked(topic, payload.into(), options).await?;
        notice.wait_async().await?;
        Ok(())
    }

    /// Publishes a position with a number and a token.
    pub async fn position(&self, key: &str, number: u64, token: u64) -> Result<()> {
        let body = json!({ "line": key, "n": number, "data": { "objects": [] }, "token": token });
        self.send(&topic(key), body.to_string()).await
    }
}

pub fn topic(key: &str) -> String {
    format!("plant/line/{key}/speed")
}

/// Everything: a broker that loses nothing, a server, a consumer of `gated/#` and `dead/#`, and a publisher.
pub struct World {
    pub broker: Mosquitto,
    pub server: Server,
    pub inbox: Inbox,
    pub publisher: Publisher,
    _consumer: JoinSet<()>,
}

impl World {
    pub async fn new() -> Result<Self> {
        let broker = Mosquitto::start().await?;
        let server = Server::start().await?;
        let (inbox, _consumer) =
            subscribe_as("consumer", broker.port(), &["gated/#", "dead/#"], None).await?;
        let publisher = Publisher::new(broker.port());
        Ok(Self { broker, server, inbox, publisher, _consumer })
    }

    pub async fn gate(&self, more: &[&str]) -> Result<Gate> {
        Gate::flowing(&self.server, &self.broker.url(), more).await
    }
}
