//! Requests that were passed on and are not known to have ended.
//!
//! A gate that passes a request on does not know when the service has done it. A request with an old token that was
//! admitted in time may still run when the next holder's first request comes, and take effect after it. So a request
//! with a higher token waits until none with a lower one runs, and is refused if that takes too long. Whether the
//! caller of the older one still waits for its response makes no difference: [`Flight::run`] goes on without it.
//!
//! ```text
//!   board ──> running ── the work has ended ───────────────> gone
//!                |────── its end cannot be known ──> lost ── stays, and keeps newer tokens out
//!                └────── a newer token, and WhenOlder::Cut ─> gone, though it may still take effect
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    panic::resume_unwind,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use solehold_clock::BootTime;
use solehold_core::{key::ResourceKey, time::Token};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    admission::name_of,
    options::{FlightLimits, GateClock},
};

/// What a request does that meets older ones which have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenOlder {
    /// Waits for its patience, and is then refused: no effect of an older token follows one of a newer token.
    #[default]
    Refuse,
    /// Waits for its patience, then cuts them off and passes. What they began may still take effect afterwards: a
    /// connection that is closed does not stop a service.
    Cut,
}

/// The requests that were passed on and are not known to have ended, by resource.
#[derive(Debug)]
pub struct Flights {
    limits: FlightLimits,
    clock: GateClock,
    table: Mutex<FlightTable>,
    /// Counts those that have ended.
    ended: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FlightTable {
    by_resource: HashMap<ResourceKey, UnderWay>,
    /// Running and waiting, of all resources.
    places: usize,
}

/// The requests of one resource and its slots, by token and by the order of arrival.
#[derive(Debug, Default)]
struct UnderWay {
    running: BTreeMap<(Token, u64), RunningRequest>,
    waiting: usize,
    next: u64,
}

#[derive(Debug)]
struct RunningRequest {
    /// The slot that it is of, or 0 for the resource itself.
    slot: u32,
    cut: CancellationToken,
    since: BootTime,
    status: RequestStatus,
    /// A newer request was refused because of it, and the log has it.
    is_reported: bool,
}

impl RunningRequest {
    /// Whether a request of another token must not overlap with it. Slots are worked on side by side, and none of them
    /// beside the resource itself (rule 29).
    fn conflicts_with(&self, key: &ResourceKey) -> bool {
        self.slot == key.slot || self.slot == 0 || !key.is_slot()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestStatus {
    Attended,
    /// Its caller no longer waits for it.
    Unattended,
    /// Its end cannot be known.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlightsStatus {
    /// Requests that are not known to have ended, with those of the next two.
    pub running: usize,
    /// Of them, those whose caller no longer waits.
    pub unattended: usize,
    /// Of them, those whose end cannot be known: newer tokens of their resources stay out.
    pub lost: usize,
    /// Requests that wait for older ones.
    pub waiting: usize,
    /// How long the oldest has been running.
    pub oldest: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// Older ones have not ended.
    #[error(
        "{count} requests with a lower token have not ended in the service; the oldest has token {oldest} and has been \
         running for {}", seconds(.since)
    )]
    OlderRuns {
        count: usize,
        /// The lowest of their tokens.
        oldest: Token,
        /// Since when that one runs.
        since: Duration,
    },
    #[error("{0} requests {1} are running or waiting, which is the limit")]
    TooMany(usize, &'static str),
}

/// To a tenth of a second.
fn seconds(time: &Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

/// What became of work that was passed on.
#[derive(Debug)]
pub enum Ending<T> {
    /// It is over: the service has responded, or is known to do nothing more about it.
    Over(T),
    /// Nobody can know whether it goes on.
    Unknown(T),
}

/// It was given up for a request with a newer token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a request with a newer token came while this one was running and cut it off: it may have taken effect or not"
)]
pub struct WasCut;

/// One request that runs. It has ended when this is dropped.
#[derive(Debug)]
pub struct Flight {
    flights: Arc<Flights>,
    key: ResourceKey,
    id: (Token, u64),
    cut: CancellationToken,
    is_lost: bool,
}

impl Flight {
    /// Runs `work` in a task of its own, to its end, whether or not the caller waits for this future.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = Ending<T>> + Send + 'static,
    ) -> Result<T, WasCut> {
        let caller_is_gone = CancellationToken::new();
        let _caller = caller_is_gone.clone().drop_guard();
        match tokio::spawn(self.attend(caller_is_gone, work)).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime stops, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }

