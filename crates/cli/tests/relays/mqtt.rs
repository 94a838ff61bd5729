use anyhow::{Result, ensure};
use rumqttc::{AsyncClient, Event, EventLoop, Incoming, MqttOptions, QoS};
use solehold_testkit::{Mosquitto, wait_for};
use tokio::{sync::watch, task::JoinSet};

use super::world::{Inbox, PATIENCE, Place};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Subscribes once, in a session that the broker keeps, and goes on across its restarts.
async fn subscribe(broker: &Mosquitto, inbox: Inbox) -> Result<JoinSet<()>> {
    let mut options = MqttOptions::new("test", ("127.0.0.1".to_owned(), broker.port()));
    options.set_clean_session(false).set_keep_alive(5).set_max_packet_size(1 << 20, 1 << 20);
    let (client, events) = AsyncClient::builder(options).capacity(10).build();
    client.subscribe("leases/#", QoS::AtLeastOnce).await?;
    let (subscribed, mut is_subscribed) = watch::channel(false);
    let mut task = JoinSet::new();
    task.spawn(async move {
        // Dropping the client would end the event loop.
        let _client = client;
        receive(events, inbox, subscribed).await;
    });
    is_subscribed.wait_for(|is_subscribed| *is_subscribed).await?;
    Ok(task)
}

async fn receive(mut events: EventLoop, inbox: Inbox, subscribed: watch::Sender<bool>) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Incoming::SubAck(_))) => drop(subscribed.send(true)),
            Ok(Event::Incoming(Incoming::Publish(publish))) => {
                if let Ok(body) = serde_json::from_slice(&publish.payload) {
                    inbox.put(body);
                }
            }
            Ok(_) => {}
            // The broker is away; it connects again.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn mqtt_gets_everything_across_a_restart_of_the_broker() -> Result<()> {
    let broker = Mosquitto::start().await?;
    let inbox = Inbox::default();
    let _subscriber = subscribe(&broker, inbox.clone()).await?;
    let place = Place::new("", &format!("mqtt: {{ url: {:?} }}\n", broker.url()))?;
    let (server, api) = place.start().await?;
    api.churn(&KEYS, 3).await?;
    inbox.is_exactly(&api).await?;
    let (stopped, churned) = tokio::join!(broker.stop(), api.churn(&KEYS, 5));
    stopped?;
    churned?;
    api.measures("relay_retried_total", |count| count > 0.0).await?;
    api.churn(&KEYS, 2).await?;
    broker.restart().await?;
    let checked = inbox.is_exactly(&api).await?;
    assert_eq!(checked.events, KEYS.len() * 10 * 2);
    api.measures("relay_lag_events", |lag| lag == 0.0).await?;
    wait_for("it to be told", PATIENCE, async || server.logs().contains("is reachable again")).await?;
    ensure!(server.logs().contains("cannot reach the destination"), "{}", server.logs());
    Ok(())
}
