//! The engine: a store and everything that runs over it.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use solehold_core::{
    call::{Actor, Call},
    command::{Acquire, Footprint},
    event::{Change, Event},
    key::{LeaseId, Name, ResourceKey, SessionId},
    outcome::{LeaseView, Outcome, SessionView},
    record::Record,
    session::SessionOver,
    time::Revision,
};
use tokio::task::JoinHandle;

use crate::{
    driver::{Driver, DriverLimits},
    error::EngineError,
    flow::{self, Flow},
    health::Health,
    history::{Bar, Beginning},
    lease_sets::{LeaseSet, LeaseSetOutcome, LeaseSets},
    news::{KnownSet, SessionNews},
    observe::{Lane, Observer},
    store::*,
    sweeper::Sweeper,
    waiting::WaitingRoom,
    watch::{Filter, Hub, Watch, WatchError},
};

/// A task of the engine that panicked is started again after this long.
const RESTART_AFTER: Duration = Duration::from_millis(200);

/// How an engine runs.
#[derive(Debug, Clone, Copy)]
pub struct EngineOptions {
    pub driver: DriverLimits,
    pub retention: Retention,
    /// Most leases that are nominated for expiry per second: a mass expiry is spread (rule 11).
    pub sweep_per_second: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            driver: DriverLimits::default(),
            retention: Retention {
                events_ms: 7 * 24 * 60 * 60 * 1_000,
                events_max: 10_000_000,
                unsent_after: None,
            },
            sweep_per_second: 20_000,
        }
    }
}

/// A running engine. Clones share it.
#[derive(Clone)]
pub struct Engine {
    parts: Arc<Parts>,
}

struct Parts {
    store: Arc<dyn Store>,
    driver: Driver,
    health: Arc<Health>,
    hub: Arc<Hub>,
    waiting: Arc<WaitingRoom>,
    lease_sets: LeaseSets,
    unsent_after: Arc<Mutex<Option<Revision>>>,
    running: Mutex<Option<Tasks>>,
}

/// What runs until the engine is stopped.
struct Tasks {
    lanes: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("store", &self.parts.store.name()).finish()
    }
}

/// All that hear of the engine's work: the host's observer, watchers of renewals, and callers that wait in line.
struct Listeners {
    host: Arc<dyn Observer>,
    hub: Arc<Hub>,
    /// Made after the driver that it works with.
    waiting: Arc<OnceLock<Arc<WaitingRoom>>>,
}

impl Observer for Listeners {
    fn batch(&self, lane: Lane, commands: usize, took: Duration) {
        self.host.batch(lane, commands, took);
    }
    fn committed(&self, events: &[Event], renewals: &[Change]) {
        self.hub.renewed(renewals);
        if let Some(waiting) = self.waiting.get() {
            waiting.committed(events);
        }
        self.host.committed(events, renewals);
    }
    fn sessions_over(&self, sessions: &[SessionId]) {
        self.hub.notifier.sessions_over(sessions);
        self.host.sessions_over(sessions);
    }
    fn swept(&self, nominated: usize, lag_ms: u64) {
        self.host.swept(nominated, lag_ms);
    }
}

/// Runs a task of the engine until it is aborted; a task that panics is restarted.
fn run_for_ever<F>(what: &'static str, run: impl Fn() -> F + Send + 'static) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        while AssertUnwindSafe(run()).catch_unwind().await.is_err() {
            tracing::error!(task = what, "engine task panicked; restarting it");
            tokio::time::sleep(RESTART_AFTER).await;
        }
    })
}

