//! Leases: each has a task of its own, which writes its state and releases it, in the order of requests.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde_json::Value;
use solehold_api::{document::LeaseAttributes, kind, problem::ErrorCode};
use solehold_client::{
    AcquireError, Attributes, ClientSession, Guard, GuardError, HeldLease, LeaseId, ResourceName, Token,
    assignments::{Assigned, AssignmentError},
};
use solehold_clock::BootTime;
use tokio::{sync::mpsc, time::timeout};

use super::configurations::Configurations;
use crate::{
    machine::{Granted, WorkerId},
    worker::ToWorker,
};

/// Orders that wait for a lease's task; more checkpoints than this at once are not written.
const ORDERS_MAX: usize = 64;
/// Configurations that are read at once.
const READS_AT_ONCE: usize = 8;
/// When the configuration is read again of what was handed over.
const REFRESH_AFTER: Duration = Duration::from_secs(1);
/// How long to wait for a release; after that the lease expires.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// After the holder's last moment, so that the next attempt comes when it is over.
const AFTER_EXPIRY: Duration = Duration::from_millis(50);

/// What becomes of leases.
#[derive(Debug)]
pub enum LeaseNews {
    /// It was granted; and its configuration, if it has one.
    Won(ResourceName, Box<Guard>, Option<Value>),
    /// It was not, for this reason; it may be free after this time.
    NotWon(ResourceName, String, Option<Duration>),
    /// A lease is lost: which one, its guard knows.
    Lost,
    /// It expired, and was reclaimed under this token and id.
    WonBack(ResourceName, Token, LeaseId),
    /// The next holder requests a hand-over and waits until that time; none once the offer is withdrawn.
    HandOver(ResourceName, Option<(String, BootTime)>),
    /// It is released, or will run out.
    Released(ResourceName),
    /// Its configuration, which may have changed.
    Configured(ResourceName, Value),
    /// The server's assignments, and whether it knew that this runner drains.
    Assigned { told: Result<Assigned, AssignmentError>, as_draining: bool },
    /// Whether the server has recorded that this runner drains.
    Draining(Result<(), AssignmentError>),
    /// A worker of this run can be told to prepare, with what there is to know.
    Prepare(WorkerId, u32, Box<ToWorker>),
}

/// What the tasks need that request leases and read what belongs to them.
#[derive(Debug, Clone)]
pub struct LeaseRequests {
    pub session: ClientSession,
    pub configurations: Arc<Configurations>,
    pub news: mpsc::Sender<LeaseNews>,
}

impl LeaseRequests {
    pub fn acquire(self, resource: ResourceName, worker: Option<WorkerId>) {
        tokio::spawn(async move {
            let kind = resource.kind.as_str();
            let key = resource.key.as_str();
            // A lease has the versions that its holder knew: only cameras have any.
            let known = if kind == kind::CAMERA { self.configurations.of(&resource).await } else { None };
            let about = self.attributes(kind, worker, known.as_ref());
            let acquired = self.session.try_acquire_with(kind, key, about).await;
            self.tell_outcome(resource, acquired).await;
        });
    }

    /// Takes up a lease that the session holds.
    pub fn adopt(self, lease: HeldLease) {
        tokio::spawn(async move {
            let resource = lease.resource.clone();
            match self.session.adopt(&lease).await.transpose() {
                Some(adopted) => self.tell_outcome(resource, adopted).await,
                None => self.tell_not_won(resource, "the lease is no longer held".to_owned(), None).await,
            }
        });
    }

    /// Requests a hand-over from the present holder, or acquires the lease if it is free by now.
    pub fn take_over(
        self,
        resource: ResourceName,
        worker: Option<WorkerId>,
        config: Option<Value>,
        within: Duration,
    ) {
        tokio::spawn(async move {
            let kind = resource.kind.as_str();
            let key = resource.key.as_str();
            // Read before: between the holder's stop and the worker's assignment no work is done.
            let config = match config {
                Some(known) => Some(known),
                None => self.configurations.of(&resource).await,
            };
            let about = self.attributes(kind, worker, config.as_ref());
            let taken = match self.session.take_over_with(kind, key, within, about.clone()).await {
                Ok(Some(guard)) => {
                    let won = LeaseNews::Won(resource.clone(), Box::new(guard), config);
                    let _ = self.news.send(won).await;
                    // It may have changed since it was read. Others may be on their way now: they come first.
                    tokio::time::sleep(REFRESH_AFTER).await;
                    return self.refresh(vec![resource]);
                }
                Ok(None) => {
                    let why = "the holder did not release the lease in time".to_owned();
                    return self.tell_not_won(resource, why, None).await;
                }
                Err(AcquireError::Refused { refusal, .. }) if !refusal.is_worth_another_try() => {
                    tracing::debug!(%resource, %refusal, "server refused the hand-over; acquiring directly");
                    self.session.try_acquire_with(kind, key, about).await
                }
                Err(error) => Err(error),
            };
            self.tell_outcome(resource, taken).await;
        });
    }

