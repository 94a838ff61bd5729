//! The snapshot tables and the clock.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::mpsc,
    thread,
};

use rusqlite::{Connection, Rows, params};
use serde::{Deserialize, Serialize};
use solehold_core::{
    key::ResourceKey,
    ledger::Ledger,
    request::{Requester, SpentRequests},
    time::Revision,
};

use super::{unreadable, version_3};
use crate::{
    resident::{Fold, Image, Mark, RowId},
    store::{Cursor, Row, StoreError},
};

/// Rows that are decoded together.
const PIECE_ROWS: usize = 1_024;
/// Pieces that are read and not loaded yet.
const PIECES_MAX: usize = 4;

/// The version that this program writes, and the newest that it reads.
pub const SCHEMA_VERSION: u32 = 6;

const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, revision INTEGER NOT NULL, entry TEXT NOT NULL);
CREATE TABLE rows (tab TEXT NOT NULL, id TEXT NOT NULL, row TEXT NOT NULL, PRIMARY KEY (tab, id)) WITHOUT ROWID;
CREATE VIEW sessions AS SELECT row ->> '$.session.id' AS id, row ->> '$.session.holder.tenant' AS tenant,
    row ->> '$.session.holder.name' AS holder, row ->> '$.session.standing' AS standing,
    row ->> '$.session.ttl_ms' AS ttl_ms, row ->> '$.session.deadline' AS deadline_ms,
    row ->> '$.session.lease_count' AS leases, row FROM rows WHERE tab = 'session';
CREATE VIEW holders AS SELECT row ->> '$.holder.key.tenant' AS tenant, row ->> '$.holder.key.name' AS name,
    row ->> '$.holder.registered' AS registered, row ->> '$.holder.status' AS status,
    row ->> '$.holder.session' AS session_id, row FROM rows WHERE tab = 'holder';
CREATE VIEW resources AS SELECT row ->> '$.resource.key.tenant' AS tenant, row ->> '$.resource.key.kind' AS kind,
    row ->> '$.resource.key.key' AS key, row ->> '$.resource.lease.holder' AS holder,
    row ->> '$.resource.lease.id' AS lease_id, row ->> '$.resource.lease.token' AS token,
    row ->> '$.resource.last_token' AS last_token, row ->> '$.resource.state.document' AS state,
    row FROM rows WHERE tab = 'resource';
CREATE VIEW requests AS SELECT row ->> '$.request.request.resource.tenant' AS tenant,
    row ->> '$.request.request.resource.kind' AS kind, row ->> '$.request.request.resource.key' AS key,
    row ->> '$.request.request.holder' AS holder, row ->> '$.request.request.request' AS request,
    row ->> '$.request.until' AS until_ms FROM rows WHERE tab = 'request';
CREATE VIEW records AS SELECT row ->> '$.record.collection' AS collection, row ->> '$.record.id' AS id,
    row ->> '$.record.document' AS document FROM rows WHERE tab = 'record';
CREATE TABLE lease_events (
    revision INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, event_type TEXT NOT NULL,
    tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    lease_id TEXT, holder TEXT, session_id TEXT, token INTEGER, details TEXT NOT NULL);
CREATE TABLE event_index (hash INTEGER NOT NULL, revision INTEGER NOT NULL, PRIMARY KEY (hash, revision)) WITHOUT ROWID;
";

/// Version 2: who waits in line, for people to read.
const SCHEMA_2: &str = "
CREATE VIEW waiters AS SELECT row ->> '$.waiter.key.tenant' AS tenant, row ->> '$.waiter.key.kind' AS kind,
    row ->> '$.waiter.key.key' AS key, row ->> '$.waiter.arrival' AS arrival, row ->> '$.waiter.holder' AS holder,
    row ->> '$.waiter.lease' AS lease_id, row ->> '$.waiter.deadline' AS deadline_ms, row FROM rows WHERE tab = 'waiter';
";

/// Version 3: events name the key that asked for them.
const SCHEMA_3: &str = "ALTER TABLE lease_events ADD COLUMN by_key TEXT;";

