//! What an engine needs of a store. One trait, one conformance suite (`solehold-conformance`), thin
//! implementations.
//!
//! A store locks and loads rows, reads its clock, lets a [`Decider`] judge, and commits once. It judges nothing itself.
//! Stored are sessions, holders, resources with the lease and the pending lease on each, who waits in line for them,
//! spent requests, records, the clock (time, revision, epoch) and the events. Not stored: renewals as events,
//! waiters' connections, and anything that follows from the time, such as whether a lease is live.

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use solehold_core::{
    command::{Command, Footprint},
    event::Event,
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::Resource,
    ledger::{FoundLate, Ledger},
    outcome::LeaseView,
    record::Record,
    request::SpentRequest,
    session::{Holder, Session},
    time::{Moment, Revision, StoreTime},
    waiter::Waiter,
};

use crate::{
    flow::{Exporter, Outlet},
    history::Bar,
    observe::Lane,
};

/// What can go wrong with a store. A refusal is not an error: it is an outcome.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Nothing was done: the store cannot be reached, or is stopping.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Nothing was done: grants may have been lost in a failover or a restore, so that nothing is decided for a while
    /// (rule 23). The store can be read.
    #[error(
        "the store has failed over or was restored, and grants may have been lost; leases are neither granted nor renewed for another {retry_after_ms} ms"
    )]
    Barred { retry_after_ms: u64 },
    /// Nothing was done: the store was retired, and its data went elsewhere.
    #[error("this store was retired and its data moved to {to}; use that store")]
    Retired { to: String },
    /// The store may or may not have done it, and could not be asked (rule 8).
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// Nothing was done: it conflicted with concurrent transactions too often.
    #[error("gave up after {attempts} attempts against concurrent transactions: {last}")]
    Contended { attempts: u32, last: String },
    /// Nothing was done: another process uses the data folder.
    #[error("data folder {} is in use by {}", .folder.display(), process(*.pid))]
    InUse {
        folder: PathBuf,
        /// The process, if it has written its id down already.
        pid: Option<u32>,
    },
    /// Nothing was imported: the store was used before.
    #[error("the store is not empty; an export can only be imported into an unused store")]
    NotEmpty,
    /// Nothing was done: this program cannot use the store.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    /// What went wrong, without what that means for a command.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Unavailable(what) | Self::Unknown(what) => what.clone(),
            other => other.to_string(),
        }
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Judges a batch. After a conflict a store may call it again with freshly loaded rows: only the last call
/// counts.
pub trait Decider: Send {
    /// Decides all commands of the batch, one after the other, and applies them to `state`.
    fn decide(&mut self, state: &mut Ledger, moment: Moment) -> Result<BatchDecision, FoundLate>;
}

/// What a batch has come to: the rows that it changed are dirty in its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchDecision {
    /// The events, in order of their revisions.
    pub events: Vec<Event>,
    /// The last revision given.
    pub revision: Revision,
}

/// Where the history stands. The epoch changes when the store was restored or failed over (rule 23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    pub epoch: u64,
    /// The last revision seen.
    pub revision: Revision,
}

/// Rows, and when they were so: all read in one snapshot.
#[derive(Debug, Clone)]
pub struct LoadedRows {
    pub state: Ledger,
    pub now: StoreTime,
    pub cursor: Cursor,
    /// Nothing is decided before this time ([`StoreError::Barred`]).
    pub barred_until: StoreTime,
}

impl LoadedRows {
    /// For how long nothing is decided yet; none if the store decides.
    pub fn barred_ms(&self) -> Option<u64> {
        (self.now < self.barred_until).then(|| self.barred_until.ms_after(self.now))
    }
}

/// Which resources to find. All that is given must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceQuery {
    /// Of this tenant only; of all, if none.
    pub tenant: Option<Name>,
    pub kind: Option<Name>,
    pub key: Option<Name>,
    pub site: Option<Name>,
    pub holder: Option<Name>,
    /// Attached to this session only, held or pending.
    pub session: Option<SessionId>,
    /// With a live lease only (`true`), or without one only (`false`): judged by time.
    pub leased: Option<bool>,
    pub labels: Vec<(String, String)>,
    /// Also undeclared resources, which exist while they are held or held back.
    pub undeclared: bool,
    /// Also slots that are taken, each as a resource of its own (rule 29). Where leases are asked for they always are.
    pub slots: bool,
    /// After this one, in key order.
    pub after: Option<ResourceKey>,
    pub limit: usize,
}

