//! One world: stores, servers, programs, agents, a gate and a watcher, and what is done to them.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_client::{LeaseId, ResourceName, SessionId, chance::Chance, clock::VirtualClock};
use solehold_core::{
    command::{Claim, Command, HandOver, StatusBy, Target},
    key::{Name, ResourceKey},
    outcome::LeaseView,
    session::HolderStatus,
};
use tokio::time::Instant;

use crate::{
    agent::Agent,
    broker::Broker,
    chance::SeededChance,
    chronicle::{Chronicle, Happening, Violation},
    consumer::Consumer,
    kafka::Kafka,
    mqtt::{self, MqttGate},
    plan::{Act, CHAOS, Plan, Step, Who},
    planner,
    process::{DRIFT_PPM_MAX, Process},
    program::{Asking, Program},
    sink::Sink,
    stores::Stores,
    tables::Tables,
    virtual_time::{pass, pass_until},
    watcher,
    wire::Wire,
};

pub const TTL: Duration = Duration::from_secs(6);
pub const PROGRAMS: usize = 3;
pub const AGENTS: usize = 2;
/// Gates for MQTT, which take turns.
pub const GATES: usize = 2;
/// Consumers of a Kafka partition, which take turns.
pub const CONSUMERS: usize = 2;
/// How long everything may take to come right when the faults are over.
const SETTLE: Duration = Duration::from_secs(30);
/// How often it is looked whether something went wrong.
const LOOK_EVERY: Duration = Duration::from_secs(1);
pub const KINDS: [&str; 3] = ["job", "lock", "camera"];
/// What programs ask for.
pub const JOBS: [(&str, &str); 3] = [("job", "a"), ("job", "b"), ("lock", "c")];
/// What agents are assigned.
pub const CAMERAS: [(&str, &str); 3] = [("camera", "x"), ("camera", "y"), ("camera", "z")];

pub fn resources() -> impl Iterator<Item = ResourceName> {
    let named = JOBS.into_iter().chain(CAMERAS);
    named.map(|(kind, key)| ResourceName::new(kind, key).expect("good names"))
}

/// What someone works on when everything is well.
fn worked_on() -> impl Iterator<Item = ResourceName> {
    resources().chain([mqtt::shard()])
}

/// The names of the keys: all programs show one, each agent its own, and the gate and the watcher only read.
pub const KEYS: [&str; 1 + AGENTS] = ["programs", "agent-0", "agent-1"];

fn key_of(who: Who) -> Option<&'static str> {
    let number = if who < PROGRAMS { 0 } else { 1 + who - PROGRAMS };
    KEYS.get(number).copied()
}

pub fn agent_name(n: usize) -> String {
    format!("agent-{n}")
}

pub fn tenant() -> Name {
    Name::new("default").expect("a short name")
}

pub fn resource_key(resource: &ResourceName) -> ResourceKey {
    ResourceKey::new(tenant(), resource.kind.clone(), resource.key.clone())
}

/// What came of a world.
pub struct Story {
    pub violation: Option<Violation>,
    /// How many things happened in it.
    pub steps: usize,
    /// How many acts its plan has.
    pub acts: usize,
    pub log: Vec<String>,
}

/// What runs in a process.
enum Inhabitant {
    Nobody,
    Program(Arc<Program>),
    Agent(Agent),
    MqttGate(Arc<MqttGate>),
}

/// A process, its wire, and what runs in it.
struct Place {
    wire: Arc<Wire>,
    inhabitant: Inhabitant,
}

struct World {
    clock: Arc<VirtualClock>,
    chronicle: Arc<Chronicle>,
    stores: Arc<Stores>,
    chance: SeededChance,
    sink: Arc<Sink>,
    broker: Arc<Broker>,
    kafka: Arc<Kafka>,
    tables: Arc<Tables>,
    /// How many leases each program registers for, if it registers.
    capacities: [Option<u32>; PROGRAMS],
    places: Vec<Mutex<Place>>,
}