/// Version 4: one row for the events of a batch; the old ones are moved afterwards. A line of the log has its number
/// from the program: SQLite kept count of them in a table of its own, which was one page more for each append.
const SCHEMA_4: &str = "
CREATE TABLE lines (seq INTEGER PRIMARY KEY, entry TEXT NOT NULL);
INSERT INTO lines SELECT seq, entry FROM log;
DROP TABLE log;
ALTER TABLE lines RENAME TO log;
ALTER TABLE lease_events RENAME TO old_events;
DROP TABLE event_index;
DELETE FROM meta WHERE name = 'indexed';
CREATE TABLE event_batches (
    last INTEGER PRIMARY KEY, first INTEGER NOT NULL, at_ms INTEGER NOT NULL, count INTEGER NOT NULL,
    events TEXT NOT NULL);
CREATE TABLE event_index (hash INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (hash, last)) WITHOUT ROWID;
CREATE VIEW lease_events AS
WITH split AS (
    SELECT event.value AS event, event.value ->> '$.revision' AS revision,
        CASE json_type(event.value, '$.what') WHEN 'object' THEN (SELECT key FROM json_each(event.value, '$.what'))
            ELSE event.value ->> '$.what' END AS what
    FROM event_batches, json_each(event_batches.events) AS event)
SELECT revision, event ->> '$.at' AS at_ms,
    CASE WHEN what IN ('declared', 'deleted') THEN 'resource_' || what
        WHEN what IN ('hold_back_lifted', 'state_changed', 'config_changed') THEN what
        ELSE 'lease_' || what END AS event_type,
    event ->> '$.key.tenant' AS tenant, event ->> '$.key.kind' AS kind, event ->> '$.key.key' AS key,
    coalesce(event ->> ('$.what.' || what || '.lease'), event ->> ('$.what.' || what || '.id')) AS lease_id,
    event ->> ('$.what.' || what || '.holder') AS holder,
    coalesce(event ->> ('$.what.' || what || '.session'), event ->> ('$.what.' || what || '.tenure.session'))
        AS session_id,
    event ->> ('$.what.' || what || '.token') AS token, event -> '$.what' AS details, event ->> '$.by' AS by_key
FROM split
WHERE revision > coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'floor'), 0);
";

/// Version 5: all spent requests of one holder for one resource in one row: most are forgotten when newer ones come.
const SCHEMA_5: &str = "
INSERT INTO rows (tab, id, row)
    SELECT 'requests', json_array(tenant, kind, key, holder),
        json_object('resource', json_object('tenant', tenant, 'kind', kind, 'key', key), 'holder', holder,
            'spent', json_group_array(json_array(request, json(spent))))
    FROM (SELECT row ->> '$.request.request.resource.tenant' AS tenant,
        row ->> '$.request.request.resource.kind' AS kind, row ->> '$.request.request.resource.key' AS key,
        row ->> '$.request.request.holder' AS holder, row ->> '$.request.request.request' AS request,
        json_remove(row -> '$.request', '$.request') AS spent FROM rows WHERE tab = 'request')
    GROUP BY tenant, kind, key, holder;
DELETE FROM rows WHERE tab = 'request';
DROP VIEW requests;
CREATE VIEW requests AS SELECT row ->> '$.resource.tenant' AS tenant, row ->> '$.resource.kind' AS kind,
    row ->> '$.resource.key' AS key, row ->> '$.holder' AS holder, spent.value ->> '$[0]' AS request,
    spent.value ->> '$[1].until' AS until_ms FROM rows, json_each(row, '$.spent') AS spent WHERE tab = 'requests';
";

/// Version 6: a slot of a shared resource is a row of its own (rule 29).
const SCHEMA_6: &str = "
DROP VIEW resources;
CREATE VIEW resources AS SELECT row ->> '$.resource.key.tenant' AS tenant, row ->> '$.resource.key.kind' AS kind,
    row ->> '$.resource.key.key' AS key, coalesce(row ->> '$.resource.key.slot', 0) AS slot,
    row ->> '$.resource.lease.holder' AS holder,
    row ->> '$.resource.lease.id' AS lease_id, row ->> '$.resource.lease.token' AS token,
    row ->> '$.resource.last_token' AS last_token, row ->> '$.resource.state.document' AS state,
    row FROM rows WHERE tab = 'resource';