impl ResourceQuery {
    pub fn wants_slots(&self) -> bool {
        self.slots || self.leased == Some(true) || self.holder.is_some() || self.session.is_some()
    }
}

/// Rows that match a query, with the sessions that they are attached to loaded beside them.
#[derive(Debug, Clone)]
pub struct Page<K> {
    pub loaded: LoadedRows,
    /// The keys that match, in order.
    pub keys: Vec<K>,
    /// Whether there are more after the last.
    pub more: bool,
}

/// Resources, with the sessions of their leases.
pub type ResourcePage = Page<ResourceKey>;
/// Holders, with their present sessions.
pub type HolderPage = Page<HolderKey>;

impl ResourcePage {
    /// The leases on the resources that were found, judged by time; unswept ones show as expired.
    pub fn leases(&self) -> Vec<LeaseView> {
        let resources = self.keys.iter().filter_map(|key| self.loaded.state.resource(key));
        resources
            .filter_map(|r| LeaseView::of(&self.loaded.state, r, self.loaded.now).ok().flatten())
            .collect()
    }
}

/// Which sessions or holders to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HolderQuery {
    pub tenant: Option<Name>,
    pub name: Option<Name>,
    pub registered: bool,
    /// After this one, in order of tenant and name.
    pub after: Option<HolderKey>,
    pub limit: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// After this revision.
    pub after: Revision,
    pub lease: Option<LeaseId>,
    pub resource: Option<ResourceKey>,
    /// The newest before this revision, the newest first; the oldest first, if not given.
    pub newest_before: Option<Revision>,
    pub limit: usize,
}

impl EventQuery {
    /// The newest events of a resource or a lease, the newest first.
    pub fn newest(self) -> Self {
        Self { newest_before: Some(Revision(u64::MAX)), ..self }
    }
}

/// Events in order, with the floor read in the same snapshot as the page (rule 18).
#[derive(Debug, Clone)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Events up to this revision are gone; a reader who needs one of them must start over.
    pub floor: Revision,
    /// Where the history stands: beyond the last event only if the page is not full.
    pub head: Cursor,
}

/// What the sweeper should nominate.
#[derive(Debug, Clone, Default)]
pub struct Nominations {
    /// The nominations, the most overdue first.
    pub commands: Vec<Command>,
    /// How late the most overdue of them is.
    pub lag_ms: u64,
}

/// How long events are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub events_ms: u64,
    pub events_max: u64,
    /// What comes after this revision does not go for its age: a relay has not sent it yet (rule 20).
    pub unsent_after: Option<Revision>,
}

impl Retention {
    /// The revision up to which events may go for their age, of those up to `floor` that are old enough.
    pub fn by_age(&self, floor: Revision) -> Revision {
        self.unsent_after.map_or(floor, |sent| floor.min(sent))
    }

    /// Whether an event may go for its age.
    pub fn is_past(&self, event: &Event, now: StoreTime) -> bool {
        event.at.0 < now.0.saturating_sub(self.events_ms) && self.by_age(event.revision) == event.revision
    }
}

/// How many rows of each kind there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub live_leases: u64,
    /// Resources that are declared or held.
    pub resources: u64,
    pub sessions: u64,
    pub waiters: u64,
}

/// One line of an export: everything that a store keeps, one row per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant, reason = "most rows are resources, the largest")]
pub enum Row {
    /// The first line.
    Header(Header),
    Session(Session),
    Holder(Holder),
    /// A resource with its leases and state.
    Resource(Resource),
    Request {
        request: RequestKey,
        #[serde(flatten)]
        spent: SpentRequest,
    },
    Record(Record),
    /// A waiter in line. Never in an export: a waiter is an open connection, and asks again at the new store. A waiting
    /// room is not in one either.
    Waiter(Waiter),
    Event(Event),
    /// The last line: an export that lacks it was cut off.
    End {
        /// How many lines stand between the first and this.
        rows: u64,
    },
}

