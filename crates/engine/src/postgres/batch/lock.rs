//! Takes a batch's locks in the order that all batches use, and loads the locked rows.
//!
//! ```text
//!   sessions by id -> holders by name -> leases by resource -> the clock (only in Lane::News) -> rows only read
//! ```
//!
//! One round trip. Statements that run after the clock's lock see every commit with events, since each of those held
//! it. So rows that only such commits change (requests, records, declarations, whether a row exists at all) are read
//! there, unlocked.

use std::collections::HashMap;

use solehold_core::{
    key::{Document, ResourceKey, SessionId},
    lease::StateDocument,
    ledger::{FoundLate, Ledger},
    time::{StoreTime, Token},
};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    lines::{self, LineRow},
    plan::Plan,
    wanted::{WantedRows, columns, of_holders, of_keys, of_pairs, of_requests},
};
use crate::{
    clock::BootTime,
    observe::Lane,
    postgres::{
        PostgresStore,
        clock::Reading,
        connection::pool::{Conn, ROUND_TRIP, in_time},
        fault::Fault,
        statements::Sql,
        tables::{
            columns::{LeaseKeyPart, MovesPart},
            part::{self, Param},
            rows::{self, LeaseColumns, PresentSessionColumns, StateColumns},
        },
    },
};

/// The stored columns of a resource when it was locked.
#[derive(Debug)]
pub(crate) struct LockedResource {
    pub(crate) id: i64,
    pub(crate) due_ms: Option<i64>,
    pub(crate) had_pending: bool,
    pub(crate) had_state: bool,
    pub(crate) was_declared: bool,
    /// Its row was idle, so that the decision sees none.
    pub(crate) was_idle: bool,
    pub(crate) last_token: Token,
    pub(crate) created_at: StoreTime,
}

impl LockedResource {
    /// Whether nothing but its lease would have to be cleared for its row to be idle.
    pub(crate) fn is_plain(&self) -> bool {
        !self.was_declared && !self.had_state && !self.had_pending
    }
}

pub(crate) struct LockedRows {
    pub(crate) state: Ledger,
    pub(crate) reading: Reading,
    pub(crate) resources: HashMap<ResourceKey, LockedResource>,
    /// The metrics that each session had: unchanged ones are not written again.
    pub(crate) sessions: HashMap<SessionId, Document>,
}

/// The answers to all statements, in the order in which they are sent.
struct Answers {
    /// Read just before the first statement is sent.
    asked: BootTime,
    _begin: (),
    sessions: Vec<Row>,
    holders: Vec<Row>,
    leases: Vec<Row>,
    _clock_lock: Vec<Row>,
    clock: Vec<Row>,
    missing: Vec<Row>,
    held_now: Vec<Row>,
    holders_now: Vec<Row>,
    requests: Vec<Row>,
    cancelled: Vec<Row>,
    records: Vec<Row>,
    moves: Vec<Row>,
    states: Vec<Row>,
    waiters: Vec<LineRow>,
}

/// Sends all statements at once, in this order, and makes a struct of their answers. Of several failures the first one
/// counts: the later ones only follow from it.
macro_rules! pipelined {
    ($answers:ident { $($field:ident: $statement:expr,)* }) => {{
        let ($($field,)*) = join!(biased; $($statement,)*);
        Ok($answers { $($field: $field?,)* })
    }};
}

