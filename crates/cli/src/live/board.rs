//! Who holds what, by the frames of the watch. Pure: the wall clock is an argument, and used for what people read only.

use std::collections::{BTreeMap, VecDeque};

use solehold_api::{
    time::Timestamp,
    watch::{Cursor, LeaseEvent, Ownership, WatchFrame},
};
use solehold_client::LOCK_KIND;
use solehold_core::{event::EventName, time::StoreTime};

/// Events that are kept to be shown.
pub const EVENTS_MAX: usize = 500;

/// A resource: tenant, kind and key.
pub type ResourcePath = (String, String, String);

/// A resource and its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    pub tenant: String,
    pub kind: String,
    pub key: String,
    pub holder: Option<String>,
    /// The token of the present grant, or of the last one.
    pub token: u64,
    /// By the store's clock.
    pub expires_ms: Option<u64>,
    /// When it last changed hands, by the store's clock, if that was seen.
    pub changed_ms: Option<u64>,
    /// The next holder, while it is handed over.
    pub next: Option<String>,
}

impl Holding {
    /// As people write it; with the tenant, if it is not the default one.
    pub fn name(&self) -> String {
        match self.tenant.as_str() {
            "default" => format!("{}/{}", self.kind, self.key),
            tenant => format!("{tenant}: {}/{}", self.kind, self.key),
        }
    }

    fn of(part: Ownership) -> Self {
        Self {
            tenant: part.tenant,
            kind: part.kind,
            key: part.key,
            holder: part.holder,
            token: part.token,
            expires_ms: part.expires_at.map(ms),
            changed_ms: None,
            next: None,
        }
    }
}

pub fn ms(time: Timestamp) -> u64 {
    StoreTime::from(time).0
}

#[derive(Debug, Default)]
pub struct Board {
    rows: BTreeMap<ResourcePath, Holding>,
    /// The parts of a snapshot that is not whole yet.
    coming: Vec<Ownership>,
    events: VecDeque<LeaseEvent>,
    cursor: Option<Cursor>,
    /// What to add to this machine's clock to get the store's.
    skew_ms: i64,
}

impl Board {
    /// Takes a frame that arrived at `wall_ms`.
    pub fn take(&mut self, frame: &WatchFrame, wall_ms: u64) {
        match frame {
            WatchFrame::Snapshot(part) => {
                let store = part.resources.iter().find_map(|row| Some(ms(row.expires_at?) - row.ttl_ms));
                if let Some(store) = store {
                    self.read_clock(store, wall_ms);
                }
                self.coming.extend(part.resources.iter().cloned());
                if !part.more {
                    let parts = std::mem::take(&mut self.coming);
                    let before = std::mem::take(&mut self.rows);
                    self.rows = parts.into_iter().map(|part| row(part, &before)).collect();
                    self.cursor = Some(part.cursor);
                }
            }
            WatchFrame::Event(event) => {
                self.read_clock(ms(event.timestamp), wall_ms);
                self.apply(event);
                if event.event_type != EventName::LeaseRenewed {
                    self.remember((**event).clone());
                    self.cursor = self.cursor.max(Some(event.cursor));
                }
            }
            WatchFrame::Progress(progress) => {
                self.read_clock(ms(progress.timestamp), wall_ms);
                self.cursor = self.cursor.max(Some(progress.cursor));
            }
            WatchFrame::Compacted(_) | WatchFrame::Resync(_) => self.coming.clear(),
        }
    }

