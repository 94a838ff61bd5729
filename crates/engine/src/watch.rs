//! The watch hub: events in revision order, for any number of watchers, with bounded memory (rule 18).
//!
//! One task tails the store and keeps the newest events in one shared window. A watcher has no buffer of its own: it
//! reads from the window at its own pace, and from the store when it has fallen behind the window. If it has fallen
//! behind the store's floor it gets `compacted`. A watcher therefore cannot slow down others, and misses nothing
//! silently.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use solehold_core::{
    command::Footprint,
    event::{Change, Event},
    key::{Name, ResourceKey, SessionId},
    lease::LeaseStatus,
    outcome::LeaseView,
    time::Revision,
};
use tokio::sync::{Notify, broadcast, watch};

use crate::{
    clock::BootTime,
    error::EngineError,
    flow::{self, Flow},
    news::SessionNotifier,
    store::{Cursor, EventQuery, ResourcePage, ResourceQuery, Store, StoreError},
};

const WINDOW_EVENTS: usize = 8_192;
const PAGE_EVENTS: usize = 500;
/// Renewals that a watcher may be behind before it misses some.
const RENEWALS_BEHIND_MAX: usize = 1_024;
/// Resources in one page of a snapshot.
pub const SNAPSHOT_RESOURCES_AT_ONCE: usize = 500;
/// A silent watch gets a progress mark this often, if the store was read meanwhile.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// The tail keeps reading for this long after the last watcher has left, so that clients that poll find the events in
/// between.
const LINGER: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Selects the events of a watch. All given criteria must match.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub tenant: Option<Name>,
    pub kind: Option<Name>,
    /// Of this holder only; events that are about no holder are left out.
    pub holder: Option<Name>,
    pub renewals: bool,
}

impl Filter {
    fn wants(&self, key: &ResourceKey, holder: Option<&Name>) -> bool {
        self.tenant.as_ref().is_none_or(|t| *t == key.tenant)
            && self.kind.as_ref().is_none_or(|k| *k == key.kind)
            && self.holder.as_ref().is_none_or(|h| Some(h) == holder)
    }
}

#[derive(Debug, Clone)]
pub enum Frame {
    /// A page of all resources that match, and the leases on them: all pages are of one moment, and the last has no
    /// more after it. Resume the watch from its cursor.
    Snapshot(Box<ResourcePage>),
    Event {
        event: Box<Event>,
        /// Resume the watch from here.
        cursor: Cursor,
    },
    /// A lease was renewed at this replica; never replayed (rule 19).
    Renewed(Box<LeaseView>),
    /// Nothing else happened up to here, as just read from the store.
    Progress(Cursor),
    /// Events after the cursor are gone: take a snapshot.
    Compacted { floor: Cursor },
}

/// Why a watch cannot begin or continue.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WatchError {
    /// The engine is stopping, or its store could not be read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The cursor is ahead of the history: it is not from this store.
    #[error("cursor {}.{} is ahead of the history, which is at {}.{}; take a new snapshot", given.epoch, given.revision.0, head.epoch, head.revision.0)]
    Ahead { given: Cursor, head: Cursor },
}

impl From<StoreError> for WatchError {
    fn from(error: StoreError) -> Self {
        EngineError::from(error).into()
    }
}

/// How far the tail has read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Head {
    pub(crate) cursor: Option<Cursor>,
    /// Counts successful reads of the store.
    reads: u64,
    is_stopping: bool,
}

/// The newest events: all of those after `from`, up to where the tail has read.
struct Window {
    from: Cursor,
    events: VecDeque<Arc<Event>>,
}

impl Window {
    fn extend(&mut self, events: Vec<Event>) {
        self.events.extend(events.into_iter().map(Arc::new));
        let surplus = self.events.len().saturating_sub(WINDOW_EVENTS);
        if let Some(last) = self.events.drain(..surplus).next_back() {
            self.from.revision = last.revision;
        }
    }

    /// All events after `after`; none if the window does not reach back so far.
    fn all_after(&self, after: Cursor) -> Option<impl Iterator<Item = &Arc<Event>>> {
        if after.epoch != self.from.epoch || after.revision < self.from.revision {
            return None;
        }
        let first = self.events.partition_point(|e| e.revision <= after.revision);
        Some(self.events.range(first..))
    }
}

/// Renewed leases that were not sent to watchers yet: each once, however often it was renewed.
#[derive(Debug, Default)]
struct PendingRenewals {
    resources: BTreeSet<ResourceKey>,
    sessions: BTreeSet<SessionId>,
}

