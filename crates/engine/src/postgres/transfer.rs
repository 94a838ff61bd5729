//! Export and import.

use std::{collections::HashMap, pin::pin, time::Duration};

use futures_util::TryStreamExt as _;
use solehold_core::{
    event::Event,
    lease::Resource,
    ledger::{Dirty, Ledger},
    resume,
    session::Session,
    time::Revision,
};
use tokio::join;
use tokio_postgres::types::{ToSql, Type};

use super::{
    PostgresStore,
    batch::write::{ResourceChanges, RowsBefore, Writes},
    clock::{Reading, pace::Timekeeper},
    connection::pool::{Conn, Purpose, in_time},
    fault::Fault,
    read::SNAPSHOT,
    statements::Sql,
    tables::{
        columns::EventPart,
        part::{Part, list},
        rows::{self, HolderColumns, RecordColumns, RequestColumns, SessionColumns, WholeResourceColumns},
    },
};
use crate::{
    clock::{BootTime, RetryPauses},
    flow::Exporter,
    history,
    store::{Cursor, EXPORT_FORMAT, Header, Import, Row, StoreError},
};

const TRANSFER: Duration = Duration::from_secs(600);
/// How many attempts are made while other replicas hold locks, or after the clock was stepped.
const ATTEMPTS: u32 = 20;
/// Lease ids that do not begin with the mark of their resource, as exports of versions before 3 have them.
const KEEP_OLD_IDS: &str = "INSERT INTO solehold.old_ids \
    SELECT k.lease_id, r.id FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
    CROSS JOIN LATERAL (VALUES (l.lease_id), (l.pending_lease_id)) AS k(lease_id) \
    WHERE left(k.lease_id::text, 8) <> lpad(to_hex(r.mark), 8, '0')";
/// Events that one statement takes.
const EVENTS_AT_ONCE: usize = 5_000;

impl PostgresStore {
    pub(crate) async fn export_all(&self, out: &mut Exporter) -> Result<(), StoreError> {
        let _turn = self.bulk_turn().await?;
        let mut attempt = 1;
        loop {
            let lent = self.lend(Purpose::Read).await.map_err(Fault::told)?;
            match in_time("exporting", TRANSFER, self.export_from(&lent, out)).await {
                Ok(()) => {
                    lent.give_back();
                    return Ok(());
                }
                // The connection is dropped, and with it the snapshot. What has begun cannot begin again.
                Err(fault @ Fault::Stepped) if attempt < ATTEMPTS && !out.has_begun() => {
                    self.mend_and_retry(&fault).await?;
                    attempt += 1;
                }
                Err(fault) => return Err(fault.told()),
            }
        }
    }

    /// Gives all rows as they come from the server: neither it nor this process has them all at once.
    async fn export_from(&self, conn: &Conn, out: &mut Exporter) -> Result<(), Fault> {
        let asked = BootTime::now();
        let (begin, clock) =
            join!(biased; conn.simple(SNAPSHOT), async { conn.query(Sql::SnapshotClock, &[]).await });
        begin?;
        let reading = Reading::of(&clock?, asked)?;
        let now = self.time_of_retired(&reading)?;
        conn.simple("SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on").await?;
        out.put(Row::Header(Header {
            format: EXPORT_FORMAT,
            now,
            revision: reading.clock.revision,
            epoch: reading.clock.epoch,
            floor: reading.clock.floor,
            retired: reading.clock.retired_to.is_some(),
        }))
        .await?;
        // Waiters are connections, and so are their rooms: they ask again at the new store.
        let session = |row: &_| {
            let session = rows::session(row)?;
            Ok((!session.is_room()).then_some(Row::Session(Session { waiting: 0, ..session })))
        };
        give::<SessionColumns>(conn, out, "sessions s ORDER BY s.id", session).await?;
        let holder = |row: &_| Ok(Some(Row::Holder(rows::holder(row)?)));
        give::<HolderColumns>(conn, out, "holders h ORDER BY h.tenant, h.name", holder).await?;
        let resources = "resources r JOIN solehold.leases l ON l.resource_id = r.id \
             LEFT JOIN solehold.states t ON t.resource_id = r.id ORDER BY r.tenant, r.kind, r.key, r.slot";
        let resource = |row: &_| {
            let (_, resource) = rows::whole_resource(row)?;
            Ok((!rows::is_idle(&resource)).then_some(Row::Resource(Resource { queued: 0, ..resource })))
        };
        give::<WholeResourceColumns>(conn, out, resources, resource).await?;
        let requests = "requests q ORDER BY q.tenant, q.kind, q.key, q.holder, q.request";
        let request = |row: &_| {
            let (request, spent) = rows::request(row)?;
            Ok(Some(Row::Request { request, spent }))
        };
        give::<RequestColumns>(conn, out, requests, request).await?;
        let record = |row: &_| Ok(Some(Row::Record(rows::record(row)?)));
        give::<RecordColumns>(conn, out, "records d ORDER BY d.collection, d.id", record).await?;
        let event = |row: &_| Ok(Some(Row::Event(rows::event(row)?)));
        give::<EventPart>(conn, out, "lease_events e ORDER BY e.revision", event).await?;
        conn.simple("COMMIT").await
    }