impl PostgresStore {
    /// Begins a transaction, and locks and loads the planned rows.
    pub(crate) async fn lock(
        &self,
        conn: &Conn,
        wanted: &WantedRows,
        plan: &Plan,
        lane: Lane,
    ) -> Result<LockedRows, Fault> {
        let answers = in_time("locking rows", ROUND_TRIP, request_locks(conn, wanted, plan, lane)).await?;
        let reading = Reading::of(&answers.clock, answers.asked)?;
        if !answers.missing.is_empty() {
            return Err(Fault::Stale);
        }
        // A lease that a holder got since it was looked up was not locked.
        for row in &answers.held_now {
            if !plan.known.contains_key(&part::read::<LeaseKeyPart>(row)?.resource_id) {
                return Err(Fault::Stale);
            }
        }
        let mut held = LockedRows {
            state: Ledger::default(),
            reading,
            resources: HashMap::new(),
            sessions: HashMap::new(),
        };
        for row in &answers.sessions {
            let session = rows::session(row)?;
            let is_whole = plan.whole.contains(&session.id.0);
            if is_whole && !plan.holders.contains(&session.holder) {
                return Err(Fault::Stale);
            }
            held.sessions.insert(session.id, session.metrics.clone());
            held.state.load_session(session);
        }
        load_holders(&mut held, &answers, wanted, plan, lane)?;
        load_resources(&mut held, &answers, plan, lane)?;
        let key_of = |id: i64| plan.known.get(&id).map(|k| &k.is.key);
        let sessions = lines::load(&mut held.state, answers.waiters, key_of)?;
        if let Some(late) = sessions.into_iter().find(|id| !plan.sessions.contains(id)) {
            return Err(FoundLate::Session(late).into());
        }
        for row in answers.requests.iter().chain(&answers.cancelled) {
            let (request, spent) = rows::request(row)?;
            held.state.load_request(request, spent);
        }
        for row in &answers.records {
            held.state.load_record(rows::record(row)?);
        }
        for row in &answers.moves {
            let MovesPart { tenant, kind, moves } = part::read(row)?;
            held.state.load_moves(tenant, kind, moves);
        }
        Ok(held)
    }
}

