//! Everything out, and everything in.

use std::{collections::HashMap, time::Duration};

use solehold_core::{event::Event, lease::Resource, resume, session::Session, state::State, time::Revision};
use tokio::join;

use super::{
    PostgresStore,
    clock::Reading,
    fault::Fault,
    pool::{Conn, Use, in_time},
    read::{SNAPSHOT, load_resource},
    retry::Backoff,
    rows,
    sql::{Sql, lease_columns, resource_columns, state_columns},
    touched::Touched,
    write::{Before, Writes},
};
use crate::{
    clock::Tick,
    history,
    store::{Cursor, EXPORT_FORMAT, Header, Import, NOT_EMPTY, Row, StoreError},
};

/// A large store takes its time.
const TRANSFER: Duration = Duration::from_secs(600);
/// How often an import is tried when others are in the way.
const ATTEMPTS: u32 = 20;
/// Ids that were not made for their resource: an export of before has such.
const KEEP_OLD_IDS: &str = "INSERT INTO solehold.old_ids \
    SELECT k.lease_id, r.id FROM solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id \
    CROSS JOIN LATERAL (VALUES (l.lease_id), (l.pending_lease_id)) AS k(lease_id) \
    WHERE left(k.lease_id::text, 8) <> lpad(to_hex(r.mark), 8, '0')";
/// Events that one statement takes.
const EVENTS_AT_ONCE: usize = 5_000;

impl PostgresStore {
    pub(super) async fn export_all(&self) -> Result<Vec<Row>, StoreError> {
        self.read_within(
            TRANSFER,
            Use::Read,
            "exporting",
            |conn| async move { self.export_from(&conn).await },
        )
        .await
    }

    async fn export_from(&self, conn: &Conn) -> Result<Vec<Row>, Fault> {
        let asked = Tick::now();
        let (begin, clock) =
            join!(biased; conn.simple(SNAPSHOT), async { conn.query(Sql::SnapshotClock, &[]).await });
        begin?;
        let reading = Reading::of(&clock?, asked)?;
        conn.simple("SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on").await?;
        let mut all = vec![Row::Header(Header {
            format: EXPORT_FORMAT,
            now: self.time_of_retired(&reading)?,
            revision: reading.revision,
            epoch: reading.epoch,
            floor: reading.floor,
            retired: reading.retired_to.is_some(),
        })];
        let ask =
            async |sql: &str| Ok::<Vec<tokio_postgres::Row>, Fault>(conn.client.query_typed(sql, &[]).await?);
        let columns = "s.id, s.tenant, s.holder, s.ttl_ms, s.opened_at_ms, s.renewed_at_ms, s.deadline_ms, s.standing, \
                       s.capacity, s.lease_count, s.lease_revision, s.metrics, s.waiting";
        for row in &ask(&format!("SELECT {columns} FROM solehold.sessions s ORDER BY s.id")).await? {
            let session = rows::session(row)?;
            // Those who wait are connections, and so are their rooms: they ask again where this is moved to.
            if !session.is_room() {
                all.push(Row::Session(Session { waiting: 0, ..session }));
            }
        }
        let columns = "h.tenant, h.name, h.registered, h.session_id, h.status, h.registered_at_ms, h.heard_at_ms, \
                       h.site, h.attributes, h.metrics";
        for row in
            &ask(&format!("SELECT {columns} FROM solehold.holders h ORDER BY h.tenant, h.name")).await?
        {
            all.push(Row::Holder(rows::holder(row)?));
        }
        let sql = format!(
            "SELECT {}, {}, {} FROM solehold.resources r JOIN solehold.leases l ON l.resource_id = r.id \
             LEFT JOIN solehold.states t ON t.resource_id = r.id ORDER BY r.tenant, r.kind, r.key",
            resource_columns!(),
            lease_columns!(),
            state_columns!()
        );
        let mut state = State::default();
        for row in &ask(&sql).await? {
            load_resource(&mut state, &mut Default::default(), row)?;
        }
        all.extend(state.resources().cloned().map(|r| Row::Resource(Resource { queued: 0, ..r })));
        let sql = "SELECT tenant, kind, key, holder, request, until_ms FROM solehold.requests \
                   ORDER BY tenant, kind, key, holder, request";
        for row in &ask(sql).await? {
            let (request, until) = rows::request(row)?;
            all.push(Row::Request { request, until });
        }
        for row in
            &ask("SELECT collection, id, document FROM solehold.records ORDER BY collection, id").await?
        {
            all.push(Row::Record(rows::record(row)?));
        }
        let sql =
            "SELECT revision, at_ms, tenant, kind, key, details FROM solehold.lease_events ORDER BY revision";
        for row in &ask(sql).await? {
            all.push(Row::Event(rows::event(row)?));
        }
        conn.simple("COMMIT").await?;
        all.push(Row::End { rows: all.len() as u64 - 1 });
        Ok(all)
    }

