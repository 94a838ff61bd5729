//! Finds leases and sessions that seem to have expired, and deletes ended rows.
//!
//! `SweepProgress` keeps when each task was last done and how far it has come. Only the sweeper's calls change it, one
//! after the other ([`Store::due`](crate::store::Store::due), `maintain`), and `close`, which gives the turn back.

pub(crate) mod spent;
pub(crate) mod turn;

use std::{collections::HashSet, time::Duration};

use solehold_core::{
    command::Command,
    key::{ResourceKey, SessionId},
    time::Revision,
};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::postgres::{
    PostgresStore,
    clock::MARK_EVERY_MS,
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    statements::Sql,
    tables::{
        columns::{DueLeasePart, DueSessionPart, OrphanPart, RemovalPart},
        part, unreadable,
    },
};
use crate::{
    clock::{BootTime, RetryPauses},
    store::{Nominations, Retention, StoreError},
};

/// Most rows that one statement removes from one table.
const FORGET_MAX: i64 = 5_000;
/// While there is more to forget, a round continues for this long.
const FORGET_FOR: Duration = Duration::from_millis(500);
/// Rounds begin where the last one ended. This often they begin at the beginning, for what was busy then.
const FROM_THE_BEGINNING_EVERY_MS: i64 = 60 * 60 * 1_000;
/// Rows of `commits` are kept for this long, many times longer than any batch asks for its own.
const COMMITS_KEPT_MS: i64 = 10 * 60 * 1_000;
/// Most events that one round removes.
const FORGET_EVENTS_MAX: i64 = 20_000;
/// Forgetting is not urgent: this often is enough.
const FORGET_EVERY_MS: i64 = 1_000;
/// How many attempts are made at a round that runs into locks of others.
const FORGET_ATTEMPTS: u32 = 8;
/// Counting events means reading an index over all of them.
const COUNT_EVERY_MS: i64 = 60_000;

/// Ids from before version 3 are few, and do no harm.
const OLD_IDS_EVERY_MS: i64 = 60_000;

/// When each task of the sweep was last done, by store time, and how far it has come.
#[derive(Debug, Default)]
pub(crate) struct SweepProgress {
    forgot_ms: Option<i64>,
    counted_ms: Option<i64>,
    old_ids_ms: Option<i64>,
    began_ms: Option<i64>,
    ends: Ends,
    places: Places,
    /// The number of the last turn that this replica has taken.
    pub(crate) turn: Option<i64>,
}

/// Where forgetting has got to in each table: all below is gone.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    requests: i64,
    commits: i64,
    events: i64,
    turns: i64,
    ceilings: i64,
}

/// A nomination and since when it is due.
type Nominated = (i64, Command);

/// Where a page of due rows ended: the bound and the id of its last row.
type DueKey<Id> = (i64, Id);

/// Where the sweeper has got to among what is due. It goes round: a full page is gone past, and after one that is not
/// full it begins at the beginning. So rows that are nominated again and again without effect never block those after
/// them.
#[derive(Debug, Clone, Copy)]
struct Places {
    leases: DueKey<i64>,
    sessions: DueKey<Uuid>,
    /// Whether sessions come first where there is more than the limit; every other time they do.
    is_sessions_turn: bool,
}

impl Default for Places {
    fn default() -> Self {
        Self { leases: NO_LEASE, sessions: NO_SESSION, is_sessions_turn: false }
    }
}

const NO_LEASE: DueKey<i64> = (i64::MIN, i64::MIN);
const NO_SESSION: DueKey<Uuid> = (i64::MIN, Uuid::nil());

impl Places {
    /// Moves on past the pages that were looked at, but for one that will be cut short.
    fn go_on(&mut self, limit: usize, leases: &DuePage<i64>, sessions: &DuePage<Uuid>) {
        self.is_sessions_turn = !self.is_sessions_turn;
        let is_too_much = leases.nominated.len() + sessions.nominated.len() > limit;
        if !is_too_much || !self.is_sessions_turn {
            self.leases = leases.last.filter(|_| leases.looked_at >= limit).unwrap_or(NO_LEASE);
        }
        if !is_too_much || self.is_sessions_turn {
            self.sessions = sessions.last.filter(|_| sessions.looked_at >= limit).unwrap_or(NO_SESSION);
        }
    }