async fn request_locks(conn: &Conn, wanted: &WantedRows, plan: &Plan, lane: Lane) -> Result<Answers, Fault> {
    let sessions: Vec<Uuid> = plan.sessions.iter().map(|id| id.0).collect();
    let [holder_tenants, holder_names] = of_holders(&plan.holders);
    let ids: Vec<i64> = plan.known.keys().copied().collect();
    let with_state: Vec<i64> = plan.known.values().filter(|k| k.has_state).map(|k| k.is.id).collect();
    let [tenants, kinds, keys] = of_keys(&plan.missing);
    let slots: Vec<i64> = plan.missing.iter().map(|key| key.slot.into()).collect();
    let [rq_tenants, rq_kinds, rq_keys, rq_holders, rq_requests] = of_requests(&wanted.requests);
    let cancelled = wanted
        .cancelled
        .iter()
        .map(|of| [&of.resource.tenant, &of.resource.kind, &of.resource.key, &of.holder]);
    let [c_tenants, c_kinds, c_keys, c_holders] = columns(cancelled);
    let [collections, record_ids] = of_pairs(&wanted.records);
    let [held_tenants, held_names] = of_holders(&wanted.holdings);
    let [move_tenants, move_kinds] = of_pairs(&wanted.moves);
    let has_holders = !plan.holders.is_empty();
    let lines = plan.lines(wanted);
    let news = lane == Lane::News;
    pipelined!(Answers {
        asked: async { Ok::<_, Fault>(BootTime::now()) },
        _begin: conn.simple("BEGIN"),
        sessions: async { conn.query_if(!sessions.is_empty(), Sql::LockSessions, &[&sessions]).await },
        holders: async {
            conn.query_if(has_holders, Sql::LockHolders, &[&holder_tenants, &holder_names]).await
        },
        leases: async {
            if plan.whole.is_empty() {
                conn.query_if(!ids.is_empty(), Sql::LockLeases, &[&ids]).await
            } else {
                conn.query(Sql::LockLeasesAndHanging, &[&ids, &plan.whole]).await
            }
        },
        _clock_lock: async { conn.query_if(news, Sql::LockClock, &[]).await },
        clock: async { conn.query(Sql::ReadClock, &[]).await },
        missing: async {
            let wanted = news && !plan.missing.is_empty();
            conn.query_if(wanted, Sql::AnyResources, &[&tenants, &kinds, &keys, &slots]).await
        },
        held_now: async {
            let wanted = news && !wanted.holdings.is_empty();
            conn.query_if(wanted, Sql::Holdings, &[&held_tenants, &held_names]).await
        },
        holders_now: async {
            conn.query_if(news && has_holders, Sql::ResolveHolders, &[&holder_tenants, &holder_names]).await
        },
        requests: async {
            let params: [Param<'_>; 5] = [&rq_tenants, &rq_kinds, &rq_keys, &rq_holders, &rq_requests];
            conn.query_if(!wanted.requests.is_empty(), Sql::Requests, &params).await
        },
        cancelled: async {
            let params: [Param<'_>; 4] = [&c_tenants, &c_kinds, &c_keys, &c_holders];
            conn.query_if(!wanted.cancelled.is_empty(), Sql::CancelledRequests, &params).await
        },
        records: async {
            conn.query_if(!wanted.records.is_empty(), Sql::Records, &[&collections, &record_ids]).await
        },
        moves: async {
            conn.query_if(!wanted.moves.is_empty(), Sql::CountMoves, &[&move_tenants, &move_kinds]).await
        },
        states: async { conn.query_if(!with_state.is_empty(), Sql::States, &[&with_state]).await },
        waiters: async { if news { lines.read(conn).await } else { Ok(Vec::new()) } },
    })
}

/// Loads holders. Their present sessions must be locked as well, and none may have come or gone before the clock was
/// locked.
fn load_holders(
    held: &mut LockedRows,
    answers: &Answers,
    wanted: &WantedRows,
    plan: &Plan,
    lane: Lane,
) -> Result<(), Fault> {
    if lane == Lane::News && answers.holders_now.len() != answers.holders.len() {
        return Err(Fault::Stale);
    }
    for row in &answers.holders {
        let holder = rows::holder(row)?;
        if let Some(session) = holder.session {
            if !plan.sessions.contains(&session) {
                return Err(FoundLate::Session(session).into());
            }
            if wanted.whole_holders.contains(&holder.key) && !plan.whole.contains(&session.0) {
                return Err(Fault::Stale);
            }
        }
        held.state.load_holder(holder);
    }
    if lane == Lane::News {
        for row in &answers.holders_now {
            let (key, _) = part::read::<PresentSessionColumns>(row)?;
            if held.state.holder(&key).is_none() {
                return Err(Fault::Stale);
            }
        }
    }
    Ok(())
}

fn load_resources(held: &mut LockedRows, answers: &Answers, plan: &Plan, lane: Lane) -> Result<(), Fault> {
    let mut states = HashMap::new();
    for row in &answers.states {
        let (key, state) = part::read::<StateColumns>(row)?;
        states.insert(key.resource_id, state.into());
    }
    for row in &answers.leases {
        load_resource(held, part::read(row)?, &mut states, plan, lane)?;
    }
    // A resource that was deleted before it was locked: its key may belong to another row by now.
    if held.resources.len() == plan.known.len() { Ok(()) } else { Err(Fault::Stale) }
}

fn load_resource(
    held: &mut LockedRows,
    row: LeaseColumns,
    states: &mut HashMap<i64, StateDocument>,
    plan: &Plan,
    lane: Lane,
) -> Result<(), Fault> {
    let (LeaseKeyPart { resource_id: id }, bounds, beside, holding, pending) = &row;
    let known = plan.known.get(id).ok_or(Fault::Stale)?;
    // A line that formed meanwhile has to be loaded; renewals do not need it.
    if lane == Lane::News && bounds.queued > 0 && !known.is_queued {
        return Err(Fault::Stale);
    }
    let state = states.remove(id);
    if known.is.version != beside.version || beside.has_state != state.is_some() {
        return Err(Fault::Stale);
    }
    let held_by = holding.as_ref().and_then(|lease| lease.session_id);
    let waiting_for = pending.as_ref().map(|p| p.session);
    if let Some(late) = held_by.into_iter().chain(waiting_for).find(|id| !plan.sessions.contains(id)) {
        return Err(FoundLate::Session(late).into());
    }
    let id = *id;
    let due_ms = bounds.due_ms;
    let resource = rows::resource(&known.is, row, state)?;
    let stored = LockedResource {
        id,
        due_ms,
        had_pending: resource.pending.is_some(),
        had_state: resource.state.is_some(),
        was_declared: resource.declared.is_some(),
        was_idle: rows::is_idle(&resource),
        last_token: resource.last_token,
        created_at: resource.created_at,
    };
    if !stored.was_idle {
        held.state.load_resource(resource);
    }
    held.resources.insert(known.is.key.clone(), stored);
    Ok(())
}
