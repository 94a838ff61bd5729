//! Store time over a wall clock that people and daemons may step (rules 1 and 2).
//!
//! ```text
//!   store time = greatest(last_ms, clock_timestamp() + offset_ms)      one row, the same for every replica
//!   pace       = store time - this machine's boot time                 each replica's own, never stored
//! ```
//!
//! The pace of an honest clock stays the same but for drift. A reading whose pace is off by more than the tolerance means
//! that the wall clock was stepped: the offset is corrected before anything is decided, so that store time goes on as boot
//! time says, whichever way the step went.

use solehold_core::time::{Revision, StoreTime};
use tokio_postgres::Row;

use super::{
    PostgresStore,
    fault::Fault,
    pool::{Conn, ROUND_TRIP, Use, in_time},
    sql::Sql,
};
use crate::{
    clock::Tick,
    store::{Cursor, StoreError},
};

/// A step of less than this goes unnoticed, and is part of every holder's margin.
pub(super) const TOLERANCE_MS: i64 = 500;
/// The stated drift bound: one part in so many.
const DRIFT: i64 = 100;
/// Time that nobody witnessed for longer than this is given back when a store is opened.
const UNWITNESSED_MS: i64 = 3_000;
/// Giving back may rewrite every row.
const GIVE_BACK: std::time::Duration = std::time::Duration::from_secs(120);

/// The clock's row, and PostgreSQL's wall clock when it was read.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) epoch: u64,
    pub(super) revision: Revision,
    pub(super) floor: Revision,
    pub(super) barred_until: i64,
    /// Where the data went, if the store was retired.
    pub(super) retired_to: Option<String>,
    pub(super) last_ms: i64,
    pub(super) offset_ms: i64,
    pub(super) wall_ms: i64,
    /// The reading lies between these.
    asked: Tick,
    answered: Tick,
}

impl Reading {
    /// Reads the one row of [`Sql::ReadClock`] and its like; `asked` is from before the request was sent.
    pub(super) fn of(rows: &[Row], asked: Tick) -> Result<Self, Fault> {
        let answered = Tick::now();
        let Some(row) = rows.first() else {
            return Err(Fault::Unreadable(
                "the table solehold.clock has no row: was it emptied by hand?".to_owned(),
            ));
        };
        Ok(Self {
            epoch: row.try_get::<_, i64>(0)? as u64,
            revision: Revision(row.try_get::<_, i64>(1)? as u64),
            last_ms: row.try_get(2)?,
            offset_ms: row.try_get(3)?,
            floor: Revision(row.try_get::<_, i64>(4)? as u64),
            barred_until: row.try_get(5)?,
            retired_to: row.try_get(6)?,
            wall_ms: row.try_get(7)?,
            asked,
            answered,
        })
    }

    /// Where the history stands.
    pub(super) fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, revision: self.revision }
    }

    /// Store time by the wall clock and the offset alone.
    fn by_wall(&self) -> i64 {
        self.wall_ms + self.offset_ms
    }
}

/// Store time against this machine's boot time: the difference lies between `least` and `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    least: i64,
    most: i64,
    at_ms: i64,
}

impl Pace {
    fn of(reading: &Reading) -> Self {
        let (asked, answered) = (reading.asked.as_ms() as i64, reading.answered.as_ms() as i64);
        Self { least: reading.by_wall() - answered, most: reading.by_wall() - asked + 1, at_ms: answered }
    }

    /// What the pace may have become by `at_ms` through drift alone.
    fn drifted(self, at_ms: i64) -> Self {
        let drift = (at_ms - self.at_ms).max(0) / DRIFT;
        Self { least: self.least - drift, most: self.most + drift, at_ms }
    }

    /// What a newer pace makes of this one; nothing, if the clock was stepped in between.
    fn followed_by(self, newer: Self) -> Option<Self> {
        let expected = self.drifted(newer.at_ms);
        if newer.least > expected.most + TOLERANCE_MS || newer.most < expected.least - TOLERANCE_MS {
            return None;
        }
        let (least, most) = (expected.least.max(newer.least), expected.most.min(newer.most));
        Some(if least <= most { Self { least, most, at_ms: newer.at_ms } } else { newer })
    }
}

/// What one replica knows of store time.
#[derive(Debug, Default)]
pub(super) struct Timekeeper {
    pace: Option<Pace>,
    /// The latest time given: store time does not go back within a process, either.
    given_ms: i64,
}