    async fn attend<T>(
        mut self,
        caller_is_gone: CancellationToken,
        work: impl Future<Output = Ending<T>>,
    ) -> Result<T, WasCut> {
        let mut work = std::pin::pin!(work);
        let mut is_attended = true;
        let ending = loop {
            tokio::select! {
                ending = &mut work => break ending,
                () = self.cut.cancelled() => return Err(WasCut),
                () = caller_is_gone.cancelled(), if is_attended => {
                    is_attended = false;
                    self.set_status(RequestStatus::Unattended);
                    tracing::info!(
                        resource = %self.resource(),
                        token = %self.id.0,
                        "caller disconnected; its request still runs in the service, and newer tokens wait for it"
                    );
                }
            }
        };
        match ending {
            Ending::Over(done) => Ok(done),
            Ending::Unknown(done) => {
                self.lose();
                Ok(done)
            }
        }
    }

    /// Nothing will tell when it ends, so it stays among those that run.
    fn lose(&mut self) {
        self.is_lost = true;
        self.set_status(RequestStatus::Lost);
        tracing::warn!(
            resource = %self.resource(),
            token = %self.id.0,
            "cannot tell when a request ends in the service; refusing newer tokens of its resource"
        );
    }

    fn set_status(&self, status: RequestStatus) {
        let mut table = self.flights.table.lock();
        let under_way = table.by_resource.get_mut(&self.key.whole());
        if let Some(entry) = under_way.and_then(|under_way| under_way.running.get_mut(&self.id)) {
            entry.status = status;
        }
    }

    fn resource(&self) -> String {
        name_of(&self.key)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.is_lost {
            self.flights.leave(&self.key, |under_way| under_way.running.remove(&self.id).is_some());
            self.flights.has_ended();
        }
    }
}

/// A request's place among those that wait. It is free again when this is dropped.
struct WaitingSlot<'a> {
    flights: &'a Flights,
    key: &'a ResourceKey,
}

impl Drop for WaitingSlot<'_> {
    fn drop(&mut self) {
        self.flights.leave(self.key, |under_way| {
            under_way.waiting -= 1;
            true
        });
    }
}

impl Flights {
    pub(super) fn new(limits: FlightLimits, clock: GateClock) -> Self {
        Self { limits, clock, table: Mutex::default(), ended: watch::Sender::new(0) }
    }

    /// Gives a place back, if `leaves` says that there was one.
    fn leave(&self, key: &ResourceKey, leaves: impl FnOnce(&mut UnderWay) -> bool) {
        let key = key.whole();
        let mut table = self.table.lock();
        if let Some(under_way) = table.by_resource.get_mut(&key) {
            let has_left = leaves(under_way);
            if under_way.running.is_empty() && under_way.waiting == 0 {
                table.by_resource.remove(&key);
            }
            table.places -= usize::from(has_left);
        }
    }

    /// Those that wait look again.
    fn has_ended(&self) {
        self.ended.send_modify(|count| *count += 1);
    }

    /// Takes a place for one that waits, if there is one.
    fn enter<'a>(&'a self, key: &'a ResourceKey) -> Result<WaitingSlot<'a>, NotBegun> {
        let mut table = self.table.lock();
        let of_resource = table.by_resource.get(&key.whole());
        let of_resource = of_resource.map_or(0, |under_way| under_way.running.len() + under_way.waiting);
        if table.places >= self.limits.total {
            return Err(NotBegun::TooMany(table.places, "in all"));
        }
        if of_resource >= self.limits.per_resource {
            return Err(NotBegun::TooMany(of_resource, "of this resource"));
        }
        table.places += 1;
        table.by_resource.entry(key.whole()).or_default().waiting += 1;
        Ok(WaitingSlot { flights: self, key })
    }

    /// Begins, if nothing with a lower token runs. The caller has a place.
    fn begin(self: &Arc<Self>, key: &ResourceKey, token: Token) -> Result<Flight, NotBegun> {
        let now = self.clock.0.now();
        let mut table = self.table.lock();
        let under_way = table.by_resource.entry(key.whole()).or_default();
        let below = under_way.running.range(..(token, 0));
        let mut below = below.filter(|(_, entry)| entry.conflicts_with(key));
        if let Some(((oldest, _), entry)) = below.next() {
            let since = now.since(entry.since);
            return Err(NotBegun::OlderRuns { count: 1 + below.count(), oldest: *oldest, since });
        }
        let id = (token, under_way.next);
        let cut = CancellationToken::new();
        under_way.next += 1;
        let status = RequestStatus::Attended;
        let slot = key.slot;
        let entry = RunningRequest { slot, cut: cut.clone(), since: now, status, is_reported: false };
        under_way.running.insert(id, entry);
        table.places += 1;
        Ok(Flight { flights: self.clone(), key: key.clone(), id, cut, is_lost: false })
    }

