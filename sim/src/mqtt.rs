//! A gate for MQTT: the real window, intake and gate (`solehold_mqtt_gate`, `solehold_client::gate`), driven as the
//! pump and the tenure of `solehold gate mqtt` drive them. Several processes take turns at one shard, by its lease.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use solehold_client::{
    AcquireError, ClientSession, Guard, ResourceName, SessionConfig, Surroundings, Token,
    chance::Chance as _,
    clock::{AlarmClock, Backoff, Clock},
    gate::{Gate, Verdict},
};
use solehold_core::key::{Name, ResourceKey};
use solehold_mqtt_gate::{
    Intake, Routes,
    shards::{SHARD_KIND, Shards},
    window::Window,
};
use tokio::task::JoinSet;

use crate::{
    broker::{Broker, Connection, Published},
    chance::SeededChance,
    chronicle::{Chronicle, Happening, Working},
    process::Process,
    remote::Remote,
    sink::gate_over,
    wire::Wire,
    world::{KINDS, TTL, tenant},
};

/// Between two attempts to acquire the shard.
const ASK_MS: (u64, u64) = (200, 1_500);
/// Between two attempts to connect, and to get a verdict: as the gate waits.
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };
const ASK_AGAIN: Backoff = Backoff { first: Duration::from_millis(50), cap: Duration::from_secs(2) };
/// How long it takes from looking at the guard to being connected.
const CONNECT_MS: (u64, u64) = (1, 60);
/// The most bytes of messages that are held back.
const HELD_BYTES_MAX: usize = 1 << 20;

fn shards() -> Shards {
    Shards::new("sim", 1).expect("a good name")
}

/// What the lease of the shard is on.
pub fn shard() -> ResourceName {
    ResourceName::new(SHARD_KIND, shards().id(0)).expect("a good name")
}

fn routes() -> Routes {
    Routes { prefix: "gated".to_owned(), strip: None, dead_letter: None }
}

fn intake() -> Intake {
    let kind = |kind| Name::new(kind).expect("a good name");
    Intake {
        patterns: vec!["data/{kind}/{key}".parse().expect("a pattern")],
        tenant: tenant(),
        kinds: KINDS.map(kind).to_vec(),
        token_field: "token".to_owned(),
        message_bytes_max: 1_024,
        topic_bytes_max: routes().topic_bytes_max(),
        takes_retained: false,
        shards: shards(),
        shard: 0,
        known: HashMap::new(),
    }
}

/// What a verdict was asked about, and the verdict.
type Answer = (ResourceKey, Token, Verdict);

enum Inbound {
    Delivered(Published),
    Confirmed(u64),
    News,
    Answered(Answer),
    Disconnected,
}

pub struct MqttGate {
    process: Arc<Process>,
    pub session: ClientSession,
    gate: Arc<Gate>,
    broker: Arc<Broker>,
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
}

impl MqttGate {
    /// Starts a gate; none if it could not open its session, and ended.
    pub async fn start(
        wire: &Arc<Wire>,
        chronicle: Arc<Chronicle>,
        broker: Arc<Broker>,
        chance: SeededChance,
    ) -> Option<Arc<Self>> {
        let process = wire.process.clone();
        let config = SessionConfig { ttl: TTL, ..SessionConfig::new(&process.name) };
        let surroundings = Surroundings { clock: process.clone(), chance: Arc::new(chance.branch()) };
        let session = ClientSession::open_in(surroundings, Remote::new(wire.clone(), None), config);
        let session = session.await.ok()?;
        chronicle.note(&process.name, Happening::Starts);
        let gate = Arc::new(gate_over(wire));
        let started = Arc::new(Self { process, session, gate, broker, chronicle, chance });
        tokio::spawn(started.clone().hold_shard());
        Some(started)
    }

    async fn rest(&self, time: Duration) {
        self.process.wait_until(self.process.now().plus(time)).await;
    }

    /// Asks for the shard again and again. A gate waits in line for it, but the engine counts that wait by the clock of
    /// this machine, which a world does not move.
    async fn hold_shard(self: Arc<Self>) {
        let shard = shard();
        loop {
            let acquired = self.session.try_acquire(SHARD_KIND, shard.key.as_str()).await;
            self.process.running().await;
            match acquired {
                Ok(guard) => self.serve(Arc::new(guard)).await,
                Err(AcquireError::SessionOver(_)) => return,
                Err(_) => self.rest(self.chance.millis(ASK_MS.0, ASK_MS.1)).await,
            }
        }
    }