    /// Reads what a worker prepares with, and then lets it be told: configuration and state as they are now. What
    /// cannot be read is left out; the final word comes with the grant.
    pub fn prepare(self, worker: WorkerId, run: u32, message: ToWorker) {
        let ToWorker::Prepare { id, resource, deadline_boottime_ms, .. } = message else { return };
        tokio::spawn(async move {
            let named = resource.split_once('/').and_then(|(kind, key)| ResourceName::new(kind, key).ok());
            let (config, state) = match &named {
                Some(named) => {
                    tokio::join!(self.configurations.of(named), self.configurations.last_state(named))
                }
                None => (None, None),
            };
            let message = ToWorker::Prepare { id, resource, state, config, deadline_boottime_ms };
            let _ = self.news.send(LeaseNews::Prepare(worker, run, Box::new(message))).await;
        });
    }

    /// Reads the configurations of all these again, a few at a time.
    pub fn refresh(self, resources: Vec<ResourceName>) {
        tokio::spawn(async move {
            for some in resources.chunks(READS_AT_ONCE) {
                let reads = join_all(some.iter().map(|resource| self.configurations.of(resource))).await;
                for (resource, config) in some.iter().zip(reads) {
                    if let Some(config) = config {
                        let _ = self.news.send(LeaseNews::Configured(resource.clone(), config)).await;
                    }
                }
            }
        });
    }

    async fn tell_outcome(&self, resource: ResourceName, acquired: Result<Guard, AcquireError>) {
        match acquired {
            Ok(guard) => {
                let config = self.configurations.of(&resource).await;
                let _ = self.news.send(LeaseNews::Won(resource, Box::new(guard), config)).await;
            }
            Err(AcquireError::Refused { refusal, .. }) => {
                let is_timed = matches!(refusal.code, ErrorCode::Held | ErrorCode::HeldBack);
                let after = refusal.retry_after.filter(|_| is_timed).map(|time| time + AFTER_EXPIRY);
                self.tell_not_won(resource, refusal.detail, after).await;
            }
            Err(error) => self.tell_not_won(resource, error.to_string(), None).await,
        }
    }

    async fn tell_not_won(&self, resource: ResourceName, why: String, retry_after: Option<Duration>) {
        let _ = self.news.send(LeaseNews::NotWon(resource, why, retry_after)).await;
    }

    /// What is kept with a lease: the worker that will work under it. On a camera that is its shard, with the versions
    /// of the configuration that is known.
    fn attributes(&self, of: &str, worker: Option<WorkerId>, config: Option<&Value>) -> Attributes {
        if of != kind::CAMERA {
            let name = worker.map(|worker| worker_name(self.session.holder(), worker));
            return name.map(|name| ("worker".to_owned(), name.into())).into_iter().collect();
        }
        let version =
            |field: &str| config.and_then(|config| config[field].as_str()).unwrap_or_default().to_owned();
        let about = LeaseAttributes {
            shard_id: worker.map(shard_id).unwrap_or_default(),
            config_version: version("config_version"),
            zone_version: version("zone_version"),
        };
        match serde_json::to_value(about) {
            Ok(Value::Object(fields)) => fields,
            _ => Attributes::new(),
        }
    }
}

/// What a worker is called in leases, in its files and in its environment: it keeps the name through restarts.
pub fn worker_name(runner: &str, worker: WorkerId) -> String {
    format!("{runner}/{worker}")
}

/// What a worker is called where camera pipelines look.
pub fn shard_id(worker: WorkerId) -> String {
    format!("shard-{worker}")
}

enum LeaseOrder {
    WriteState(Value),
    Release(Option<Value>, mpsc::Sender<LeaseNews>),
}

/// A lease that is held. Dropped without a release, it is left to its ttl: that its work has ended is not proven.
#[derive(Debug)]
pub struct LeaseTask {
    orders: mpsc::Sender<LeaseOrder>,
    guard: Arc<Guard>,
    /// The machine knows that it is lost.
    pub is_told: bool,
}

