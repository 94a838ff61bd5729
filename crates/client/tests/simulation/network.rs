//! A network between a client and the stores: it loses requests, loses answers and delays both, as it is told, and
//! after a failover it leads to the one store or the other.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use solehold_client::{
    Authority, AuthorityError, Embedded, LeaseId, Metrics, ResourceName, SessionId, Token,
    authority::{
        AcquireRequest, Attributes, Beat, Completion, GrantedLease, HeartbeatAttempt, HeldLease, Node,
        Opening, Operation, Reply, StateDocument, StateWrite,
    },
};
use solehold_core::key::Name;
use uuid::Uuid;

use crate::world::Stores;

/// When a client gives up on a request that nobody answers, as one over HTTP does.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// What happens to what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weather {
    #[default]
    Fair,
    /// Requests do not arrive, and it is known at once.
    Away,
    /// Requests do not arrive, and nobody says so.
    Silent,
    /// Requests arrive and are done; answers do not come back.
    AnswersLost,
    /// Requests arrive at once, and answers come after a while.
    Late(Duration),
    /// Requests arrive after a while, whether anyone still waits for them or not, and are answered at once.
    Slow(Duration),
}

/// What is asked for: each can have a weather of its own, so that one request overtakes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Open,
    Heartbeat,
    Close,
    Acquire,
    Renew,
    Release,
    Cancel,
    HandOver,
    CallOff,
    State,
    Nodes,
}

impl Kind {
    /// What an operation is; operations of several kinds are never sent together.
    fn of(operations: &[Operation]) -> Self {
        match operations.first() {
            Some(Operation::Acquire(_)) | None => Self::Acquire,
            Some(Operation::Renew(_)) => Self::Renew,
            Some(Operation::Release { .. }) => Self::Release,
        }
    }
}

/// What answers say of the history.
#[derive(Debug, Clone, Default)]
pub struct Claims {
    pub epoch: Option<u64>,
    pub sealed_cursor: Option<String>,
    /// The token of every lease in a set.
    pub token: Option<Token>,
}

pub struct Network {
    stores: Arc<Stores>,
    /// Where it leads: the epoch of a store.
    epoch: AtomicU64,
    /// The highest epoch of which this client has been told.
    told: AtomicU64,
    weather: Mutex<Weather>,
    /// For some kinds of requests, instead of the general one.
    weather_of: Mutex<BTreeMap<Kind, Weather>>,
    /// What answers say of the history, instead of the truth.
    pub claims: Mutex<Claims>,
    /// What the client showed with each heartbeat.
    pub shown: Mutex<Vec<Option<String>>>,
    /// What the client asked to release.
    pub released: Mutex<Vec<HeldLease>>,
    /// How long one call may wait in line.
    pub wait_max: Mutex<Duration>,
    pub requests: AtomicUsize,
}

impl Network {
    pub fn new(stores: Arc<Stores>) -> Arc<Self> {
        let epoch = stores.newest();
        let wait_max = Mutex::new(stores.authority(epoch).wait_max());
        Arc::new(Self {
            stores,
            epoch: AtomicU64::new(epoch),
            told: AtomicU64::new(0),
            weather: Mutex::default(),
            weather_of: Mutex::default(),
            claims: Mutex::default(),
            shown: Mutex::default(),
            released: Mutex::default(),
            wait_max,
            requests: AtomicUsize::new(0),
        })
    }

    /// For all requests.
    pub fn turns(&self, weather: Weather) {
        *self.weather.lock().expect("unhurt") = weather;
        self.weather_of.lock().expect("unhurt").clear();
    }

    /// For requests of one kind.
    pub fn turns_for(&self, kind: Kind, weather: Weather) {
        self.weather_of.lock().expect("unhurt").insert(kind, weather);
    }

    fn weather(&self, kind: Kind) -> Weather {
        let special = self.weather_of.lock().expect("unhurt").get(&kind).copied();
        special.unwrap_or_else(|| *self.weather.lock().expect("unhurt"))
    }

