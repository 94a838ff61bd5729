//! The store, those that took its place by failing over, and the replicas of the server over each.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use solehold_client::clock::{BootTime, Clock, VirtualClock};
use solehold_core::{
    command::Command,
    event::{Change, Event},
    key::Name,
    lease::Declaration,
    time::Revision,
};
use solehold_engine::{DriverLimits, Engine, EngineOptions, observe::Observer, resident, store::Store};
use solehold_server::{
    Role,
    keys::{self, NewKey},
};

use crate::{
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    planner::Planner,
    process::Process,
    server::Server,
    wall::{self, Database, WallStore},
    world::{CAMERAS, KEYS, drift, resource_key, resources},
};

/// Servers over each store.
pub const REPLICAS: usize = 2;

/// Writes down what is committed, in the order of commits.
struct Commits {
    epoch: u64,
    chronicle: Arc<Chronicle>,
}

impl Observer for Commits {
    fn committed(&self, events: &[Event], _renewals: &[Change]) {
        for event in events {
            self.chronicle.note("store", Happening::Committed(self.epoch, Box::new(event.clone())));
        }
    }
}

/// One server over a store.
struct Replica {
    engine: Engine,
    planner: Arc<Planner>,
}

/// A store by a wall clock, as each server sees it.
struct Walled {
    database: Arc<Database>,
    servers: Vec<Arc<WallStore>>,
}

struct History {
    replicas: Vec<Replica>,
    walled: Option<Walled>,
    /// The id of each key, by the key's name.
    keys: BTreeMap<&'static str, Name>,
    /// Until then it grants and renews nothing (rule 23).
    barred_until: BootTime,
}

/// One store for each epoch, which begins with 1.
pub struct Stores {
    clock: Arc<VirtualClock>,
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
    /// Whether time is a wall clock's, which servers correct.
    is_by_wall: bool,
    histories: Mutex<Vec<History>>,
}

impl Stores {
    pub async fn new(
        clock: Arc<VirtualClock>,
        chronicle: Arc<Chronicle>,
        chance: SeededChance,
        is_by_wall: bool,
    ) -> Self {
        let stores = Self { histories: Mutex::default(), clock, chronicle, chance, is_by_wall };
        let first = stores.history(1).await;
        stores.histories.lock().push(first);
        stores
    }

    /// The newest epoch.
    pub fn newest(&self) -> u64 {
        self.histories.lock().len() as u64
    }

    /// A replica, as one who shows the key of this name reaches it.
    pub fn replica(&self, epoch: u64, replica: usize, key: Option<&str>) -> Arc<Server> {
        let histories = self.histories.lock();
        let history = &histories[epoch as usize - 1];
        let Replica { engine, planner } = &history.replicas[replica];
        let key = key.and_then(|name| history.keys.get(name)).cloned();
        Arc::new(Server::new(engine.clone(), key, planner.clone()))
    }

    /// The newest store, as an operator reaches it.
    pub fn engine(&self) -> Engine {
        self.operated().engine().clone()
    }

    /// The server that operators use.
    pub fn operated(&self) -> Arc<Server> {
        self.replica(self.newest(), 0, None)
    }

    pub fn is_barred(&self, epoch: u64) -> bool {
        self.clock.now() < self.histories.lock()[epoch as usize - 1].barred_until
    }

    /// Another store takes over that has lost everything: its tokens are above all others, and it waits until what it
    /// has lost has run out.
    pub async fn fail_over(&self, ttl_max: Duration) {
        let epoch = self.newest() + 1;
        let history = self.history(epoch).await;
        let barred_until = self.clock.now().plus(ttl_max);
        self.histories.lock().push(History { barred_until, ..history });
    }

    /// Someone sets the wall clock of the newest store.
    pub fn step_clock(&self, ms: i64) {
        let histories = self.histories.lock();
        if let Some(Walled { database, .. }) = histories.last().and_then(|history| history.walled.as_ref()) {
            database.step(ms);
        }
    }

    /// A server of the newest store starts again, and knows nothing of the time that it has given.
    pub async fn restart(&self, replica: usize) {
        if let Some(server) = self.by_wall_clock(replica) {
            server.restart().await;
        }
    }

    /// A server of the newest store stands still for a while.
    pub fn stall(&self, replica: usize, lasts: Duration) {
        if let Some(server) = self.by_wall_clock(replica) {
            server.stall(lasts);
        }
    }

    fn by_wall_clock(&self, replica: usize) -> Option<Arc<WallStore>> {
        let histories = self.histories.lock();
        let walled = histories.last().and_then(|history| history.walled.as_ref());
        walled.map(|walled| walled.servers[replica].clone())
    }

    async fn by_wall(&self, epoch: u64) -> Walled {
        let database = Database::new(self.clock.clone());
        let rows = wall::rows(&database);
        let mut servers = Vec::new();
        for n in 0..REPLICAS {
            let drift = drift(&self.chance);
            let machine = Process::new(format!("server-{epoch}-{n}"), self.clock.clone(), drift);
            let chance = self.chance.branch();
            servers.push(WallStore::open(rows.clone(), database.clone(), machine, chance).await);
        }
        Walled { database, servers }
    }

    /// A new store for an epoch, with its keys and what is declared.
    async fn history(&self, epoch: u64) -> History {
        let walled = if self.is_by_wall { Some(self.by_wall(epoch).await) } else { None };
        let stores: Vec<Arc<dyn Store>> = match &walled {
            Some(walled) => walled.servers.iter().map(|server| server.clone() as Arc<dyn Store>).collect(),
            None => {
                let store = resident::simulated(self.clock.clone()).expect("a store in memory opens");
                vec![store; REPLICAS]
            }
        };
        let replica = |(n, store): (usize, Arc<dyn Store>)| {
            let commits = Arc::new(Commits { epoch, chronicle: self.chronicle.clone() });
            let engine = Engine::start(store, options(), commits);
            let name = format!("server-{n}");
            let clock = self.clock.clone();
            let planner = Planner::new(name, epoch, clock, self.chronicle.clone(), self.chance.branch());
            Replica { engine, planner }
        };
        let replicas: Vec<Replica> = stores.into_iter().enumerate().map(replica).collect();
        let engine = &replicas[0].engine;
        let above = Revision((epoch - 1) << 32);
        if above.0 > 0 {
            submit(engine, Command::RaiseRevision { above }).await;
        }
        let mut keys = BTreeMap::new();
        for name in KEYS {
            let new = NewKey::new(Name::new(name).expect("a good name"), Role::Runner);
            let issued = keys::create(engine, new).await.expect("a key");
            keys.insert(name, issued.key.id.clone());
        }
        let is_camera = |kind: &str| CAMERAS.iter().any(|(of, _)| *of == kind);
        for camera in resources().filter(|resource| is_camera(resource.kind.as_str())) {
            let key = resource_key(&camera);
            submit(engine, Command::Declare { key, declaration: Declaration::default(), only_new: false })
                .await;
        }
        History { replicas, walled, keys, barred_until: self.clock.now() }
    }
}

/// A busy engine does not wait for more commands: it counts that time by the clock of this machine.
fn options() -> EngineOptions {
    let driver = DriverLimits { wait_max: Duration::ZERO, ..DriverLimits::default() };
    EngineOptions { driver, ..EngineOptions::default() }
}

async fn submit(engine: &Engine, command: Command) {
    engine.submit(command).await.expect("an outcome").expect("a command that is not refused");
}