/// Tails the store for all watchers.
pub struct Hub {
    pub(crate) store: Arc<dyn Store>,
    window: RwLock<Option<Window>>,
    pub(crate) head: watch::Sender<Head>,
    renewals: broadcast::Sender<Arc<LeaseView>>,
    renewed: Mutex<PendingRenewals>,
    were_renewed: Notify,
    renewal_watchers: AtomicUsize,
    watchers: AtomicUsize,
    /// The number of watchers and of subscribers to session news.
    attending: AtomicUsize,
    left_at: Mutex<Option<BootTime>>,
    wanted: Notify,
    pub(crate) notifier: SessionNotifier,
}

impl Hub {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            window: RwLock::default(),
            head: watch::Sender::new(Head { cursor: None, reads: 0, is_stopping: false }),
            renewals: broadcast::Sender::new(RENEWALS_BEHIND_MAX),
            renewed: Mutex::default(),
            were_renewed: Notify::new(),
            renewal_watchers: AtomicUsize::new(0),
            watchers: AtomicUsize::new(0),
            attending: AtomicUsize::new(0),
            left_at: Mutex::default(),
            notifier: SessionNotifier::default(),
            wanted: Notify::new(),
        })
    }

    pub(crate) fn stop(&self) {
        self.head.send_modify(|head| head.is_stopping = true);
    }

    /// Reads events while there are watchers; never returns.
    pub(crate) async fn tail(self: Arc<Self>) {
        loop {
            if !self.is_wanted() {
                // The next watcher starts from the store; a window with a hole in it would lose events.
                self.start_over();
                self.wanted.notified().await;
                continue;
            }
            if let Err(error) = self.read_on().await {
                tracing::debug!(%error, "watch hub cannot read events; will retry");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Keeps the tail reading until [`Self::leave`].
    pub(crate) fn attend(&self) {
        self.attending.fetch_add(1, Ordering::SeqCst);
        self.wanted.notify_one();
    }

    pub(crate) fn leave(&self) {
        *self.left_at.lock() = Some(BootTime::now());
        self.attending.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_wanted(&self) -> bool {
        let just_left = |left: BootTime| BootTime::now().since(left) < LINGER;
        self.attending.load(Ordering::SeqCst) > 0 || self.left_at.lock().is_some_and(just_left)
    }

    /// Waits until the tail reads: nothing that is committed from then on is missed.
    pub(crate) async fn is_reading(&self) -> Result<(), EngineError> {
        let mut head = self.head.subscribe();
        match head.wait_for(|head| head.cursor.is_some() || head.is_stopping).await {
            Ok(head) if !head.is_stopping => Ok(()),
            _ => Err(EngineError::Stopping),
        }
    }

    /// Which of the sessions have news in the events after `from`; none if the window does not reach back so far.
    pub(crate) fn news_after(
        &self,
        from: Cursor,
        of: &BTreeSet<SessionId>,
        may_see: impl Fn(&Event) -> bool,
    ) -> Option<BTreeSet<SessionId>> {
        let window = self.window.read();
        let events = window.as_ref()?.all_after(from)?.filter(|event| may_see(event));
        Some(events.flat_map(|event| event.is_news_to()).filter(|id| of.contains(id)).collect())
    }

    fn start_over(&self) {
        *self.window.write() = None;
        self.head.send_modify(|head| head.cursor = None);
    }

    async fn read_on(&self) -> Result<(), StoreError> {
        let Some(at) = self.head.borrow().cursor else {
            // A fresh start: watchers page up to here by themselves.
            let head = self.store.head().await?;
            self.advance(head, Vec::new());
            return Ok(());
        };
        let head = self.store.news(at).await?;
        if head == at {
            self.advance(at, Vec::new());
            return Ok(());
        }
        let query = EventQuery { after: at.revision, limit: PAGE_EVENTS, ..Default::default() };
        let page = self.store.events(&query).await?;
        if page.head.epoch != at.epoch || page.floor > at.revision {
            // The events in between are gone: each watcher handles that on its next read.
            self.start_over();
            self.notifier.notify_all();
            return Ok(());
        }
        let last = page.events.last().map_or(at.revision, |e| e.revision);
        let is_full = page.events.len() == PAGE_EVENTS;
        let revision = if is_full { last } else { page.head.revision.max(last) };
        self.advance(Cursor { revision: revision.max(at.revision), ..at }, page.events);
        Ok(())
    }

    fn advance(&self, to: Cursor, events: Vec<Event>) {
        self.notifier.notify(&events);
        let mut window = self.window.write();
        window.get_or_insert_with(|| Window { from: to, events: VecDeque::new() }).extend(events);
        self.head.send_modify(|head| {
            head.cursor = Some(to);
            head.reads += 1;
        });
    }

    /// A page of events after `after` from the window; none if the window does not reach back so far.
    fn window_after(&self, after: Cursor) -> Option<Vec<Arc<Event>>> {
        Some(self.window.read().as_ref()?.all_after(after)?.take(PAGE_EVENTS).cloned().collect())
    }

    /// Notes renewals that were just committed here, if a watcher wants them.
    pub(crate) fn renewed(&self, renewals: &[Change]) {
        if self.renewal_watchers.load(Ordering::Relaxed) == 0 || renewals.is_empty() {
            return;
        }
        let mut renewed = self.renewed.lock();
        for change in renewals {
            match change {
                Change::LeaseRenewed { key, .. } => drop(renewed.resources.insert(key.clone())),
                Change::SessionRenewed { id, .. } => drop(renewed.sessions.insert(*id)),
                _ => {}
            }
        }
        self.were_renewed.notify_one();
    }

    /// Sends renewals to the watchers that want them; never returns.
    pub(crate) async fn send_renewals(self: Arc<Self>) {
        loop {
            self.were_renewed.notified().await;
            let renewed = std::mem::take(&mut *self.renewed.lock());
            if let Err(error) = self.send_renewed(renewed).await {
                tracing::debug!(%error, "cannot load renewed leases; watchers miss these renewals");
            }
        }
    }

    async fn send_renewed(&self, renewed: PendingRenewals) -> Result<(), StoreError> {
        let PendingRenewals { resources, sessions } = renewed;
        let whole_sessions = sessions.iter().copied().collect();
        let footprint = Footprint {
            resources: resources.iter().cloned().collect(),
            whole_sessions,
            ..Default::default()
        };
        let loaded = self.store.load(&footprint).await?;
        for resource in loaded.state.resources() {
            let Ok(Some(view)) = LeaseView::of(&loaded.state, resource, loaded.now) else { continue };
            // A resource may be loaded because the session waits for it: then its lease belongs to another session.
            let hangs_there = view.lease.tenure.session().is_some_and(|id| sessions.contains(&id));
            if (hangs_there || resources.contains(&view.key)) && view.status == LeaseStatus::Active {
                // It is no error if there is no watcher.
                let _ = self.renewals.send(Arc::new(view));
            }
        }
        Ok(())
    }

    pub(crate) async fn watch(
        self: Arc<Self>,
        from: Option<Cursor>,
        filter: Filter,
    ) -> Result<Watch, WatchError> {
        if self.head.borrow().is_stopping {
            return Err(EngineError::Stopping.into());
        }
        self.watchers.fetch_add(1, Ordering::SeqCst);
        self.attend();
        if filter.renewals {
            self.renewal_watchers.fetch_add(1, Ordering::SeqCst);
        }
        let head = self.head.subscribe();
        let renewals = self.renewals.subscribe();
        let at = from.unwrap_or(Cursor { epoch: 0, revision: Revision(0) });
        let progress = Progress::new();
        let ready = VecDeque::new();
        let pages = None;
        let mut watch =
            Watch { hub: self, filter, at, head, renewals, ready, pages, progress, is_over: false };
        match from {
            Some(cursor) => watch.check(cursor).await?,
            None => watch.snapshot().await?,
        }
        Ok(watch)
    }

    pub fn watchers(&self) -> usize {
        self.watchers.load(Ordering::SeqCst)
    }
}

/// When a silent watcher gets its next progress mark: after a read of the store that ended when it was due already.
#[derive(Debug, Clone, Copy)]
struct Progress {
    since: BootTime,
    /// The reads of the store when it came due; more are needed.
    reads: Option<u64>,
}

impl Progress {
    fn new() -> Self {
        Self { since: BootTime::now(), reads: None }
    }

    /// How long until a mark is due.
    fn due_in(&self) -> Duration {
        PROGRESS_EVERY.saturating_sub(BootTime::now().since(self.since))
    }

    /// Whether a mark can be given now.
    fn is_due(&mut self, head: &Head) -> bool {
        self.due_in().is_zero() && head.reads > *self.reads.get_or_insert(head.reads)
    }
}

/// One watcher's place in the history. Dropping it ends the watch.
pub struct Watch {
    hub: Arc<Hub>,
    filter: Filter,
    at: Cursor,
    head: watch::Receiver<Head>,
    renewals: broadcast::Receiver<Arc<LeaseView>>,
    ready: VecDeque<Frame>,
    /// What is left of the snapshot that it begins with.
    pages: Option<Flow<ResourcePage>>,
    progress: Progress,
    is_over: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.hub.watchers.fetch_sub(1, Ordering::SeqCst);
        self.hub.leave();
        if self.filter.renewals {
            self.hub.renewal_watchers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Watch {
    /// How far it has come.
    pub fn cursor(&self) -> Cursor {
        self.at
    }

    /// What comes next; none when the watch is over, after `compacted` or when the engine stops. It may be dropped and
    /// called again: nothing is lost by it.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                self.is_over = matches!(frame, Frame::Compacted { .. });
                if !matches!(frame, Frame::Renewed(_)) {
                    self.progress = Progress::new();
                }
                return Some(frame);
            }
            let head = *self.head.borrow_and_update();
            if self.is_over || head.is_stopping {
                return None;
            }
            if self.pages.is_some() {
                // Half a snapshot is none: the watcher begins again.
                if let Err(error) = self.next_page().await {
                    tracing::debug!(%error, "cannot read the snapshot of a watch; closing the watch");
                    self.is_over = true;
                }
                continue;
            }
            if head.cursor.is_some_and(|cursor| cursor > self.at) {
                if let Err(error) = self.read_on(head.cursor.unwrap_or(self.at)).await {
                    tracing::debug!(%error, "watcher cannot read events; will retry");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            } else if self.progress.is_due(&head) && head.cursor == Some(self.at) {
                self.ready.push_back(Frame::Progress(self.at));
            } else {
                self.wait(head).await;
            }
        }
    }

    /// Reads on from the window, or from the store when the window does not reach back so far.
    async fn read_on(&mut self, head: Cursor) -> Result<(), StoreError> {
        if let Some(events) = self.hub.window_after(self.at) {
            // What was in the window goes at least as far as the head that was read before it.
            let to = if events.len() < PAGE_EVENTS { head } else { self.at };
            self.take(events.iter().map(|e| &**e), to);
            return Ok(());
        }
        let query = EventQuery { after: self.at.revision, limit: PAGE_EVENTS, ..Default::default() };
        let page = self.hub.store.events(&query).await?;
        if self.at.epoch != page.head.epoch || self.at.revision < page.floor {
            let floor = Cursor { epoch: page.head.epoch, revision: page.floor };
            self.ready.push_back(Frame::Compacted { floor });
            return Ok(());
        }
        let to = if page.events.len() < PAGE_EVENTS { page.head } else { self.at };
        self.take(page.events.iter(), to);
        Ok(())
    }

    fn take<'a>(&mut self, events: impl Iterator<Item = &'a Event>, to: Cursor) {
        for event in events {
            let cursor = Cursor { epoch: self.at.epoch, revision: event.revision };
            self.at = cursor;
            if self.filter.wants(&event.key, event.holder()) {
                self.ready.push_back(Frame::Event { event: Box::new(event.clone()), cursor });
            }
        }
        self.at = self.at.max(to);
    }

    /// Waits for news, a renewal, the time for a progress mark, or the read of the store that it needs.
    async fn wait(&mut self, seen: Head) {
        let at = self.at;
        let progress = self.progress;
        let is_news = |head: &Head| {
            let is_read = progress.reads.is_some_and(|reads| head.reads > reads) && head.reads != seen.reads;
            head.is_stopping || head.cursor.is_some_and(|cursor| cursor > at) || is_read
        };
        tokio::select! {
            _ = self.head.wait_for(is_news) => {}
            renewed = self.renewals.recv(), if self.filter.renewals => {
                if let Ok(view) = renewed
                    && self.filter.wants(&view.key, Some(&view.lease.holder))
                {
                    self.ready.push_back(Frame::Renewed(Box::new((*view).clone())));
                }
            }
            () = tokio::time::sleep(progress.due_in()), if progress.reads.is_none() => {}
        }
    }

    /// A cursor from which a watch can begin: not ahead of the history.
    async fn check(&mut self, given: Cursor) -> Result<(), WatchError> {
        let query = EventQuery { after: given.revision, limit: 1, ..Default::default() };
        let head = self.hub.store.events(&query).await?.head;
        if given > head { Err(WatchError::Ahead { given, head }) } else { Ok(()) }
    }

    /// All resources that match, page by page, and the cursor, in one read. The first page is waited for.
    async fn snapshot(&mut self) -> Result<(), WatchError> {
        let query = ResourceQuery {
            tenant: self.filter.tenant.clone(),
            kind: self.filter.kind.clone(),
            holder: self.filter.holder.clone(),
            undeclared: true,
            slots: true,
            limit: SNAPSHOT_RESOURCES_AT_ONCE,
            ..Default::default()
        };
        self.pages = Some(flow::scan(self.hub.store.clone(), query));
        Ok(self.next_page().await?)
    }

    /// Reads the next page of the snapshot.
    async fn next_page(&mut self) -> Result<(), StoreError> {
        let Some(pages) = &mut self.pages else { return Ok(()) };
        let cut_off = || Err(StoreError::Unavailable("the snapshot was cut off".to_owned()));
        let page = pages.next().await.unwrap_or_else(cut_off)?;
        if !page.more {
            self.pages = None;
        }
        self.at = page.loaded.cursor;
        self.ready.push_back(Frame::Snapshot(Box::new(page)));
        Ok(())
    }
}
