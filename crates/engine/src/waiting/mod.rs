//! Waiting in line, as a replica does it for its clients (rule 15).
//!
//! ```text
//!   acquire_waiting -> in line (a row) ---- granted: told by the commit here, or by the tail of another replica's
//!        |                |                 out of time: leaves the line, unless the grant came first
//!        |                v                 dropped: leaves the line, and releases a grant that came first
//!        +--- attached to the waiting room: one session per replica, kept by one heartbeat however many wait
//! ```
//! Nobody polls: one task follows the events and wakes the callers that they are about. A room that was lost, because
//! the store was away for longer than its ttl, is opened anew, and all callers in it join the line again by the same
//! request, in the order in which they came, before any that come later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use solehold_core::{
    call::{Actor, Call},
    command::{Acquire, Claim, Command, Footprint, Target, Wait},
    event::{Event, What},
    key::{LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::LeaseStatus,
    limits::{ROOM_TTL_MS, SESSION_WAITERS_MAX, WAIT_MS_MAX},
    outcome::{Answer, Grant, LeaseView, Outcome, Refusal},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
};
use uuid::Uuid;

use crate::{
    clock::BootTime,
    driver::Driver,
    error::EngineError,
    store::{Cursor, Store, StoreError},
    watch::{Filter, Frame, Hub},
};

/// A room is kept this often: many times within its ttl.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
/// A room that has been empty for this many heartbeats is closed.
const EMPTY_BEATS_MAX: u32 = 60;
/// Leaving the line is tried this many times; after that the wait's own deadline ends it.
const LEAVE_ATTEMPTS: u32 = 10;
/// How long to wait before something is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// The least that anyone waits: store time has milliseconds.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// How long a stopping engine tries to close its room; its ttl ends it anyway.
const CLOSE_WITHIN: Duration = Duration::from_millis(500);

/// What a caller in line is told.
enum Notice {
    /// It has got what it waits for.
    Granted,
    /// Its place may be lost: ask again.
    AskAgain,
}

/// A caller that waits here.
struct Caller {
    /// What it asks; the same request may ask anew elsewhere, and keeps its place there.
    ask: Acquire,
    by: Actor,
    /// How many came before it.
    arrival: u64,
    tell: oneshot::Sender<Notice>,
    /// Whether the store has it in line, as far as is known.
    is_in_line: bool,
}

/// All callers that wait here.
#[derive(Default)]
struct Callers {
    by_lease: BTreeMap<LeaseId, Caller>,
    /// How many there are for each resource.
    by_key: BTreeMap<ResourceKey, usize>,
    /// The number of callers that have ever come.
    arrivals: u64,
}

impl Caller {
    fn request(&self) -> Option<RequestKey> {
        let Acquire { key, holder, request, .. } = &self.ask;
        let request = request.clone()?;
        Some(RequestKey { resource: key.clone(), holder: holder.clone(), request })
    }
}

/// A replica's waiting room, and who waits in it.
pub(crate) struct WaitingRoom {
    store: Arc<dyn Store>,
    driver: Driver,
    hub: Arc<Hub>,
    /// Where those who are dropped outside of it can still leave from.
    runtime: Handle,
    room: tokio::sync::Mutex<Option<SessionId>>,
    /// Where the history stood before the room was opened: no grant to anyone in it comes earlier.
    opened_at: Mutex<Option<Cursor>>,
    was_opened: Notify,
    here: Mutex<Callers>,
    /// How many are here, to be asked on every commit.
    count: AtomicUsize,
    places: Arc<Semaphore>,
    is_stopping: AtomicBool,
}

/// How an attempt to get a lease went; none, if the place in line was lost, or may be: try again.
type Attempt = Option<Outcome>;