";

/// Makes the tables of a new file, and what an older one lacks; refuses a file that a newer program made.
pub(super) fn migrate(db: &Connection) -> Result<(), StoreError> {
    let version: i64 = db.pragma_query_value(None, "user_version", |r| r.get(0))?;
    if version > SCHEMA_VERSION.into() {
        let text = format!(
            "the data folder has schema {version}, and this program knows {SCHEMA_VERSION}: use a newer one"
        );
        return Err(StoreError::Unusable(text));
    }
    if version < SCHEMA_VERSION.into() {
        let tx = db.unchecked_transaction()?;
        let steps = (1..).zip([SCHEMA, SCHEMA_2, SCHEMA_3, SCHEMA_4, SCHEMA_5, SCHEMA_6]);
        for (step, sql) in steps.skip(version.max(0) as usize) {
            if version > 0 {
                tracing::info!(version = step, of = SCHEMA_VERSION, "applying schema migration");
            }
            tx.execute_batch(sql)?;
            if step == 4 {
                version_3::move_events(&tx)?;
            }
        }
        tx.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        tx.commit()?;
    }
    Ok(())
}

/// A row's identity as text: unambiguous whatever its names contain.
fn id_of(gone: &RowId) -> Result<(&'static str, String), StoreError> {
    let (table, id) = match gone {
        RowId::Session(id) => ("session", serde_json::to_string(id)),
        RowId::Holder(key) => ("holder", serde_json::to_string(&(&key.tenant, &key.name))),
        RowId::Resource(ResourceKey { tenant, kind, key, slot: 0 }) => {
            ("resource", serde_json::to_string(&(tenant, kind, key)))
        }
        RowId::Resource(ResourceKey { tenant, kind, key, slot }) => {
            ("resource", serde_json::to_string(&(tenant, kind, key, slot)))
        }
        // Requests are not written one by one.
        RowId::Request(r) => return id_of_requests(&Requester::of(r)),
        RowId::Record(collection, id) => ("record", serde_json::to_string(&(collection, id))),
        RowId::Waiter(key, arrival) => {
            ("waiter", serde_json::to_string(&(&key.tenant, &key.kind, &key.key, arrival)))
        }
    };
    Ok((table, id.map_err(|e| unreadable("row", e))?))
}

fn id_of_requests(of: &Requester) -> Result<(&'static str, String), StoreError> {
    let key = &of.resource;
    let id = serde_json::to_string(&(&key.tenant, &key.kind, &key.key, &of.holder));
    Ok(("requests", id.map_err(|e| unreadable("row", e))?))
}

/// All spent requests of one holder for one resource.
#[derive(Serialize, Deserialize)]
struct RequestsRow<S> {
    #[serde(flatten)]
    of: Requester,
    spent: S,
}

/// Writes rows as they are, and removes those that are gone.
pub(super) fn write(db: &Connection, fold: &Fold) -> Result<(), StoreError> {
    let sql = "INSERT INTO rows (tab, id, row) VALUES (?1, ?2, ?3) ON CONFLICT (tab, id) DO UPDATE SET row = excluded.row";
    let mut put = db.prepare_cached(sql)?;
    let mut delete = db.prepare_cached("DELETE FROM rows WHERE tab = ?1 AND id = ?2")?;
    for row in &fold.entry.rows {
        let Some(identity) = RowId::of(row) else { continue };
        let (table, id) = id_of(&identity)?;
        let text = serde_json::to_string(row).map_err(|e| unreadable("row", e))?;
        put.execute(params![table, id, text])?;
    }
    for gone in &fold.entry.gone {
        let (table, id) = id_of(gone)?;
        delete.execute(params![table, id])?;
    }
    for (of, spent) in &fold.requests {
        let (table, id) = id_of_requests(of)?;
        if spent.is_empty() {
            delete.execute(params![table, id])?;
        } else {
            let row = RequestsRow { of: of.clone(), spent };
            let text = serde_json::to_string(&row).map_err(|e| unreadable("row", e))?;
            put.execute(params![table, id, text])?;
        }
    }
    Ok(())
}

