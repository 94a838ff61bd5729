//! A network between a client and the engine: it loses requests, loses answers and delays both, as it is told.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use solehold_client::{
    Authority, AuthorityError, Embedded, Metrics, Resource, SessionId,
    authority::{Ask, Beat, Done, Granted, Held, Node, Operation, Reply, StateWrite},
};
use solehold_core::key::Name;

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
}

pub struct Network {
    authority: Arc<Embedded>,
    weather: Mutex<Weather>,
    /// How long one call may wait in line.
    pub wait_max: Mutex<Duration>,
    pub requests: AtomicUsize,
}

impl Network {
    pub fn new(authority: Arc<Embedded>) -> Arc<Self> {
        let wait_max = Mutex::new(authority.wait_max());
        Arc::new(Self { authority, weather: Mutex::default(), wait_max, requests: AtomicUsize::new(0) })
    }

    pub fn turns(&self, weather: Weather) {
        *self.weather.lock().expect("unhurt") = weather;
    }

    /// What comes of a request in this weather.
    async fn through<T>(&self, request: impl Future<Output = T>) -> Result<T, AuthorityError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let weather = *self.weather.lock().expect("unhurt");
        match weather {
            Weather::Fair => Ok(request.await),
            Weather::Away => {
                Err(AuthorityError::Unreachable { why: "nobody answers".to_owned(), retry_after: None })
            }
            Weather::Silent => std::future::pending().await,
            Weather::AnswersLost => {
                request.await;
                Err(AuthorityError::Unknown("the connection was lost".to_owned()))
            }
            Weather::Late(delay) => {
                let done = request.await;
                let _ = tokio::time::timeout(delay, std::future::pending::<()>()).await;
                Ok(done)
            }
        }
    }
}

#[async_trait]
impl Authority for Network {
    async fn open(&self, holder: &Name, ttl: Duration, metrics: &Metrics) -> Reply<Beat> {
        self.through(self.authority.open(holder, ttl, metrics)).await?
    }
    async fn heartbeat(&self, session: SessionId, metrics: &Metrics, within: Duration) -> Reply<Beat> {
        self.through(self.authority.heartbeat(session, metrics, within)).await?
    }
    async fn close(&self, session: SessionId) -> Reply<()> {
        self.through(self.authority.close(session)).await?
    }
    async fn submit(&self, operations: Vec<Operation>) -> Vec<Reply<Done>> {
        let count = operations.len();
        match self.through(self.authority.submit(operations)).await {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(error); count],
        }
    }
    async fn acquire_waiting(&self, ask: &Ask, wait: Duration) -> Option<Reply<Granted>> {
        match self.through(self.authority.acquire_waiting(ask, wait)).await {
            Ok(answer) => answer,
            Err(error) => Some(Err(error)),
        }
    }
    async fn cancel(&self, resource: &Resource, holder: &Name, request: &Name) -> Reply<()> {
        self.through(self.authority.cancel(resource, holder, request)).await?
    }
    async fn write_state(&self, held: &Held, write: &StateWrite) -> Reply<()> {
        self.through(self.authority.write_state(held, write)).await?
    }
    async fn nodes(&self) -> Result<Vec<Node>, AuthorityError> {
        self.through(self.authority.nodes()).await?
    }
    fn wait_max(&self) -> Duration {
        *self.wait_max.lock().expect("unhurt")
    }
}