impl WaitingRoom {
    pub(crate) fn new(store: Arc<dyn Store>, driver: Driver, hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self {
            store,
            driver,
            hub,
            runtime: Handle::current(),
            room: tokio::sync::Mutex::default(),
            opened_at: Mutex::default(),
            was_opened: Notify::new(),
            here: Mutex::default(),
            count: AtomicUsize::new(0),
            places: Arc::new(Semaphore::new(SESSION_WAITERS_MAX as usize)),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Acquires, waiting in line for at most `wait`.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        mut ask: Acquire,
        by: Actor,
        wait: Duration,
    ) -> Result<Outcome, EngineError> {
        let began = BootTime::now();
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(EngineError::Stopping);
        }
        let Ok(permit) = self.places.clone().try_acquire_owned() else {
            return Ok(Err(Refusal::QueueFull { waiting: SESSION_WAITERS_MAX, where_: "at this replica" }));
        };
        let is_made_up = ask.request.is_none();
        if is_made_up {
            ask.request = Some(fresh_request()?);
        }
        let mut place = Place::take(self, &ask, by, permit);
        // What nobody else asks for here is mostly free, and got without a room; all others go straight to the end of
        // the line.
        if place.is_alone || wait < LEAST_WAIT {
            ask.wait = None;
            let outcome = self.driver.submit(place.call(&ask)).await?;
            if wait < LEAST_WAIT || !matches!(outcome, Err(Refusal::Held { .. } | Refusal::HeldBack { .. })) {
                place.give_up();
                return Ok(outcome);
            }
        }
        loop {
            let left = wait.saturating_sub(BootTime::now().since(began));
            if left < LEAST_WAIT {
                let outcome = self.out_of_time(&mut ask, &place).await?;
                place.give_up();
                return Ok(outcome);
            }
            let attempt = match self.attempt(&mut ask, left, &mut place).await {
                Ok(attempt) => attempt,
                // It asks by the same request, and so can ask again. Its place is lost only with its room.
                Err(error) if place.has_waited && !matches!(error, EngineError::Stopping) => {
                    tracing::debug!(%error, "a caller in line could not ask again yet");
                    tokio::time::sleep(RETRY_AFTER.min(left)).await;
                    None
                }
                Err(error) => return Err(error),
            };
            match attempt {
                // The grant lapsed before the caller heard of it. Nobody else knows of the request, so it may have
                // another.
                Some(Err(Refusal::RequestSpent(_))) if is_made_up => ask.request = Some(fresh_request()?),
                Some(outcome) => {
                    place.give_up();
                    return Ok(outcome);
                }
                None => {}
            }
            place.ask_anew(&mut ask);
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        ask: &mut Acquire,
        left: Duration,
        place: &mut Place,
    ) -> Result<Attempt, EngineError> {
        let room = self.room().await?;
        let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(WAIT_MS_MAX);
        ask.wait = Some(Wait { room, wait_ms });
        match self.driver.submit(place.call(ask)).await? {
            Ok(Answer::Waiting(_)) => self.stands_in_line(ask),
            Err(Refusal::NoSession { session, .. }) if session == room => {
                // All of it, even if this caller goes away meanwhile: others' places are at stake.
                let this = self.clone();
                let _ = self.runtime.spawn(async move { this.lost(room).await }).await;
                return Ok(None);
            }
            outcome => return Ok(Some(outcome)),
        }
        place.has_waited = true;
        match tokio::time::timeout(left, &mut place.told).await {
            Ok(Ok(Notice::Granted)) => {
                let granted = self.granted(ask).await?;
                Ok(granted.map(|grant| Ok(Answer::Granted(grant))))
            }
            Ok(Ok(Notice::AskAgain)) => Ok(None),
            Ok(Err(_)) => Err(EngineError::Stopping),
            // Out of time, which the caller finds out.
            Err(_) => Ok(None),
        }
    }

    /// Leaves the line, and asks one last time: a caller that has got the lease meanwhile is told so, others who holds
    /// it.
    async fn out_of_time(&self, ask: &mut Acquire, place: &Place) -> Result<Outcome, EngineError> {
        ask.wait = None;
        let leases = [place.former, Some(place.lease)].into_iter().flatten();
        let leave = leases.map(|lease| Command::LeaveQueue { key: ask.key.clone(), lease }.into());
        let calls = leave.chain([place.call(ask)]).collect();
        self.driver.submit_all(calls).await.pop().unwrap_or(Err(EngineError::Stopping))
    }

    /// The grant that an event was about, if it is still active.
    async fn granted(&self, ask: &Acquire) -> Result<Option<Grant>, StoreError> {
        let footprint = Footprint { resources: vec![ask.key.clone()], ..Default::default() };
        let loaded = self.store.load(&footprint).await?;
        let Some(resource) = loaded.state.resource(&ask.key) else { return Ok(None) };
        let view = LeaseView::of(&loaded.state, resource, loaded.now).ok().flatten();
        let its = view.filter(|view| view.lease.id == ask.lease && view.status == LeaseStatus::Active);
        let (state, revision) = (resource.state.clone(), loaded.cursor.revision);
        Ok(its.map(|lease| Grant { lease, state, revision, repeated: false }))
    }

    fn here(&self) -> MutexGuard<'_, Callers> {
        self.here.lock()
    }

