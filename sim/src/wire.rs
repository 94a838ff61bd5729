//! The network between one process and the servers: it loses, delays and repeats requests and answers, each kind of
//! request in its own way, as it is told.
//!
//! A request that has left its process is on its way, whatever becomes of the process or of the task that waits for
//! the answer. It goes to one of the replicas, and answers come back after a while. Each request has a connection of
//! its own, as with HTTP, so any request may overtake any other. A wait in line ends some time after nobody waits for
//! its answer any more, as when a server notices that a connection was closed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use solehold_client::{AuthorityError, authority::Operation};
use tokio::{sync::oneshot, task::AbortHandle, time::Instant};

use crate::{
    brief::Brief,
    chance::SeededChance,
    chronicle::{Chronicle, Happening},
    process::Process,
    server::Server,
    stores::{REPLICAS, Stores},
    virtual_time::pass,
};

/// When a client gives up on a request that nobody answers, as one over HTTP does.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// The least time that a message takes, and the most in fair weather.
const LATENCY_MS: (u64, u64) = (1, 9);

/// What happens to requests of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Requests do not arrive, and it is known at once.
    Away,
    /// Requests do not arrive, and nobody says so.
    Silent,
    /// Requests arrive and are done, and the connection is lost before the answer comes back.
    AnswersLost,
    /// Requests arrive soon, and answers come after a while.
    Late(Duration),
    /// Requests arrive after a while, whether anyone still waits for them or not.
    Slow(Duration),
    /// Requests arrive soon, and once more after a while.
    Twice(Duration),
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Open,
    Heartbeat,
    Close,
    Acquire,
    Wait,
    Confirm,
    Release,
    Cancel,
    HandOver,
    CallOff,
    State,
    News,
    Plan,
    Watch,
    Head,
}

impl Kind {
    /// Those that may have a weather of their own.
    pub const WEATHERED: [Self; 13] = [
        Self::Open,
        Self::Heartbeat,
        Self::Acquire,
        Self::Wait,
        Self::Confirm,
        Self::Release,
        Self::Cancel,
        Self::HandOver,
        Self::CallOff,
        Self::State,
        Self::News,
        Self::Plan,
        Self::Watch,
    ];

    /// What an operation is; operations of several kinds are never sent together.
    pub fn of(operations: &[Operation]) -> Self {
        match operations.first() {
            Some(Operation::Acquire(_)) | None => Self::Acquire,
            Some(Operation::Renew(_)) => Self::Confirm,
            Some(Operation::Release { .. }) => Self::Release,
        }
    }
}

/// A weather while it lasts.
#[derive(Debug, Clone)]
struct Front {
    /// Of all kinds, if none is named.
    kind: Option<Kind>,
    weather: Weather,
    until: Instant,
}

/// What becomes of one request.
struct Passage {
    /// It arrives after this; none if it does not.
    there: Option<Duration>,
    /// Its answer takes this long; none if it does not come.
    back: Option<Duration>,
    /// It arrives once more, this long after the first time.
    again: Option<Duration>,
}

pub struct Wire {
    pub process: Arc<Process>,
    /// The name of the key that the process shows.
    key: Option<&'static str>,
    stores: Arc<Stores>,
    chronicle: Arc<Chronicle>,
    chance: SeededChance,
    /// Where it leads: the epoch of a store.
    epoch: AtomicU64,
    /// The highest epoch of which this process has been told.
    told: AtomicU64,
    fronts: Mutex<Vec<Front>>,
}

/// Ends a wait at the server some time after the client has hung up.
struct HangUp {
    request: AbortHandle,
    after: Duration,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        let request = self.request.clone();
        let after = self.after;
        if !request.is_finished() {
            tokio::spawn(async move {
                pass(after).await;
                request.abort();
            });
        }
    }
}

fn away(why: &str) -> AuthorityError {
    AuthorityError::Unreachable { why: why.to_owned(), retry_after: None, obstacle: None }
}

impl Wire {
    pub fn new(
        process: Arc<Process>,
        key: Option<&'static str>,
        stores: Arc<Stores>,
        chronicle: Arc<Chronicle>,
        chance: SeededChance,
    ) -> Arc<Self> {
        let epoch = AtomicU64::new(stores.newest());
        Arc::new(Self {
            process,
            key,
            stores,
            chronicle,
            chance,
            epoch,
            told: AtomicU64::new(0),
            fronts: Mutex::default(),
        })
    }

    /// The weather for requests of a kind, or of all, for a while.
    pub fn turns(&self, kind: Option<Kind>, weather: Weather, lasts: Duration) {
        self.fronts.lock().push(Front { kind, weather, until: Instant::now() + lasts });
    }

    /// Fair from now on, and it leads to the newest store.
    pub fn calms(&self) {
        self.fronts.lock().clear();
        self.leads_to(self.stores.newest());
    }