impl Row {
    /// Loads it into `state`; an event or a frame line of an export is no row of the state.
    pub fn load_into(self, state: &mut Ledger) {
        match self {
            Self::Session(session) => state.load_session(session),
            Self::Holder(holder) => state.load_holder(holder),
            Self::Resource(resource) => state.load_resource(resource),
            Self::Request { request, spent } => state.load_request(request, spent),
            Self::Record(record) => state.load_record(record),
            Self::Waiter(waiter) => state.load_waiter(waiter),
            Self::Header(_) | Self::Event(_) | Self::End { .. } => {}
        }
    }
}

/// What an export begins with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: u32,
    pub now: StoreTime,
    pub revision: Revision,
    pub epoch: u64,
    /// Events up to this revision are not in the export.
    pub floor: Revision,
    /// Whether the store was retired before: then it has not continued since, and live leases are carried over.
    #[serde(default)]
    pub retired: bool,
}

/// Where the rows are kept: see the [module](self).
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The kind of store: `memory`, `embedded` or `postgres`.
    fn name(&self) -> &'static str;

    /// How far its clock may run ahead of a holder's unnoticed, within one lease: a holder takes it off the time that
    /// it trusts (rule 4).
    fn clock_slack_ms(&self) -> u64 {
        0
    }

    /// Locks and loads what `footprint` names, reads the clock after that, lets `decider` judge, and commits once:
    /// rows, events and clock together, or nothing. In [`Lane::Quiet`] there are no events, and the clock is not
    /// locked.
    ///
    /// `Ok` means durable. A store retries, with bounds, after a conflict or when a session was found
    /// late, and finds out what became of a commit whose answer was lost before it says [`StoreError::Unknown`].
    async fn transact(
        &self,
        footprint: &Footprint,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError>;

    /// Reads what `footprint` names, in one snapshot, without locks.
    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError>;

    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError>;

    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError>;

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError>;

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError>;

    /// Where the history stands, as just read from the store.
    async fn head(&self) -> Result<Cursor, StoreError> {
        Ok(self.load(&Footprint::default()).await?.cursor)
    }

    /// Waits until the history goes beyond `after`, or for about a second; returns where it stands, as just read from
    /// the store.
    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError>;

    /// What has run out and can be judged, at most `limit` commands, the most overdue first; of a dead session the
    /// leases attached to it, then the session. What was nominated may be left out of the next answers, until
    /// everything else that is due had its turn, or for one second. Of replicas that share a store, one at a time gets
    /// nominations.
    async fn due(&self, limit: usize) -> Result<Nominations, StoreError>;

    /// Persists the clock's mark if it is due, forgets what is over, and drops events past their retention. Of replicas
    /// that share a store one at a time forgets.
    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError>;

    /// Why nothing can be written at present, while reads are answered: the disk of an embedded store is full.
    /// [`Self::maintain`] finds out when that is over.
    fn unwritable(&self) -> Option<String> {
        None
    }

    /// Fails while nothing can be written.
    fn check_writable(&self) -> Result<(), StoreError> {
        match self.unwritable() {
            Some(why) => Err(StoreError::Unavailable(format!("it can be read, but not written: {why}"))),
            None => Ok(()),
        }
    }

    /// The number of leases, resources and sessions, of one tenant or of all.
    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError>;

    /// Finds all resources that match, in one snapshot: page by page of `query.limit`, all of the same time and cursor.
    /// The last page has no more after it, and there is always one. Never in the way of a batch.
    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError>;

    /// Everything, in one snapshot: the header, then all rows. Never in the way of a batch.
    async fn export(&self, rows: &mut Exporter) -> Result<(), StoreError>;

    /// Takes over an export. Refused unless the store is empty. Store time does not go back behind the export's, and
    /// the epoch is raised above that of the export. Of a store that was retired, tokens go on from above, what was
    /// live keeps the time that it had left, and spent requests theirs. One that was not retired may have gone on by
    /// itself: tokens jump above all that it can give, and nothing is decided until what was live has run out (rule
    /// 23).
    async fn import(&self, import: Import) -> Result<(), StoreError>;

    /// The longest ttl that may be asked for. After the store was set back nothing is decided for this long (rule 23).
    fn ttl_max_ms(&self) -> u64 {
        solehold_core::limits::TTL_MS_MAX
    }

    /// Forgets that servers of this store once allowed a longer ttl than this one. Refused while anything is held with
    /// a longer one, and where nothing of the kind is kept.
    async fn lower_ttl_max(&self, _ttl_max_ms: u64) -> Result<(), StoreError> {
        Err(StoreError::Unusable(format!(
            "the {} store does not store ttl_max; set it in the configuration of its server",
            self.name()
        )))
    }

    /// Seals a point of the history for a holder to show later; nothing, where cursors are not sealed.
    fn seal(&self, _cursor: Cursor) -> Option<String> {
        None
    }

    /// A holder shows a sealed point of the history. A store that is behind it was set back to an earlier state, and
    /// goes on as another history. What this store did not seal is ignored.
    async fn witness(&self, _sealed: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Retires the store: from now on it decides nothing and shows nothing, and says where its data went. It can be
    /// exported, and taken up again as another history by [`Self::set_back`].
    async fn retire(&self, to: &str) -> Result<(), StoreError>;

    /// Where the history stands, as far as this process has seen.
    fn cursor(&self) -> Cursor;

    /// The store was set back to an earlier state, the history having come as far as `seen` as far as anyone knows: it
    /// goes on as another history, with its epoch raised and its revisions and tokens above all that can have been
    /// given, and decides nothing while `bar` says so.
    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError>;

    /// Stops cleanly: all answered commands are durable, and the store can be opened again. Closing twice is allowed.
    async fn close(&self);
}

/// The version of the export format that this program writes and reads.
pub const EXPORT_FORMAT: u32 = 1;

/// An export that was read and found whole.
#[derive(Debug)]
pub struct Import {
    pub header: Header,
    pub state: Ledger,
    pub events: Vec<Event>,
    /// How many lines stand between its first and its last.
    pub rows: u64,
}

/// Reads an export line by line; refuses one that is cut off, out of order, or of another format.
#[derive(Debug, Default)]
pub struct ImportReader {
    header: Option<Header>,
    state: Ledger,
    events: Vec<Event>,
    lines: u64,
    is_whole: bool,
}

fn unusable<T>(what: impl std::fmt::Display) -> Result<T, StoreError> {
    Err(StoreError::Unusable(format!("the export cannot be used: {what}")))
}

impl ImportReader {
    pub fn take(&mut self, row: Row) -> Result<(), StoreError> {
        self.lines += 1;
        let line = self.lines;
        if self.is_whole {
            return unusable(format!("line {line} comes after the end line"));
        }
        if self.header.is_none() {
            return self.begin(row);
        }
        match row {
            Row::Event(event) if self.events.last().is_some_and(|last| last.revision >= event.revision) => {
                return unusable(format!("line {line} is an event out of order"));
            }
            Row::Event(event) => self.events.push(event),
            Row::Header(_) => return unusable(format!("line {line} is a second header")),
            Row::End { rows } if rows + 2 == line => self.is_whole = true,
            Row::End { rows } => {
                return unusable(format!("line {line} states {rows} rows, but there are {}", line - 2));
            }
            Row::Waiter(_) => {
                return unusable(format!("line {line} is a waiter, which an export never contains"));
            }
            row => row.load_into(&mut self.state),
        }
        Ok(())
    }

    fn begin(&mut self, row: Row) -> Result<(), StoreError> {
        match row {
            Row::Header(header) if header.format == EXPORT_FORMAT => self.header = Some(header),
            Row::Header(Header { format, .. }) => {
                return unusable(format!(
                    "its format is {format}, but this program reads format {EXPORT_FORMAT}"
                ));
            }
            _ => return unusable("its first line is not a header"),
        }
        Ok(())
    }

    /// What was read, if it was whole.
    pub fn finish(self) -> Result<Import, StoreError> {
        let Self { header, state, events, lines, is_whole } = self;
        let Some(header) = header else { return unusable("its first line is not a header") };
        if !is_whole {
            return unusable(format!("it is cut off after line {lines}"));
        }
        for resource in state.resources() {
            if let Some(late) = resource.sessions().find(|id| state.session(*id).is_none()) {
                return unusable(format!("{} is attached to session {late}, which is missing", resource.key));
            }
        }
        Ok(Import { header, state, events, rows: lines.saturating_sub(2) })
    }
}