    pub(super) async fn import_all(&self, rows: Vec<Row>) -> Result<(), StoreError> {
        let import = Import::read(rows)?;
        let mut backoff = Backoff::default();
        for attempt in 1.. {
            let lent = self.lend(Use::Write).await.map_err(Fault::told)?;
            let work = self.import_into(&lent, import.header.clone(), import.state.clone(), &import.events);
            // Unless it goes well the connection is dropped, and with it whatever was half done.
            match in_time("importing", TRANSFER, work).await {
                Ok(()) => {
                    lent.give_back();
                    return Ok(());
                }
                Err(fault @ (Fault::Stepped | Fault::SetBack)) if attempt < ATTEMPTS => {
                    match self.mend(&fault).await {
                        Err(fault) if !fault.is_contention() => return Err(fault.told()),
                        _ => {}
                    }
                }
                Err(fault) if fault.is_contention() && attempt < ATTEMPTS => backoff.wait().await,
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
        mut state: State,
        events: &[Event],
    ) -> Result<(), Fault> {
        conn.simple("BEGIN; SET LOCAL statement_timeout = 0").await?;
        let reading = self.lock_clock(conn).await?;
        refuse_unless_empty(conn, &reading).await?;
        // Store time never goes back, not even by moving house.
        let now = self.time(&reading)?.max(header.now);
        let ahead_ms = now.0 as i64 - (reading.wall_ms + reading.offset_ms);
        let gap_ms = now.ms_after(header.now);
        resume(&mut state, header.now, gap_ms, now, 0);
        let mut dirty = state.take_dirty();
        dirty.holders = state.holders().map(|h| h.key.clone()).collect();
        dirty.requests = state.requests().map(|(request, _)| request.clone()).collect();
        dirty.records = state.records().map(|r| r.key()).collect();
        let touched = Touched::imported(&state);
        let before = Before { resources: &HashMap::new(), sessions: &HashMap::new() };
        let writes = Writes::of(&state, &dirty, &touched, &before, |id| id)?;
        writes.send(conn, async {}).await.0?;
        for events in events.chunks(EVENTS_AT_ONCE) {
            let mut writes = Writes::default();
            writes.events(events)?;
            writes.send(conn, async {}).await.0?;
        }
        // Rows got numbers from 1 on; revisions must begin above them.
        let revision = header.revision.max(Revision(state.resources().count() as u64));
        let furthest = Cursor { epoch: header.epoch.max(reading.epoch), revision };
        let (cursor, barred_until) = match header.retired {
            true => (Cursor { epoch: furthest.epoch + 1, ..furthest }, 0),
            // The old store may have gone on: what it grants from now on must not be granted here, nor its tokens given.
            false => {
                let cursor = history::another(furthest, reading.wall_ms as u64);
                (cursor, self.barred_until(conn, &reading, now.0 as i64).await?)
            }
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
        self.forget_pace();
        self.begin_at(cursor);
        Ok(())
    }
}

async fn refuse_unless_empty(conn: &Conn, reading: &Reading) -> Result<(), Fault> {
    let sql = "SELECT EXISTS (SELECT 1 FROM solehold.resources) OR EXISTS (SELECT 1 FROM solehold.sessions) \
               OR EXISTS (SELECT 1 FROM solehold.holders) OR EXISTS (SELECT 1 FROM solehold.requests) \
               OR EXISTS (SELECT 1 FROM solehold.records) OR EXISTS (SELECT 1 FROM solehold.lease_events)";
    let rows = conn.client.query_typed(sql, &[]).await?;
    let is_used = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(true);
    if is_used || reading.revision > Revision(0) {
        return Err(StoreError::Unusable(NOT_EMPTY.to_owned()).into());
    }
    Ok(())
}