impl std::fmt::Debug for LeaseOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::WriteState(_) => "WriteState",
            Self::Release(..) => "Release",
        })
    }
}

impl LeaseTask {
    pub fn tend(guard: Guard, config: Option<Value>, news: mpsc::Sender<LeaseNews>) -> (Self, Granted) {
        let granted = Granted {
            token: guard.token().0,
            lease_id: guard.lease_id().0,
            state: guard.state(),
            sequence: guard.state_sequence(),
            config,
            trusted_until: guard.deadline(),
        };
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let guard = Arc::new(guard);
        tokio::spawn(tend(guard.clone(), taken, news));
        (Self { orders, guard, is_told: false }, granted)
    }

    pub fn lost(&self) -> Option<String> {
        self.guard.check().err().map(|lost| lost.to_string())
    }

    /// The local deadline. A lost lease keeps the one that it had.
    pub fn deadline(&self) -> BootTime {
        self.guard.deadline()
    }

    pub fn write_state(&self, document: Value) {
        if self.orders.try_send(LeaseOrder::WriteState(document)).is_err() {
            tracing::warn!(
                resource = %self.guard.resource(),
                "too many pending writes of the state document; dropping one"
            );
        }
    }

    /// Releases it; that is reported when it is done, or known not to be.
    pub fn release(self, state: Option<Value>, news: mpsc::Sender<LeaseNews>) {
        let Self { orders, guard, .. } = self;
        // The task that releases it needs it for itself.
        drop(guard);
        tokio::spawn(async move {
            let _ = orders.send(LeaseOrder::Release(state, news)).await;
        });
    }
}

type Writing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Writes and releases in the order asked for, and reports what happens to the lease meanwhile, however long a write
/// takes.
async fn tend(guard: Arc<Guard>, mut orders: mpsc::Receiver<LeaseOrder>, news: mpsc::Sender<LeaseNews>) {
    let mut is_told = false;
    let mut next_holder = None::<String>;
    let mut token = guard.token();
    let mut writing: Option<Writing> = None;
    let (state, news) = loop {
        tokio::select! {
            order = orders.recv(), if writing.is_none() => match order {
                Some(LeaseOrder::WriteState(document)) => writing = Some(Box::pin(write(guard.clone(), document))),
                Some(LeaseOrder::Release(state, news)) => break (state, news),
                None => {
                    // Dropping a guard releases its lease, and there is no proof that the work has ended.
                    std::mem::forget(guard);
                    return;
                }
            },
            () = written(&mut writing) => writing = None,
            next = guard.won_back(token), if !is_told => {
                token = next;
                let won = LeaseNews::WonBack(guard.resource().clone(), token, guard.lease_id());
                let _ = news.send(won).await;
            }
            offer = guard.offer_changed(next_holder.as_deref()), if !is_told => {
                next_holder = offer.as_ref().map(|(to, _)| to.clone());
                let _ = news.send(LeaseNews::HandOver(guard.resource().clone(), offer)).await;
            }
            _ = guard.lost(), if !is_told => {
                is_told = true;
                let _ = news.send(LeaseNews::Lost).await;
            }
        }
    };
    match Arc::into_inner(guard) {
        Some(guard) => release(guard, state, news).await,
        None => unreachable!("the driver gave its share up before it asked for the release"),
    }
}

async fn write(guard: Arc<Guard>, document: Value) {
    if let Err(error) = guard.write_state(&document).await {
        tracing::warn!(resource = %guard.resource(), %error, "cannot write the state document");
    }
}

/// Waits for the write that is under way, if there is one.
async fn written(writing: &mut Option<Writing>) {
    match writing {
        Some(writing) => writing.await,
        None => std::future::pending().await,
    }
}

async fn release(guard: Guard, state: Option<Value>, news: mpsc::Sender<LeaseNews>) {
    let resource = guard.resource().clone();
    // What was lost takes no last word any more, but that its work has ended: then it is not held back any longer.
    let state = state.filter(|_| guard.is_live());
    let released = timeout(RELEASE_MAX, async {
        match &state {
            Some(document) => guard.release_with(document).await,
            None => guard.release().await,
        }
    });
    match released.await {
        Ok(Ok(()) | Err(GuardError::Lost(_))) => {}
        Ok(Err(error)) => {
            tracing::warn!(%resource, %error, "cannot release the lease; it expires after its ttl")
        }
        Err(_) => tracing::warn!(%resource, "releasing the lease timed out; it expires after its ttl"),
    }
    let _ = news.send(LeaseNews::Released(resource)).await;
}
