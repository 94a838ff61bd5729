//! Store time over a wall clock that operators and daemons may step (rules 1 and 2).
//!
//! ```text
//!   store time = greatest(last_ms, clock_timestamp() + offset_ms)      the same for every replica
//! ```
//!
//! `offset_ms` is in the clock's one row. `last_ms` is the last time that any replica has stored: with a batch, or as a
//! mark that every running replica sees to at least every half second. Each replica compares the wall clock with its
//! own `CLOCK_BOOTTIME` and with the ceiling that all replicas share ([`pace`]); where it is out of pace the offset is
//! corrected before anything is decided. Claims and stored times are serialized by the lock of the clock's row.
//!
//! When a store is opened and no replica has moved the mark for longer than running replicas leave it, none was
//! running: the time that passed is given back to all leases and sessions that were live. That is always safe, since it
//! only lengthens what holders count on.

pub mod pace;

use std::time::Duration;

use solehold_core::time::{Revision, StoreTime};
use tokio::join;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::postgres::{
    PostgresStore,
    clock::pace::{OutOfPace, Remedy, Sample, TOLERANCE_MS, Version},
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    statements::Sql,
    tables::{
        columns::{CeilingPart, ClockPart},
        part,
    },
};
use crate::{
    clock::{BootTime, RetryPauses},
    store::Cursor,
};

/// A mark is at least this old before it is moved on. Housekeeping comes by five times per second, so while a replica
/// runs, a mark is younger than [`UNWITNESSED_MS`] but for stalls.
pub(crate) const MARK_EVERY_MS: i64 = 100;
/// If no replica was running for longer than this, the time is given back when a store is opened.
const UNWITNESSED_MS: i64 = TOLERANCE_MS;
/// Store time may be this much ahead of the wall clock after a correction, while replicas run.
const BEHIND_MS: i64 = 2 * TOLERANCE_MS;
/// How often, and how long each time, to wait for a running replica to move the mark before time is given back.
const LOOKS: u32 = 10;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// As often, how long to wait for a running replica to write the ceiling down again: that happens ten times per second.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// A gap up to this long, as a restart leaves it, is given back by the offset alone: store time goes on from the mark,
/// and no row is touched.
const BY_OFFSET_MS: i64 = 5_000;
/// But store time stays this close to the wall clock, for the sake of people who read it.
const NEAR_WALL_MS: i64 = 60_000;
/// A process that has given a time above the ceiling waits no longer than this at a time.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// How many attempts are made at a claim that runs into what others do.
const CLAIM_ATTEMPTS: u32 = 8;
/// Giving back by rows may rewrite all of them.
const GIVE_BACK: Duration = Duration::from_secs(120);

/// What is read after the clock's lock is as new as the lock, whatever the default isolation.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Locks everything that a renewal could change, in the order that all replicas keep to.
pub(crate) const LOCK_ALL: &str = "BEGIN; SET LOCAL statement_timeout = '120s'; SET LOCAL lock_timeout = '10s'; \
    SELECT count(*) FROM (SELECT id FROM solehold.sessions ORDER BY id FOR UPDATE) s; \
    SELECT count(*) FROM (SELECT resource_id FROM solehold.leases ORDER BY resource_id FOR UPDATE) l";
/// How far a history has come: its cursor, and the last time that was stored, which moves on with renewals, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) cursor: Cursor,
    pub(crate) last_ms: i64,
}

impl Point {
    pub(crate) fn is_behind(self, seen: Self) -> bool {
        let is_same_epoch = self.cursor.epoch == seen.cursor.epoch;
        self.cursor < seen.cursor || (is_same_epoch && self.last_ms < seen.last_ms)
    }
}

/// The clock's row, the newest batch and mark, and PostgreSQL's wall clock when they were read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) clock: ClockPart,
    ceiling: CeilingPart,
    /// The reading lies between these.
    pub(crate) asked: BootTime,
    pub(crate) answered: BootTime,
}