    /// Adds a caller, which is found by the lease id that it asks by.
    fn enter(&self, ask: &Acquire, by: &Actor, arrival: u64) -> oneshot::Receiver<Notice> {
        let (tell, told) = oneshot::channel();
        let here = Caller { ask: ask.clone(), by: by.clone(), arrival, tell, is_in_line: false };
        self.here().by_lease.insert(ask.lease, here);
        told
    }

    fn stands_in_line(&self, ask: &Acquire) {
        if let Some(here) = self.here().by_lease.get_mut(&ask.lease) {
            (here.ask, here.is_in_line) = (ask.clone(), true);
        }
    }

    fn left_the_line(&self, lease: LeaseId) {
        if let Some(here) = self.here().by_lease.get_mut(&lease) {
            here.is_in_line = false;
        }
    }

    fn tell(&self, lease: LeaseId, told: Notice) {
        if let Some(here) = self.here().by_lease.get_mut(&lease) {
            let (gone, _) = oneshot::channel();
            // A caller that has just gone away does not hear it.
            let _ = std::mem::replace(&mut here.tell, gone).send(told);
        }
    }

    /// Tells those that events are about.
    pub(crate) fn committed(&self, events: &[Event]) {
        if self.count.load(Ordering::SeqCst) > 0 {
            events.iter().for_each(|event| self.heard_of(event));
        }
    }

    fn heard_of(&self, event: &Event) {
        if let What::Acquired(lease) = &event.what {
            self.tell(lease.id, Notice::Granted);
        }
    }

    fn all_ask_again(&self) {
        let in_line = |(id, here): (&LeaseId, &Caller)| here.is_in_line.then_some(*id);
        let all: Vec<LeaseId> = self.here().by_lease.iter().filter_map(in_line).collect();
        all.into_iter().for_each(|lease| self.tell(lease, Notice::AskAgain));
    }

    /// The room that is open, or a new one.
    async fn room(&self) -> Result<SessionId, EngineError> {
        let mut room = self.room.lock().await;
        match *room {
            Some(id) => Ok(id),
            None => self.open(&mut room).await,
        }
    }

    async fn open(&self, room: &mut Option<SessionId>) -> Result<SessionId, EngineError> {
        let opened_at = self.store.head().await?;
        let id = SessionId(Uuid::now_v7());
        let opened = self.driver.submit(Command::OpenRoom { id, ttl_ms: ROOM_TTL_MS }.into()).await?;
        opened.map_err(|refusal| StoreError::Unusable(format!("no waiting room: {refusal}")))?;
        *room = Some(id);
        *self.opened_at.lock() = Some(opened_at);
        self.was_opened.notify_one();
        Ok(id)
    }

    /// A room is over: everyone in it joins the line again, before any that come later.
    async fn lost(&self, id: SessionId) {
        // Callers that come meanwhile wait for the room.
        let mut room = self.room.lock().await;
        if room.take_if(|room| *room == id).is_none() {
            return;
        }
        if let Err(error) = self.stand_again(&mut room).await {
            tracing::debug!(%error, "those in a waiting room that was lost ask again by themselves");
            self.all_ask_again();
        }
    }

    /// Puts everyone in line again, in the order in which they came.
    async fn stand_again(&self, room: &mut Option<SessionId>) -> Result<(), EngineError> {
        let room = self.open(room).await?;
        let mut all: Vec<(u64, Acquire, Actor)> = {
            let here = self.here();
            let in_line = here.by_lease.values().filter(|h| h.is_in_line);
            in_line.map(|h| (h.arrival, h.ask.clone(), h.by.clone())).collect()
        };
        all.sort_by_key(|(arrival, ..)| *arrival);
        // How long each may still wait is bounded here by what it first asked for; its own time ends it.
        let again = |(_, ask, by): &(u64, Acquire, Actor)| {
            let wait = ask.wait.map(|wait| Wait { room, ..wait });
            Call { command: Command::Acquire(Acquire { wait, ..ask.clone() }), by: by.clone() }
        };
        let outcomes = self.driver.submit_all(all.iter().map(again).collect()).await;
        for ((_, ask, _), outcome) in all.iter().zip(outcomes) {
            match outcome {
                Ok(Ok(Answer::Waiting(_))) => {}
                Ok(Ok(Answer::Granted(_))) => self.tell(ask.lease, Notice::Granted),
                // It finds out by itself what has become of it.
                _ => self.tell(ask.lease, Notice::AskAgain),
            }
        }
        Ok(())
    }