impl Engine {
    /// Starts an engine over a store, in the current runtime.
    pub fn start(store: Arc<dyn Store>, options: EngineOptions, observer: Arc<dyn Observer>) -> Self {
        let health = Arc::new(Health::default());
        let hub = Hub::new(store.clone());
        let late = Arc::new(OnceLock::new());
        let observer: Arc<dyn Observer> =
            Arc::new(Listeners { host: observer, hub: hub.clone(), waiting: late.clone() });
        let (driver, lanes) = Driver::start(store.clone(), health.clone(), observer.clone(), options.driver);
        let waiting = WaitingRoom::new(store.clone(), driver.clone(), hub.clone());
        let waiting = late.get_or_init(|| waiting).clone();
        let unsent_after = Arc::new(Mutex::new(options.retention.unsent_after));
        let sweeper = Arc::new(Sweeper {
            unsent_after: unsent_after.clone(),
            store: store.clone(),
            driver: driver.clone(),
            health: health.clone(),
            observer,
            options,
        });
        let probed = store.clone();
        let prober = health.clone();
        let tail = hub.clone();
        let teller = hub.clone();
        let room = waiting.clone();
        let tasks = vec![
            run_for_ever("probe", move || prober.clone().probe(probed.clone())),
            run_for_ever("sweeper", move || sweeper.clone().run()),
            run_for_ever("watch", move || tail.clone().tail()),
            run_for_ever("renewals", move || teller.clone().send_renewals()),
            run_for_ever("waiting room", move || room.clone().run()),
        ];
        let running = Mutex::new(Some(Tasks { lanes, tasks }));
        let lease_sets = LeaseSets::default();
        let parts = Parts { store, driver, health, hub, waiting, lease_sets, unsent_after, running };
        Self { parts: Arc::new(parts) }
    }