impl Reading {
    /// Reads the one row of [`Sql::ReadClock`] and its like; `asked` is from before the request was sent.
    pub(crate) fn of(rows: &[Row], asked: BootTime) -> Result<Self, Fault> {
        let answered = BootTime::now();
        let Some(row) = rows.first() else {
            return Err(Fault::Unreadable(
                "the tables solehold.clock and solehold.commits have no row: were they emptied by hand?"
                    .to_owned(),
            ));
        };
        let (clock, ceiling) = part::read(row)?;
        Ok(Self { clock, ceiling, asked, answered })
    }

    /// Nothing is decided before this time.
    pub(crate) fn barred_until(&self) -> StoreTime {
        StoreTime(u64::try_from(self.clock.grants_barred_until_ms).unwrap_or_default())
    }

    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { epoch: self.clock.epoch, revision: self.clock.revision }
    }

    pub(crate) fn point(&self) -> Point {
        Point { cursor: self.cursor(), last_ms: self.clock.last_ms }
    }

    /// Store time by the wall clock and the offset alone.
    pub(crate) fn by_wall(&self) -> i64 {
        self.clock.wall_ms + self.clock.offset_ms
    }

    /// How far the wall clock is ahead of the last time that was stored.
    fn gap(&self) -> i64 {
        self.by_wall() - self.clock.last_ms
    }

    /// Whether store time, when it is taken up, goes on from the mark and not from the wall clock.
    fn goes_on_from_mark(&self) -> bool {
        let lag = self.clock.wall_ms - self.clock.last_ms;
        lag < 0 || (self.gap() <= BY_OFFSET_MS && lag <= NEAR_WALL_MS)
    }

    /// Whether a replica is running: the mark is as young as running replicas leave it.
    fn is_witnessed(&self) -> bool {
        (-BEHIND_MS..=UNWITNESSED_MS).contains(&self.gap())
    }

    /// How many times store time was moved on purpose, and the number of the last claim.
    fn version(&self) -> Version {
        Version { moves: self.clock.moves, number: self.ceiling.number }
    }

    pub(crate) fn sample(&self) -> Sample {
        Sample {
            by_wall_ms: self.by_wall(),
            last_ms: self.clock.last_ms,
            version: self.version(),
            ceiling_ms: self.ceiling.ceiling_ms,
            claimed_ms: self.ceiling.claimed_ms,
            asked_ms: self.asked.as_ms() as i64,
            answered_ms: self.answered.as_ms() as i64,
        }
    }
}

impl PostgresStore {
    /// Store time by a reading of any history.
    pub(crate) fn time_of_any(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        let given = self.time.lock().time(&reading.sample());
        Ok(StoreTime(given.map_err(|OutOfPace| Fault::Stepped)? as u64))
    }

    /// Reads the clock without locking it.
    pub(crate) async fn read_clock(&self, conn: &Conn) -> Result<Reading, Fault> {
        let asked = BootTime::now();
        Reading::of(&in_time("reading the clock", ROUND_TRIP, conn.query(Sql::ReadClock, &[])).await?, asked)
    }

    /// Locks the clock within a transaction, and reads it in a later statement: only that one sees the commits that the
    /// lock has waited for.
    pub(crate) async fn lock_clock(&self, conn: &Conn) -> Result<Reading, Fault> {
        let asked = BootTime::now();
        let (locked, read) = join!(biased;
            async { conn.query(Sql::LockClock, &[]).await },
            async { conn.query(Sql::ReadClock, &[]).await },
        );
        locked?;
        Reading::of(&read?, asked)
    }

    /// Lets the history go on from `revision`, as a batch does: under the clock's lock.
    pub(crate) async fn go_on(
        &self,
        conn: &Conn,
        reading: &Reading,
        revision: Revision,
        now: StoreTime,
    ) -> Result<(), Fault> {
        let number = reading.clock.number + 1;
        let revision = revision.0 as i64;
        let now = now.0 as i64;
        conn.execute(Sql::LeaveWord, &[&Uuid::now_v7(), &number, &revision, &now]).await?;
        Ok(())
    }