    /// Keeps the room while anyone is in it, and passes on what happens at other replicas; for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.was_opened.notified().await;
            let from = self.opened_at.lock().take();
            tokio::select! {
                () = self.keep() => {}
                () = self.follow(from) => {}
            }
        }
    }

    /// Until the room is lost, or closed since nobody is in it.
    async fn keep(&self) {
        let (mut empty_beats, mut had_missing) = (0, false);
        loop {
            tokio::time::sleep(HEARTBEAT_EVERY).await;
            let Some(session) = *self.room.lock().await else { return };
            empty_beats = if self.count.load(Ordering::SeqCst) == 0 { empty_beats + 1 } else { 0 };
            if empty_beats > EMPTY_BEATS_MAX && self.close_if_empty().await {
                return;
            }
            let tenant = Name::rooms();
            let beat = Command::Heartbeat { tenant, session, holder: None, metrics: None };
            match self.driver.submit(beat.into()).await {
                Ok(Ok(Answer::Session(view))) => {
                    let in_line = self.here().by_lease.values().filter(|h| h.is_in_line).count();
                    let is_missing = (view.session.waiting as usize) < in_line;
                    // A grant is announced a little later than it is made: only callers that stay missing are looked
                    // for.
                    if is_missing && had_missing {
                        self.look_for_missing().await;
                    }
                    had_missing = is_missing;
                }
                Ok(_) => return self.lost(session).await,
                Err(error) => tracing::debug!(%error, "a waiting room could not be kept; it is tried again"),
            }
        }
    }

    /// A caller's place was cleared by other means than a grant: its session was closed, or its request cancelled
    /// elsewhere. One whose request stands in line by another call has not lost its place; it only waits for its time
    /// to be out.
    async fn look_for_missing(&self) {
        let all: Vec<_> = {
            let in_line = |(id, here): (&LeaseId, &Caller)| (here.ask.key.clone(), *id, here.request());
            self.here().by_lease.iter().filter(|(_, h)| h.is_in_line).map(in_line).collect()
        };
        let resources: BTreeSet<_> = all.iter().map(|(key, ..)| key.clone()).collect();
        let footprint = Footprint {
            resources: resources.into_iter().collect(),
            waiters: all.iter().map(|(key, id, _)| (key.clone(), *id)).collect(),
            requests: all.iter().filter_map(|(.., request)| request.clone()).collect(),
            ..Default::default()
        };
        let Ok(loaded) = self.store.load(&footprint).await else { return };
        for (_, lease, request) in all {
            let moved_to = request.and_then(|request| loaded.state.waiter_of_request(&request));
            match (loaded.state.waiter_of_lease(lease), moved_to) {
                (Some(_), _) => {}
                (None, Some(_)) => self.left_the_line(lease),
                (None, None) => self.tell(lease, Notice::AskAgain),
            }
        }
    }

    /// Follows the events of all replicas.
    async fn follow(&self, mut from: Option<Cursor>) {
        loop {
            if let Err(error) = self.follow_from(from.take()).await {
                tracing::debug!(%error, "the waiting room could not read the events");
            }
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn follow_from(&self, from: Option<Cursor>) -> Result<(), EngineError> {
        let start = match from {
            Some(cursor) => cursor,
            None => self.store.head().await?,
        };
        let watch = self.hub.clone().watch(Some(start), Filter::default()).await;
        let mut watch = watch.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        if from.is_none() {
            // What happened since it was last read is not known.
            self.all_ask_again();
        }
        while let Some(frame) = watch.next().await {
            match frame {
                Frame::Event { event, .. } => self.heard_of(&event),
                Frame::Compacted { .. } => break,
                Frame::Snapshot(_) | Frame::Renewed(_) | Frame::Progress(_) => {}
            }
        }
        Ok(())
    }

    async fn close_if_empty(&self) -> bool {
        let mut room = self.room.lock().await;
        if self.count.load(Ordering::SeqCst) > 0 {
            return false;
        }
        if let Some(session) = room.take() {
            // Its ttl ends it if this does not.
            let _ = self.driver.submit(Command::CloseSession { tenant: Name::rooms(), session }.into()).await;
        }
        true
    }

    /// Sends all callers away, and closes the room.
    pub(crate) async fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.here().by_lease.clear();
        let close = async {
            if let Some(session) = self.room.lock().await.take() {
                let _ =
                    self.driver.submit(Command::CloseSession { tenant: Name::rooms(), session }.into()).await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_WITHIN, close).await;
    }

    /// Leaves the line on behalf of a caller that has gone away, and releases what it got meanwhile.
    async fn leave(&self, key: ResourceKey, lease: LeaseId, by: &Actor) {
        let call = |command| Call { command, by: by.clone() };
        for _ in 0..LEAVE_ATTEMPTS {
            let left = self.driver.submit(call(Command::LeaveQueue { key: key.clone(), lease })).await;
            let left = match left {
                Ok(Ok(Answer::Granted(_))) => {
                    let target = Target::Lease { tenant: key.tenant.clone(), id: lease };
                    let claim = Claim { target, token: None, session: None, holder: None };
                    self.driver.submit(call(Command::Release { claim, state: None })).await
                }
                other => other,
            };
            match left {
                Ok(_) | Err(EngineError::Stopping) => return,
                Err(_) => tokio::time::sleep(RETRY_AFTER).await,
            }
        }
    }
}

fn fresh_request() -> Result<Name, StoreError> {
    Name::new(Uuid::now_v7().to_string()).map_err(|error| StoreError::Unusable(error.to_string()))
}

/// A caller's place. Dropping it before there was an answer leaves the line.
struct Place {
    room: Arc<WaitingRoom>,
    by: Actor,
    key: ResourceKey,
    lease: LeaseId,
    /// How many came before it.
    arrival: u64,
    /// What it asked by before: it may stand in line by that, if it never heard what became of asking anew.
    former: Option<LeaseId>,
    told: oneshot::Receiver<Notice>,
    /// Whether nobody else was here for the same resource.
    is_alone: bool,
    has_waited: bool,
    is_given_up: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Place {
    fn take(room: &Arc<WaitingRoom>, ask: &Acquire, by: Actor, permit: OwnedSemaphorePermit) -> Self {
        room.count.fetch_add(1, Ordering::SeqCst);
        let (is_alone, arrival) = {
            let mut here = room.here();
            here.arrivals += 1;
            let arrival = here.arrivals;
            let count = here.by_key.entry(ask.key.clone()).or_default();
            *count += 1;
            (*count == 1, arrival)
        };
        Self {
            is_alone,
            arrival,
            room: room.clone(),
            key: ask.key.clone(),
            lease: ask.lease,
            former: None,
            told: room.enter(ask, &by, arrival),
            by,
            has_waited: false,
            is_given_up: false,
            permit: Some(permit),
        }
    }

    /// The call by which it asks.
    fn call(&self, ask: &Acquire) -> Call {
        Call { command: Command::Acquire(ask.clone()), by: self.by.clone() }
    }

    /// Asks by another grant id from now on.
    fn ask_anew(&mut self, ask: &mut Acquire) {
        self.room.here().by_lease.remove(&self.lease);
        ask.lease = LeaseId::new(&ask.key, Uuid::new_v4());
        self.former = Some(std::mem::replace(&mut self.lease, ask.lease));
        self.told = self.room.enter(ask, &self.by, self.arrival);
    }

    /// There is nothing to leave.
    fn give_up(&mut self) {
        self.is_given_up = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        {
            let mut here = self.room.here();
            here.by_lease.remove(&self.lease);
            if let Some(count) = here.by_key.get_mut(&self.key) {
                *count -= 1;
                if *count == 0 {
                    here.by_key.remove(&self.key);
                }
            }
        }
        self.room.count.fetch_sub(1, Ordering::SeqCst);
        if self.is_given_up || self.room.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        let (room, key, permit) = (self.room.clone(), self.key.clone(), self.permit.take());
        let (leases, by) = ([Some(self.lease), self.former], self.by.clone());
        self.room.runtime.spawn(async move {
            for lease in leases.into_iter().flatten() {
                room.leave(key.clone(), lease, &by).await;
            }
            // The place is another's only now.
            drop(permit);
        });
    }
}
