//! Checks that messages of the gate arrive.
//!
//! An MQTT 3.1.1 broker cannot report that it drops a message, and acknowledges it. So the gate publishes a message and
//! reads it back before it consumes any.

use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, Incoming, PublishOptions, QoS, SubscribeReasonCode};
use tokio::time::timeout;

use super::broker::{Broker, BrokerError};

const WITHIN: Duration = Duration::from_secs(10);

/// Publishes to a topic and waits for it to come back.
pub(crate) async fn probe(broker: &Broker, client_id: &str, topic: &str) -> Result<(), BrokerError> {
    let (client, mut events) = broker.connection(&format!("{client_id}-probe"), false)?;
    let mark = format!("{{\"probe\":\"{:016x}\"}}", rand::random::<u64>());
    client.subscribe(topic, QoS::AtLeastOnce).await?;
    // A timeout before the subscription is a broker that does not respond; after it, a message that was dropped.
    let subscribed = timeout(WITHIN, subscribed(&mut events, topic));
    subscribed.await.map_err(|_| BrokerError::Silent(WITHIN))??;
    client.publish(topic, mark.clone(), PublishOptions::new(QoS::AtLeastOnce)).await?;
    // Some brokers close the connection of a client that publishes without permission.
    match timeout(WITHIN, echoed(&mut events, mark.as_bytes())).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) | Err(_) => return Err(BrokerError::MayNotWrite(topic.to_owned())),
    }
    leave(client, events).await;
    Ok(())
}

/// Waits until the broker has accepted the subscription.
pub(crate) async fn subscribed(events: &mut EventLoop, topic: &str) -> Result<(), BrokerError> {
    loop {
        if let Event::Incoming(Incoming::SubAck(answer)) = events.poll().await? {
            let is_refused = answer.return_codes.contains(&SubscribeReasonCode::Failure);
            return if is_refused { Err(BrokerError::MayNotRead(topic.to_owned())) } else { Ok(()) };
        }
    }
}

async fn echoed(events: &mut EventLoop, mark: &[u8]) -> Result<(), BrokerError> {
    loop {
        if let Event::Incoming(Incoming::Publish(publish)) = events.poll().await?
            && publish.payload == mark
        {
            return Ok(());
        }
    }
}

/// Disconnects cleanly, so that the broker does not log a lost client.
pub(crate) async fn leave(client: AsyncClient, mut events: EventLoop) {
    let disconnect = async {
        client.disconnect_now().await.ok()?;
        while events.poll().await.is_ok() {}
        Some(())
    };
    let _ = timeout(Duration::from_secs(1), disconnect).await;
}
