//! Whether what the gate publishes arrives.
//!
//! A broker that speaks MQTT 3.1.1 has no way to say that it drops a message, and acknowledges it. So the gate reads
//! what it writes, once, before it takes a message off a queue.

use std::time::Duration;

use rumqttc::{AsyncClient, Event, EventLoop, Incoming, PublishOptions, QoS, SubscribeReasonCode};
use tokio::time::timeout;

use super::broker::{Broker, BrokerError};

/// How long the broker may take.
const WITHIN: Duration = Duration::from_secs(10);

/// Publishes to a topic and waits for it to come back.
pub(crate) async fn probe(broker: &Broker, client_id: &str, topic: &str) -> Result<(), BrokerError> {
    let (client, mut events) = broker.connection(&format!("{client_id}-probe"), false)?;
    let mark = format!("{{\"probe\":\"{:016x}\"}}", rand::random::<u64>());
    client.subscribe(topic, QoS::AtLeastOnce).await?;
    // Until it is connected and subscribed, silence is the broker's; after that it is the drop that is looked for.
    let subscribed = timeout(WITHIN, subscribed(&mut events, topic));
    subscribed.await.map_err(|_| BrokerError::Silent(WITHIN))??;
    client.publish(topic, mark.clone(), PublishOptions::new(QoS::AtLeastOnce)).await?;
    // Some brokers end the connection of a client that publishes what it may not.
    match timeout(WITHIN, came(&mut events, mark.as_bytes())).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) | Err(_) => return Err(BrokerError::MayNotWrite(topic.to_owned())),
    }
    leave(client, events).await;
    Ok(())
}

/// Waits until the subscription is there.
pub(crate) async fn subscribed(events: &mut EventLoop, topic: &str) -> Result<(), BrokerError> {
    loop {
        if let Event::Incoming(Incoming::SubAck(answer)) = events.poll().await? {
            let is_refused = answer.return_codes.contains(&SubscribeReasonCode::Failure);
            return if is_refused { Err(BrokerError::MayNotRead(topic.to_owned())) } else { Ok(()) };
        }
    }
}

async fn came(events: &mut EventLoop, mark: &[u8]) -> Result<(), BrokerError> {
    loop {
        if let Event::Incoming(Incoming::Publish(publish)) = events.poll().await?
            && publish.payload == mark
        {
            return Ok(());
        }
    }
}

/// Says goodbye, so that the broker does not log a lost client.
pub(crate) async fn leave(client: AsyncClient, mut events: EventLoop) {
    let goodbye = async {
        client.disconnect_now().await.ok()?;
        while events.poll().await.is_ok() {}
        Some(())
    };
    let _ = timeout(Duration::from_secs(1), goodbye).await;
}