    /// At most `limit` of both sorts: all of the one whose turn it is, and as much of the other as there is room for.
    fn choose(&self, limit: usize, leases: Vec<Nominated>, sessions: Vec<Nominated>) -> Vec<Nominated> {
        let (mut first, mut second) =
            if self.is_sessions_turn { (sessions, leases) } else { (leases, sessions) };
        first.sort_by_key(|(since, _)| *since);
        second.sort_by_key(|(since, _)| *since);
        first.extend(second);
        first.truncate(limit);
        first
    }
}

/// A page of what may be due, and what became of its rows.
struct DuePage<Id> {
    nominated: Vec<Nominated>,
    /// Not due yet: their bounds are moved.
    renewed: Vec<Id>,
    /// Sessions that are over, with leases on them.
    dead: Vec<(i64, Id)>,
    /// Sessions that are over, with nothing ripe on them.
    parked: Vec<Id>,
    last: Option<DueKey<Id>>,
    looked_at: usize,
}

impl<Id> DuePage<Id> {
    fn of(rows: usize) -> Self {
        let (nominated, renewed, dead, parked) = Default::default();
        Self { nominated, renewed, dead, parked, last: None, looked_at: rows }
    }
}

fn due_leases(rows: &[Row], now: i64) -> Result<DuePage<i64>, Fault> {
    let mut page = DuePage::of(rows.len());
    for row in rows {
        let DueLeasePart { resource_id: id, tenant, kind, key, slot, ripe_at_ms, due_ms } = part::read(row)?;
        match ripe_at_ms {
            Some(since) if since <= now => {
                page.nominated
                    .push((since, Command::Expire { key: ResourceKey { tenant, kind, key, slot } }));
            }
            _ => page.renewed.push(id),
        }
        page.last = Some((due_ms, id));
    }
    Ok(page)
}

fn due_sessions(rows: &[Row], now: i64) -> Result<DuePage<Uuid>, Fault> {
    let mut page = DuePage::of(rows.len());
    for row in rows {
        let due: DueSessionPart = part::read(row)?;
        let id = due.id.0;
        let deadline = due.deadline_ms;
        match (deadline <= now, due.has_leases, due.has_pending) {
            (false, _, _) => page.renewed.push(id),
            (true, true, _) => page.dead.push((deadline, id)),
            (true, false, false) => page.nominated.push((deadline, Command::ExpireSession(SessionId(id)))),
            // The pending leases on it lapse first, by their own deadlines.
            (true, false, true) => page.parked.push(id),
        }
        page.last = Some((due.due_ms, id));
    }
    Ok(page)
}

impl PostgresStore {
    pub(crate) async fn nominate(&self, conn: &Conn, limit: usize) -> Result<Nominations, Fault> {
        let (reading, turn) = self.read_clock_and_turn(conn).await?;
        let now = self.time(&reading)?.0 as i64;
        self.restate_ceiling(conn, &reading).await?;
        if self.keep_turn(conn, turn, now).await?.is_none() {
            return Ok(Nominations::default());
        }
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut places = self.sweep_progress.lock().places;
        let (lease_bound, lease_id) = places.leases;
        let (session_bound, session_id) = places.sessions;
        let (leases, sessions) = join!(biased;
            async { conn.query(Sql::DueLeases, &[&now, &most, &lease_bound, &lease_id]).await },
            async { conn.query(Sql::DueSessions, &[&now, &most, &session_bound, &session_id]).await },
        );
        let leases = due_leases(&leases?, now)?;
        let mut sessions = due_sessions(&sessions?, now)?;
        if !sessions.dead.is_empty() {
            let dead = std::mem::take(&mut sessions.dead);
            let orphans = orphans_of(conn, dead, now, most, &mut sessions.parked).await?;
            sessions.nominated.extend(orphans);
        }
        self.move_bounds(conn, &leases.renewed, &sessions.renewed, &sessions.parked, now).await?;
        places.go_on(limit, &leases, &sessions);
        let mut nominated = places.choose(limit, leases.nominated, sessions.nominated);
        self.sweep_progress.lock().places = places;
        nominated.sort_by_key(|(since, _)| *since);
        Ok(Nominations {
            lag_ms: nominated.first().map_or(0, |(since, _)| (now - since).max(0) as u64),
            commands: nominated.into_iter().map(|(_, command)| command).collect(),
        })
    }