    /// The kind of store: `memory`, `embedded` or `postgres`.
    pub fn store_name(&self) -> &'static str {
        self.parts.store.name()
    }

    /// How far the store's clock may run ahead of a holder's without being noticed, within one lease (rule 4).
    pub fn clock_slack_ms(&self) -> u64 {
        self.parts.store.clock_slack_ms()
    }

    pub fn ttl_max_ms(&self) -> u64 {
        self.parts.store.ttl_max_ms()
    }

    /// Submits a command and waits for its outcome.
    pub async fn submit(&self, call: impl Into<Call>) -> Result<Outcome, EngineError> {
        self.parts.driver.submit(call.into()).await
    }

    /// Acquires, waiting in line for at most `wait`: first come, first served, across all replicas (rule 15).
    ///
    /// A grant that was waited for must be confirmed by a renewal within [`LeaseView::confirm_within_ms`]; do not rely
    /// on it before. When `wait` has passed, the answer is the refusal that an acquire without waiting would get.
    /// Dropping the future leaves the line, and releases a grant that came first. A repeat of the same request, here or
    /// at another replica, takes over the place in line; the earlier call hears nothing until its own wait is over.
    pub async fn acquire_waiting(
        &self,
        acquire: Acquire,
        by: Actor,
        wait: Duration,
    ) -> Result<Outcome, EngineError> {
        self.parts.waiting.acquire(acquire, by, wait).await
    }

    /// Submits commands that are decided in their order, and waits for all outcomes.
    pub async fn submit_all<C: Into<Call>>(&self, calls: Vec<C>) -> Vec<Result<Outcome, EngineError>> {
        self.parts.driver.submit_all(calls.into_iter().map(Into::into).collect()).await
    }

    /// Refuses at once while the store is known not to answer, without asking it.
    pub fn check(&self) -> Result<(), EngineError> {
        self.parts.health.check()
    }

    /// Whether this process gets on: returns when both lanes have answered, and fails if one has died. A store that is
    /// unavailable is no failure: a restart of the process would not bring it back.
    pub async fn alive(&self) -> Result<(), EngineError> {
        self.parts.driver.alive().await
    }

    /// Refuses at once while the store is known not to answer, or can only be read.
    pub fn check_writable(&self) -> Result<(), EngineError> {
        self.check()?;
        Ok(self.parts.store.check_writable()?)
    }

    /// Asks the store whether it answers, and can be written.
    pub async fn ready(&self) -> Result<(), EngineError> {
        self.check()?;
        self.heard(self.parts.store.load(&Footprint::default()).await)?;
        self.check_writable()
    }

    /// Reads what `footprint` names, in one snapshot.
    pub async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, EngineError> {
        self.check()?;
        Ok(self.parts.store.load(footprint).await?)
    }

    /// Reads one resource, and the sessions that its leases are attached to.
    pub async fn resource(&self, key: &ResourceKey) -> Result<LoadedRows, EngineError> {
        self.load(&Footprint { resources: vec![key.clone()], ..Default::default() }).await
    }

    /// The live or unswept lease of that id, judged by time; none if it has ended.
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseView>, EngineError> {
        let loaded = self.load(&Footprint { leases: vec![id], ..Default::default() }).await?;
        let resource = loaded.state.resource_of(id).and_then(|key| loaded.state.resource(key));
        let Some(resource) = resource else { return Ok(None) };
        let view = LeaseView::of(&loaded.state, resource, loaded.now);
        Ok(view.ok().flatten().filter(|view| view.lease.id == id))
    }

    /// The live leases attached to a session that was just opened or renewed, as of its `lease_revision` all of them
    /// (rule 9): read in one snapshot, and only after they have changed. If the session was ended or superseded
    /// meanwhile, the answer is why, so that its leases are not taken for released.
    pub async fn lease_set(&self, view: &SessionView) -> Result<LeaseSetOutcome, EngineError> {
        if let Some(set) = self.parts.lease_sets.known(view) {
            return Ok(Ok(set));
        }
        let rows = self.load(&LeaseSet::footprint(view)).await?;
        Ok(self.parts.lease_sets.learn(view, &rows))
    }

    /// The same for a holder that names the set that it knows, by [`LeaseSet::cursor`]; none if that is the set still.
    /// Then nothing is read but the session, which was just renewed.
    pub async fn changed_lease_set(
        &self,
        view: &SessionView,
        known: Option<Cursor>,
    ) -> Result<Result<Option<LeaseSet>, SessionOver>, EngineError> {
        let present = Cursor { epoch: self.cursor().epoch, revision: view.session.lease_revision };
        if known == Some(present) {
            self.parts.lease_sets.forget(view.session.id);
            return Ok(Ok(None));
        }
        Ok(self.lease_set(view).await?.map(Some))
    }

    pub async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, EngineError> {
        self.check()?;
        Ok(self.parts.store.find_resources(query).await?)
    }

    pub async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, EngineError> {
        self.check()?;
        Ok(self.parts.store.find_holders(query).await?)
    }

    pub async fn records(&self, collection: &Name) -> Result<Vec<Record>, EngineError> {
        self.check()?;
        Ok(self.parts.store.records(collection).await?)
    }

    /// Reads events: of a lease, of a resource, or all.
    pub async fn events(&self, query: &EventQuery) -> Result<EventPage, EngineError> {
        self.check()?;
        Ok(self.parts.store.events(query).await?)
    }

    /// Keeps events after this revision beyond the age at which they would go, until it is moved: a relay has not sent
    /// them yet. The bound on their number stands.
    pub fn keep_unsent(&self, after: Option<Revision>) {
        *self.parts.unsent_after.lock() = after;
    }

    /// Watches events, from a cursor or from a snapshot of all leases.
    pub async fn watch(&self, from: Option<Cursor>, filter: Filter) -> Result<Watch, WatchError> {
        self.parts.hub.clone().watch(from, filter).await
    }

    /// Waits for news of one of the sessions, for at most `wait`: something has happened to its leases, or to resources
    /// that it holds, which its holder did not ask for. A heartbeat then says what. `from` is where the last inquiry
    /// ended. To a tenant, sessions of others do not exist.
    pub async fn session_news(
        &self,
        asked: &[KnownSet],
        tenant: Option<&Name>,
        from: Option<Cursor>,
        wait: Duration,
    ) -> Result<SessionNews, EngineError> {
        self.parts.hub.session_news(asked, tenant, from, wait).await
    }

    pub fn watchers(&self) -> usize {
        self.parts.hub.watchers()
    }

    /// The number of leases, resources and sessions, of one tenant or of all.
    pub async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, EngineError> {
        self.check()?;
        Ok(self.parts.store.usage(tenant).await?)
    }

    /// Everything, in one snapshot, piece by piece from header to end. If anything goes wrong, the end is missing.
    pub fn export(&self) -> Result<Flow<Vec<Row>>, EngineError> {
        self.check()?;
        Ok(flow::export(self.parts.store.clone()))
    }

    /// Where the history stands, as far as this process has seen.
    pub fn cursor(&self) -> Cursor {
        self.parts.store.cursor()
    }

    /// Seals a point of the history for a holder to show later; nothing, where cursors are not sealed.
    pub fn seal(&self, cursor: Cursor) -> Option<String> {
        self.parts.store.seal(cursor)
    }

    /// A holder shows a point of the history that was sealed for it: a store that is behind it was set back.
    pub async fn witness(&self, sealed: &str) -> Result<(), EngineError> {
        // A point that is known already is judged from memory: only a failure says anything about the store.
        match self.parts.store.witness(sealed).await {
            Ok(()) => Ok(()),
            failed => self.heard(failed),
        }
    }

    /// The store was set back to an earlier state: begins another history (rule 23).
    pub async fn set_back(&self, bar: Bar) -> Result<Beginning, EngineError> {
        self.heard(self.parts.store.set_back(None, bar).await)?;
        Ok(self.beginning(bar))
    }

    fn beginning(&self, bar: Bar) -> Beginning {
        let barred_ms = match bar {
            Bar::LongestTtl => self.parts.store.ttl_max_ms(),
            Bar::None => 0,
        };
        Beginning { cursor: self.cursor(), barred_ms }
    }

    /// Forgets that servers of this store once allowed a longer ttl than this one.
    pub async fn lower_ttl_max(&self, ttl_max_ms: u64) -> Result<(), EngineError> {
        self.heard(self.parts.store.lower_ttl_max(ttl_max_ms).await)
    }

    /// Retires the store: from now on it decides and shows nothing, and says where its data went.
    pub async fn retire(&self, to: &str) -> Result<(), EngineError> {
        self.heard(self.parts.store.retire(to).await)
    }

    /// Takes over an export, if the store is empty.
    pub async fn import(&self, import: Import) -> Result<Beginning, EngineError> {
        self.check()?;
        let bar = if import.header.retired { Bar::None } else { Bar::LongestTtl };
        self.heard(self.parts.store.import(import).await)?;
        Ok(self.beginning(bar))
    }

    /// Records the result of a write. Reads are not recorded: one that fails or times out does not mean that leases
    /// cannot be renewed. The lanes and the sweeper notice that soon enough.
    fn heard<T>(&self, result: Result<T, StoreError>) -> Result<T, EngineError> {
        self.parts.health.heard(&result);
        Ok(result?)
    }

    /// Answers the queued commands, then closes the store. Watches end.
    pub async fn stop(&self) {
        let running = self.parts.running.lock().take();
        let Some(Tasks { lanes, tasks }) = running else { return };
        self.parts.waiting.stop().await;
        for task in &tasks {
            task.abort();
        }
        self.parts.hub.stop();
        self.parts.driver.stop();
        for lane in lanes {
            // A lane that died was logged, and its callers got an unknown outcome.
            let _ = lane.await;
        }
        for task in tasks {
            // It was aborted; it only has to drop the store before that is closed.
            let _ = task.await;
        }
        self.parts.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::BootClock, resident};

    /// The store still answers, but commands would not be processed.
    #[tokio::test]
    async fn an_engine_that_has_died_is_not_ready() {
        let store = resident::memory(BootClock).expect("memory");
        let engine = Engine::start(store.clone(), EngineOptions::default(), Arc::new(()));
        engine.ready().await.expect("ready");
        engine.parts.health.died("a lane has died".to_owned());
        store.load(&Footprint::default()).await.expect("the store answers");
        assert!(engine.ready().await.is_err(), "ready");
        assert!(engine.load(&Footprint::default()).await.is_err(), "/readyz is answered by a load");
        engine.stop().await;
    }
}
