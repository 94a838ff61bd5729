//! The history of events of the embedded store: rows of many events, read, dropped and migrated event by event. And
//! what else is migrated.
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::path::Path;

use rusqlite::{Connection, params, types::Value};
use solehold_conformance::kit::*;
use solehold_core::{
    event::{Ended, Event, What},
    key::{LeaseId, RequestKey, SessionId},
    lease::{Declaration, Lease, Pending, Resource, StateDocument, Tenure},
    ledger::Dirty,
    request::SpentRequest,
    time::*,
};
use solehold_engine::{
    embedded::{Folder, FolderLimits},
    resident::{Entry, Journal, Mark, RowId},
    store::{Cursor, EventQuery, Retention, Row, StoreError},
};
use solehold_testkit::TempDir;
use uuid::Uuid;

const FOREVER: Retention = Retention { events_ms: u64::MAX, events_max: 1_000_000, unsent_after: None };

fn database(folder: &Path) -> Connection {
    Connection::open(folder.join("solehold.db")).unwrap()
}

fn number(folder: &Path, sql: &str) -> i64 {
    database(folder).query_row(sql, [], |r| r.get(0)).unwrap()
}

fn mark(at: u64) -> Mark {
    Mark { now: StoreTime(at), ..Default::default() }
}

/// What happens in turn, one of each kind; two leases in a row are the same one.
fn what(n: u64, revision: u64) -> What {
    let id = LeaseId(Uuid::from_u128(u128::from(n / 11) + 1));
    let session = SessionId(Uuid::from_u128(7));
    let ended = |token: Option<u64>, session, reason: Option<&str>| Ended {
        lease: id,
        token: token.map(Token),
        holder: name("ann"),
        session,
        attributes: text(r#"{"say":"\"hello\" \\ ü"}"#),
        held_back_until: None,
        reason: reason.map(str::to_owned),
    };
    let lease = |tenure| Lease {
        id,
        token: Token(revision),
        holder: name("ann"),
        by: None,
        tenure,
        acquired_at: StoreTime(n),
        renewed_at: None,
        confirm_by: None,
        request: Some(name("r/1")),
        slots: None,
        attributes: Default::default(),
        stats: Default::default(),
    };
    let at = StoreTime(n);
    let attributes = Default::default();
    match n % 11 {
        0 => What::Declared(Declaration {
            labels: [("id".to_owned(), "7".to_owned())].into(),
            ..Default::default()
        }),
        1 => What::Pending(Pending {
            id,
            holder: name("ann"),
            session,
            asked_at: at,
            deadline: at,
            attributes,
        }),
        2 => What::Acquired(lease(Tenure::Session(session))),
        3 => What::Stolen(ended(Some(revision), None, Some("taken over"))),
        4 => What::Acquired(lease(Tenure::Own { ttl_ms: 5, deadline: StoreTime(n + 5) })),
        5 => What::StateChanged(StateDocument {
            document: text(r#"{"id":5,"holder":"nobody"}"#),
            sequence: 3,
            token: Token(revision),
            written_at: at,
        }),
        6 => What::Expired(ended(None, Some(session), None)),
        7 => What::HoldBackLifted { token: Token(3), reason: None },
        8 => What::ConfigChanged(text(r#"{"lease":"none","id":1}"#)),
        9 => What::Revoked(ended(Some(revision), Some(session), None)),
        _ => What::Deleted,
    }
}

/// Events of 23 resources; after each hundredth, the revision has jumped. The time goes on every `per_time` events.
fn events(count: u64, per_time: u64) -> Vec<Event> {
    (0..count)
        .map(|n| {
            let revision = n + 1 + n / 100 * 50;
            Event {
                revision: Revision(revision),
                at: StoreTime(1_000 + n / per_time),
                key: key(&format!("job \"{}\"/ü", n / 11 % 23)),
                by: (n % 3 == 0).then(|| name("admin")),
                holder_session: None,
                what: what(n, revision),
            }
        })
        .collect()
}

/// What a query finds among the events above the floor.
fn found(events: &[Event], query: &EventQuery, floor: Revision) -> Vec<Event> {
    let is_found = |event: &&Event| {
        event.revision > query.after.max(floor)
            && query.newest_before.is_none_or(|before| event.revision < before)
            && query.lease.is_none_or(|id| event.lease() == Some(id))
            && query.resource.as_ref().is_none_or(|key| event.key == *key)
    };
    let mut all: Vec<_> = events.iter().filter(is_found).cloned().collect();
    if query.newest_before.is_some() {
        all.reverse();
    }
    all.truncate(query.limit);
    all
}

/// Asks for events in all the ways there are.
async fn answers_every_query(folder: &Folder, events: &[Event], floor: Revision) {
    let history = folder.history().unwrap();
    let last = events.last().map_or(0, |event| event.revision.0);
    let afters = [0, 99, 300, last - 1].map(Revision);
    let befores = [1, 100, 130, 257, last, u64::MAX].map(|before| Some(Revision(before)));
    let leases = events.iter().filter_map(Event::lease);
    let whose = [
        (None, None),
        (None, Some(events[0].key.clone())),
        (None, Some(events[events.len() / 2].key.clone())),
        (None, Some(key("job"))),
        (leases.clone().next(), None),
        (leases.clone().next_back(), None),
        (leases.clone().next(), Some(events[0].key.clone())),
        (leases.clone().next(), Some(key("another"))),
        (Some(LeaseId(Uuid::from_u128(0))), None),
    ];
    for after in afters {
        for newest_before in befores.into_iter().chain([None]) {
            for (lease, resource) in whose.clone() {
                for limit in [0, 7, 5_000] {
                    let resource = resource.clone();
                    let query = EventQuery { after, lease, resource, newest_before, limit };
                    let (page, at) = history.events(&query).await.unwrap();
                    assert_eq!(at, floor);
                    assert!(page == found(events, &query, floor), "{query:?} above {floor:?}: {page:?}");
                }
            }
        }
    }
}

/// The lines of `lease_events`, as people see them.
fn lines(folder: &Path) -> Vec<Vec<Value>> {
    let sql =
        "SELECT revision, at_ms, event_type, tenant, kind, key, lease_id, holder, session_id, token, details,
        by_key FROM lease_events ORDER BY revision";
    let db = database(folder);
    let mut select = db.prepare(sql).unwrap();
    let lines = select.query_map([], |row| (0..12).map(|n| row.get(n)).collect());
    lines.unwrap().map(Result::unwrap).collect()
}

/// One row per event, as versions 1 to 3 wrote them.
fn insert_old(db: &Connection, version: u32, event: &Event) {
    let by = if version < 3 { "" } else { ", by_key" };
    let value = if version < 3 { "" } else { ", ?12" };
    let sql = format!(
        "INSERT INTO lease_events
            (revision, at_ms, event_type, tenant, kind, key, lease_id, holder, session_id, token, details{by})
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11{value})"
    );
    let number = |number: u64| Value::from(number as i64);
    let text = |text: Option<String>| Value::from(text);
    let mut values = vec![
        number(event.revision.0),
        number(event.at.0),
        text(Some(event.name().to_string())),
        text(Some(event.key.tenant.to_string())),
        text(Some(event.key.kind.to_string())),
        text(Some(event.key.key.to_string())),
        text(event.lease().map(|id| id.to_string())),
        text(event.holder().map(ToString::to_string)),
        text(event.session().map(|id| id.to_string())),
        Value::from(event.token().map(|token| token.0 as i64)),
        text(Some(serde_json::to_string(&event.what).unwrap())),
    ];
    if version >= 3 {
        values.push(text(event.by.as_ref().map(ToString::to_string)));
    }
    db.prepare_cached(&sql).unwrap().execute(rusqlite::params_from_iter(values)).unwrap();
}

/// A data folder of an earlier version, made by SQL: the same state, the same events by every query, and the same lines
/// for people.
#[tokio::test]
async fn a_folder_of_an_earlier_version_keeps_its_events() {
    for version in [1, 2, 3] {
        let folder = TempDir::new().unwrap();
        let mut all = events(700, 90);
        if version < 3 {
            all.iter_mut().for_each(|event| event.by = None);
        }
        let cursor = Cursor { epoch: 4, revision: Revision(5_000) };
        let db = database(folder.path());
        db.execute_batch(include_str!("common/folder_1.sql")).unwrap();
        if version >= 2 {
            db.execute_batch("CREATE VIEW waiters AS SELECT row FROM rows WHERE tab = 'waiter'").unwrap();
        }
        if version >= 3 {
            db.execute_batch("ALTER TABLE lease_events ADD COLUMN by_key TEXT").unwrap();
        }
        db.pragma_update(None, "user_version", version).unwrap();
        let resource = Resource {
            key: key("held"),
            declared: None,
            created_at: StoreTime(5),
            last_token: Token(9),
            held_back_until: None,
            held_back_by: None,
            lease: None,
            pending: None,
            state: None,
            queued: 0,
            taken: 0,
            slots: 0,
        };
        let rows = [Row::Resource(resource.clone())];
        let entry = serde_json::json!({ "mark": mark(5_000), "cursor": cursor, "rows": rows, "gone": [] });
        for seq in [17, 18] {
            let sql = "INSERT INTO log (seq, at_ms, revision, entry) VALUES (?1, 5000, 5000, ?2)";
            db.execute(sql, params![seq, entry.to_string()]).unwrap();
        }
        let sql = "INSERT INTO event_index SELECT revision, revision FROM lease_events;
            INSERT INTO meta (name, value) VALUES ('indexed', '600'), ('floor', '0')";
        db.execute_batch("BEGIN").unwrap();
        all.iter().for_each(|event| insert_old(&db, version, event));
        db.execute_batch(sql).unwrap();
        db.execute_batch("COMMIT").unwrap();
        drop(db);
        let before = if version < 3 { Vec::new() } else { lines(folder.path()) };

        let mut journal = Folder::open(folder.path()).unwrap();
        let image = journal.load().unwrap();
        assert_eq!((image.cursor, image.state.resource(&resource.key)), (cursor, Some(&resource)));
        assert_eq!(Vec::from(image.events), all);
        let after = lines(folder.path());
        assert_eq!(after.len(), all.len());
        assert!(version < 3 || after == before);
        assert!(number(folder.path(), "SELECT count(*) FROM event_batches") < 20);
        answers_every_query(&journal, &all, Revision(0)).await;
        // Entered in the index, and with a batch more, twice.
        for n in 0..2 {
            journal.tidy(None, mark(6_000), &FOREVER).await.unwrap();
            let event = Event { revision: Revision(5_001 + n), ..all[2].clone() };
            all.push(event.clone());
            let cursor = Cursor { revision: event.revision, ..cursor };
            let entry =
                Entry { mark: mark(6_000), cursor, rows: Vec::new(), gone: Vec::new(), events: vec![event] };
            journal.append(entry).await.unwrap();
        }
        assert!(number(folder.path(), "SELECT count(*) FROM event_index") > 50);
        answers_every_query(&journal, &all, Revision(0)).await;
        journal.close().unwrap();
        drop(journal);
        let mut journal = Folder::open(folder.path()).unwrap();
        assert_eq!(Vec::from(journal.load().unwrap().events), all, "and again");
    }
}

/// Spent requests stood one in a row; now those of one holder for one resource stand together.
#[tokio::test]
async fn a_folder_of_an_earlier_version_keeps_its_spent_requests() {
    let folder = TempDir::new().unwrap();
    let db = database(folder.path());
    db.execute_batch(include_str!("common/folder_1.sql")).unwrap();
    db.pragma_update(None, "user_version", 1).unwrap();
    let mut all = Vec::new();
    for (n, (holder, request)) in
        [("ann", "later"), ("ann", "r \"1\""), ("b\\ob", "r1"), ("ann", "ünseen"), ("ann", "also later")]
            .into_iter()
            .enumerate()
    {
        let request =
            RequestKey { resource: key("a/ü \"x\""), holder: name(holder), request: name(request) };
        let until = StoreTime([9_000, 2_000, 3_000, 2_500, 9_000][n]);
        let by = (n == 1).then(|| name("key"));
        all.push((request, SpentRequest { until, by, cancelled: n == 3 }));
    }
    for (request, spent) in &all {
        let resource = &request.resource;
        let id = (&resource.tenant, &resource.kind, &resource.key, &request.holder, &request.request);
        let row = Row::Request { request: request.clone(), spent: spent.clone() };
        let sql = "INSERT INTO rows (tab, id, row) VALUES ('request', ?1, ?2)";
        let texts = [serde_json::to_string(&id).unwrap(), serde_json::to_string(&row).unwrap()];
        db.execute(sql, texts).unwrap();
    }
    drop(db);

    let mut journal = Folder::open(folder.path()).unwrap();
    all.sort_by(|(a, spent), (b, other)| {
        (&a.resource, &a.holder, spent.until, &a.request).cmp(&(
            &b.resource,
            &b.holder,
            other.until,
            &b.request,
        ))
    });
    let kept = |journal: &mut Folder| {
        let state = journal.load().unwrap().state;
        state.requests().map(|(request, spent)| (request, spent.clone())).collect::<Vec<_>>()
    };
    assert_eq!(kept(&mut journal), all);
    assert_eq!(number(folder.path(), "SELECT count(*) FROM rows"), 2);
    assert_eq!(number(folder.path(), "SELECT count(*) FROM requests WHERE until_ms = 9000"), 2);
    // One is forgotten, and one holder has none any more.
    let gone = [0, 4].map(|n: usize| all.remove(n - n / 4).0);
    let gone: Vec<_> = gone.into_iter().map(RowId::Request).collect();
    let cursor = Cursor { epoch: 1, revision: Revision(0) };
    let entry = Entry { mark: mark(6_000), cursor, rows: Vec::new(), gone, events: Vec::new() };
    journal.append(entry).await.unwrap();
    let state = journal.load().unwrap().state;
    journal.fold(&state, Dirty::default(), mark(6_000)).unwrap();
    assert_eq!(number(folder.path(), "SELECT count(*) FROM rows"), 1);
    assert_eq!(kept(&mut journal), all);
}

/// An event that cannot be read stops the migration, and the folder stays as it was.
#[test]
fn damage_stops_the_migration() {
    let folder = TempDir::new().unwrap();
    let db = database(folder.path());
    db.execute_batch(include_str!("common/folder_1.sql")).unwrap();
    events(20, 1).iter().for_each(|event| insert_old(&db, 1, event));
    db.execute("UPDATE lease_events SET details = '{' WHERE revision = 12", []).unwrap();
    let error = Folder::open(folder.path()).unwrap_err();
    is!(error, StoreError::Unusable(text) if text.contains("event 12"));
    assert_eq!(number(folder.path(), "SELECT count(*) FROM lease_events"), 20);
    assert_eq!(number(folder.path(), "PRAGMA user_version"), 1);
}

async fn with_batches(limits: FolderLimits, batches: &[&[Event]]) -> (TempDir, Folder) {
    let folder = TempDir::new().unwrap();
    let mut journal = Folder::open_with(folder.path(), limits).unwrap();
    journal.load().unwrap();
    for events in batches {
        let last = events.last().unwrap();
        let cursor = Cursor { epoch: 1, revision: last.revision };
        let mark = mark(last.at.0);
        let entry = Entry { mark, cursor, rows: Vec::new(), gone: Vec::new(), events: events.to_vec() };
        journal.append(entry).await.unwrap();
    }
    (folder, journal)
}

/// A row has events of one time, and a bounded number of them, however large the batch is.
#[tokio::test]
async fn rows_are_bounded() {
    let all = events(2_000, 700);
    let (folder, journal) = with_batches(FolderLimits::default(), &[&all]).await;
    assert_eq!(number(folder.path(), "SELECT count(*) FROM event_batches"), 3 + 3 + 3);
    assert_eq!(number(folder.path(), "SELECT max(count) FROM event_batches"), 256);
    answers_every_query(&journal, &all, Revision(0)).await;
    let large = text(&format!("\"{}\"", "x".repeat(60_000)));
    let large =
        |n| Event { revision: Revision(n), what: What::ConfigChanged(large.clone()), ..all[0].clone() };
    let all: Vec<_> = (1..=100).map(large).collect();
    let (folder, journal) = with_batches(FolderLimits::default(), &[&all]).await;
    assert!(number(folder.path(), "SELECT max(length(events)) FROM event_batches") < 600_000);
    answers_every_query(&journal, &all, Revision(0)).await;
}

/// Events are dropped one by one for their number, and for their age; rows and entries of the index, when all of their
/// events are.
#[tokio::test]
async fn retention_is_exact_within_a_row() {
    let all = events(700, 90);
    let limits = FolderLimits { drop_events_max: 60, ..Default::default() };
    let (folder, mut journal) = with_batches(limits, &[&all]).await;
    let mut gone = 0;
    for (events_max, round) in [(699, 1), (690, 9), (620, 60), (620, 10), (620, 0), (500, 60), (500, 60)] {
        let keep = Retention { events_max, ..FOREVER };
        let floor = journal.tidy(None, mark(1_010), &keep).await.unwrap();
        gone += round;
        let expected = all[gone - 1].revision;
        assert_eq!(floor, (round > 0).then_some(expected), "{events_max}");
        answers_every_query(&journal, &all, expected).await;
        assert_eq!(lines(folder.path()).len(), 700 - gone);
    }
    // Rows end where the time goes on: after 90 events, 180, 270.
    let aged = |now, unsent_after: Option<u64>| {
        let unsent_after = unsent_after.map(Revision);
        (mark(now), Retention { events_ms: 1, events_max: 1_000, unsent_after })
    };
    for (now, unsent, to) in [
        (1_002, None, None),
        // 270 events are too old by then, and 60 may go in one round.
        (1_004, None, Some(all[259].revision.0)),
        // Within a row, and within a gap of the revisions: two that were sent.
        (1_004, Some(all[261].revision.0), Some(all[261].revision.0)),
        (1_004, Some(all[261].revision.0), None),
        (1_004, None, Some(all[269].revision.0)),
        (1_004, None, None),
        (1_005, Some(all[299].revision.0 + 20), Some(all[299].revision.0 + 20)),
        (1_005, Some(all[299].revision.0 + 40), None),
    ] {
        let (mark, keep) = aged(now, unsent);
        let floor = journal.tidy(None, mark, &keep).await.unwrap();
        assert_eq!(floor, to.map(Revision), "{now} {unsent:?}");
    }
    let floor = Revision(all[299].revision.0 + 20);
    answers_every_query(&journal, &all, floor).await;
    let first = "SELECT min(first) FROM event_batches";
    assert_eq!(number(folder.path(), first), all[270].revision.0 as i64, "a row that is needed is kept");
    let orphans = "SELECT count(*) FROM event_index WHERE last NOT IN (SELECT last FROM event_batches)";
    assert_eq!(number(folder.path(), orphans), 0);
    drop(journal);
    let mut journal = Folder::open(folder.path()).unwrap();
    let image = journal.load().unwrap();
    assert_eq!((image.floor, Vec::from(image.events)), (floor, all[300..].to_vec()));
    let none = Retention { events_max: 0, ..FOREVER };
    let floor = journal.tidy(None, mark(1_010), &none).await.unwrap();
    assert_eq!(floor, all.last().map(|event| event.revision));
    for table in ["event_batches", "event_index", "lease_events"] {
        assert_eq!(number(folder.path(), &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

/// The last line of the log, removed by another program while the folder is open, is missed at the next start.
#[tokio::test]
async fn a_removed_last_line_is_missed() {
    let all = events(3, 1);
    let (folder, mut journal) = with_batches(FolderLimits::default(), &[&all[..1], &all[1..2]]).await;
    database(folder.path()).execute("DELETE FROM log WHERE seq = (SELECT max(seq) FROM log)", []).unwrap();
    let cursor = Cursor { epoch: 1, revision: all[2].revision };
    let events = all[2..].to_vec();
    let entry = Entry { mark: mark(1_002), cursor, rows: Vec::new(), gone: Vec::new(), events };
    journal.append(entry).await.unwrap();
    drop(journal);
    let error = Folder::open(folder.path()).unwrap().load().unwrap_err();
    is!(error, StoreError::Unusable(text) if text.contains("missing"));
}