    /// From now on it leads to the store of this epoch.
    pub fn leads_to(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    fn weather(&self, kind: Kind) -> Option<Weather> {
        let now = Instant::now();
        let mut fronts = self.fronts.lock();
        fronts.retain(|front| now < front.until);
        let newest = fronts.iter().rev().find(|front| front.kind.is_none_or(|of| of == kind));
        newest.map(|front| front.weather)
    }

    fn latency(&self) -> Duration {
        self.chance.millis(LATENCY_MS.0, LATENCY_MS.1)
    }

    fn passage(&self, kind: Kind) -> Result<Passage, AuthorityError> {
        let fair = Passage { there: Some(self.latency()), back: Some(self.latency()), again: None };
        Ok(match self.weather(kind) {
            None => fair,
            Some(Weather::Away) => return Err(away("nobody answers")),
            Some(Weather::Silent) => Passage { there: None, ..fair },
            Some(Weather::AnswersLost) => Passage { back: None, ..fair },
            Some(Weather::Late(delay)) => Passage { back: fair.back.map(|time| time + delay), ..fair },
            Some(Weather::Slow(delay)) => Passage { there: fair.there.map(|time| time + delay), ..fair },
            Some(Weather::Twice(delay)) => Passage { again: Some(delay), ..fair },
        })
    }

    /// The epoch of the store that requests reach now, if it answers.
    fn reached(&self) -> Result<u64, AuthorityError> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        // A store that was failed over is fenced off, or it would be two authorities: no client could help that. What a
        // client must withstand is that it comes back after the client has heard of its successor.
        if epoch < self.stores.newest() && self.told.load(Ordering::Relaxed) <= epoch {
            return Err(away("it is not the primary any more"));
        }
        if self.stores.is_barred(epoch) {
            return Err(away("leases that it does not know of may be held"));
        }
        Ok(epoch)
    }

    /// What comes of a request, at the store that it leads to when it arrives.
    pub async fn through<T, R>(
        self: &Arc<Self>,
        kind: Kind,
        about: String,
        within: Duration,
        request: impl Fn(Arc<Server>) -> R + Send + Sync + 'static,
    ) -> Result<(u64, T), AuthorityError>
    where
        T: Brief + Send + 'static,
        R: Future<Output = T> + Send + 'static,
    {
        self.process.running().await;
        self.chronicle.note(&self.process.name, Happening::Sent(kind, about.clone()));
        let Passage { there, back, again } = self.passage(kind)?;
        let replica = self.chance.below(REPLICAS as u64) as usize;
        let (sender, answer) = oneshot::channel();
        let wire = self.clone();
        let on_its_way = tokio::spawn(async move {
            let Some(there) = there else { return std::future::pending().await };
            pass(there).await;
            let done = wire.done(kind, &about, replica, &request).await;
            let repeat = again.map(async |after| {
                pass(after).await;
                let _ = wire.done(kind, &about, replica, &request).await;
            });
            let lost = || Err(AuthorityError::Unknown("the connection was lost".to_owned()));
            pass(back.unwrap_or_default()).await;
            let _ = sender.send(if back.is_some() { done } else { lost() });
            if let Some(repeat) = repeat {
                repeat.await;
            }
        });
        let is_wait = matches!(kind, Kind::Wait | Kind::News | Kind::Watch);
        let after = self.latency();
        let hang_up = is_wait.then(|| HangUp { request: on_its_way.abort_handle(), after });
        let answered = tokio::time::timeout(within, answer).await;
        self.process.running().await;
        drop(hang_up);
        let answered = match answered {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(AuthorityError::Unknown("no answer in time".to_owned())),
        };
        let shown = match &answered {
            Ok((epoch, done)) => format!("{} from history {epoch}", done.brief()),
            Err(error) => error.to_string(),
        };
        self.chronicle.note(&self.process.name, Happening::Answered(kind, shown));
        answered
    }

    async fn done<T, R>(
        &self,
        kind: Kind,
        about: &str,
        replica: usize,
        request: &(impl Fn(Arc<Server>) -> R + Sync),
    ) -> Result<(u64, T), AuthorityError>
    where
        T: Brief,
        R: Future<Output = T> + Send,
    {
        let epoch = self.reached()?;
        let done = request(self.stores.replica(epoch, replica, self.key)).await;
        let shown = format!("{about}: {}", done.brief());
        self.chronicle.note(&self.process.name, Happening::Done(kind, epoch, shown));
        Ok((epoch, done))
    }

    /// How long the next part of a stream takes in this weather; for ever if it is lost in silence.
    pub async fn delay(&self, kind: Kind) -> Result<Duration, AuthorityError> {
        let passage = self.passage(kind)?;
        match (passage.there, passage.back) {
            (Some(there), Some(back)) => Ok(there + back),
            _ => std::future::pending().await,
        }
    }

    /// Whether a stream that was opened before would have been cut off by now.
    pub fn is_cut_off(&self, kind: Kind) -> bool {
        matches!(self.weather(kind), Some(Weather::Away)) || self.reached().is_err()
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub fn note(&self, what: Happening) {
        self.chronicle.note(&self.process.name, what);
    }

    /// Puts the store's epoch on what it answered.
    pub fn stamped(&self, epoch: u64) -> Option<u64> {
        self.told.fetch_max(epoch, Ordering::Relaxed);
        Some(epoch)
    }
}