    /// Adds an event that happened before the snapshot.
    pub fn remember(&mut self, event: LeaseEvent) {
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    fn apply(&mut self, event: &LeaseEvent) {
        let path = (event.tenant.clone(), event.kind.clone(), event.key.clone());
        let details = |name: &str| event.details.get(name);
        if event.event_type == EventName::ResourceDeleted {
            self.rows.remove(&path);
            return;
        }
        let row = self.rows.entry(path.clone()).or_insert_with(|| Holding {
            tenant: path.0.clone(),
            kind: path.1.clone(),
            key: path.2.clone(),
            holder: None,
            token: 0,
            expires_ms: None,
            changed_ms: None,
            next: None,
        });
        let at = Some(ms(event.timestamp));
        match event.event_type {
            EventName::LeaseAcquired => {
                row.holder = event.holder.clone();
                row.token = event.token.unwrap_or(row.token);
                row.changed_ms = at;
                row.next = None;
                let ttl = details("ttl_ms").and_then(serde_json::Value::as_u64);
                row.expires_ms = at.zip(ttl).map(|(at, ttl)| at + ttl);
            }
            EventName::LeaseRenewed => {
                let until = details("expires_at").and_then(|time| time.as_str()?.parse::<Timestamp>().ok());
                row.expires_ms = until.map(ms).or(row.expires_ms);
            }
            EventName::LeasePending => row.next = event.holder.clone(),
            EventName::LeaseReleased
            | EventName::LeaseExpired
            | EventName::LeaseRevoked
            | EventName::LeaseStolen => {
                // A pending lease has no token; its end leaves the holder as it is.
                if event.token.is_none() {
                    row.next = None;
                } else if event.token == Some(row.token) {
                    row.holder = None;
                    row.expires_ms = None;
                    row.changed_ms = at;
                }
            }
            _ => {}
        }
        // A lock that nobody holds does not exist.
        if row.holder.is_none() && row.kind == LOCK_KIND {
            self.rows.remove(&path);
        }
    }

    fn read_clock(&mut self, store_ms: u64, wall_ms: u64) {
        let store = i64::try_from(store_ms).unwrap_or(i64::MAX);
        self.skew_ms = store.saturating_sub(i64::try_from(wall_ms).unwrap_or(i64::MAX));
    }

    /// The store's time, for a reading of this machine's clock.
    pub fn store_ms(&self, wall_ms: u64) -> u64 {
        wall_ms.saturating_add_signed(self.skew_ms)
    }

    pub fn rows(&self) -> impl Iterator<Item = &Holding> {
        self.rows.values()
    }

    /// The last events, the newest first.
    pub fn events(&self) -> impl Iterator<Item = &LeaseEvent> {
        self.events.iter().rev()
    }

    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    pub fn held(&self) -> usize {
        self.rows().filter(|row| row.holder.is_some()).count()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

/// A row of a new snapshot, with what was known of it before.
fn row(part: Ownership, before: &BTreeMap<ResourcePath, Holding>) -> (ResourcePath, Holding) {
    let path = (part.tenant.clone(), part.kind.clone(), part.key.clone());
    let mut row = Holding::of(part);
    row.changed_ms =
        before.get(&path).filter(|known| known.token == row.token).and_then(|known| known.changed_ms);
    (path, row)
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;
    use solehold_api::watch::{Progress, Snapshot};

    use super::*;

    /// An event of `counter/KEY` at this revision, which is also its time in seconds.
    pub fn event(revision: u64, name: &str, key: &str, holder: &str, token: Option<u64>) -> WatchFrame {
        let at = Timestamp::from(StoreTime(revision * 1_000));
        let event = json!({
            "event_type": name, "revision": revision, "cursor": format!("1.{revision}"), "timestamp": at,
            "tenant": "default", "kind": "counter", "key": key, "lease_id": null, "holder": holder,
            "token": token, "session_id": null, "by": null, "details": {"ttl_ms": 4_000},
        });
        WatchFrame::Event(serde_json::from_value(event).expect("an event"))
    }

    pub fn snapshot(rows: &[(&str, Option<&str>, u64)], more: bool) -> WatchFrame {
        let row = |(key, holder, token): &(&str, Option<&str>, u64)| {
            let until = holder.map(|_| Timestamp::from(StoreTime(14_000)));
            let row = json!({
                "tenant": "default", "kind": "counter", "key": key, "site": null, "token": token,
                "lease_id": null, "holder": holder, "session_id": null, "expires_at": until, "ttl_ms": 4_000,
            });
            serde_json::from_value(row).expect("a row")
        };
        let cursor = Cursor { epoch: 1, revision: 10 };
        WatchFrame::Snapshot(Snapshot { cursor, resources: rows.iter().map(row).collect(), more })
    }

    fn seen(board: &Board) -> Vec<(String, Option<String>, u64)> {
        board.rows().map(|row| (row.name(), row.holder.clone(), row.token)).collect()
    }

    #[test]
    fn a_snapshot_counts_when_it_is_whole_and_events_change_it() {
        let mut board = Board::default();
        board.take(&snapshot(&[("a", Some("r1"), 3)], true), 10_000);
        assert_eq!(board.len(), 0);
        board.take(&snapshot(&[("b", None, 4)], false), 10_000);
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(
            seen(&board),
            [("counter/a".to_owned(), name("r1"), 3), ("counter/b".to_owned(), None, 4)]
        );
        board.take(&event(11, "lease_pending", "a", "r2", None), 11_000);
        assert_eq!(board.rows().next().and_then(|row| row.next.clone()), name("r2"));
        board.take(&event(12, "lease_released", "a", "r1", Some(3)), 12_000);
        board.take(&event(13, "lease_acquired", "a", "r2", Some(13)), 13_000);
        let row = board.rows().next().expect("a row").clone();
        assert_eq!((row.holder, row.token, row.changed_ms), (name("r2"), 13, Some(13_000)));
        assert_eq!((row.expires_ms, row.next), (Some(17_000), None));
        board.take(&event(14, "resource_deleted", "b", "", None), 14_000);
        assert_eq!((board.len(), board.held()), (1, 1));
        assert_eq!(board.events().next().map(|event| event.revision), Some(14));
    }

    #[test]
    fn the_end_of_an_older_or_pending_lease_takes_nothing_from_the_holder() {
        let mut board = Board::default();
        board.take(&snapshot(&[("a", Some("r2"), 9)], false), 10_000);
        board.take(&event(11, "lease_expired", "a", "r1", Some(3)), 11_000);
        board.take(&event(12, "lease_expired", "a", "r3", None), 12_000);
        assert_eq!(board.held(), 1);
        board.take(&event(13, "lease_expired", "a", "r2", Some(9)), 13_000);
        assert_eq!(board.held(), 0);
    }

    #[test]
    fn the_store_s_clock_is_followed() {
        let mut board = Board::default();
        let cursor = Cursor { epoch: 1, revision: 1 };
        let progress = Progress { cursor, timestamp: StoreTime(50_000).into() };
        board.take(&WatchFrame::Progress(progress), 40_000);
        assert_eq!(board.store_ms(41_000), 51_000);
    }
}