/// Runs the world of a seed, without some steps of its plan.
pub async fn run(seed: u64, left_out: &[usize]) -> Story {
    let chance = SeededChance::new(seed);
    let plan = Plan::of(&chance.branch()).without(left_out);
    let began = Instant::now();
    let world = Arc::new(World::new(chance, plan.is_by_wall).await);
    for Step { at, act } in &plan.steps {
        let due = began + *at;
        while Instant::now() < due && world.chronicle.violation().is_none() {
            pass_until(due.min(Instant::now() + LOOK_EVERY)).await;
        }
        if world.chronicle.violation().is_some() {
            break;
        }
        world.chronicle.note("plan", Happening::Act(act.to_string()));
        world.act(act.clone()).await;
    }
    if world.chronicle.violation().is_none() {
        pass_until(began + CHAOS).await;
        world.settle().await;
    }
    let chronicle = &world.chronicle;
    Story {
        violation: chronicle.violation(),
        steps: chronicle.steps(),
        acts: plan.steps.len(),
        log: chronicle.log(),
    }
}

impl World {
    async fn new(chance: SeededChance, is_by_wall: bool) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let chronicle = Arc::new(Chronicle::new());
        let stores = Stores::new(clock.clone(), chronicle.clone(), chance.branch(), is_by_wall).await;
        let stores = Arc::new(stores);
        let gate = Process::new("gate".to_owned(), clock.clone(), drift(&chance));
        let gate = Wire::new(gate, None, stores.clone(), chronicle.clone(), chance.branch());
        let broker = Broker::new(chronicle.clone(), chance.branch());
        let kafka = Kafka::start(chronicle.clone(), chance.branch());
        let tables = Tables::new(clock.clone(), chronicle.clone(), chance.branch());
        let sink = Sink::new(&gate, chronicle.clone(), broker.clone());
        sink.ready().await;
        // The first one can hold everything.
        let capacity = |who| (who > 0 && chance.one_in(2)).then(|| 1 + chance.below(2) as u32);
        let capacities = std::array::from_fn(capacity);
        let places = Vec::new();
        let mut world =
            Self { clock, chronicle, stores, chance, sink, broker, kafka, tables, capacities, places };
        for who in 0..PROGRAMS + AGENTS + GATES + CONSUMERS {
            let wire = world.process(who);
            let place = world.started(who, wire).await;
            world.places.push(Mutex::new(place));
        }
        world.places.push(Mutex::new(Place { wire: gate, inhabitant: Inhabitant::Nobody }));
        let watcher = world.wired("watcher".to_owned(), None);
        tokio::spawn(watcher::watch(watcher.clone()));
        world.places.push(Mutex::new(Place { wire: watcher, inhabitant: Inhabitant::Nobody }));
        world
    }

    fn wired(&self, name: String, key: Option<&'static str>) -> Arc<Wire> {
        let process = Process::new(name, self.clock.clone(), drift(&self.chance));
        Wire::new(process, key, self.stores.clone(), self.chronicle.clone(), self.chance.branch())
    }

    fn process(&self, who: Who) -> Arc<Wire> {
        let name = match who.checked_sub(PROGRAMS) {
            None => format!("program-{who}"),
            Some(agent) if agent < AGENTS => agent_name(agent),
            Some(other) if other < AGENTS + GATES => format!("mqtt-{}", other - AGENTS),
            Some(other) => format!("consumer-{}", other - AGENTS - GATES),
        };
        self.wired(name, key_of(who))
    }

    async fn started(&self, who: Who, wire: Arc<Wire>) -> Place {
        let chance = self.chance.branch();
        let chronicle = self.chronicle.clone();
        let sink = self.sink.clone();
        let inhabitant = if who >= PROGRAMS + AGENTS + GATES {
            Consumer::start(wire.process.clone(), self.kafka.clone(), self.tables.clone(), chance);
            Inhabitant::Nobody
        } else if who >= PROGRAMS + AGENTS {
            let started = MqttGate::start(&wire, chronicle, self.broker.clone(), chance).await;
            started.map_or(Inhabitant::Nobody, Inhabitant::MqttGate)
        } else if who < PROGRAMS {
            let started = Program::start(&wire, chronicle, sink, chance, self.capacities[who]).await;
            started.map_or(Inhabitant::Nobody, Inhabitant::Program)
        } else {
            let started = Agent::start(&wire, chronicle, sink, chance).await;
            started.map_or(Inhabitant::Nobody, Inhabitant::Agent)
        };
        Place { wire, inhabitant }
    }

    /// The faults stop; after a while everything must be worked on.
    async fn settle(self: &Arc<Self>) {
        self.chronicle.note("plan", Happening::Calm);
        for agent in PROGRAMS..PROGRAMS + AGENTS {
            self.set_status(agent, HolderStatus::Active).await;
        }
        for (who, place) in self.places.iter().enumerate() {
            let wire = place.lock().wire.clone();
            wire.calms();
            wire.process.resume();
            self.ask_for_all(who);
        }
        let until = Instant::now() + SETTLE;
        let mut asked = Instant::now();
        while Instant::now() < until && self.chronicle.violation().is_none() && !self.is_settled() {
            pass(LOOK_EVERY).await;
            if Instant::now() >= asked + TTL + LOOK_EVERY {
                asked = Instant::now();
                (0..PROGRAMS).for_each(|who| self.ask_for_all(who));
            }
        }
        self.chronicle.note("plan", Happening::Remaining(self.remaining()));
        for resource in worked_on() {
            let works = self.chronicle.worker_on(&resource);
            self.chronicle.note("plan", Happening::Outcome(resource, works));
        }
    }

    /// What is left to do with the messages of the partition.
    fn remaining(&self) -> Option<String> {
        let (_, messages) = self.kafka.watermarks();
        self.tables.remaining(messages)
    }

    fn is_settled(&self) -> bool {
        self.remaining().is_none()
            && worked_on().all(|resource| self.chronicle.worker_on(&resource).is_some())
    }

    /// A program asks for whatever nobody works on.
    fn ask_for_all(&self, who: Who) {
        let Some(program) = self.program(who) else { return };
        for (kind, key) in JOBS {
            let job = ResourceName::new(kind, key).expect("good names");
            if self.chronicle.worker_on(&job).is_none() {
                program.ask_anyway(job, Asking::InLine, TTL);
            }
        }
    }

    fn wire(&self, who: Who) -> Arc<Wire> {
        self.places[who].lock().wire.clone()
    }

    /// The program there, if it runs.
    fn program(&self, who: Who) -> Option<Arc<Program>> {
        match &self.places[who].lock().inhabitant {
            Inhabitant::Program(program) if program.process.is_running() => Some(program.clone()),
            _ => None,
        }
    }

    async fn act(self: &Arc<Self>, act: Act) {
        match act {
            Act::Ask { who, what, how, wait } => self.with(who, |program| program.ask(what, how, wait)),
            Act::Release { who, patience } => self.with(who, |program| program.release(patience)),
            Act::LetGo { who } => self.with(who, |program| program.let_go()),
            Act::TakeOver { who, what, within, patience } => {
                self.with(who, |program| program.take_over(what, within, patience));
            }
            Act::Refresh { who } => self.with(who, |program| program.session.refresh()),
            Act::Offer { who, what } => self.offer(who, &what).await,
            Act::Revoke { what } => self.revoke(&what).await,
            Act::Weather { who, kind, weather, lasts } => self.wire(who).turns(kind, weather, lasts),
            Act::Pause { who, lasts } => self.pause(who, lasts),
            Act::Kill { who, back_after } => self.kill(who, back_after),
            Act::FailOver => self.fail_over().await,
            Act::LeadBack { who, lasts } => self.lead_back(who, lasts),
            Act::Crash { who } => self.crash(who),
            Act::CutBroker => self.broker.cut(),
            Act::StepClock { ms } => self.stores.step_clock(ms),
            Act::StallServer { replica, lasts } => self.stores.stall(replica, lasts),
            Act::RestartServer { replica } => self.stores.restart(replica).await,
            Act::Drain { who, lasts } => self.drain(who, lasts).await,
        }
    }

    fn with(&self, who: Who, act: impl FnOnce(&Arc<Program>)) {
        if let Some(program) = self.program(who) {
            act(&program);
        }
    }

    fn session(&self, who: Who) -> Option<SessionId> {
        match &self.places[who].lock().inhabitant {
            Inhabitant::Nobody => None,
            Inhabitant::Program(program) => program.session.id(),
            Inhabitant::Agent(agent) => agent.session.id(),
            Inhabitant::MqttGate(gate) => gate.session.id(),
        }
    }

    fn crash(&self, who: Who) {
        if let Inhabitant::Agent(agent) = &self.places[who].lock().inhabitant {
            agent.crash();
        }
    }

    /// An operator drains an agent, and takes it back into service after a while.
    async fn drain(self: &Arc<Self>, who: Who, lasts: Duration) {
        self.set_status(who, HolderStatus::Draining).await;
        let world = self.clone();
        tokio::spawn(async move {
            pass(lasts).await;
            world.set_status(who, HolderStatus::Active).await;
        });
    }

    async fn set_status(&self, who: Who, status: HolderStatus) {
        let holder = planner::holder(&agent_name(who - PROGRAMS));
        let server = self.stores.operated();
        // Refused if a store that has lost everything does not know it yet: then it is active there.
        let _ = server.decide(Command::SetStatus { holder, status, by: StatusBy::Operator }).await;
        server.planner.registry_changed();
    }

    async fn offer(&self, who: Who, what: &ResourceName) {
        let Some(session) = self.session(who) else { return };
        let key = resource_key(what);
        let lease = LeaseId::new(&key, self.chance.id());
        let ask = HandOver::new(key, lease, session, TTL.as_millis() as u64);
        let _ = self.stores.engine().submit(Command::HandOver(ask)).await;
    }

    /// It is held back until its holder must have stopped.
    async fn revoke(&self, what: &ResourceName) {
        let key = resource_key(what);
        let Ok(loaded) = self.stores.engine().resource(&key).await else { return };
        let Some(row) = loaded.state.resource(&key) else { return };
        let Ok(Some(view)) = LeaseView::of(&loaded.state, row, loaded.now) else { return };
        let target = Target::Resource(key);
        let claim = Claim { target, token: Some(view.lease.token), session: None, holder: None };
        let revoke = Command::Revoke { claim, fenced: false, reason: None };
        let _ = self.stores.engine().submit(revoke).await;
    }

    fn pause(&self, who: Who, lasts: Duration) {
        let process = self.wire(who).process.clone();
        process.pause();
        tokio::spawn(async move {
            pass(lasts).await;
            process.resume();
        });
    }

    fn kill(self: &Arc<Self>, who: Who, back_after: Duration) {
        let process = self.wire(who).process.clone();
        if process.is_dead() {
            return;
        }
        process.kill();
        let world = self.clone();
        tokio::spawn(async move {
            pass(back_after).await;
            let wire = world.process(who);
            *world.places[who].lock() = Place { wire: wire.clone(), inhabitant: Inhabitant::Nobody };
            let place = world.started(who, wire).await;
            *world.places[who].lock() = place;
        });
    }

    async fn fail_over(&self) {
        self.stores.fail_over(TTL).await;
        let newest = self.stores.newest();
        // Each finds out about it in its own time.
        for place in &self.places {
            let wire = place.lock().wire.clone();
            let after = self.chance.millis(0, TTL.as_millis() as u64 / 2);
            tokio::spawn(async move {
                pass(after).await;
                wire.leads_to(newest);
            });
        }
    }

    fn lead_back(&self, who: Who, lasts: Duration) {
        let wire = self.wire(who);
        let newest = self.stores.newest();
        wire.leads_to(1 + self.chance.below(newest));
        let stores = self.stores.clone();
        tokio::spawn(async move {
            pass(lasts).await;
            wire.leads_to(stores.newest());
        });
    }
}

/// How far a clock goes wrong, in millionths.
pub fn drift(chance: &SeededChance) -> i64 {
    chance.below(2 * DRIFT_PPM_MAX as u64 + 1) as i64 - DRIFT_PPM_MAX
}