    pub(crate) async fn import_all(&self, import: Import) -> Result<(), StoreError> {
        let mut pauses = RetryPauses::default();
        for attempt in 1.. {
            let lent = self.lend(Purpose::Write).await.map_err(Fault::told)?;
            let work = self.import_into(&lent, import.header.clone(), import.state.clone(), &import.events);
            // Unless it goes well the connection is dropped, and with it whatever was half done.
            match in_time("importing", TRANSFER, work).await {
                Ok(()) => {
                    lent.give_back();
                    return Ok(());
                }
                Err(fault @ (Fault::Stepped | Fault::SetBack)) if attempt < ATTEMPTS => {
                    self.mend_and_retry(&fault).await?;
                }
                Err(fault) if fault.is_contention() && attempt < ATTEMPTS => pauses.pause().await,
                // The end of it may have happened.
                Err(fault) if fault.is_lost_connection() => {
                    return Err(StoreError::Unknown(fault.to_string()));
                }
                Err(fault) => return Err(fault.told()),
            }
        }
        Ok(())
    }

    async fn import_into(
        &self,
        conn: &Conn,
        header: Header,
        mut state: Ledger,
        events: &[Event],
    ) -> Result<(), Fault> {
        conn.simple("BEGIN; SET LOCAL statement_timeout = 0").await?;
        let reading = self.lock_clock(conn).await?;
        refuse_unless_empty(conn, &reading).await?;
        // Store time never goes back, not even by moving house.
        let now = self.time(&reading)?.max(header.now);
        let ahead_ms = now.0 as i64 - (reading.clock.wall_ms + reading.clock.offset_ms);
        let gap_ms = now.ms_after(header.now);
        resume(&mut state, header.now, gap_ms, now, 0);
        let dirty = Dirty::all_of(&state);
        let changes = ResourceChanges::imported(&state);
        let before = RowsBefore { resources: &HashMap::new(), sessions: &HashMap::new(), now };
        let writes = Writes::of(&state, &dirty, &changes, &before, |id| id)?;
        writes.send(conn, async {}).await.0?;
        for events in events.chunks(EVENTS_AT_ONCE) {
            let mut writes = Writes::default();
            writes.events(events)?;
            writes.send(conn, async {}).await.0?;
        }
        // Rows got numbers from 1 on; revisions must begin above them.
        let revision = header.revision.max(Revision(state.resources().count() as u64));
        let furthest = Cursor { epoch: header.epoch.max(reading.clock.epoch), revision };
        let (cursor, barred_until) = if header.retired {
            (Cursor { epoch: furthest.epoch + 1, ..furthest }, 0)
        } else {
            // The old store may still be running: wait out its leases, and give none of its tokens.
            let cursor = history::another(furthest, reading.clock.wall_ms as u64);
            (cursor, self.barred_until(conn, &reading, now.0 as i64).await?)
        };
        self.go_on(conn, &reading, cursor.revision, now).await?;
        let sql = format!(
            "UPDATE solehold.clock SET epoch = {}, offset_ms = offset_ms + {}, moves = moves + 1, \
             grants_barred_until_ms = {barred_until} WHERE id = 1; \
             INSERT INTO solehold.floors (revision) VALUES ({}) ON CONFLICT DO NOTHING",
            cursor.epoch,
            ahead_ms.max(0),
            header.floor.0,
        );
        conn.simple(&sql).await?;
        conn.simple(KEEP_OLD_IDS).await?;
        conn.simple("COMMIT").await?;
        // Time may have been moved on: this replica follows.
        *self.time.lock() = Timekeeper::default();
        self.begin_at(cursor);
        Ok(())
    }
}

/// Exports the rows of a table as they arrive. PostgreSQL sends them only as fast as they are read.
async fn give<P: Part>(
    conn: &Conn,
    out: &mut Exporter,
    from: &str,
    read: impl Fn(&tokio_postgres::Row) -> Result<Option<Row>, Fault>,
) -> Result<(), Fault> {
    let none: [(&(dyn ToSql + Sync), Type); 0] = [];
    let sql = format!("SELECT {} FROM solehold.{from}", list::<P>());
    let mut found = pin!(conn.client.query_typed_raw(&sql, none).await?);
    while let Some(row) = found.try_next().await? {
        if let Some(row) = read(&row)? {
            out.put(row).await?;
        }
    }
    Ok(())
}

async fn refuse_unless_empty(conn: &Conn, reading: &Reading) -> Result<(), Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM solehold.resources) OR EXISTS (SELECT 1 FROM solehold.sessions) \
               OR EXISTS (SELECT 1 FROM solehold.holders) OR EXISTS (SELECT 1 FROM solehold.requests) \
               OR EXISTS (SELECT 1 FROM solehold.records) OR EXISTS (SELECT 1 FROM solehold.lease_events)";
    if conn.value(sql).await?.unwrap_or(true) || reading.clock.revision > Revision(0) {
        return Err(StoreError::NotEmpty.into());
    }
    Ok(())
}
