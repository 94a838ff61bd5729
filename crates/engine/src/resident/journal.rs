//! The journal that a resident store writes before it answers.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use solehold_core::{
    event::Event,
    key::{HolderKey, Name, RequestKey, ResourceKey, SessionId},
    ledger::{Dirty, Ledger},
    request::{Requester, SpentRequests},
    time::{Revision, StoreTime},
};

use crate::{
    clock::{BootTime, boot_id},
    flow::Flow,
    history::Seal,
    store::{BatchDecision, Cursor, EventQuery, Retention, Row, StoreError},
};

/// Store time and when that was, on which boot (rule 3). Never ahead of what was decided.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark {
    pub now: StoreTime,
    /// The boot on which it was read; empty where the kernel does not say.
    pub boot_id: String,
    /// The tick of that boot at which it was read.
    pub tick_ms: u64,
    /// Nothing is granted before this time: the store was set back (rule 23).
    #[serde(default)]
    pub barred_until: StoreTime,
    /// Where the data went, if the store was retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_to: Option<String>,
}

impl Mark {
    /// Whether a reading of the clock can be compared with this one.
    pub fn is_of_this_boot(&self, tick: BootTime) -> bool {
        !self.boot_id.is_empty() && self.boot_id == boot_id() && self.tick_ms <= tick.as_ms()
    }
}

/// The identity of a row: all that is kept of one that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowId {
    Session(SessionId),
    Holder(HolderKey),
    Resource(ResourceKey),
    Request(RequestKey),
    /// A record, by collection and id.
    Record(Name, Name),
    /// A waiter, by resource and arrival.
    Waiter(ResourceKey, Revision),
}

impl RowId {
    /// The identity of a row; none for the lines of an export that are no rows.
    pub fn of(row: &Row) -> Option<Self> {
        Some(match row {
            Row::Session(s) => Self::Session(s.id),
            Row::Holder(h) => Self::Holder(h.key.clone()),
            Row::Resource(r) => Self::Resource(r.key.clone()),
            Row::Request { request, .. } => Self::Request(request.clone()),
            Row::Record(r) => Self::Record(r.collection.clone(), r.id.clone()),
            Row::Waiter(w) => Self::Waiter(w.key.clone(), w.arrival),
            Row::Header(_) | Row::Event(_) | Row::End { .. } => return None,
        })
    }

    pub fn add_to(self, dirty: &mut Dirty) {
        match self {
            Self::Session(id) => drop(dirty.sessions.insert(id)),
            Self::Holder(key) => drop(dirty.holders.insert(key)),
            Self::Resource(key) => drop(dirty.resources.insert(key)),
            Self::Request(key) => drop(dirty.requests.insert(key)),
            Self::Record(collection, id) => drop(dirty.records.insert((collection, id))),
            Self::Waiter(key, arrival) => drop(dirty.waiters.insert((key, arrival))),
        }
    }
}

/// One committed batch: the rows as they are after it, the rows that are gone, and the events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub mark: Mark,
    /// Where the history stands after it.
    pub cursor: Cursor,
    pub rows: Vec<Row>,
    pub gone: Vec<RowId>,
    pub events: Vec<Event>,
}

impl Entry {
    pub fn new(part: &Ledger, dirty: &Dirty, mark: Mark, decided: &BatchDecision, epoch: u64) -> Self {
        let mut rows = Vec::new();
        let mut gone = Vec::new();
        let mut add = |row: Option<Row>, else_gone: RowId| match row {
            Some(row) => rows.push(row),
            None => gone.push(else_gone),
        };
        for id in &dirty.sessions {
            add(part.session(*id).cloned().map(Row::Session), RowId::Session(*id));
        }
        for key in &dirty.holders {
            add(part.holder(key).cloned().map(Row::Holder), RowId::Holder(key.clone()));
        }
        for key in &dirty.resources {
            add(part.resource(key).cloned().map(Row::Resource), RowId::Resource(key.clone()));
        }
        for key in &dirty.requests {
            let row =
                part.spent(key).map(|spent| Row::Request { request: key.clone(), spent: spent.clone() });
            add(row, RowId::Request(key.clone()));
        }
        for (collection, id) in &dirty.records {
            let row = part.record(collection, id).cloned().map(Row::Record);
            add(row, RowId::Record(collection.clone(), id.clone()));
        }
        for place in &dirty.waiters {
            let row = part.waiter(place).cloned().map(Row::Waiter);
            add(row, RowId::Waiter(place.0.clone(), place.1));
        }
        let cursor = Cursor { epoch, revision: decided.revision };
        Self { mark, cursor, rows, gone, events: decided.events.clone() }
    }

    /// The rows that it writes or removes.
    pub fn ids(&self) -> impl Iterator<Item = RowId> {
        self.rows.iter().filter_map(RowId::of).chain(self.gone.iter().cloned())
    }

    pub fn dirty(&self) -> Dirty {
        let mut dirty = Dirty::default();
        self.ids().for_each(|id| id.add_to(&mut dirty));
        dirty
    }
}

/// Rows that the snapshot of a journal lacks. All spent requests of one holder for one resource are one row of it.
#[derive(Debug, Default)]
pub struct Unfolded {
    /// All but requests.
    rows: Dirty,
    requesters: BTreeSet<Requester>,
}

impl Unfolded {
    pub fn extend(&mut self, mut more: Dirty) {
        self.requesters.extend(std::mem::take(&mut more.requests).iter().map(Requester::of));
        self.rows.extend(more);
    }
}

