use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt as _;
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    },
    types::FieldTable,
};
use serde_json::{Value, json};
use solehold_testkit::{RabbitMq, wait_for};
use tokio::task::JoinSet;

use super::world::{Api, Inbox, PATIENCE, Place, is_generic};

/// How long one attempt to connect may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const EXCHANGE: &str = "solehold.events";
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn place(url: &str, of_relay: &str) -> Result<Place> {
    Place::new("", &format!("rabbitmq: {{ url: {url:?} }}\n{of_relay}"))
}

async fn connect(url: &str) -> Result<(Connection, Channel)> {
    // A broker that is killed or starts may accept a connection and never answer on it.
    let attempt = async || {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.ok()?;
        let channel = connection.create_channel().await.ok()?;
        Some((connection, channel))
    };
    wait_for("RabbitMQ to take a client", PATIENCE, async || {
        tokio::time::timeout(ANSWER_WITHIN, attempt()).await.ok().flatten()
    })
    .await
}

/// A durable queue that gets what is published under these routing keys.
async fn bind(channel: &Channel, queue: &str, routing_keys: &[&str]) -> Result<()> {
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let none = FieldTable::default();
    channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none.clone()).await?;
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), none.clone()).await?;
    for key in routing_keys {
        let options = QueueBindOptions::default();
        channel.queue_bind(queue.into(), EXCHANGE.into(), (*key).into(), options, none.clone()).await?;
    }
    Ok(())
}

/// Takes everything from a queue, across restarts of the broker.
struct Consumer {
    inbox: Inbox,
    last: Arc<Mutex<Option<Delivery>>>,
    _task: JoinSet<()>,
}

impl Consumer {
    fn of(url: String, queue: &'static str) -> Self {
        let inbox = Inbox::default();
        let last = Arc::default();
        let mut task = JoinSet::new();
        let to = inbox.clone();
        let kept = Arc::clone(&last);
        task.spawn(async move {
            loop {
                // It ends when the broker does, and begins again.
                let _ = consume(&url, queue, &to, &kept).await;
            }
        });
        Self { inbox, last, _task: task }
    }

    fn last(&self) -> Option<Delivery> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

async fn consume(url: &str, queue: &str, inbox: &Inbox, last: &Mutex<Option<Delivery>>) -> Result<()> {
    let (_connection, channel) = connect(url).await?;
    let options = BasicConsumeOptions::default();
    let none = FieldTable::default();
    let mut deliveries = channel.basic_consume(queue.into(), "test".into(), options, none).await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        inbox.put(serde_json::from_slice(&delivery.data)?);
        delivery.ack(BasicAckOptions::default()).await?;
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(delivery);
    }
    Ok(())
}

#[tokio::test]
async fn rabbitmq_gets_no_word_of_cameras_of_another_kind() -> Result<()> {
    let broker = RabbitMq::start().await?;
    let (_connection, channel) = connect(&broker.url()).await?;
    bind(&channel, "everything", &["leases.#"]).await?;
    let place = place(&broker.url(), "")?;
    let (_server, api) = place.start().await?;
    let consumer = Consumer::of(broker.url(), "everything");
    api.cycle("nightly").await?;
    wait_for("both events", PATIENCE, async || consumer.inbox.all().len() == 2).await?;
    is_as_documented(&wait_for("the last one", PATIENCE, async || consumer.last()).await?)?;
    consumer.inbox.all().iter().try_for_each(is_generic)
}

/// The broker is killed while events are made, then the server, and both come back.
#[tokio::test]
async fn rabbitmq_gets_everything_across_kills_of_both_sides() -> Result<()> {
    let broker = RabbitMq::start().await?;
    let (connection, channel) = connect(&broker.url()).await?;
    bind(&channel, "everything", &["leases.#"]).await?;
    let place = place(&broker.url(), "")?;
    let (server, api) = place.start().await?;
    let consumer = Consumer::of(broker.url(), "everything");
    api.churn(&KEYS, 3).await?;
    consumer.inbox.is_exactly(&api).await?;
    is_as_documented(&consumer.last().context("something came")?)?;
    let (killed, churned) = tokio::join!(broker.kill9(), api.churn(&KEYS, 5));
    killed?;
    churned?;
    drop(connection);
    api.measures("relay_retried_total", |count| count > 0.0).await?;
    server.kill9().await?;
    let (_server, api) = place.start().await?;
    api.churn(&KEYS, 2).await?;
    broker.restart().await?;
    let checked = consumer.inbox.is_exactly(&api).await?;
    assert_eq!(checked.events, KEYS.len() * 10 * 2);
    api.measures("relay_lag_events", |lag| lag == 0.0).await?;
    Ok(())
}

