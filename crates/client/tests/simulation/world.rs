//! A simulated cluster: stores with one clock, and holders with a network and a clock of their own each.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use solehold_client::{
    ClientSession, Embedded, Policy, SessionConfig, Surroundings,
    chance::Chance,
    clock::{AlarmClock, BootTime, Clock, VirtualClock},
};
use solehold_core::{
    command::{Claim, Command, HandOver, Target},
    key::{LeaseId, Name, ResourceKey, SessionId},
    outcome::LeaseView,
    time::Revision,
};
use solehold_engine::{Engine, EngineOptions, resident};
use uuid::Uuid;

use crate::network::Network;

pub const TTL: Duration = Duration::from_secs(30);
/// How far a holder's clock may run apart from the store's, in millionths: 1 %.
pub const DRIFT_PPM_MAX: i64 = 10_000;

/// A holder's clock, which goes faster or slower than the stores'.
struct DriftingClock {
    store: Arc<VirtualClock>,
    ppm: i64,
}

impl DriftingClock {
    fn scaled(nanos: u64, by: i64, over: i64) -> u64 {
        (i128::from(nanos) * i128::from(by) / i128::from(over)) as u64
    }
}

impl Clock for DriftingClock {
    fn now(&self) -> BootTime {
        BootTime::from_nanos(Self::scaled(self.store.now().as_nanos(), 1_000_000 + self.ppm, 1_000_000))
    }
}

#[async_trait]
impl AlarmClock for DriftingClock {
    async fn wait_until(&self, until: BootTime) {
        let at_store = Self::scaled(until.as_nanos(), 1_000_000, 1_000_000 + self.ppm) + 1_000;
        self.store.wait_until(BootTime::from_nanos(at_store)).await;
    }
}

/// The store, and those that took its place by failing over: one for each epoch, which begins with 1.
pub struct Stores {
    clock: Arc<VirtualClock>,
    /// Each with the time until which it grants and renews nothing (rule 23).
    stores: Mutex<Vec<(Arc<Embedded>, BootTime)>>,
}

impl Stores {
    fn new(clock: Arc<VirtualClock>) -> Self {
        let stores = Mutex::new(vec![(Self::store(&clock), clock.now())]);
        Self { clock, stores }
    }

    fn store(clock: &Arc<VirtualClock>) -> Arc<Embedded> {
        let store = resident::memory(clock.clone()).expect("memory");
        Arc::new(Embedded::over(Engine::start(store, EngineOptions::default(), Arc::new(()))))
    }

    pub fn newest(&self) -> u64 {
        self.stores.lock().expect("unhurt").len() as u64
    }

    pub fn authority(&self, epoch: u64) -> Arc<Embedded> {
        self.stores.lock().expect("unhurt")[epoch as usize - 1].0.clone()
    }

    pub fn is_barred(&self, epoch: u64) -> bool {
        self.clock.now() < self.stores.lock().expect("unhurt")[epoch as usize - 1].1
    }

    /// Another store takes over that has lost everything: its tokens are above all others, and it waits until what it
    /// has lost has run out.
    async fn fail_over(&self) -> u64 {
        let store = Self::store(&self.clock);
        let above = Revision(self.newest() << 32);
        store.engine().submit(Command::RaiseRevision { above }).await.expect("an outcome").expect("raised");
        let mut stores = self.stores.lock().expect("unhurt");
        stores.push((store, self.clock.now().plus(TTL)));
        stores.len() as u64
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
    /// The stores' clock.
    pub clock: Arc<VirtualClock>,
    /// The first store.
    pub engine: Engine,
    seeds: SeededChance,
    pub stores: Arc<Stores>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let stores = Arc::new(Stores::new(clock.clone()));
        let engine = stores.authority(1).engine().clone();
        Self { clock, engine, stores, seeds: SeededChance::new(seed) }
    }

    /// A holder behind a network of its own.
    pub async fn holder(&self, name: &str, policy: Policy) -> (ClientSession, Arc<Network>) {
        self.holder_with(SessionConfig { ttl: TTL, policy, ..SessionConfig::new(name) }, 0).await
    }

    /// The same, kept as the configuration says, with a clock that goes faster than the stores' by so many millionths.
    pub async fn holder_with(&self, config: SessionConfig, ppm: i64) -> (ClientSession, Arc<Network>) {
        let network = Network::new(self.stores.clone());
        let clock: Arc<dyn AlarmClock> = match ppm {
            0 => self.clock.clone(),
            ppm => Arc::new(DriftingClock { store: self.clock.clone(), ppm }),
        };
        // Each has its own, so that nothing depends on who comes first to ask for it.
        let chance = Arc::new(SeededChance::new(self.seeds.number()));
        let surroundings = Surroundings { clock, chance };
        let session = ClientSession::open_in(surroundings, network.clone(), config).await.expect("a session");
        (session, network)
    }

    /// Another store takes over; gives its epoch. Networks lead where they did until they are told otherwise.
    pub async fn fail_over(&self) -> u64 {
        self.stores.fail_over().await
    }

    /// Ends the lease on a resource by force, if there is one. It is held back until the holder must have stopped.
    pub async fn revoke(&self, kind: &str, key: &str) -> bool {
        let Some(view) = self.lease(kind, key).await else { return false };
        let target = Target::Resource(self.key(kind, key));
        let claim = Claim { target, token: Some(view.lease.token), session: None, holder: None };
        let revoke = Command::Revoke { claim, fenced: false, reason: None };
        let newest = self.stores.authority(self.stores.newest());
        newest.engine().submit(revoke).await.expect("an outcome").is_ok()
    }

    /// An operator hands a resource over to a session; true if its holder is asked to.
    pub async fn offer(&self, kind: &str, key: &str, lease: LeaseId, to: SessionId) -> bool {
        let ask = HandOver::new(self.key(kind, key), lease, to, TTL.as_millis() as u64);
        let newest = self.stores.authority(self.stores.newest());
        newest.engine().submit(Command::HandOver(ask)).await.expect("an outcome").is_ok()
    }

    /// Lets time pass.
    pub async fn pass(&self, time: Duration) {
        let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
    }

    pub fn key(&self, kind: &str, key: &str) -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey::new(name("default"), name(kind), name(key))
    }

    /// Who holds it by the newest store's word.
    pub async fn lease(&self, kind: &str, key: &str) -> Option<LeaseView> {
        let key = self.key(kind, key);
        let newest = self.stores.authority(self.stores.newest());
        let loaded = newest.engine().resource(&key).await.expect("a read");
        let resource = loaded.state.resource(&key)?;
        let view = LeaseView::of(&loaded.state, resource, loaded.now).expect("loaded")?;
        (view.ttl_left_ms() > 0).then_some(view)
    }

    pub async fn holder_of(&self, kind: &str, key: &str) -> Option<String> {
        self.lease(kind, key).await.map(|view| view.lease.holder.to_string())
    }

    /// Declares a resource, so that its last token outlives its leases.
    pub async fn declare(&self, kind: &str, key: &str) {
        let declare =
            Command::Declare { key: self.key(kind, key), declaration: Default::default(), only_new: false };
        self.engine.submit(declare).await.expect("an outcome").expect("declared");
    }
}