    /// Begins as soon as nothing with a lower token runs, within `patience`.
    pub async fn board(
        self: &Arc<Self>,
        key: &ResourceKey,
        token: Token,
        patience: Duration,
        when_older: WhenOlder,
    ) -> Result<Flight, NotBegun> {
        let _place = self.enter(key)?;
        if let Ok(flight) = tokio::time::timeout(patience, self.wait(key, token)).await {
            return Ok(flight);
        }
        match when_older {
            WhenOlder::Refuse => self.begin(key, token).inspect_err(|_| self.report(key, token)),
            WhenOlder::Cut => {
                self.cut_below(key, token);
                match tokio::time::timeout(patience, self.wait(key, token)).await {
                    Ok(flight) => Ok(flight),
                    Err(_) => self.begin(key, token),
                }
            }
        }
    }

    async fn wait(self: &Arc<Self>, key: &ResourceKey, token: Token) -> Flight {
        let mut ended = self.ended.subscribe();
        loop {
            if let Ok(flight) = self.begin(key, token) {
                return flight;
            }
            // The sender is ours.
            let _ = ended.changed().await;
        }
    }

    /// Lets those with a lower token give up, and forgets those that are lost.
    fn cut_below(&self, key: &ResourceKey, token: Token) {
        let mut table = self.table.lock();
        let Some(under_way) = table.by_resource.get_mut(&key.whole()) else { return };
        let before = under_way.running.len();
        under_way.running.retain(|(below, _), entry| {
            let conflicts = *below < token && entry.conflicts_with(key);
            if conflicts {
                entry.cut.cancel();
            }
            !conflicts || entry.status != RequestStatus::Lost
        });
        let forgotten = before - under_way.running.len();
        table.places -= forgotten;
        drop(table);
        self.has_ended();
    }

    /// Puts those that keep `token` out into the log, each once.
    fn report(&self, key: &ResourceKey, token: Token) {
        let now = self.clock.0.now();
        let mut table = self.table.lock();
        let Some(under_way) = table.by_resource.get_mut(&key.whole()) else { return };
        for ((older, _), entry) in under_way.running.range_mut(..(token, 0)) {
            if !entry.is_reported && entry.conflicts_with(key) {
                entry.is_reported = true;
                tracing::warn!(
                    resource = %name_of(&key.of_slot(entry.slot)),
                    token = %older,
                    newer = %token,
                    running_for = %seconds(&now.since(entry.since)),
                    "request is still running in the service; refusing newer tokens of its resource until it ends"
                );
            }
        }
    }

    /// Waits until nothing runs but what is lost.
    pub async fn all_ended(&self) {
        let mut ended = self.ended.subscribe();
        loop {
            let status = self.status();
            if status.running == status.lost {
                return;
            }
            let _ = ended.changed().await;
        }
    }

