//! A tenure: one replica at a time holds the lease of a relay, and sends its events.
//!
//! [`compete`] waits for the lease until the server stops. While the lease is held, [`run`] reads events from the watch
//! into the window, sends them, and writes the cursor.

use std::{sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use solehold_client::{AcquireError, ClientSession, Embedded, Guard, SessionConfig};
use solehold_core::{event::Event, key::ResourceKey, time::Revision};
use solehold_engine::{
    EngineError,
    clock::BootTime,
    store::{Cursor, EventQuery},
    watch::{Filter, Frame, Watch, WatchError},
};
use tokio::sync::watch;

use super::{
    Message, Relay, WhenRefused,
    cursor::{self, CursorError, FencedCursor},
    sites::Sites,
    window::{Delivery, Failure, Fate, Window, WindowLimits},
};
use crate::metrics::RelayCount;

/// How long a replica that was killed keeps the relay.
const LEASE_TTL: Duration = Duration::from_secs(5);
const LINE_WAIT: Duration = Duration::from_secs(600);
/// After a failure of the store or of the lease.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The cursor is written at most this often: events sent since are sent again after a crash.
const WRITE_EVERY: Duration = Duration::from_millis(250);
/// How long events in flight get to be confirmed when the server stops.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// Events that are read and not confirmed.
const EVENTS_MAX: usize = 1_024;
/// Events that are sent and not confirmed.
pub(super) const IN_FLIGHT_MAX: usize = 32;

#[derive(Debug, thiserror::Error)]
enum TenureError {
    #[error(transparent)]
    Cursor(#[from] CursorError),
    #[error("cannot watch events: {0}")]
    Watch(#[from] WatchError),
    #[error("cannot read events: {0}")]
    Engine(#[from] EngineError),
}

/// The content of a message; an event is encoded when it is sent.
#[derive(Debug, Clone)]
enum Item {
    Event(Arc<Event>, u64),
    Gap(Arc<Message>),
}

/// Competes for the lease of the relay until the server stops, and sends events while it holds it.
pub async fn compete(relay: Arc<Relay>, node_id: String, mut stopping: watch::Receiver<bool>) {
    while !*stopping.borrow() {
        let session = tokio::select! {
            session = open(&relay, &node_id) => session,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        if let Err(error) = hold_with(&relay, &session, &mut stopping).await {
            tracing::warn!(relay = relay.name(), %error, "cannot acquire the lease of the relay; retrying");
        }
        session.close().await;
        let pause = tokio::time::timeout(RETRY_AFTER, stopping.wait_for(|stopping| *stopping));
        // After the pause or when stopping: the loop checks which.
        let _ = pause.await;
    }
}

/// Competes with one session, until the server stops or the session has ended.
async fn hold_with(
    relay: &Relay,
    session: &ClientSession,
    stopping: &mut watch::Receiver<bool>,
) -> Result<(), AcquireError> {
    loop {
        let acquired = tokio::select! {
            acquired = session.acquire_within(super::KIND, relay.name(), LINE_WAIT) => acquired,
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        };
        match acquired {
            Ok(guard) => {
                serve(relay, &guard, stopping).await;
                return Ok(());
            }
            Err(AcquireError::TimedOut { .. }) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens the session that the lease is attached to; retries without a limit.
async fn open(relay: &Relay, node_id: &str) -> ClientSession {
    let authority = Arc::new(Embedded::over(relay.engine.clone()).tenant(relay.key.tenant.clone()));
    let node: String = node_id.chars().take(60).collect();
    loop {
        // Two nodes with the same name must not end each other's sessions.
        let holder = format!("{node}.{:08x}", rand::random::<u32>());
        let ttl = LEASE_TTL.min(Duration::from_millis(relay.engine.ttl_max_ms()));
        let config = SessionConfig { ttl, ..SessionConfig::new(holder) };
        match ClientSession::open(authority.clone(), config).await {
            Ok(session) => return session,
            Err(error) => {
                tracing::warn!(relay = relay.name(), %error, "cannot open a session for the relay; retrying")
            }
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Sends under a lease until it is lost or the server stops.
async fn serve(relay: &Relay, guard: &Guard, stopping: &mut watch::Receiver<bool>) {
    let name = relay.name();
    let token = guard.token();
    relay.metrics.relay(name, RelayCount::Takeover);
    tracing::info!(relay = name, %token, "this node is now the active relay");
    match guard.run(run(relay, guard, stopping)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(relay = name, %error, "relay failed; restarting"),
        Err(lost) => {
            tracing::warn!(relay = name, %lost, "lost the lease of the relay; competing for it again")
        }
    }
}

async fn run(relay: &Relay, guard: &Guard, stopping: &mut watch::Receiver<bool>) -> Result<(), TenureError> {
    cursor::begin(&relay.engine, &relay.config.name, relay.config.start_at).await?;
    let cursor = FencedCursor::take_over(&relay.engine, &relay.config.name, guard.token()).await?;
    let attempts_max = match relay.config.when_refused {
        WhenRefused::DeadLetter { attempts } => Some(attempts),
        WhenRefused::Block => None,
    };
    let limits = WindowLimits { events_max: EVENTS_MAX, in_flight_max: IN_FLIGHT_MAX, attempts_max };
    let window = Window::new(cursor.revision(), limits);
    // One cache per tenure: while another replica was active, resources may have been declared again.
    let sites = Sites::default();
    let mut tenure =
        Tenure { relay, cursor, window, sites: &sites, written: BootTime::from_ms(0), is_away: false };
    let mut watch = None;
    let mut in_flight = FuturesUnordered::new();
    loop {
        while let Some(delivery) = tenure.window.next(BootTime::now()) {
            in_flight.push(deliver(relay, &sites, delivery));
        }
        let events = match &mut watch {
            Some(watch) => watch,
            None => watch.insert(tenure.follow().await?),
        };
        tokio::select! {
            frame = events.next(), if tenure.window.has_room() => match frame {
                Some(frame) if tenure.take(&frame) => {}
                _ => watch = None,
            },
            Some((delivery, delivered)) = in_flight.next() => tenure.settle(&delivery, delivered),
            () = tokio::time::sleep(tenure.idle_for(BootTime::now())) => {}
            _ = stopping.wait_for(|stopping| *stopping) => break,
        }
        tenure.write_cursor(false).await?;
    }
    let settle = async {
        while let Some((delivery, delivered)) = in_flight.next().await {
            tenure.settle(&delivery, delivered);
        }
    };
    // The next tenure sends events again that are not settled by then.
    let _ = tokio::time::timeout(SETTLE_WITHIN, settle).await;
    tenure.write_cursor(true).await
}

struct Tenure<'a> {
    relay: &'a Relay,
    cursor: FencedCursor,
    window: Window<Item>,
    sites: &'a Sites,
    written: BootTime,
    /// Whether the destination could not be reached the last time.
    is_away: bool,
}

impl Tenure<'_> {
    /// Watches from where the window ends, by revision: a store that begins another history keeps its events under the
    /// same revisions, and continues above them (rule 23).
    async fn follow(&mut self) -> Result<Watch, TenureError> {
        let engine = &self.relay.engine;
        let after = self.window.read();
        let page = engine.events(&EventQuery { after, limit: 1, ..Default::default() }).await?;
        if page.floor > after {
            let at = page.events.first().map(|event| event.at);
            let at = match at {
                Some(at) => at,
                None => engine.load(&Default::default()).await?.now,
            };
            self.gap(after, page.floor, page.head.epoch, at);
        }
        if page.events.is_empty() {
            self.window.skip(page.head.revision);
        }
        let from = Cursor { epoch: page.head.epoch, revision: self.window.read() };
        Ok(engine.watch(Some(from), Filter::default()).await?)
    }

    fn gap(&mut self, after: Revision, floor: Revision, epoch: u64, at: solehold_core::time::StoreTime) {
        let relay = self.relay.name();
        let key = &self.relay.key;
        self.relay.metrics.relay(relay, RelayCount::Gap);
        tracing::error!(
            relay,
            after = after.0,
            up_to = floor.0,
            "events were dropped before they were sent; raise events.keep_max, or find out why the relay was behind"
        );
        self.sites.forget();
        let message = Message::gap(key, after, floor, epoch, at);
        self.window.offer(floor, key.clone(), Item::Gap(Arc::new(message)));
    }

    /// Takes in a frame; false, if the watch has ended.
    fn take(&mut self, frame: &Frame) -> bool {
        match frame {
            Frame::Event { event, cursor } if self.relay.wants(&event.key) => {
                let item = Item::Event(Arc::new((**event).clone()), cursor.epoch);
                self.window.offer(event.revision, event.key.clone(), item);
            }
            Frame::Event { cursor, .. } | Frame::Progress(cursor) => self.window.skip(cursor.revision),
            Frame::Renewed(_) | Frame::Snapshot(_) => {}
            Frame::Compacted { .. } => return false,
        }
        true
    }

    fn settle(&mut self, delivery: &Delivery<Item>, delivered: Result<(), Failure>) {
        let name = self.relay.name();
        let metrics = &self.relay.metrics;
        self.note_contact(&delivered);
        let Err(failure) = delivered else {
            let what = if delivery.condemned.is_some() { RelayCount::DeadLettered } else { RelayCount::Sent };
            metrics.relay(name, what);
            return self.window.confirmed(delivery.revision);
        };
        metrics.relay(name, RelayCount::Retried);
        if matches!(failure, Failure::Refused(_)) {
            metrics.relay(name, RelayCount::Refused);
        }
        let fate = self.window.failed(delivery.revision, &failure, BootTime::now(), rand::random());
        let revision = delivery.revision.0;
        let why = failure.why();
        match (fate, &failure) {
            (Fate::Condemned, _) => {
                let resource = resource(&delivery.message);
                tracing::error!(relay = name, revision, %resource, why, "event was refused; sending it to the dead letters");
            }
            (Fate::Retry, Failure::Refused(_)) => {
                tracing::warn!(relay = name, revision, why, "event was refused; retrying");
            }
            (Fate::Retry, _) => {
                tracing::debug!(relay = name, revision, why, "event was not delivered; retrying")
            }
        }
    }

    /// Logs when the destination becomes unreachable, and when it is reachable again.
    fn note_contact(&mut self, delivered: &Result<(), Failure>) {
        let name = self.relay.name();
        let is_away = matches!(delivered, Err(Failure::Away(_)));
        match delivered {
            Err(Failure::Away(why)) if !self.is_away => {
                tracing::warn!(relay = name, why, "cannot reach the destination; events wait in the store");
            }
            _ if self.is_away && !is_away => tracing::info!(relay = name, "destination is reachable again"),
            _ => {}
        }
        self.is_away = is_away;
    }

    /// How long to wait if nothing else happens.
    fn idle_for(&self, now: BootTime) -> Duration {
        let write_at =
            (self.window.cursor() > self.cursor.revision()).then(|| self.written.plus(WRITE_EVERY));
        let wake_at = self.window.wake_at().into_iter().chain(write_at).min();
        // Nothing is due: one wake-up per minute costs nothing.
        wake_at.map_or(Duration::from_secs(60), |wake| wake.since(now))
    }

    /// Writes the cursor if it has moved, at most every [`WRITE_EVERY`] unless `is_last`.
    async fn write_cursor(&mut self, is_last: bool) -> Result<(), TenureError> {
        let now = BootTime::now();
        let to = self.window.cursor();
        if to <= self.cursor.revision() || (!is_last && now < self.written.plus(WRITE_EVERY)) {
            return Ok(());
        }
        self.written = now;
        Ok(self.cursor.write(to).await?)
    }
}

fn resource(item: &Item) -> String {
    let key: &ResourceKey = match item {
        Item::Event(event, _) => &event.key,
        Item::Gap(message) => &message.resource,
    };
    format!("{} {}/{}", key.tenant, key.kind, key.key)
}

async fn deliver(
    relay: &Relay,
    sites: &Sites,
    delivery: Delivery<Item>,
) -> (Delivery<Item>, Result<(), Failure>) {
    let delivered = attempt(relay, sites, &delivery).await;
    (delivery, delivered)
}

async fn attempt(relay: &Relay, sites: &Sites, delivery: &Delivery<Item>) -> Result<(), Failure> {
    let message = match &delivery.message {
        Item::Gap(message) => message.clone(),
        Item::Event(event, epoch) => {
            let site = sites.of_event(&relay.engine, event).await;
            let site = site.map_err(|error| Failure::Away(error.to_string()))?;
            Arc::new(Message::of(event, *epoch, site))
        }
    };
    match &delivery.condemned {
        None => relay.destination.publish(&message).await,
        Some(why) => {
            let body = String::from_utf8_lossy(&message.body);
            tracing::error!(relay = relay.name(), event_id = %message.id, why, %body, "dead letter");
            relay.destination.dead_letter(&message, why).await
        }
    }
}

#[cfg(test)]
mod tests;
