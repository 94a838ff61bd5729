//! A simulated machine: one clock, one engine, and holders with a network each.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use solehold_client::{
    Embedded, Policy, Session, SessionConfig, Surroundings,
    chance::Chance,
    clock::{Clock, VirtualClock},
};
use solehold_core::{
    key::{Name, ResourceKey},
    outcome::LeaseView,
};
use solehold_engine::{
    Engine, EngineOptions,
    clock::{Tick, Ticks},
    resident,
};
use uuid::Uuid;

use crate::network::Network;

pub const TTL: Duration = Duration::from_secs(30);

/// The engine's clock is the same as the clients': what is simulated is not drift.
struct EngineTicks(Arc<VirtualClock>);

impl Ticks for EngineTicks {
    fn now(&self) -> Tick {
        Tick::from_ms(self.0.now().as_nanos() / 1_000_000)
    }
}

/// Chance that is the same at each run.
pub struct SeededChance(AtomicU64);

impl SeededChance {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub fn number(&self) -> u64 {
        // A Weyl sequence through a mixer.
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

impl Chance for SeededChance {
    fn unit(&self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
    fn id(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.number()) << 64 | u128::from(self.number()))
    }
}

pub struct World {
    pub clock: Arc<VirtualClock>,
    pub engine: Engine,
    pub chance: Arc<SeededChance>,
    authority: Arc<Embedded>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let store = resident::memory(EngineTicks(clock.clone())).expect("memory");
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        let authority = Arc::new(Embedded::over(engine.clone()));
        Self { clock, engine, authority, chance: Arc::new(SeededChance::new(seed)) }
    }

    /// A holder behind a network of its own.
    pub async fn holder(&self, name: &str, policy: Policy) -> (Session, Arc<Network>) {
        let network = Network::new(self.authority.clone());
        let config = SessionConfig { ttl: TTL, policy, ..SessionConfig::new(name) };
        let surroundings = Surroundings { clock: self.clock.clone(), chance: self.chance.clone() };
        let session = Session::open_in(surroundings, network.clone(), config).await.expect("a session");
        (session, network)
    }

    /// Lets time pass.
    pub async fn pass(&self, time: Duration) {
        let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
    }

    pub fn key(&self, kind: &str, key: &str) -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey { tenant: name("default"), kind: name(kind), key: name(key) }
    }

    /// Who holds it by the engine's word.
    pub async fn lease(&self, kind: &str, key: &str) -> Option<LeaseView> {
        let key = self.key(kind, key);
        let loaded = self.engine.resource(&key).await.expect("a read");
        let resource = loaded.state.resource(&key)?;
        let view = LeaseView::of(&loaded.state, resource, loaded.now).expect("loaded")?;
        (view.ttl_left_ms() > 0).then_some(view)
    }

    pub async fn holder_of(&self, kind: &str, key: &str) -> Option<String> {
        self.lease(kind, key).await.map(|view| view.lease.holder.to_string())
    }

    /// Declares a resource, so that its last token outlives its leases.
    pub async fn declare(&self, kind: &str, key: &str) {
        let declare = solehold_core::command::Command::Declare {
            key: self.key(kind, key),
            declaration: Default::default(),
            only_new: false,
        };
        self.engine.submit(declare).await.expect("an outcome").expect("declared");
    }
}