fn is_as_documented(delivery: &Delivery) -> Result<()> {
    let body: Value = serde_json::from_slice(&delivery.data)?;
    let key = body["key"].as_str();
    let event = body["event_type"].as_str();
    let routing_key =
        format!("leases.default.-.job.{}.{}", key.unwrap_or_default(), event.unwrap_or_default());
    assert_eq!(delivery.routing_key.as_str(), routing_key);
    let properties = &delivery.properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let id = properties.message_id().as_ref().map(|id| json!(id.as_str()));
    assert_eq!(id, Some(body["event_id"].clone()));
    ensure!(body["details"]["token"].is_u64() && body["lease_id"].is_string(), "{body}");
    Ok(())
}

/// RabbitMQ confirms what it has thrown away. Events that a queue takes and events that none takes are in flight at the
/// same time, and each gets its own verdict. The relay speaks TLS here.
#[tokio::test]
async fn what_rabbitmq_cannot_route_is_a_failure() -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let broker = RabbitMq::start_tls(&made.cert.pem(), &made.signing_key.serialize_pem()).await?;
    let (_connection, channel) = connect(&broker.url()).await?;
    let good = KEYS.map(|key| format!("leases.default.*.job.{key}.*"));
    bind(&channel, "good", &good.each_ref().map(String::as_str)).await?;
    let place = place(&broker.tls_url(), "attempts: 2\n")?;
    let trusted = place.write("ca.pem", &made.cert.pem())?;
    let server = place.server().env("SSL_CERT_FILE", &trusted).start().await?;
    let api = Api::new(&server)?;
    let lost = ["u", "v", "w", "x", "y", "z"];
    let (routed, unrouted) = tokio::join!(api.churn(&KEYS, 5), api.churn(&lost, 5));
    routed?;
    unrouted?;
    let of_each = (KEYS.len() * 5 * 2) as f64;
    api.measures("relay_dead_lettered_total", |count| count == of_each).await?;
    api.measures("relay_sent_total", |count| count == of_each).await?;
    assert_eq!(api.measured("relay_refused_total").await?, of_each * 2.0, "each was tried twice");
    let good = Consumer::of(broker.url(), "good");
    let dead = Consumer::of(broker.url(), "solehold.events.dead");
    let is_of = |inbox: &Inbox, keys: &[&str]| {
        let of_another =
            inbox.all().into_iter().find(|body| !keys.contains(&body["key"].as_str().unwrap_or_default()));
        ensure!(of_another.is_none(), "in the wrong queue: {of_another:?}");
        Ok(())
    };
    wait_for("both queues", PATIENCE, async || {
        good.inbox.all().len() == of_each as usize && dead.inbox.all().len() == of_each as usize
    })
    .await?;
    is_of(&good.inbox, &KEYS)?;
    is_of(&dead.inbox, &lost)?;
    let letter = wait_for("a dead letter", PATIENCE, async || dead.last()).await?;
    let headers = letter.properties.headers().as_ref().context("headers")?;
    let reason = headers.inner().get("solehold-reason").and_then(|reason| reason.as_long_string());
    let reason =
        reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned()).unwrap_or_default();
    ensure!(reason.contains("NO_ROUTE"), "{reason}");
    ensure!(!server.logs().contains("guest:guest"), "a password was logged");
    Ok(())
}

#[tokio::test]
async fn a_check_says_whether_the_exchange_exists_and_makes_none() -> Result<()> {
    let broker = RabbitMq::start().await?;
    let place = place(&broker.url(), "")?;
    let check = async || -> Result<String> {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_solehold"));
        command.args(["serve", "--check=connect", "--config"]).arg(place.config());
        let ran = command.arg("--data-dir").arg(place.data()).output().await?;
        ensure!(ran.status.success(), "{ran:?}");
        Ok(String::from_utf8(ran.stdout)?)
    };
    for _ in 0..2 {
        let said = check().await?;
        ensure!(said.contains("exchange solehold.events, which does not exist yet"), "{said}");
        ensure!(said.contains("until a queue is bound"), "{said}");
    }
    let (_connection, channel) = connect(&broker.url()).await?;
    bind(&channel, "everything", &["leases.#"]).await?;
    let said = check().await?;
    ensure!(said.contains("exchange solehold.events, which exists; whether a queue is bound"), "{said}");
    Ok(())
}
