//! What the control plane tells of itself: its history, and the same as it came through RabbitMQ.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};
use serde_json::Value;
use solehold_testkit::wait_for;
use tokio::task::JoinSet;

use crate::world::PATIENCE;

/// One event of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub revision: u64,
    pub name: String,
    pub at: String,
    pub runner: String,
    pub token: i64,
    pub lease: String,
    /// Of the worker that works under the lease.
    pub shard: String,
}

impl Event {
    pub fn of(told: &Value) -> Option<Self> {
        let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
        Some(Self {
            revision: told["revision"].as_u64()?,
            name: text("event_type"),
            at: text("timestamp"),
            runner: text("holder"),
            token: told["token"].as_i64().unwrap_or_default(),
            lease: text("lease_id"),
            shard: text("shard_id"),
        })
    }

    fn is_end(&self) -> bool {
        ["lease_released", "lease_expired", "lease_revoked"].contains(&self.name.as_str())
    }
}

/// A camera passed from one runner to the next.
#[derive(Debug, Clone)]
pub struct Change {
    pub camera: String,
    pub from: String,
    /// The new token.
    pub token: i64,
    /// By a hand-over: in the moment in which the one released it, the other had it.
    pub is_planned: bool,
}

/// The changes of owner after a revision. Nobody is granted a camera while another holds it, and no token comes again.
pub fn changes(history: &BTreeMap<String, Vec<Event>>, after: u64) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for (camera, events) in history {
        let mut holder: Option<&Event> = None;
        let mut last_end: Option<&Event> = None;
        let mut last_token: i64 = 0;
        let offered: BTreeSet<&str> =
            events.iter().filter(|e| e.name == "lease_pending").map(|e| e.lease.as_str()).collect();
        for event in events {
            if event.is_end() && holder.is_some_and(|held| held.lease == event.lease) {
                (holder, last_end) = (None, Some(event));
            }
            if event.name != "lease_acquired" {
                continue;
            }
            ensure!(holder.is_none(), "{camera}: {event:?} while {holder:?} held it");
            ensure!(event.token > last_token, "{camera}: {event:?} after token {last_token}");
            (holder, last_token) = (Some(event), event.token);
            if let Some(end) = last_end.filter(|_| event.revision > after) {
                let is_planned = offered.contains(event.lease.as_str())
                    && end.name == "lease_released"
                    && end.at == event.at
                    && end.runner != event.runner;
                let camera = camera.clone();
                let from = end.runner.clone();
                changes.push(Change { camera, from, token: event.token, is_planned });
            }
        }
    }
    Ok(changes)
}

/// The events of a lease's life.
const OF_LEASES: [&str; 6] =
    ["lease_pending", "lease_acquired", "lease_released", "lease_expired", "lease_revoked", "lease_stolen"];

/// Counts the events of leases, each of which names the shard.
pub fn shards(history: &BTreeMap<String, Vec<Event>>) -> Result<usize> {
    let events = history.values().flatten().filter(|event| OF_LEASES.contains(&event.name.as_str()));
    let mut count = 0;
    for event in events {
        ensure!(event.shard.starts_with("shard-"), "no shard: {event:?}");
        count += 1;
    }
    Ok(count)
}

/// The newest revision of a history.
pub fn newest(history: &BTreeMap<String, Vec<Event>>) -> u64 {
    history.values().flatten().map(|event| event.revision).max().unwrap_or_default()
}

const EXCHANGE: &str = "solehold.events";
const QUEUE: &str = "pipeline";

/// What came out of RabbitMQ.
pub struct Inbox {
    all: Arc<Mutex<Vec<Value>>>,
    _task: JoinSet<()>,
    _connection: Connection,
}

impl Inbox {
    /// Takes everything from a durable queue of its own.
    pub async fn of(url: &str) -> Result<Self> {
        let connection = wait_for("RabbitMQ to take a client", PATIENCE, async || {
            Connection::connect(url, ConnectionProperties::default()).await.ok()
        });
        let connection = connection.await?;
        let channel = connection.create_channel().await?;
        let none = FieldTable::default();
        let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none.clone()).await?;
        channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), none.clone()).await?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(QUEUE.into(), EXCHANGE.into(), "leases.#".into(), bind, none.clone()).await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries = channel.basic_consume(QUEUE.into(), "test".into(), options, none).await?;
        let all = Arc::<Mutex<Vec<Value>>>::default();
        let mut task = JoinSet::new();
        let came = all.clone();
        task.spawn(async move {
            // The channel lives as long as its consumer.
            let _channel = channel;
            while let Some(Ok(delivery)) = deliveries.next().await {
                if let Ok(body) = serde_json::from_slice(&delivery.data) {
                    came.lock().unwrap_or_else(PoisonError::into_inner).push(body);
                }
                if delivery.ack(BasicAckOptions::default()).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { all, _task: task, _connection: connection })
    }

    fn all(&self) -> Vec<Value> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until every event of a history has come, and checks that each camera's came in order, under one id each.
    pub async fn has_all(&self, history: &BTreeMap<String, Vec<Event>>) -> Result<usize> {
        let wanted: BTreeSet<u64> = history.values().flatten().map(|event| event.revision).collect();
        let revision = |body: &Value| body["details"]["revision"].as_u64();
        let is_all = || self.all().iter().filter_map(revision).collect::<BTreeSet<_>>().is_superset(&wanted);
        wait_for("all events to come out of RabbitMQ", PATIENCE, async || is_all()).await?;
        let (mut last, mut ids): (BTreeMap<String, u64>, BTreeMap<u64, String>) = Default::default();
        for body in self.all() {
            let Some(revision) = revision(&body).filter(|revision| wanted.contains(revision)) else {
                continue;
            };
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            if OF_LEASES.contains(&text("event_type").as_str()) {
                ensure!(text("shard_id").starts_with("shard-"), "no shard: {body}");
            }
            if let Some(known) = ids.insert(revision, text("event_id")) {
                ensure!(known == text("event_id"), "{revision} came under two ids");
                continue;
            }
            let before = last.insert(text("camera_uuid"), revision).unwrap_or_default();
            ensure!(before < revision, "{revision} came after {before}");
        }
        Ok(wanted.len())
    }
}