pub(super) fn write_clock(db: &Connection, mark: &Mark, cursor: Cursor) -> Result<(), StoreError> {
    let mark = serde_json::to_string(mark).map_err(|e| unreadable("mark", e))?;
    let sql =
        "INSERT OR REPLACE INTO meta (name, value) VALUES ('mark', ?1), ('epoch', ?2), ('revision', ?3)";
    db.execute(sql, params![mark, cursor.epoch.to_string(), cursor.revision.0.to_string()])?;
    Ok(())
}

/// Reads the snapshot and the clock; the log is still to be replayed over it.
pub(super) fn read(db: &Connection) -> Result<Image, StoreError> {
    let mut select = db.prepare("SELECT name, value FROM meta")?;
    let pairs = select.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)))?;
    let meta = pairs.collect::<Result<BTreeMap<_, _>, _>>()?;
    let number = |name: &str, otherwise: u64| match meta.get(name) {
        Some(text) => text.parse::<u64>().map_err(|e| unreadable(name, e)),
        None => Ok(otherwise),
    };
    let mark = meta
        .get("mark")
        .map(|text| serde_json::from_str(text).map_err(|e| unreadable("mark", e)))
        .transpose()?;
    let mut state = Ledger::default();
    load_rows(db, &mut state)?;
    state.take_dirty();
    Ok(Image {
        state,
        events: VecDeque::new(),
        cursor: Cursor { epoch: number("epoch", 1)?, revision: Revision(number("revision", 0)?) },
        floor: Revision(number("floor", 0)?),
        mark,
        set_back: None,
    })
}

/// Loads all rows. Decoding them takes as long as the rest, so another thread does it.
fn load_rows(db: &Connection, state: &mut Ledger) -> Result<(), StoreError> {
    let mut select = db.prepare("SELECT tab, id, row FROM rows")?;
    let mut rows = select.query([])?;
    thread::scope(|threads| {
        let (to_decode, stored) = mpsc::sync_channel::<Vec<StoredRow>>(PIECES_MAX);
        let (to_load, decoded) = mpsc::sync_channel(PIECES_MAX);
        threads.spawn(move || {
            for piece in stored {
                let piece: Result<Vec<_>, _> = piece.iter().map(StoredRow::decode).collect();
                if to_load.send(piece).is_err() {
                    break;
                }
            }
        });
        let mut under_way = 0;
        while let Some(piece) = StoredRow::piece(&mut rows)? {
            // What it sends back after an error ends the loop.
            let _ = to_decode.send(piece);
            under_way += 1;
            if under_way == PIECES_MAX {
                under_way -= 1;
                decoded.iter().next().transpose()?.into_iter().flatten().for_each(|row| row.load_into(state));
            }
        }
        drop(to_decode);
        for piece in decoded {
            piece?.into_iter().for_each(|row| row.load_into(state));
        }
        Ok(())
    })
}

/// A row as the table has it.
struct StoredRow {
    table: String,
    id: String,
    text: String,
}

impl StoredRow {
    /// The next rows to be decoded together; none if there are no more.
    fn piece(rows: &mut Rows<'_>) -> Result<Option<Vec<Self>>, StoreError> {
        let mut piece = Vec::new();
        while piece.len() < PIECE_ROWS
            && let Some(row) = rows.next()?
        {
            piece.push(Self { table: row.get(0)?, id: row.get(1)?, text: row.get(2)? });
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    fn decode(&self) -> Result<DecodedRow, StoreError> {
        let decoded = match self.table.as_str() {
            "requests" => serde_json::from_str(&self.text).map(DecodedRow::Requests),
            _ => serde_json::from_str(&self.text).map(DecodedRow::Other),
        };
        decoded.map_err(|error| unreadable(&format!("{} {}", self.table, self.id), error))
    }
}

#[expect(clippy::large_enum_variant, reason = "most rows are of the large one")]
enum DecodedRow {
    Requests(RequestsRow<SpentRequests>),
    Other(Row),
}

impl DecodedRow {
    fn load_into(self, state: &mut Ledger) {
        match self {
            Self::Requests(row) => state.load_requests(row.of, row.spent),
            Self::Other(row) => row.load_into(state),
        }
    }
}
