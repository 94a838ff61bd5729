//! Reads: each in one snapshot, judged at one time.

pub(crate) mod scan;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    sync::Arc,
};

use solehold_core::{
    key::{Name, ResourceKey, SessionId},
    lease::Resource,
    ledger::Ledger,
};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    PostgresStore,
    batch::{
        lines::{self, WantedWaiters},
        wanted::{WantedRows, of_holders, of_keys, of_pairs, of_requests},
    },
    clock::Reading,
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    statements::{Sql, read_now},
    tables::{
        columns::{EventPart, floor},
        part::{Param, Params, list, refs},
        rows::{self, HolderColumns, WholeResourceColumns, resource_hash},
        text, unreadable,
    },
};
use crate::{
    clock::{BootTime, RetryPauses},
    store::{
        EventPage, EventQuery, HolderPage, HolderQuery, LoadedRows, ResourcePage, ResourceQuery, StoreError,
        Usage,
    },
};

/// One snapshot for all statements of a read.
pub(crate) const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// How many attempts are made at a read: connections break, clocks are stepped.
const ATTEMPTS: u32 = 4;

impl PostgresStore {
    /// Runs a read on a connection, again if the connection was broken, the clock stepped or the store set back.
    pub(crate) async fn read<T, F>(
        &self,
        purpose: Purpose,
        what: &'static str,
        work: impl Fn(Arc<Conn>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut pauses = RetryPauses::default();
        let mut attempt = 1;
        loop {
            let fault = match self.read_once(purpose, what, &work).await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let again = match &fault {
                Fault::Stepped | Fault::SetBack => {
                    self.mend_and_retry(&fault).await?;
                    true
                }
                slow if slow.is_slow() => false,
                broken if broken.is_lost_connection() => {
                    self.pool.give_up_after(broken);
                    true
                }
                other => other.is_contention(),
            };
            if !again || attempt >= ATTEMPTS {
                return Err(fault.told());
            }
            attempt += 1;
            pauses.pause().await;
        }
    }

    async fn read_once<T, F>(
        &self,
        purpose: Purpose,
        what: &'static str,
        work: &impl Fn(Arc<Conn>) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let lent = self.lend(purpose).await?;
        let result = in_time(what, ROUND_TRIP, work(lent.conn())).await;
        let is_sound = match &result {
            Ok(_) => true,
            Err(fault) if fault.is_lost_connection() => false,
            Err(_) => in_time("rolling back", ROUND_TRIP, lent.simple("ROLLBACK")).await.is_ok(),
        };
        if is_sound {
            lent.give_back();
        }
        result
    }

    /// Rows of a read, with its time.
    fn loaded(&self, state: Ledger, reading: &Reading) -> Result<LoadedRows, Fault> {
        let cursor = reading.cursor();
        Ok(LoadedRows { state, now: self.time(reading)?, cursor, barred_until: reading.barred_until() })
    }

    pub(crate) async fn load_once(&self, conn: &Conn, wanted: &WantedRows) -> Result<LoadedRows, Fault> {
        let [tenants, kinds, keys] = of_keys(&wanted.keys);
        let (leases, marks) = wanted.lease_arrays();
        let whole: Vec<Uuid> = wanted.whole.iter().map(|id| id.0).collect();
        let [whole_tenants, whole_names] = of_holders(&wanted.whole_holders);
        let [holder_tenants, holder_names] = of_holders(&wanted.holders);
        let [held_tenants, held_names] = of_holders(&wanted.holdings);
        let [rq_tenants, rq_kinds, rq_keys, rq_holders, rq_requests] = of_requests(&wanted.requests);
        let [collections, record_ids] = of_pairs(&wanted.records);
        let hangs = !whole.is_empty() || !wanted.whole_holders.is_empty();
        let wants_resources = hangs || !keys.is_empty() || !leases.is_empty() || !wanted.holdings.is_empty();
        let wants_holders = !wanted.holders.is_empty() || !whole.is_empty();
        let asked = BootTime::now();
        let (begin, clock, resources, holders, requests, records) = join!(biased;
            conn.simple(SNAPSHOT),
            async { conn.query(Sql::SnapshotClock, &[]).await },
            async {
                let params: [Param<'_>; 10] = [
                    &tenants, &kinds, &keys, &leases, &whole, &whole_tenants, &whole_names, &marks,
                    &held_tenants, &held_names,
                ];
                conn.query_if(wants_resources, Sql::LoadResources, &params).await
            },
            async {
                conn.query_if(wants_holders, Sql::LoadHolders, &[&holder_tenants, &holder_names, &whole]).await
            },
            async {
                let params: [Param<'_>; 5] = [&rq_tenants, &rq_kinds, &rq_keys, &rq_holders, &rq_requests];
                conn.query_if(!wanted.requests.is_empty(), Sql::Requests, &params).await
            },
            async { conn.query_if(!wanted.records.is_empty(), Sql::Records, &[&collections, &record_ids]).await },
        );
        begin?;
        let reading = Reading::of(&clock?, asked)?;
        let mut state = Ledger::default();
        let mut sessions = wanted.sessions.clone();
        let mut ids = HashMap::new();
        for row in &resources? {
            let (id, resource) = rows::whole_resource(row)?;
            if rows::is_idle(&resource) {
                continue;
            }
            ids.insert(resource.key.clone(), id);
            load_resource(&mut state, &mut sessions, resource);
        }
        for row in &holders? {
            let holder = rows::holder(row)?;
            sessions.extend(holder.session);
            state.load_holder(holder);
        }
        for row in &requests? {
            let (request, spent) = rows::request(row)?;
            state.load_request(request, spent);
        }
        for row in &records? {
            state.load_record(rows::record(row)?);
        }
        sessions.extend(load_lines(conn, &mut state, &ids, wanted).await?);
        finish(conn, &mut state, &sessions).await?;
        self.loaded(state, &reading)
    }

    pub(crate) async fn find(&self, conn: &Conn, query: &ResourceQuery) -> Result<ResourcePage, Fault> {
        let statement = resource_query(query, self.time.lock().given_ms());
        let (reading, found) = snapshot(conn, statement).await?;
        let (mut state, sessions, keys) = load_page(&found, query)?;
        finish(conn, &mut state, &sessions).await?;
        Ok(ResourcePage { loaded: self.loaded(state, &reading)?, keys, more: found.len() > query.limit })
    }

    pub(crate) async fn find_names(&self, conn: &Conn, query: &HolderQuery) -> Result<HolderPage, Fault> {
        let (reading, found) = snapshot(conn, holder_query(query)).await?;
        let mut state = Ledger::default();
        let mut sessions = BTreeSet::new();
        let mut keys = Vec::new();
        for row in found.iter().take(query.limit) {
            let holder = rows::holder(row)?;
            sessions.extend(holder.session);
            keys.push(holder.key.clone());
            state.load_holder(holder);
        }
        finish(conn, &mut state, &sessions).await?;
        Ok(HolderPage { loaded: self.loaded(state, &reading)?, keys, more: found.len() > query.limit })
    }

    pub(crate) async fn read_events(&self, conn: &Conn, query: &EventQuery) -> Result<EventPage, Fault> {
        let (reading, found) = snapshot(conn, event_query(query)).await?;
        conn.simple("COMMIT").await?;
        let events = found.iter().map(rows::event).collect::<Result<Vec<_>, _>>()?;
        Ok(EventPage { events, floor: reading.clock.floor, head: reading.cursor() })
    }

    pub(crate) async fn count(&self, conn: &Conn, tenant: Option<&Name>) -> Result<Usage, Fault> {
        let mut params: Params<'_> = vec![Box::new(self.time.lock().given_ms())];
        params.extend(tenant.map(|t| Box::new(t.as_str()) as _));
        let of = if tenant.is_some() { " AND tenant = $2" } else { "" };
        let of_resource = of.replace("tenant", "r.tenant");
        let now = read_now!();
        let held = "solehold.leases l JOIN solehold.resources r ON r.id = l.resource_id";
        let sql = format!(
            "SELECT (SELECT count(*) FROM {held} LEFT JOIN solehold.sessions s ON s.id = l.session_id \
                WHERE l.lease_id IS NOT NULL \
                AND least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) > {now}{of_resource}), \
             (SELECT count(*) FROM solehold.resources r WHERE r.declared{of_resource}) \
                + (SELECT count(*) FROM {held} WHERE (l.lease_id IS NOT NULL OR l.taken > 0) AND r.slot = 0 \
                    AND NOT r.declared{of_resource}), \
             (SELECT count(*) FROM solehold.sessions WHERE deadline_ms > {now} AND tenant <> chr(1) || 'rooms'{of}), \
             (SELECT count(*) FROM solehold.waiters w JOIN solehold.resources r ON r.id = w.resource_id \
                WHERE true{of_resource})"
        );
        let (reading, found) = snapshot(conn, (sql, params)).await?;
        conn.simple("COMMIT").await?;
        self.time(&reading)?;
        let row = found.first().ok_or_else(|| unreadable("PostgreSQL returned no count"))?;
        let number = |at: usize| row.try_get::<_, i64>(at).map(|n| n as u64);
        Ok(Usage {
            live_leases: number(0)?,
            resources: number(1)?,
            sessions: number(2)?,
            waiters: number(3)?,
        })
    }
}

/// Begins a snapshot, reads the clock in it and runs a query.
async fn snapshot(conn: &Conn, (sql, params): (String, Params<'_>)) -> Result<(Reading, Vec<Row>), Fault> {
    let statement = conn.shaped(&sql).await?;
    let params = refs(&params);
    let asked = BootTime::now();
    let (begin, clock, found) = join!(biased;
        conn.simple(SNAPSHOT),
        async { conn.query(Sql::SnapshotClock, &[]).await },
        async { Ok::<_, Fault>(conn.client.query(&statement, &params).await?) },
    );
    begin?;
    Ok((Reading::of(&clock?, asked)?, found?))
}

/// Loads the waiters for what was loaded; gives the sessions that they are attached to.
async fn load_lines(
    conn: &Conn,
    state: &mut Ledger,
    ids: &HashMap<ResourceKey, i64>,
    wanted: &WantedRows,
) -> Result<BTreeSet<SessionId>, Fault> {
    let is_queued = |key: &ResourceKey| state.resource(key).is_some_and(|r| r.queued > 0);
    let queued: HashMap<_, _> =
        ids.iter().filter(|(key, _)| is_queued(key)).map(|(key, id)| (key, *id)).collect();
    let rows = WantedWaiters::of(wanted, &queued, &[]).read(conn).await?;
    let keys: HashMap<i64, &ResourceKey> = queued.into_iter().map(|(key, id)| (id, key)).collect();
    lines::load(state, rows, |id| keys.get(&id).copied())
}

/// Loads the sessions that the rows are attached to, and ends the snapshot.
async fn finish(conn: &Conn, state: &mut Ledger, sessions: &BTreeSet<SessionId>) -> Result<(), Fault> {
    let (loaded, end) = join!(biased; load_sessions(conn, state, sessions), conn.simple("COMMIT"));
    loaded?;
    end
}

pub(crate) async fn load_sessions(
    conn: &Conn,
    state: &mut Ledger,
    sessions: &BTreeSet<SessionId>,
) -> Result<(), Fault> {
    let ids: Vec<Uuid> = sessions.iter().map(|id| id.0).collect();
    for row in &conn.query_if(!ids.is_empty(), Sql::LoadSessions, &[&ids]).await? {
        state.load_session(rows::session(row)?);
    }
    Ok(())
}

/// Loads a resource; notes the sessions that it is attached to.
fn load_resource(state: &mut Ledger, sessions: &mut BTreeSet<SessionId>, resource: Resource) {
    sessions.extend(resource.sessions());
    state.load_resource(resource);
}

/// Loads a page of resources: the rows, the sessions that they are attached to, and their keys.
pub(crate) fn load_page(
    found: &[Row],
    query: &ResourceQuery,
) -> Result<(Ledger, BTreeSet<SessionId>, Vec<ResourceKey>), Fault> {
    let mut state = Ledger::default();
    let mut sessions = BTreeSet::new();
    let mut keys = Vec::new();
    for row in found.iter().take(query.limit) {
        let (_, resource) = rows::whole_resource(row)?;
        keys.push(resource.key.clone());
        load_resource(&mut state, &mut sessions, resource);
    }
    Ok((state, sessions, keys))
}

struct Conditions<'a> {
    sql: String,
    params: Params<'a>,
}

impl<'a> Conditions<'a> {
    fn new(select: String, first: Params<'a>) -> Self {
        Self { sql: format!("{select} WHERE true"), params: first }
    }

    /// Adds a condition; `{}` in it stands for the parameter.
    fn and(&mut self, condition: &str, param: impl tokio_postgres::types::ToSql + Sync + Send + 'a) {
        let at = self.param(param);
        let _ = write!(self.sql, " AND {}", condition.replace("{}", &at));
    }

    fn param(&mut self, param: impl tokio_postgres::types::ToSql + Sync + Send + 'a) -> String {
        self.params.push(Box::new(param));
        format!("${}", self.params.len())
    }

    /// Goes on after a place in the order of `columns`. What is given as equal anyway is left out of the comparison,
    /// which lets the index be entered at that place and not at the beginning of the equal part.
    fn after<'n: 'a>(
        &mut self,
        columns: &[&str],
        place: impl Iterator<Item = (&'n Name, Option<&'n Name>)>,
        number: Option<u32>,
    ) {
        let place: Vec<_> = place.collect();
        let skip = place.iter().take_while(|(at, given)| *given == Some(*at)).count();
        let mut values: Vec<_> = place[skip..].iter().map(|(at, _)| self.param(at.as_str())).collect();
        values.extend(number.map(|number| self.param(i64::from(number))));
        let _ = write!(self.sql, " AND ({}) > ({})", columns[skip..].join(", "), values.join(", "));
    }

    fn end(mut self, order: &str, limit: usize) -> (String, Params<'a>) {
        let limit = self.param(i64::try_from(limit).unwrap_or(i64::MAX));
        let _ = write!(self.sql, " ORDER BY {order} LIMIT {limit}");
        (self.sql, self.params)
    }
}

/// The tenants that have resources, each found in the index by one step from the one before: a key is then looked up in
/// each of them, however many resources there are.
const OF_EACH_TENANT: &str = " AND r.tenant IN (WITH RECURSIVE each(tenant) AS ( \
        (SELECT tenant FROM solehold.resources ORDER BY tenant LIMIT 1) UNION ALL \
        SELECT (SELECT n.tenant FROM solehold.resources n WHERE n.tenant > each.tenant ORDER BY n.tenant LIMIT 1) \
        FROM each WHERE each.tenant IS NOT NULL) \
    SELECT tenant FROM each WHERE tenant IS NOT NULL)";

/// As [`rows::is_idle`].
const NOT_IDLE: &str = " AND (r.declared OR l.lease_id IS NOT NULL OR l.pending_lease_id IS NOT NULL OR l.has_state \
    OR l.queued > 0 OR l.taken > 0 OR l.held_back_until_ms IS NOT NULL)";

pub(crate) fn resource_query(query: &ResourceQuery, given_ms: i64) -> (String, Params<'_>) {
    let select = format!(
        "SELECT {} FROM solehold.resources r JOIN solehold.leases l ON l.resource_id = r.id \
         LEFT JOIN solehold.states t ON t.resource_id = r.id LEFT JOIN solehold.sessions s ON s.id = l.session_id",
        list::<WholeResourceColumns>()
    );
    let mut all = Conditions::new(select, vec![Box::new(given_ms)]);
    let _ = write!(all.sql, " AND {} > 0", read_now!());
    if let Some(tenant) = &query.tenant {
        all.and("r.tenant = {}", tenant.as_str());
    }
    if let Some(kind) = &query.kind {
        all.and("r.kind = {}", kind.as_str());
    }
    if let Some(key) = &query.key {
        all.and("r.key = {}", key.as_str());
        if query.tenant.is_none() {
            all.sql.push_str(OF_EACH_TENANT);
        }
    }
    if let Some(site) = &query.site {
        all.and("r.site = {}", site.as_str());
    }
    if let Some(holder) = &query.holder {
        all.and("(l.holder = {} AND l.lease_id IS NOT NULL)", holder.as_str());
    }
    if let Some(session) = query.session {
        all.and("(l.session_id = {} AND l.lease_id IS NOT NULL OR l.pending_session_id = {})", session.0);
    }
    if let Some(leased) = query.leased {
        let deadline = "coalesce(CASE WHEN l.lease_id IS NOT NULL THEN \
                least(coalesce(s.deadline_ms, l.deadline_ms), l.confirm_by_ms) END, 0)";
        let _ = write!(all.sql, " AND {deadline} {} {}", if leased { ">" } else { "<=" }, read_now!());
        all.sql.push_str(if leased { "" } else { " AND l.taken = 0" });
    }
    if !query.wants_slots() {
        all.sql.push_str(" AND r.slot = 0");
    }
    for (label, value) in &query.labels {
        let wanted = serde_json::json!({ text::stored(label): text::stored(value) });
        all.and("r.labels @> {}", wanted);
    }
    all.sql.push_str(if query.undeclared { NOT_IDLE } else { " AND r.declared" });
    if let Some(after) = &query.after {
        let given = [query.tenant.as_ref(), query.kind.as_ref(), None];
        all.after(
            &["r.tenant", "r.kind", "r.key", "r.slot"],
            [&after.tenant, &after.kind, &after.key].into_iter().zip(given),
            Some(after.slot),
        );
    }
    all.end("r.tenant, r.kind, r.key, r.slot", query.limit.saturating_add(1))
}

fn holder_query(query: &HolderQuery) -> (String, Params<'_>) {
    let select = format!("SELECT {} FROM solehold.holders h", list::<HolderColumns>());
    let mut all = Conditions::new(select, vec![]);
    if let Some(tenant) = &query.tenant {
        all.and("h.tenant = {}", tenant.as_str());
    }
    if let Some(name) = &query.name {
        all.and("h.name = {}", name.as_str());
    }
    if query.registered {
        all.sql.push_str(" AND h.registered");
    }
    if let Some(after) = &query.after {
        let given = [query.tenant.as_ref(), None];
        all.after(&["h.tenant", "h.name"], [&after.tenant, &after.name].into_iter().zip(given), None);
    }
    all.end("h.tenant, h.name", query.limit.saturating_add(1))
}

fn event_query(query: &EventQuery) -> (String, Params<'_>) {
    let select = format!("SELECT {} FROM solehold.lease_events e", list::<EventPart>());
    let mut all = Conditions::new(select, vec![]);
    // Events up to the floor are gone, even while their rows wait to be removed.
    all.and(concat!("e.revision > greatest({}, ", floor!(), ")"), query.after.0 as i64);
    if let Some(lease) = query.lease {
        all.and("e.lease_id = {}", lease.0);
    }
    if let Some(resource) = &query.resource {
        all.and("e.resource_hash = {}", resource_hash(resource));
        all.and("e.tenant = {}", resource.tenant.as_str());
        all.and("e.kind = {}", resource.kind.as_str());
        all.and("e.key = {}", resource.key.as_str());
    }
    match query.newest_before {
        Some(before) => {
            all.and("e.revision < {}", i64::try_from(before.0).unwrap_or(i64::MAX));
            all.end("e.revision DESC", query.limit)
        }
        None => all.end("e.revision", query.limit),
    }
}
