//! Measures what the broker does for a gate that is disconnected or slow: the guarantee depends on its limits, which
//! brokers do not report.

use std::{pin::pin, time::Duration};

use rumqttc::{AsyncClient, Event, EventLoop, Incoming, PublishOptions, QoS};
use tokio::time::timeout;

use super::{
    broker::{Broker, BrokerError, REQUESTS_MAX},
    probe,
};

/// The number of messages sent to a reader that acknowledges none.
pub const IN_FLIGHT_TRIED: usize = 1_000;
/// The number of messages sent to a reader that is disconnected.
pub const QUEUED_TRIED: usize = 3_000;
/// A broker that sends nothing for this long has nothing more to send.
const QUIET: Duration = Duration::from_secs(1);
const STEP_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Findings {
    /// Messages that it sends before one is acknowledged, of [`IN_FLIGHT_TRIED`].
    pub in_flight: usize,
    /// Messages that it keeps for a disconnected reader, of [`QUEUED_TRIED`].
    pub queued: usize,
    /// Whether it keeps the session of a disconnected reader.
    pub keeps_sessions: bool,
}

impl Findings {
    /// Whether no message is lost while a gate is disconnected, up to the number tried.
    pub fn keeps_the_promise(&self) -> bool {
        self.keeps_sessions && self.queued >= QUEUED_TRIED
    }
}

/// Measures the broker, below a prefix that the gate may write to, and cleans up.
pub async fn try_out(broker: &Broker, prefix: &str) -> Result<Findings, BrokerError> {
    let id = format!("solehold-gate-check-{:016x}", rand::random::<u64>());
    let topic = format!("{prefix}/solehold-gate-probe/{id}");
    probe::probe(broker, &id, &topic).await?;
    let found = within(measure(broker, &id, &topic)).await;
    // A clean session makes the broker discard the former one.
    let (client, mut events) = broker.connection(&id, false)?;
    within(connected(&mut events)).await?;
    probe::leave(client, events).await;
    found
}

async fn measure(broker: &Broker, id: &str, topic: &str) -> Result<Findings, BrokerError> {
    let (client, mut events) = broker.connection(id, true)?;
    client.subscribe(topic, QoS::AtLeastOnce).await?;
    probe::subscribed(&mut events, topic).await?;
    let published = publish(broker, id, topic, IN_FLIGHT_TRIED);
    let (published, in_flight) = tokio::join!(published, receive(&client, &mut events, false));
    published?;
    let in_flight = in_flight?;
    // Receive everything again, with acknowledgements, so that the queue is empty.
    drop((client, events));
    let (client, mut events) = broker.connection(id, true)?;
    connected(&mut events).await?;
    receive(&client, &mut events, true).await?;
    probe::leave(client, events).await;
    publish(broker, id, topic, QUEUED_TRIED).await?;
    let (client, mut events) = broker.connection(id, true)?;
    let keeps_sessions = connected(&mut events).await?;
    let queued = receive(&client, &mut events, true).await?;
    Ok(Findings { in_flight, queued, keeps_sessions })
}

/// Waits for the connection. Returns whether the broker had kept the session.
async fn connected(events: &mut EventLoop) -> Result<bool, BrokerError> {
    loop {
        if let Event::Incoming(Incoming::ConnAck(answer)) = events.poll().await? {
            return Ok(answer.session_present);
        }
    }
}

/// Publishes a number of messages, and waits until the broker has them.
async fn publish(broker: &Broker, id: &str, topic: &str, count: usize) -> Result<(), BrokerError> {
    let (client, mut events) = broker.connection(&format!("{id}-w"), false)?;
    let mut given = 0;
    let mut confirmed = 0;
    while confirmed < count {
        while given < count && given - confirmed < REQUESTS_MAX {
            client.try_publish(topic, "{}", PublishOptions::new(QoS::AtLeastOnce))?;
            given += 1;
        }
        if let Event::Incoming(Incoming::PubAck(_)) = events.poll().await? {
            confirmed += 1;
        }
    }
    probe::leave(client, events).await;
    Ok(())
}

/// Counts messages until no more arrive.
async fn receive(
    client: &AsyncClient,
    events: &mut EventLoop,
    acknowledge: bool,
) -> Result<usize, BrokerError> {
    let mut count = 0;
    loop {
        let mut event = pin!(events.poll());
        let Ok(event) = timeout(QUIET, &mut event).await else { return Ok(count) };
        if let Event::Incoming(Incoming::Publish(publish)) = event? {
            count += 1;
            if acknowledge {
                client.try_ack(&publish)?;
            }
        }
    }
}

async fn within<T>(step: impl Future<Output = Result<T, BrokerError>>) -> Result<T, BrokerError> {
    timeout(STEP_WITHIN, step).await.map_err(|_| BrokerError::Silent(STEP_WITHIN))?
}