    /// Moves the bounds of what is not ripe up, so that it is not looked at again before its time.
    async fn move_bounds(
        &self,
        conn: &Conn,
        leases: &[i64],
        sessions: &[Uuid],
        parked: &[Uuid],
        now: i64,
    ) -> Result<(), Fault> {
        let (leases, sessions, parked) = join!(biased;
            async { conn.execute_if(!leases.is_empty(), Sql::BumpLeases, &[&leases, &now]).await },
            async { conn.execute_if(!sessions.is_empty(), Sql::BumpSessions, &[&sessions]).await },
            async { conn.execute_if(!parked.is_empty(), Sql::ParkSessions, &[&parked]).await },
        );
        for moved in [leases, sessions, parked] {
            match moved {
                Err(fault) if !fault.is_contention() => return Err(fault),
                // A conflict: retried the next time.
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) async fn maintain_once(&self, retention: &Retention) -> Result<(), StoreError> {
        let (now, turn, is_claim_due) = self
            .read(Purpose::Write, "moving the clock's mark", |conn| async move {
                let (reading, turn) = self.read_clock_and_turn(&conn).await?;
                let now = self.time(&reading)?.0 as i64;
                if now - reading.clock.last_ms >= MARK_EVERY_MS {
                    match self.mark(&conn).await {
                        Err(fault) if !fault.is_contention() => return Err(fault),
                        // A conflict: retried in the next round.
                        _ => {}
                    }
                }
                self.restate_ceiling(&conn, &reading).await?;
                self.forget_surplus(&conn).await?;
                let is_claim_due = self.time.lock().is_claim_due(&reading.sample());
                Ok((now, self.keep_turn(&conn, turn, now).await?, is_claim_due))
            })
            .await?;
        if is_claim_due {
            self.claim_ceiling(true).await.map_err(Fault::told)?;
        }
        let Some(turn) = turn else { return Ok(()) };
        if !is_time(&mut self.sweep_progress.lock().forgot_ms, now, FORGET_EVERY_MS) {
            return Ok(());
        }
        let mut pauses = RetryPauses::default();
        for _ in 0..FORGET_ATTEMPTS {
            match self.forget(retention, now, turn).await {
                Err(fault) if fault.is_contention() => self.sweep_progress.lock().counted_ms = None,
                other => return other.map_err(Fault::told),
            }
            pauses.pause().await;
        }
        // Others were in the way all the time: there is another round.
        Ok(())
    }

    /// Forgets what is over, for a bounded while; if there is more, the next round is due at once.
    async fn forget(&self, retention: &Retention, now: i64, turn: i64) -> Result<(), Fault> {
        let lent = self.lend(Purpose::Write).await?;
        let conn = &*lent;
        if is_time(&mut self.sweep_progress.lock().began_ms, now, FROM_THE_BEGINNING_EVERY_MS) {
            self.sweep_progress.lock().ends = Ends::default();
        }
        let work = async {
            let began = BootTime::now();
            while self.forget_some(conn, retention, now).await? {
                if BootTime::now().since(began) > FORGET_FOR {
                    self.sweep_progress.lock().forgot_ms = None;
                    break;
                }
            }
            let end = self.sweep_progress.lock().ends.turns;
            let turns = conn.query(Sql::ForgetTurns, &[&turn, &FORGET_MAX, &end]).await?;
            self.sweep_progress.lock().ends.turns = Removal::of(&turns, FORGET_MAX, turn)?.end;
            let claim = self.time.lock().claim_number();
            let end = self.sweep_progress.lock().ends.ceilings;
            conn.execute(Sql::ForgetCeilings, &[&claim, &end]).await?;
            self.sweep_progress.lock().ends.ceilings = claim;
            if is_time(&mut self.sweep_progress.lock().old_ids_ms, now, OLD_IDS_EVERY_MS) {
                conn.execute(Sql::ForgetOldIds, &[]).await?;
            }
            Ok(())
        };
        // Several statements, each with its own bound on the server.
        let result = in_time("forgetting what is over", 4 * ROUND_TRIP, work).await;
        match &result {
            Err(fault) if fault.is_lost_connection() => {}
            _ => lent.give_back(),
        }
        result
    }

    /// Forgets some rows of each table; true if there may be more.
    async fn forget_some(&self, conn: &Conn, retention: &Retention, now: i64) -> Result<bool, Fault> {
        let ends = self.sweep_progress.lock().ends;
        let old_commits = now - COMMITS_KEPT_MS;
        let requests = conn.query(Sql::ForgetRequests, &[&now, &FORGET_MAX, &ends.requests]).await?;
        let requests = Removal::of(&requests, FORGET_MAX, now)?;
        self.sweep_progress.lock().ends.requests = requests.end;
        let commits = conn.query(Sql::ForgetCommits, &[&old_commits, &FORGET_MAX, &ends.commits]).await?;
        let commits = Removal::of(&commits, FORGET_MAX, old_commits)?;
        self.sweep_progress.lock().ends.commits = commits.end;
        let resources = number(&conn.query(Sql::ForgetResources, &[&now, &FORGET_MAX]).await?)?;
        let events = self.forget_events(conn, retention, now).await?;
        Ok(requests.is_more || commits.is_more || events || resources.unwrap_or(0) >= FORGET_MAX)
    }

    /// Drops events past their retention. The floor is raised in a commit of its own before: a reader sees either the
    /// events, or that they are gone.
    async fn forget_events(&self, conn: &Conn, retention: &Retention, now: i64) -> Result<bool, Fault> {
        let end = self.sweep_progress.lock().ends.events;
        let too_old = now.saturating_sub(i64::try_from(retention.events_ms).unwrap_or(i64::MAX));
        let too_many = i64::try_from(retention.events_max).unwrap_or(i64::MAX);
        let (by_age, span) = join!(biased;
            async { conn.query(Sql::FloorByAge, &[&too_old, &FORGET_EVENTS_MAX, &end]).await },
            async { conn.query(Sql::EventSpan, &[&end]).await },
        );
        let by_age = number(&by_age?)?.map(|floor| retention.by_age(Revision(floor as u64)).0 as i64);
        let mut floor = by_age.filter(|floor| *floor > end);
        let may_be_too_many = number(&span?)?.is_some_and(|span| span > too_many);
        if may_be_too_many && is_time(&mut self.sweep_progress.lock().counted_ms, now, COUNT_EVERY_MS) {
            floor = floor.max(number(&conn.query(Sql::FloorByNumber, &[&too_many]).await?)?);
        }
        if let Some(floor) = floor {
            conn.execute(Sql::RaiseFloor, &[&floor]).await?;
            conn.execute(Sql::ForgetFloors, &[]).await?;
        }
        let gone = conn.query(Sql::ForgetEvents, &[&FORGET_EVENTS_MAX, &end]).await?;
        let gone = Removal::of(&gone, FORGET_EVENTS_MAX, floor.unwrap_or(end).max(end))?;
        self.sweep_progress.lock().ends.events = gone.end;
        Ok(gone.is_more)
    }
}

/// The leases on dead sessions that are ripe, and then those sessions of which all leases are nominated. Sessions on
/// which nothing is ripe are parked.
async fn orphans_of(
    conn: &Conn,
    dead: Vec<(i64, Uuid)>,
    now: i64,
    most: i64,
    parked: &mut Vec<Uuid>,
) -> Result<Vec<Nominated>, Fault> {
    let ids: Vec<Uuid> = dead.iter().map(|(_, id)| *id).collect();
    let rows = conn.query(Sql::DueOrphans, &[&ids, &now, &most]).await?;
    let mut nominated = Vec::new();
    let mut ripe = HashSet::new();
    let mut unripe = HashSet::new();
    for row in &rows {
        let OrphanPart { id: SessionId(id), deadline_ms, tenant, kind, key, slot, is_ripe } =
            part::read(row)?;
        if is_ripe {
            nominated.push((deadline_ms, Command::Expire { key: ResourceKey { tenant, kind, key, slot } }));
            ripe.insert(id);
        } else {
            unripe.insert(id);
        }
    }
    let is_all = (rows.len() as i64) < most;
    for (since, id) in dead {
        match (ripe.contains(&id), unripe.contains(&id)) {
            (false, true) => parked.push(id),
            (_, false) if is_all => nominated.push((since, Command::ExpireSession(SessionId(id)))),
            _ => {}
        }
    }
    Ok(nominated)
}

struct Removal {
    is_more: bool,
    /// All below is gone.
    end: i64,
}

impl Removal {
    /// Reads how many rows went, and where that ended; if that was not as many as it might have been, all up to `all`
    /// are gone.
    fn of(rows: &[Row], most: i64, all: i64) -> Result<Self, Fault> {
        let row = rows.first().ok_or_else(|| unreadable("PostgreSQL returned no count"))?;
        let RemovalPart { count, last } = part::read(row)?;
        let is_more = count >= most;
        Ok(Self { is_more, end: last.filter(|_| is_more).unwrap_or(all) })
    }
}

/// Whether a task is due; notes that it is done.
fn is_time(last: &mut Option<i64>, now: i64, every_ms: i64) -> bool {
    let is_time = last.is_none_or(|last| now - last >= every_ms);
    if is_time {
        *last = Some(now);
    }
    is_time
}

/// The one number that a query gives, if it gives one.
fn number(rows: &[Row]) -> Result<Option<i64>, Fault> {
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
}