    pub fn status(&self) -> FlightsStatus {
        let now = self.clock.0.now();
        let table = self.table.lock();
        let mut status = FlightsStatus::default();
        for under_way in table.by_resource.values() {
            status.waiting += under_way.waiting;
            status.running += under_way.running.len();
            for entry in under_way.running.values() {
                status.unattended += usize::from(entry.status == RequestStatus::Unattended);
                status.lost += usize::from(entry.status == RequestStatus::Lost);
                status.oldest = status.oldest.max(now.since(entry.since));
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use solehold_clock::ManualClock;
    use solehold_core::key::Name;
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn key(key: &str) -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey::new(name("default"), name("scene"), name(key))
    }

    fn flights(limits: FlightLimits) -> Arc<Flights> {
        Arc::new(Flights::new(limits, GateClock(Arc::new(ManualClock::default()))))
    }

    async fn board(flights: &Arc<Flights>, token: u64, when_older: WhenOlder) -> Result<Flight, NotBegun> {
        flights.board(&key("lobby"), Token(token), LONG, when_older).await
    }

    async fn passes(flights: &Arc<Flights>, token: u64) -> Flight {
        board(flights, token, WhenOlder::Refuse).await.expect("nothing older runs")
    }

    #[tokio::test(start_paused = true)]
    async fn a_higher_token_waits_for_the_lower_ones() {
        let flights = flights(FlightLimits::default());
        let one = passes(&flights, 7).await;
        let two = passes(&flights, 7).await;
        let next = tokio::spawn({
            let flights = flights.clone();
            async move { passes(&flights, 8).await }
        });
        drop(one);
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        drop(two);
        let next = next.await.expect("it ends");
        assert_eq!(flights.status().running, 1);
        drop(next);
        assert!(flights.table.lock().by_resource.is_empty());
        assert_eq!(flights.table.lock().places, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_without_its_caller_and_keeps_newer_tokens_out() {
        let flights = flights(FlightLimits::default());
        let (end, ends) = oneshot::channel::<()>();
        let run = passes(&flights, 7).await.run(async move { Ending::Over(ends.await) });
        // The caller stops waiting, as after a timeout of its own.
        tokio::time::timeout(Duration::from_secs(1), run).await.expect_err("it has not ended");
        let refused = board(&flights, 9, WhenOlder::Refuse).await.expect_err("an older one runs");
        assert!(matches!(refused, NotBegun::OlderRuns { count: 1, oldest: Token(7), .. }), "{refused}");
        let status = flights.status();
        assert_eq!((status.running, status.unattended, status.waiting), (1, 1, 0));
        end.send(()).expect("it runs");
        drop(passes(&flights, 9).await);
        flights.all_ended().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_cannot_be_known_keeps_newer_tokens_out_unless_they_may_cut() {
        let flights = flights(FlightLimits::default());
        passes(&flights, 7).await.run(async { Ending::Unknown(()) }).await.expect("it is not cut");
        board(&flights, 9, WhenOlder::Refuse).await.expect_err("for good");
        assert_eq!(flights.status().lost, 1);
        drop(passes(&flights, 7).await);
        flights.all_ended().await;
        drop(board(&flights, 9, WhenOlder::Cut).await.expect("it was told to"));
        assert_eq!(flights.status(), FlightsStatus::default());
        assert_eq!(flights.table.lock().places, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_cut_gives_up_and_one_that_does_not_listen_keeps_newer_tokens_out() {
        let flights = flights(FlightLimits::default());
        let slow = passes(&flights, 7).await;
        let deaf = passes(&flights, 7).await;
        let slow = tokio::spawn(slow.run(std::future::pending::<Ending<()>>()));
        let refused = board(&flights, 9, WhenOlder::Cut).await.expect_err("one does not listen");
        assert!(matches!(refused, NotBegun::OlderRuns { count: 1, .. }), "{refused}");
        assert_eq!(slow.await.expect("it ends"), Err(WasCut));
        drop(deaf);
        drop(passes(&flights, 9).await);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_run_side_by_side_and_none_of_them_beside_the_resource() {
        let flights = flights(FlightLimits::default());
        let of = async |slot: u32, token: u64| {
            let key = key("lobby").of_slot(slot);
            flights.board(&key, Token(token), LONG, WhenOlder::Refuse).await
        };
        let first = of(1, 7).await.expect("nothing runs");
        let second = of(2, 8).await.expect("another slot");
        let refused = of(1, 9).await.expect_err("the slot's former holder runs");
        assert!(matches!(refused, NotBegun::OlderRuns { count: 1, oldest: Token(7), .. }), "{refused}");
        let refused = of(0, 10).await.expect_err("both slots run");
        assert!(matches!(refused, NotBegun::OlderRuns { count: 2, oldest: Token(7), .. }), "{refused}");
        drop((first, second));
        let alone = of(0, 10).await.expect("nothing older runs");
        of(1, 11).await.expect_err("the exclusive holder runs");
        drop(alone);
        drop(of(1, 11).await.expect("nothing older runs"));
        assert_eq!(flights.table.lock().places, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_bounded_per_resource_and_in_all() {
        let flights = flights(FlightLimits { per_resource: 2, total: 3 });
        let held = (passes(&flights, 7).await, passes(&flights, 7).await);
        let refused = board(&flights, 7, WhenOlder::Refuse).await.expect_err("full");
        assert_eq!(refused, NotBegun::TooMany(2, "of this resource"));
        let elsewhere = async |name: &str| flights.board(&key(name), Token(1), LONG, WhenOlder::Refuse).await;
        let third = elsewhere("hall").await.expect("another resource");
        assert_eq!(elsewhere("yard").await.expect_err("full"), NotBegun::TooMany(3, "in all"));
        drop((held, third));
        assert_eq!(flights.table.lock().places, 0);
    }
}