impl Timekeeper {
    /// Store time by a reading; refused if the clock was stepped since the last one.
    fn time(&mut self, reading: &Reading) -> Result<StoreTime, Fault> {
        let newer = Pace::of(reading);
        self.pace = Some(match self.pace {
            Some(pace) => pace.followed_by(newer).ok_or(Fault::Stepped)?,
            None => newer,
        });
        self.given_ms = self.given_ms.max(reading.last_ms).max(reading.by_wall());
        Ok(StoreTime(self.given_ms as u64))
    }
}

impl PostgresStore {
    /// Store time by a reading; refused if the history that it is of was set back, or the store retired.
    pub(super) fn time(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        if let Some(to) = &reading.retired_to {
            return Err(StoreError::Retired { to: to.clone() }.into());
        }
        self.time_of_retired(reading)
    }

    /// As [`Self::time`], of a store that may have been retired.
    pub(super) fn time_of_retired(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        self.follow(reading.cursor(), reading.asked, reading.answered)?;
        self.time_of_any(reading)
    }

    /// Store time by a reading of any history.
    pub(super) fn time_of_any(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        self.time.lock().unwrap_or_else(|e| e.into_inner()).time(reading)
    }

    /// The latest time that this process has given.
    pub(super) fn given_ms(&self) -> i64 {
        self.time.lock().unwrap_or_else(|e| e.into_inner()).given_ms
    }

    /// Reads the clock without locking it.
    pub(super) async fn read_clock(&self, conn: &Conn) -> Result<Reading, Fault> {
        let asked = Tick::now();
        Reading::of(&in_time("reading the clock", ROUND_TRIP, conn.query(Sql::ReadClock, &[])).await?, asked)
    }

    /// The clock was stepped: makes store time go on as boot time says.
    pub(super) async fn correct_clock(&self) -> Result<(), Fault> {
        let lent = self.lend(Use::Write).await?;
        let conn = &*lent;
        let work = async {
            conn.simple("BEGIN").await?;
            conn.query(Sql::LockClock, &[]).await?;
            // Read once more, so that the time of waiting for the lock does not blur it.
            let asked = Tick::now();
            let reading = Reading::of(&conn.query(Sql::ReadClock, &[]).await?, asked)?;
            if let Some(offset_ms) = self.corrected_offset(&reading) {
                let sql = format!("UPDATE solehold.clock SET offset_ms = {offset_ms} WHERE id = 1");
                conn.simple(&sql).await?;
            }
            conn.simple("COMMIT").await
        };
        in_time("correcting the clock", ROUND_TRIP, work).await?;
        lent.give_back();
        Ok(())
    }

    /// The offset that lets store time go on as boot time says; nothing, if it does already, or if store time was moved on
    /// by a replica that has given the time back: then this one follows.
    fn corrected_offset(&self, reading: &Reading) -> Option<i64> {
        let mut keeper = self.time.lock().unwrap_or_else(|e| e.into_inner());
        let newer = Pace::of(reading);
        let pace = keeper.pace?;
        if let Some(pace) = pace.followed_by(newer) {
            keeper.pace = Some(pace);
            return None;
        }
        let expected = pace.drifted(newer.at_ms);
        let off_by = (newer.least + newer.most) / 2 - (expected.least + expected.most) / 2;
        let expected_ms = reading.by_wall() - off_by;
        if reading.last_ms > expected_ms + TOLERANCE_MS {
            tracing::warn!(moved_ms = off_by, "store time was moved on by another replica; following it");
            keeper.pace = Some(newer);
            return None;
        }
        tracing::warn!(
            step_ms = off_by,
            "the clock of PostgreSQL was stepped; store time goes on without the step"
        );
        keeper.pace = Some(expected);
        Some(reading.offset_ms - off_by)
    }