    /// Where the clock is out of pace, or its ceiling was not claimed yet: corrects it, so that store time goes on as
    /// boot time says, and claims the ceiling; with `renew`, even if all is well.
    pub(crate) async fn claim_ceiling(&self, renew: bool) -> Result<(), Fault> {
        let _one_at_a_time = self.claiming.lock().await;
        let lent = self.lend(Purpose::Write).await?;
        let mut pauses = RetryPauses::default();
        let mut attempt = 1;
        let wait = loop {
            match in_time("correcting the clock", ROUND_TRIP, self.claim_on(&lent, renew)).await {
                Ok(wait) => break wait,
                // Reads wait for this claim, and have few attempts of their own for other faults.
                Err(fault) if fault.is_contention() && attempt < CLAIM_ATTEMPTS => {
                    lent.simple("ROLLBACK").await?;
                }
                Err(fault) => return Err(fault),
            }
            attempt += 1;
            pauses.pause().await;
        };
        lent.give_back();
        tokio::time::sleep(wait.min(WAIT_MAX)).await;
        Ok(())
    }

    /// As [`Self::claim_ceiling`], in a transaction of its own. Returns how long to wait before time can be given.
    async fn claim_on(&self, conn: &Conn, renew: bool) -> Result<Duration, Fault> {
        conn.simple(BEGIN).await?;
        conn.query(Sql::LockClock, &[]).await?;
        // Not together with the lock, so that the time of waiting for that does not blur it.
        let reading = self.read_clock(conn).await?;
        let remedy = self.time.lock().remedy(&reading.sample(), renew);
        let ahead_ms = match remedy {
            Remedy::Claim { ahead_ms } => ahead_ms,
            Remedy::Nothing => return conn.simple("ROLLBACK").await.map(|()| Duration::ZERO),
            Remedy::Wait { ms } => {
                conn.simple("ROLLBACK").await?;
                return Ok(Duration::from_millis(ms.max(0) as u64));
            }
        };
        if ahead_ms != 0 {
            if ahead_ms.abs() > TOLERANCE_MS {
                tracing::warn!(
                    ahead_ms,
                    "PostgreSQL's clock was set or drifted; correcting the offset of store time"
                );
            }
            let offset_ms = reading.clock.offset_ms - ahead_ms;
            conn.simple(&format!("UPDATE solehold.clock SET offset_ms = {offset_ms} WHERE id = 1")).await?;
        }
        let version = Version { number: reading.ceiling.number + 1, ..reading.version() };
        let now_ms = BootTime::now().as_ms() as i64;
        let ceiling = self.time.lock().ceiling(now_ms);
        // Forgotten meanwhile: the next reading starts over.
        let Some((_, ceiling_ms)) = ceiling else {
            return conn.simple("ROLLBACK").await.map(|()| Duration::ZERO);
        };
        conn.execute(Sql::StateCeiling, &[&version.number, &ceiling_ms, &ceiling_ms]).await?;
        // As a batch does: one that has read the clock before this lock, in a stricter isolation, fails and runs again.
        self.go_on(conn, &reading, reading.clock.revision, StoreTime(reading.clock.last_ms as u64)).await?;
        conn.simple("COMMIT").await?;
        self.time.lock().claimed(version, ceiling_ms, now_ms, BootTime::now().as_ms() as i64);
        Ok(Duration::ZERO)
    }