/// Rows as they are now, to be written into the snapshot.
#[derive(Debug)]
pub struct Fold {
    /// All but requests; it has no events.
    pub entry: Entry,
    /// All requests of each that has changed; empty, if there are none any more.
    pub requests: Vec<(Requester, SpentRequests)>,
}

impl Fold {
    pub fn new(state: &Ledger, unfolded: &Unfolded, mark: Mark, cursor: Cursor) -> Self {
        let decided = BatchDecision { events: Vec::new(), revision: cursor.revision };
        let requests = |of: &Requester| (of.clone(), state.spent_by(of).cloned().unwrap_or_default());
        Self {
            entry: Entry::new(state, &unfolded.rows, mark, &decided, cursor.epoch),
            requests: unfolded.requesters.iter().map(requests).collect(),
        }
    }
}

/// Everything that a journal has.
#[derive(Debug)]
pub struct Image {
    pub state: Ledger,
    pub events: VecDeque<Event>,
    pub cursor: Cursor,
    pub floor: Revision,
    /// The clock at the last entry; none if the journal is new.
    pub mark: Option<Mark>,
    /// Whether it is another state than the one that was left.
    pub set_back: Option<SetBack>,
}

/// A journal was put back to an earlier state, or is a copy of another: its history may have gone on elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetBack {
    /// How far the history is known to have gone.
    pub seen: Option<Cursor>,
    /// How that was found out.
    pub why: String,
}

/// Events that a journal keeps. Reading them neither waits for a batch nor delays one. They may go beyond the last
/// batch that was answered.
#[async_trait]
pub trait JournaledEvents: Send + Sync {
    /// Events, the oldest first, and the floor as it was when they were read.
    async fn events(&self, query: &EventQuery) -> Result<(Vec<Event>, Revision), StoreError>;

    /// All events up to a revision, in pieces, as they are now, and the floor as it is now.
    async fn all(&self, up_to: Revision) -> Result<(Revision, Flow<Vec<Event>>), StoreError>;
}

/// Where a resident store writes down its batches.
#[async_trait]
pub trait Journal: Send + 'static {
    /// The events that it keeps; none, if those in memory are all that there are.
    fn history(&self) -> Option<Arc<dyn JournaledEvents>>;

    /// Reads everything; called at the start, and again after a failed append.
    fn load(&mut self) -> Result<Image, StoreError>;

    /// Says that what was loaded goes on from here, at `now`: the next start finds out by it whether it was set back.
    fn adopt(&mut self, _now: StoreTime) -> Result<(), StoreError> {
        Ok(())
    }

    /// What cursors are sealed with: the same key at each start.
    fn seal(&mut self) -> Result<Seal, StoreError> {
        Ok(Seal::random())
    }

    /// Writes one batch. `Ok` means that it is on the disk; an error, that it may or may not be.
    async fn append(&mut self, entry: Entry) -> Result<(), StoreError>;

    /// Rows that its snapshot lacks, if it is time to bring it up to date.
    fn unfolded(&mut self) -> Option<&Unfolded>;

    /// Brings the snapshot up to date with rows as they are now; `more` are rows beyond those that it knows to lack,
    /// changed by the passing of time at the start.
    fn fold(&mut self, state: &Ledger, more: Dirty, mark: Mark) -> Result<(), StoreError>;

    /// Writes the clock, brings the snapshot up to date if rows for it are given, and drops events past their
    /// retention. Tells the new floor if it dropped any.
    async fn tidy(
        &mut self,
        folded: Option<Fold>,
        mark: Mark,
        retention: &Retention,
    ) -> Result<Option<Revision>, StoreError>;

    /// Says that events up to `floor` were never here.
    fn set_floor(&mut self, floor: Revision) -> Result<(), StoreError>;

    /// Closes everything that it has open. Nothing can be written after that.
    fn close(&mut self) -> Result<(), StoreError>;
}

/// The journal of a store that forgets.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoJournal;

#[async_trait]
impl Journal for NoJournal {
    fn history(&self) -> Option<Arc<dyn JournaledEvents>> {
        None
    }

    fn load(&mut self) -> Result<Image, StoreError> {
        let cursor = Cursor { epoch: 1, revision: Revision(0) };
        Ok(Image {
            state: Ledger::default(),
            events: VecDeque::new(),
            cursor,
            floor: Revision(0),
            mark: None,
            set_back: None,
        })
    }

    async fn append(&mut self, _: Entry) -> Result<(), StoreError> {
        Ok(())
    }

    fn unfolded(&mut self) -> Option<&Unfolded> {
        None
    }

    fn fold(&mut self, _: &Ledger, _: Dirty, _: Mark) -> Result<(), StoreError> {
        Ok(())
    }

    async fn tidy(
        &mut self,
        _: Option<Fold>,
        _: Mark,
        _: &Retention,
    ) -> Result<Option<Revision>, StoreError> {
        Ok(None)
    }

    fn set_floor(&mut self, _: Revision) -> Result<(), StoreError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder or an export of an earlier version knows neither the key nor who cancelled.
    #[test]
    fn a_spent_request_of_an_earlier_version_is_read() {
        let old = r#"{"request":{"request":{"resource":{"tenant":"acme","kind":"job","key":"a"},"holder":"ann",
            "request":"r1"},"until":5}}"#;
        let row: Row = serde_json::from_str(old).expect("it is read");
        let Row::Request { spent, .. } = &row else { panic!("{row:?}") };
        assert_eq!((spent.until.0, &spent.by, spent.cancelled), (5, &None, false));
        let new = serde_json::to_value(&row).expect("it is written");
        assert_eq!(
            new,
            serde_json::from_str::<serde_json::Value>(old).expect("JSON"),
            "and written as it was"
        );
    }
}