    /// At the start: a clock that was set back while nobody ran is brought up to the last time given, and time that passed
    /// unwitnessed, or was jumped over, is given back to all that was live.
    pub(super) async fn resume_clock(&self, conn: &Conn) -> Result<(), Fault> {
        let reading = self.read_clock(conn).await?;
        if (-TOLERANCE_MS..=UNWITNESSED_MS).contains(&(reading.by_wall() - reading.last_ms)) {
            return Ok(());
        }
        in_time("giving time back", GIVE_BACK, async {
            // Everyone's order: sessions, leases, the clock.
            conn.simple(
                "BEGIN; SET LOCAL statement_timeout = '120s'; SET LOCAL lock_timeout = '10s'; \
                 SELECT count(*) FROM (SELECT id FROM solehold.sessions ORDER BY id FOR UPDATE) s; \
                 SELECT count(*) FROM (SELECT resource_id FROM solehold.leases ORDER BY resource_id FOR UPDATE) l",
            )
            .await?;
            let asked = Tick::now();
            let reading = Reading::of(&conn.query(Sql::LockClock, &[]).await?, asked)?;
            let gap = reading.by_wall() - reading.last_ms;
            if gap < 0 {
                tracing::warn!(step_ms = gap, "the clock of PostgreSQL was set back; store time goes on");
                let sql = format!("UPDATE solehold.clock SET offset_ms = offset_ms - ({gap}) WHERE id = 1");
                conn.simple(&sql).await?;
            } else if gap > UNWITNESSED_MS {
                tracing::info!(gap_ms = gap, "nobody witnessed this time; what was live gets it back");
                conn.simple(&give_back(reading.last_ms, gap)).await?;
            }
            conn.simple("COMMIT").await
        })
        .await
    }
}

/// Moves on, by the gap, all deadlines that lay ahead when time was last witnessed.
fn give_back(last_ms: i64, gap: i64) -> String {
    let later = |column: &str| {
        format!("{column} = CASE WHEN {column} > {last_ms} THEN {column} + {gap} ELSE {column} END")
    };
    format!(
        "UPDATE solehold.sessions SET deadline_ms = deadline_ms + {gap} WHERE deadline_ms > {last_ms}; \
         UPDATE solehold.leases SET {}, {}, {}, {} WHERE deadline_ms > {last_ms} OR pending_deadline_ms > {last_ms} \
            OR held_back_until_ms > {last_ms} OR confirm_by_ms > {last_ms}; \
         UPDATE solehold.waiters SET deadline_ms = deadline_ms + {gap} WHERE deadline_ms > {last_ms}; \
         UPDATE solehold.clock SET last_ms = last_ms + {gap} WHERE id = 1",
        later("deadline_ms"),
        later("pending_deadline_ms"),
        later("held_back_until_ms"),
        later("confirm_by_ms"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(store_ms: i64, asked_ms: u64, answered_ms: u64) -> Reading {
        Reading {
            epoch: 1,
            revision: Revision(0),
            floor: Revision(0),
            barred_until: 0,
            retired_to: None,
            last_ms: 0,
            offset_ms: 0,
            wall_ms: store_ms,
            asked: Tick::from_ms(asked_ms),
            answered: Tick::from_ms(answered_ms),
        }
    }

    #[test]
    fn an_honest_clock_is_followed() {
        let mut keeper = Timekeeper::default();
        for second in 0..1_000_u64 {
            // It gains half a per cent, and the network is slow now and then.
            let (asked, delay) = (second * 1_000, if second % 7 == 0 { 400 } else { 2 });
            let store = 1_000_000 + (asked as i64) * 1_005 / 1_000;
            keeper.time(&reading(store, asked, asked + delay)).expect("no step");
        }
    }

    #[test]
    fn a_step_is_seen_either_way() {
        for step in [-3_600_000, -2_000, 2_000, 3_600_000] {
            let mut keeper = Timekeeper::default();
            keeper.time(&reading(1_000_000, 1_000, 1_002)).expect("the first");
            keeper.time(&reading(1_000_500, 1_500, 1_502)).expect("half a second later");
            assert!(matches!(keeper.time(&reading(1_001_000 + step, 2_000, 2_002)), Err(Fault::Stepped)));
            assert!(keeper.time(&reading(1_001_000, 2_000, 2_002)).is_ok(), "the step left no trace");
        }
    }

    #[test]
    fn a_step_forward_is_seen_behind_a_long_wait() {
        let mut keeper = Timekeeper::default();
        keeper.time(&reading(1_000_000, 1_000, 1_002)).expect("the first");
        assert!(matches!(keeper.time(&reading(1_003_000 + 1_000, 2_000, 4_000)), Err(Fault::Stepped)));
        assert!(keeper.time(&reading(1_003_000, 2_000, 4_000)).is_ok());
    }

    #[test]
    fn time_never_goes_back() {
        let mut keeper = Timekeeper::default();
        let first = keeper.time(&reading(1_000_400, 1_000, 1_002)).expect("the first");
        assert_eq!(keeper.time(&reading(1_000_100, 1_010, 1_012)).expect("a small step"), first);
    }
}