    /// When a store is opened: finds out the ceiling as well as the running replicas know it, and claims it.
    pub(crate) async fn take_ceiling(&self, conn: &Conn) -> Result<(), Fault> {
        for _ in 0..LOOKS {
            let reading = self.read_clock(conn).await?;
            if !self.time.lock().look(&reading.sample()) {
                break;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        in_time("taking up the clock", ROUND_TRIP, self.claim_on(conn, true)).await?;
        Ok(())
    }

    /// Stores the time when no batch does. Under the clock's lock, so that no time is stored above a ceiling that was
    /// claimed before.
    pub(crate) async fn mark(&self, conn: &Conn) -> Result<(), Fault> {
        conn.simple(BEGIN).await?;
        let marked = async {
            let reading = self.lock_clock(conn).await?;
            let now = self.time(&reading)?.0 as i64;
            if now - reading.clock.last_ms >= MARK_EVERY_MS {
                conn.execute(Sql::Mark, &[&Uuid::now_v7(), &now]).await?;
            }
            Ok(())
        };
        let marked = marked.await;
        conn.simple(if marked.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
        marked
    }

    /// Writes the ceiling down again, for replicas that start or have read the last claim late.
    pub(crate) async fn restate_ceiling(&self, conn: &Conn, reading: &Reading) -> Result<(), Fault> {
        let now_ms = BootTime::now().as_ms() as i64;
        let restated = self.time.lock().restated(&reading.sample(), now_ms);
        if let Some(ceiling_ms) = restated {
            let CeilingPart { number, claimed_ms, .. } = reading.ceiling;
            conn.execute(Sql::StateCeiling, &[&number, &ceiling_ms, &claimed_ms]).await?;
        }
        Ok(())
    }

    /// When a store is opened: time in which no replica was running is given back to all that was live.
    pub(crate) async fn resume_clock(&self, conn: &Conn) -> Result<(), Fault> {
        for _ in 0..LOOKS {
            if self.read_clock(conn).await?.is_witnessed() {
                return Ok(());
            }
            // A replica that runs and was held up moves the mark, and corrects the clock first if it was stepped.
            tokio::time::sleep(LOOK_EVERY).await;
        }
        in_time("giving time back", GIVE_BACK, async {
            conn.simple("BEGIN").await?;
            let reading = self.lock_clock(conn).await?;
            if reading.is_witnessed() {
                return conn.simple("COMMIT").await;
            }
            if reading.goes_on_from_mark() {
                tracing::info!(
                    gap_ms = reading.gap(),
                    "no replica was running; resuming store time from the last mark"
                );
                // By the offset: no row is touched.
                let offset_ms = reading.clock.last_ms - reading.clock.wall_ms;
                let set = format!(
                    "UPDATE solehold.clock SET offset_ms = {offset_ms}, moves = moves + 1 WHERE id = 1"
                );
                conn.simple(&set).await?;
                return conn.simple("COMMIT").await;
            }
            // Everyone's order: sessions, leases, the clock.
            conn.simple("ROLLBACK").await?;
            conn.simple(LOCK_ALL).await?;
            let reading = self.lock_clock(conn).await?;
            if !reading.is_witnessed() {
                tracing::info!(
                    gap_ms = reading.gap(),
                    "no replica was running; extending live leases by that time"
                );
                conn.simple(&from_wall(&reading)).await?;
            }
            conn.simple("COMMIT").await
        })
        .await
    }
}

/// Store time goes on from the wall clock's: all that lay ahead when time was last witnessed moves on by as much.
fn from_wall(reading: &Reading) -> String {
    let ClockPart { last_ms, wall_ms, .. } = reading.clock;
    let now_ms = wall_ms.max(last_ms);
    let gap = now_ms - last_ms;
    let ceiling_ms = reading.ceiling.ceiling_ms.max(last_ms) + gap;
    let later = |column: &str| {
        format!("{column} = CASE WHEN {column} > {last_ms} THEN {column} + {gap} ELSE {column} END")
    };
    format!(
        "UPDATE solehold.sessions SET deadline_ms = deadline_ms + {gap} WHERE deadline_ms > {last_ms}; \
         UPDATE solehold.leases SET {}, {}, {}, {} WHERE deadline_ms > {last_ms} OR pending_deadline_ms > {last_ms} \
            OR held_back_until_ms > {last_ms} OR confirm_by_ms > {last_ms}; \
         UPDATE solehold.waiters SET deadline_ms = deadline_ms + {gap} WHERE deadline_ms > {last_ms}; \
         UPDATE solehold.requests SET until_ms = until_ms + {gap} WHERE until_ms > {last_ms}; \
         UPDATE solehold.clock SET offset_ms = {}, moves = moves + 1, {} WHERE id = 1; \
         INSERT INTO solehold.commits (batch_id, at_ms, committed) VALUES ('{}', {now_ms}, true); \
         INSERT INTO solehold.ceilings VALUES ({}, {ceiling_ms}, {ceiling_ms})",
        later("deadline_ms"),
        later("pending_deadline_ms"),
        later("held_back_until_ms"),
        later("confirm_by_ms"),
        now_ms - wall_ms,
        later("grants_barred_until_ms"),
        Uuid::now_v7(),
        reading.ceiling.number + 1,
    )
}
