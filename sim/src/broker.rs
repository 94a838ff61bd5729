//! An MQTT broker, as far as a gate sees it: a queue that it keeps under the client id of the gate's shard, and one
//! connection at a time.
//!
//! What was not acknowledged is sent again when a client connects, and the older of two connections with one client id
//! is closed. Messages and acknowledgements take a while, in order.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use solehold_client::ResourceName;
use solehold_mqtt_gate::{Message, Publication};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    virtual_time::pass_until,
};

/// Packets on their way. A connection that is this far behind is closed.
const PACKETS_MAX: usize = 4_096;
const LATENCY_MS: (u64, u64) = (1, 30);

/// A message of a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its place in the queue.
    pub number: u64,
    pub resource: ResourceName,
    pub token: u64,
}

impl Published {
    pub fn message(&self) -> Message {
        let Self { number, resource, token } = self;
        let payload = format!(r#"{{"number":{number},"token":{token}}}"#).into();
        Message { topic: format!("data/{}/{}", resource.kind, resource.key), payload, is_retained: false }
    }

    /// The message that was published again under a prefix.
    pub fn read(publication: &Publication) -> Option<Self> {
        let (_, named) = publication.topic.split_once("data/")?;
        let (kind, key) = named.split_once('/')?;
        let payload: serde_json::Value = serde_json::from_slice(&publication.payload).ok()?;
        let resource = ResourceName::new(kind, key).ok()?;
        Some(Self { number: payload["number"].as_u64()?, resource, token: payload["token"].as_u64()? })
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} on {}, token {}", self.number, self.resource, self.token)
    }
}

enum ToBroker {
    Publish(u64, Publication),
    Acknowledge(u64),
}

/// A packet, and when it arrives.
type OnItsWay<T> = (Instant, T);

struct Client {
    /// Tells connections apart.
    serial: u64,
    deliveries: mpsc::Sender<OnItsWay<Published>>,
    confirmations: mpsc::Sender<OnItsWay<u64>>,
}

#[derive(Default)]
struct Queue {
    last: u64,
    unacknowledged: VecDeque<Published>,
    connections: u64,
    client: Option<Client>,
}

pub struct Broker {
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
    queue: Mutex<Queue>,
}

/// A client's side of a connection.
pub struct Connection {
    broker: Arc<Broker>,
    /// Messages; closed with the connection, as all that follow.
    pub deliveries: mpsc::Receiver<Published>,
    /// Publications that were confirmed.
    pub confirmations: mpsc::Receiver<u64>,
    /// Publications go over a connection of their own, as the gate's do.
    publishing: mpsc::Sender<OnItsWay<ToBroker>>,
    acknowledging: mpsc::Sender<OnItsWay<ToBroker>>,
}

impl Broker {
    pub fn new(chronicle: Arc<Chronicle>, chance: SeededChance) -> Arc<Self> {
        Arc::new(Self { chronicle, chance, queue: Mutex::default() })
    }

    fn arrival(&self) -> Instant {
        Instant::now() + self.chance.millis(LATENCY_MS.0, LATENCY_MS.1)
    }

    /// Takes a message of a publisher.
    pub fn publish(&self, resource: &ResourceName, token: u64) {
        let queue = &mut *self.queue.lock();
        queue.last += 1;
        let message = Published { number: queue.last, resource: resource.clone(), token };
        queue.unacknowledged.push_back(message.clone());
        self.deliver(queue, message);
    }

    fn deliver(&self, queue: &mut Queue, message: Published) {
        let Some(client) = &queue.client else { return };
        if client.deliveries.try_send((self.arrival(), message)).is_err() {
            queue.client = None;
        }
    }

    /// Opens a connection in place of the present one, and sends all that is not acknowledged.
    pub fn connect(self: &Arc<Self>) -> Connection {
        let (deliveries, delivered) = delayed();
        let (confirmations, confirmed) = delayed();
        let queue = &mut *self.queue.lock();
        queue.connections += 1;
        let serial = queue.connections;
        queue.client = Some(Client { serial, deliveries, confirmations });
        for message in queue.unacknowledged.clone() {
            self.deliver(queue, message);
        }
        let publishing = self.link(serial);
        let acknowledging = self.link(serial);
        let broker = self.clone();
        Connection { broker, deliveries: delivered, confirmations: confirmed, publishing, acknowledging }
    }

    /// Closes the present connection.
    pub fn cut(&self) {
        self.queue.lock().client = None;
    }

    /// One direction of a connection: packets arrive one after the other.
    fn link(self: &Arc<Self>, serial: u64) -> mpsc::Sender<OnItsWay<ToBroker>> {
        let (sender, mut packets) = mpsc::channel::<OnItsWay<ToBroker>>(PACKETS_MAX);
        let broker = self.clone();
        tokio::spawn(async move {
            while let Some((due, packet)) = packets.recv().await {
                pass_until(due).await;
                broker.receive(serial, packet);
            }
        });
        sender
    }

    fn receive(&self, serial: u64, packet: ToBroker) {
        let mut queue = self.queue.lock();
        let Some(client) = queue.client.as_ref().filter(|client| client.serial == serial) else { return };
        let taken = match packet {
            ToBroker::Publish(packet, publication) => {
                let _ = client.confirmations.try_send((self.arrival(), packet));
                Published::read(&publication).map(Happening::Passed)
            }
            ToBroker::Acknowledge(number) => {
                let at = queue.unacknowledged.iter().position(|message| message.number == number);
                at.and_then(|at| queue.unacknowledged.remove(at)).map(Happening::Acknowledged)
            }
        };
        drop(queue);
        taken.into_iter().for_each(|what| self.chronicle.note("broker", what));
    }
}

impl Connection {
    pub fn publish(&self, packet: u64, publication: Publication) {
        // A connection that is full is about to be closed, and everything is sent again.
        let _ = self.publishing.try_send((self.broker.arrival(), ToBroker::Publish(packet, publication)));
    }

    pub fn acknowledge(&self, number: u64) {
        let _ = self.acknowledging.try_send((self.broker.arrival(), ToBroker::Acknowledge(number)));
    }
}

/// A direction to a client: what is sent arrives after a while, in order.
fn delayed<T: Send + 'static>() -> (mpsc::Sender<OnItsWay<T>>, mpsc::Receiver<T>) {
    let (sender, mut packets) = mpsc::channel::<OnItsWay<T>>(PACKETS_MAX);
    let (arrives, arrived) = mpsc::channel(PACKETS_MAX);
    tokio::spawn(async move {
        while let Some((due, packet)) = packets.recv().await {
            pass_until(due).await;
            if arrives.send(packet).await.is_err() {
                return;
            }
        }
    });
    (sender, arrived)
}