    /// From now on it leads to the store of this epoch.
    pub fn leads_to(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// What comes of a request in this weather, at the store that it leads to.
    async fn through<T, R>(
        &self,
        kind: Kind,
        request: impl FnOnce(Arc<Embedded>) -> R,
    ) -> Result<(u64, T), AuthorityError>
    where
        T: Send + 'static,
        R: Future<Output = T> + Send + 'static,
    {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let away = |why: &str| AuthorityError::Unreachable {
            why: why.to_owned(),
            retry_after: None,
            obstacle: None,
        };
        let weather = self.weather(kind);
        let epoch = self.epoch.load(Ordering::Relaxed);
        // A store that was failed over is fenced off, or it would be two authorities: no client could help that. What a
        // client must withstand is that it comes back after the client has heard of its successor.
        if epoch < self.stores.newest() && self.told.load(Ordering::Relaxed) <= epoch {
            return Err(away("it is not the primary any more"));
        }
        if self.stores.is_barred(epoch) {
            return Err(away("leases that it does not know of may be held"));
        }
        let request = request(self.stores.authority(epoch));
        match weather {
            Weather::Fair => Ok((epoch, request.await)),
            Weather::Away => Err(away("nobody answers")),
            Weather::Silent => {
                let _ = tokio::time::timeout(REQUEST_TIMEOUT, std::future::pending::<()>()).await;
                Err(AuthorityError::Unknown("no answer in time".to_owned()))
            }
            Weather::AnswersLost => {
                request.await;
                Err(AuthorityError::Unknown("the connection was lost".to_owned()))
            }
            Weather::Late(delay) => {
                let done = request.await;
                let _ = tokio::time::timeout(delay, std::future::pending::<()>()).await;
                Ok((epoch, done))
            }
            Weather::Slow(delay) => {
                let on_its_way = tokio::spawn(async move {
                    let _ = tokio::time::timeout(delay, std::future::pending::<()>()).await;
                    request.await
                });
                let late = |_| AuthorityError::Unknown("no answer in time".to_owned());
                let done = tokio::time::timeout(REQUEST_TIMEOUT, on_its_way).await.map_err(late)?;
                Ok((epoch, done.expect("it is done")))
            }
        }
    }

    /// Puts the store's epoch on what it answered.
    fn stamped(&self, epoch: u64) -> Option<u64> {
        let epoch = self.claims().epoch.unwrap_or(epoch);
        self.told.fetch_max(epoch, Ordering::Relaxed);
        Some(epoch)
    }

    fn claims(&self) -> Claims {
        self.claims.lock().expect("unhurt").clone()
    }

    fn beat(&self, (epoch, answer): (u64, Reply<Beat>)) -> Reply<Beat> {
        let Claims { sealed_cursor, token, .. } = self.claims();
        let claimed = |leases: Arc<[HeldLease]>| match token {
            Some(token) => leases.iter().map(|held| HeldLease { token, ..held.clone() }).collect(),
            None => leases,
        };
        Ok(answer?.map(|beat| Beat {
            epoch: self.stamped(epoch),
            sealed_cursor,
            leases: claimed(beat.leases),
            ..beat
        }))
    }

    fn granted(&self, epoch: u64, granted: GrantedLease) -> GrantedLease {
        GrantedLease { epoch: self.stamped(epoch), ..granted }
    }
}

#[async_trait]
impl Authority for Network {
    async fn open(&self, opening: &Opening) -> Reply<Beat> {
        let opening = opening.clone();
        let open = async move |to: Arc<Embedded>| to.open(&opening).await;
        self.beat(self.through(Kind::Open, open).await?)
    }
    async fn heartbeat(
        &self,
        session: SessionId,
        metrics: &Metrics,
        sealed_cursor: Option<&str>,
        known: Option<&Beat>,
        attempt: HeartbeatAttempt,
    ) -> Reply<Beat> {
        let metrics = metrics.clone();
        let sealed = sealed_cursor.map(str::to_owned);
        self.shown.lock().expect("unhurt").push(sealed.clone());
        // A store knows its sets by its own epoch, not by the one that is claimed for it here.
        let epoch = self.claims().epoch.unwrap_or(self.epoch.load(Ordering::Relaxed));
        let known = known.filter(|known| known.epoch == Some(epoch)).cloned();
        let beat = async move |to: Arc<Embedded>| {
            to.heartbeat(session, &metrics, sealed.as_deref(), known.as_ref(), attempt).await
        };
        self.beat(self.through(Kind::Heartbeat, beat).await?)
    }
    async fn close(&self, session: SessionId) -> Reply<()> {
        self.through(Kind::Close, async move |to: Arc<Embedded>| to.close(session).await).await?.1
    }
    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Completion>> {
        let count = operations.len();
        let kind = Kind::of(&operations);
        let released = operations.iter().filter_map(|operation| match operation {
            Operation::Release { held, .. } => Some(held.clone()),
            Operation::Acquire(_) | Operation::Renew(_) => None,
        });
        self.released.lock().expect("unhurt").extend(released);
        let submit = async move |to: Arc<Embedded>| to.submit(operations).await;
        let (epoch, outcomes) = match self.through(kind, submit).await {
            Ok(done) => done,
            Err(error) => return vec![Err(error); count],
        };
        let stamped = |outcome: Reply<Completion>| {
            Ok(outcome?.map(|done| match done {
                Completion::Held(granted) => Completion::Held(self.granted(epoch, granted)),
                Completion::Released => Completion::Released,
            }))
        };
        outcomes.into_iter().map(stamped).collect()
    }
    async fn acquire_waiting(&self, ask: &AcquireRequest, wait: Duration) -> Option<Reply<GrantedLease>> {
        let ask = ask.clone();
        let acquire = async move |to: Arc<Embedded>| to.acquire_waiting(&ask, wait).await;
        match self.through(Kind::Acquire, acquire).await {
            Ok((epoch, answer)) => {
                Some(answer?.map(|outcome| outcome.map(|granted| self.granted(epoch, granted))))
            }
            Err(error) => Some(Err(error)),
        }
    }
    async fn cancel(&self, resource: &ResourceName, holder: &Name, request: &Name) -> Reply<()> {
        let resource = resource.clone();
        let holder = holder.clone();
        let request = request.clone();
        let cancel = async move |to: Arc<Embedded>| to.cancel(&resource, &holder, &request).await;
        self.through(Kind::Cancel, cancel).await?.1
    }
    async fn write_state(&self, held: &HeldLease, write: &StateWrite) -> Reply<()> {
        let held = held.clone();
        let write = write.clone();
        let write = async move |to: Arc<Embedded>| to.write_state(&held, &write).await;
        self.through(Kind::State, write).await?.1
    }
    async fn read_state(&self, resource: &ResourceName) -> Reply<Option<StateDocument>> {
        let resource = resource.clone();
        self.through(Kind::State, async move |to: Arc<Embedded>| to.read_state(&resource).await).await?.1
    }
    async fn token_before(&self, resource: &ResourceName, grant: Token) -> Reply<Option<Token>> {
        let resource = resource.clone();
        let read = async move |to: Arc<Embedded>| to.token_before(&resource, grant).await;
        self.through(Kind::State, read).await?.1
    }
    async fn hand_over(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
        attributes: &Attributes,
    ) -> Reply<LeaseId> {
        let resource = resource.clone();
        let attributes = attributes.clone();
        let ask = async move |server: Arc<Embedded>| {
            server.hand_over(&resource, request, to, within, &attributes).await
        };
        self.through(Kind::HandOver, ask).await?.1
    }
    async fn call_off(&self, resource: &ResourceName, pending: LeaseId) -> Reply<()> {
        let resource = resource.clone();
        let call_off = async move |to: Arc<Embedded>| to.call_off(&resource, pending).await;
        self.through(Kind::CallOff, call_off).await?.1
    }
    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        self.through(Kind::Nodes, async move |to: Arc<Embedded>| to.nodes().await).await?.1
    }
    fn wait_max(&self) -> Duration {
        *self.wait_max.lock().expect("unhurt")
    }
}