    async fn serve(&self, guard: Arc<Guard>) {
        let token = guard.token().0;
        let working = Working { who: self.process.name.clone(), resource: guard.resource().clone(), token };
        let process = self.process.clone();
        let probed = Arc::downgrade(&guard);
        let probe = move || !process.is_dead() && probed.upgrade().is_some_and(|guard| guard.is_live());
        self.chronicle.begins(working, "has the shard", Box::new(probe));
        let _ = guard.run(self.stay_connected(&guard)).await;
        self.chronicle.ends(&self.process.name, guard.resource(), token, "lost");
    }

    /// Connects and reconnects until the lease is lost.
    async fn stay_connected(&self, guard: &Guard) {
        for failures in 1.. {
            self.process.running().await;
            if guard.check().is_err() {
                return;
            }
            self.rest(self.chance.millis(CONNECT_MS.0, CONNECT_MS.1)).await;
            self.pump(self.broker.connect()).await;
            self.rest(RECONNECT.wait(failures, self.chance.unit())).await;
        }
    }

    /// Forwards messages until the connection is lost.
    async fn pump(&self, mut connection: Connection) {
        let mut pump = Pump {
            around: self,
            intake: intake(),
            window: Window::new(routes(), HELD_BYTES_MAX),
            requests: JoinSet::new(),
            requested: BTreeSet::new(),
        };
        let mut news = Box::pin(self.gate.changed());
        loop {
            let inbound = tokio::select! {
                delivered = connection.deliveries.recv(), if pump.window.has_room() => {
                    delivered.map_or(Inbound::Disconnected, Inbound::Delivered)
                }
                confirmed = connection.confirmations.recv() => {
                    confirmed.map_or(Inbound::Disconnected, Inbound::Confirmed)
                }
                () = &mut news => Inbound::News,
                Some(Ok(answer)) = pump.requests.join_next() => Inbound::Answered(answer),
            };
            self.process.running().await;
            match inbound {
                Inbound::Disconnected => return,
                Inbound::News => {
                    news = Box::pin(self.gate.changed());
                    pump.reconsider();
                }
                Inbound::Delivered(message) => pump.arrived(&message),
                Inbound::Confirmed(packet) => pump.window.confirmed(packet),
                Inbound::Answered(answer) => pump.answered(answer),
            }
            pump.flush(&connection);
        }
    }
}

struct Pump<'a> {
    around: &'a MqttGate,
    intake: Intake,
    window: Window<u64>,
    requests: JoinSet<Answer>,
    requested: BTreeSet<ResourceKey>,
}

impl Pump<'_> {
    fn arrived(&mut self, published: &Published) {
        let message = published.message();
        let fate = self.intake.fate(&message);
        let gate = &self.around.gate;
        let ack = Some(published.number);
        self.window.arrive(ack, message, fate, &mut |resource, token| gate.judge(resource, token, None));
        self.request_verdicts();
    }

    fn reconsider(&mut self) {
        let gate = &self.around.gate;
        self.window.reconsider(&mut |resource, token| gate.judge(resource, token, None));
    }

    fn answered(&mut self, (resource, token, verdict): Answer) {
        self.requested.remove(&resource);
        let gate = &self.around.gate;
        self.window
            .answered(&resource, token, verdict, &mut |resource, token| gate.judge(resource, token, None));
        self.request_verdicts();
    }

    fn request_verdicts(&mut self) {
        let new = self.window.waiting().filter(|(resource, _)| !self.requested.contains(*resource));
        let new: Vec<_> = new.map(|(resource, token)| (resource.clone(), token)).collect();
        for (resource, token) in new {
            self.requested.insert(resource.clone());
            let gate = self.around.gate.clone();
            let process = self.around.process.clone();
            let chance = self.around.chance.branch();
            self.requests.spawn(async move {
                let verdict = decide(&gate, &process, &chance, &resource, token).await;
                (resource, token, verdict)
            });
        }
    }

    fn flush(&mut self, connection: &Connection) {
        while let Some((packet, publication)) = self.window.next_publication() {
            if let Some(passed) = Published::read(&publication) {
                self.around.chronicle.note(&self.around.process.name, Happening::LetPass(passed));
            }
            connection.publish(packet, publication);
        }
        while let Some(number) = self.window.next_ack() {
            connection.acknowledge(number);
        }
    }
}

/// Requests a verdict until there is one.
async fn decide(
    gate: &Gate,
    process: &Process,
    chance: &SeededChance,
    resource: &ResourceKey,
    token: Token,
) -> Verdict {
    for failures in 1.. {
        let verdict = gate.decide(resource, token, None).await;
        if !matches!(verdict, Verdict::Undecidable(doubt) if doubt.may_pass()) {
            return verdict;
        }
        process.wait_until(process.now().plus(ASK_AGAIN.wait(failures, chance.unit()))).await;
    }
    unreachable!("it asks again and again")
}
