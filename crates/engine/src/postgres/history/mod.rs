//! Which history this is (rule 23): how a restored, forked or older one is detected.
//!
//! ```text
//!   identity   cluster, timeline, database and table: a failover, a restore or a copy has another one
//!   seen       the furthest point of the history that this process knows of, by itself or from a holder
//!
//!   a connection whose identity is not the one in the clock's row   another history: raise the epoch
//!   a clock's row that is behind what was seen                      set back in place: raise the epoch
//!   a connection on an older timeline than the one in use           a primary that was replaced: refuse it
//! ```
//!
//! Raising the epoch jumps the revision, and with it all tokens, above anything that can have been given; and for the
//! longest time that a lost lease can have been granted for, nothing is decided at all. Renewals are refused, too: a
//! lease that survived may have gone to another holder in the part of the history that was lost. So whatever survived
//! runs out before anything is granted again.

use std::{sync::atomic::Ordering, time::Duration};

use solehold_core::time::StoreTime;
use tokio_postgres::types::Type;

use crate::postgres::{
    Failover, PostgresStore,
    clock::{LOCK_ALL, Point, Reading},
    connection::{
        identity::Identity,
        pool::{Conn, Purpose, ROUND_TRIP, in_time},
    },
    fault::Fault,
    tables::{columns::ClockIdentityPart, part, unreadable},
};
use crate::{
    clock::BootTime,
    history::{self, Bar, Seal, SealedPoint, TTL_MAX_MS},
    store::{Cursor, StoreError},
};

/// There may be many rows to lock.
const LOCKING_ALL: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(crate) struct KnownHistory {
    /// The server that the connections in use lead to: unset before the first, and none if the server does not say.
    identity: Option<Option<Identity>>,
    /// The latest timeline that is known of: an earlier one of the same cluster was replaced.
    newest: Option<Identity>,
    /// The furthest point seen, and when it was known: what is asked for later must not be behind it.
    seen: Option<(Point, BootTime)>,
    /// The key that cursors are sealed with.
    seal: Option<Seal>,
}

impl KnownHistory {
    /// Follows the history to a point; refused if it was asked for after a later point was known.
    pub(crate) fn follow(&mut self, point: Point, asked: BootTime, answered: BootTime) -> Result<(), Fault> {
        match self.seen {
            Some((seen, _)) if point.is_behind(seen) => {
                if self.has_seen_more_than(point, asked) {
                    return Err(Fault::SetBack);
                }
            }
            Some((seen, _)) if point == seen => {}
            _ => self.seen = Some((point, answered)),
        }
        Ok(())
    }

    /// Whether a later point was known before this one was asked for. Answers can overtake each other, so a later point
    /// that became known meanwhile proves nothing.
    fn has_seen_more_than(&self, point: Point, asked: BootTime) -> bool {
        self.seen.is_some_and(|(seen, at)| asked > at && point.is_behind(seen))
    }

    /// There is a server on this timeline.
    fn know_of(&mut self, identity: &Identity) {
        let is_newest = self.newest.as_ref().is_none_or(|newest| !identity.is_older_than(newest));
        if is_newest {
            self.newest = Some(identity.clone());
        }
    }

    pub(crate) fn seen(&self) -> Option<Cursor> {
        self.seen.as_ref().map(|(point, _)| point.cursor)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RaiseReason {
    /// A standby took over, or it looks like that.
    FailedOver,
    /// The history is another one, or an earlier state of this one.
    SetBack,
    /// An administrator says so.
    Told(Bar),
}

impl PostgresStore {
    /// Store time by a reading; refused if the history that it is of was set back, or the store retired.
    pub(crate) fn time(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        if let Some(to) = &reading.clock.retired_to {
            return Err(StoreError::Retired { to: to.clone() }.into());
        }
        self.time_of_retired(reading)
    }

    /// As [`Self::time`], of a store that may have been retired.
    pub(crate) fn time_of_retired(&self, reading: &Reading) -> Result<StoreTime, Fault> {
        self.history.lock().follow(reading.point(), reading.asked, reading.answered)?;
        self.time_of_any(reading)
    }

    /// Looks at all hosts: of several that take writes, all but the one on the latest timeline were replaced.
    pub(crate) async fn survey(&self) {
        let found = self.pool.survey().await;
        found.iter().for_each(|identity| self.history.lock().know_of(identity));
    }

    /// The history is known to have come this far.
    fn know(&self, cursor: Cursor) {
        let now = BootTime::now();
        let mut history = self.history.lock();
        if history.seen().is_none_or(|seen| seen < cursor) {
            history.seen = Some((Point { cursor, last_ms: 0 }, now));
        }
    }

    /// A history has just begun here.
    pub(crate) fn begin_at(&self, cursor: Cursor) {
        self.know(cursor);
        self.tell(cursor);
    }

    /// Proves to holders how far the history has come.
    pub(crate) fn seal_cursor(&self, cursor: Cursor) -> Option<String> {
        let history = self.history.lock();
        let timeline = history.identity.as_ref()?.as_ref().map_or(0, |identity| identity.timeline);
        Some(history.seal.as_ref()?.seal(SealedPoint { cursor, timeline }))
    }

    /// A holder shows how far the history had come. If the store is behind that, it was set back.
    pub(crate) async fn witness_cursor(&self, sealed: &str) -> Result<(), StoreError> {
        let (proven, seen) = {
            let history = self.history.lock();
            (history.seal.as_ref().and_then(|seal| seal.open(sealed)), history.seen())
        };
        // A cursor that this store has not sealed proves nothing.
        let Some(proven) = proven else { return Ok(()) };
        if seen.is_some_and(|seen| proven.cursor <= seen) {
            return Ok(());
        }
        // Another replica may have moved the history that far.
        let stands = self
            .read(Purpose::Write, "reading the clock", |conn| async move { self.read_cursor(&conn).await })
            .await?;
        if stands >= proven.cursor {
            return Ok(());
        }
        tracing::error!(
            shown = ?proven.cursor, store = ?stands,
            "a holder has a later cursor than PostgreSQL, which was restored or replaced; beginning another history"
        );
        {
            let mut history = self.history.lock();
            if let Some(Some(identity)) = &history.identity
                && identity.timeline < proven.timeline
            {
                // This primary was replaced: connections to it are refused from now on.
                let newer = Identity { timeline: proven.timeline, ..identity.clone() };
                history.know_of(&newer);
                self.pool.renew();
            }
        }
        self.know(proven.cursor);
        self.mend_history().await.map_err(Fault::told)
    }

    /// Stores the longest ttl that this server allows, for the other servers of the store. A server without a
    /// configured one takes what is stored.
    pub(crate) async fn keep_ttl_max(&self, conn: &Conn) -> Result<(), Fault> {
        let (longest, condition) = match self.options.ttl_max_ms {
            Some(longest) => (longest, format!("ttl_max_ms < {longest}")),
            None => (TTL_MAX_MS, "ttl_max_ms = 0".to_owned()),
        };
        conn.simple(&format!(
            "UPDATE solehold.clock SET ttl_max_ms = {longest} WHERE id = 1 AND {condition}"
        ))
        .await?;
        let kept: Option<i64> = conn.value("SELECT ttl_max_ms FROM solehold.clock WHERE id = 1").await?;
        let allowed = self.options.ttl_max_ms.or(kept.map(|ms| ms as u64)).unwrap_or(TTL_MAX_MS);
        self.ttl_max_ms.store(allowed, Ordering::SeqCst);
        Ok(())
    }

    /// Stores a shorter longest ttl than servers have stored. Sessions and leases are locked meanwhile, and none of
    /// them may have a longer one: a session keeps its ttl, whatever its server allows by now.
    pub(crate) async fn lower_ttl_max_to(&self, ttl_max_ms: u64) -> Result<(), Fault> {
        let lent = self.lend(Purpose::Write).await?;
        let conn = &*lent;
        let work = async {
            conn.simple(LOCK_ALL).await?;
            let sql = "SELECT coalesce(greatest((SELECT max(ttl_ms) FROM solehold.sessions), \
                       (SELECT max(ttl_ms) FROM solehold.leases WHERE lease_id IS NOT NULL)), 0)";
            let longest = conn.value::<i64>(sql).await?.unwrap_or_default() as u64;
            if longest > ttl_max_ms {
                return Err(unreadable(format!(
                    "a session or lease has a ttl of {longest} ms, which is above {ttl_max_ms} ms; end it, or wait \
                     until it has expired"
                )));
            }
            let set = format!("UPDATE solehold.clock SET ttl_max_ms = {ttl_max_ms} WHERE id = 1; COMMIT");
            conn.simple(&set).await
        };
        in_time("lowering ttl_max", LOCKING_ALL, work).await?;
        lent.give_back();
        self.ttl_max_ms.store(ttl_max_ms, Ordering::SeqCst);
        tracing::info!(ttl_max_ms, "lowered ttl_max");
        Ok(())
    }

    /// Reads the key that cursors are sealed with; the first replica makes it.
    pub(crate) async fn take_seal(&self, conn: &Conn) -> Result<(), Fault> {
        let set = "UPDATE solehold.clock SET seal_key = $1 WHERE id = 1 AND seal_key IS NULL";
        let get = "SELECT seal_key FROM solehold.clock WHERE id = 1";
        let read = async || -> Result<Option<Seal>, Fault> {
            let key: Option<Option<Vec<u8>>> = conn.value(get).await?;
            Ok(key.flatten().and_then(|key| Seal::of_key(&key)))
        };
        let mut seal = read().await?;
        if seal.is_none() {
            let set = conn.client.prepare(set).await?;
            conn.client.execute(&set, &[&Seal::random().key()]).await?;
            seal = read().await?;
        }
        self.history.lock().seal = seal;
        Ok(())
    }

    /// The fault of a connection that leads to an earlier timeline than the one that is followed.
    pub(crate) fn refuse_older(&self, identity: &Identity) -> Option<Fault> {
        let history = self.history.lock();
        let newest = history.newest.as_ref()?;
        identity.is_older_than(newest).then(|| older(identity, newest))
    }

    /// Checks that a new connection leads to the history that is in use, or to one that follows it.
    pub(crate) async fn check_identity(&self, conn: &Conn) -> Result<(), Fault> {
        if self.history.lock().identity.as_ref() == Some(&conn.identity) {
            return Ok(());
        }
        in_time("checking the timeline", ROUND_TRIP, self.adopt(conn)).await?;
        let mut history = self.history.lock();
        history.identity = Some(conn.identity.clone());
        conn.identity.iter().for_each(|identity| history.know_of(identity));
        Ok(())
    }

    async fn adopt(&self, conn: &Conn) -> Result<(), Fault> {
        conn.simple("BEGIN").await?;
        let LockedClock { reading, identity: kept } = self.lock_history(conn).await?;
        let is_behind = self.history.lock().has_seen_more_than(reading.point(), reading.asked);
        let why = match (&kept, &conn.identity) {
            (Some(_), None) => {
                let text = "PostgreSQL no longer reports its timeline, and did before; without it a failover cannot \
                            be detected. Grant the permission to read it again";
                return Err(StoreError::Unusable(text.to_owned()).into());
            }
            _ if is_behind => Some(RaiseReason::SetBack),
            (Some(kept), Some(identity)) if kept == identity => None,
            // A store from before the table was noted.
            (Some(kept), Some(identity)) if identity.was_noted_without_table(kept) => None,
            (Some(kept), Some(identity)) if identity.is_failover_of(kept) => Some(RaiseReason::FailedOver),
            (Some(_), Some(_)) => Some(RaiseReason::SetBack),
            (None, _) => None,
        };
        if why.is_none() && kept == conn.identity {
            return conn.simple("ROLLBACK").await;
        }
        let raised = match why {
            Some(why) => Some(self.raise(conn, &reading, why).await?),
            None => None,
        };
        if let Some(identity) = &conn.identity {
            keep(conn, identity).await?;
        }
        conn.simple("COMMIT").await?;
        if let Some(cursor) = raised {
            self.begin_at(cursor);
            self.pool.renew();
        }
        Ok(())
    }

    /// The store is behind what was seen: makes it another history, unless another replica has done so already.
    pub(crate) async fn mend_history(&self) -> Result<(), Fault> {
        let is_due =
            |reading: &Reading| self.history.lock().has_seen_more_than(reading.point(), reading.asked);
        self.raise_if(RaiseReason::SetBack, is_due).await
    }

    /// An administrator says that the store was set back.
    pub(crate) async fn told_set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), Fault> {
        if let Some(seen) = seen {
            self.know(seen);
        }
        self.raise_if(RaiseReason::Told(bar), |_| true).await
    }

    async fn raise_if(&self, why: RaiseReason, is_due: impl FnOnce(&Reading) -> bool) -> Result<(), Fault> {
        let lent = self.lend(Purpose::Write).await?;
        let conn = &*lent;
        let work = async {
            conn.simple("BEGIN").await?;
            let LockedClock { reading, .. } = self.lock_history(conn).await?;
            if !is_due(&reading) {
                conn.simple("ROLLBACK").await?;
                return Ok(None);
            }
            let cursor = self.raise(conn, &reading, why).await?;
            // The table may be another one than when this connection was made.
            if let Some(identity) = Identity::of(&conn.client).await? {
                keep(conn, &identity).await?;
            }
            conn.simple("COMMIT").await?;
            Ok(Some(cursor))
        };
        if let Some(cursor) = in_time("raising the epoch", ROUND_TRIP, work).await? {
            self.begin_at(cursor);
            self.pool.renew();
        }
        lent.give_back();
        Ok(())
    }

    /// Raises the epoch and bars decisions, in the transaction at hand, which holds the clock's lock.
    async fn raise(&self, conn: &Conn, reading: &Reading, why: RaiseReason) -> Result<Cursor, Fault> {
        let now = match self.time_of_any(reading) {
            // Another machine's clock: corrected by the first batch. Until then the later of the two is safe.
            Err(Fault::Stepped) if self.time.lock().is_taken_up() => {
                self.time.lock().given_ms().max(reading.clock.last_ms)
            }
            // Before this replica has taken up the clock.
            Err(Fault::Stepped) => reading.by_wall().max(reading.clock.last_ms),
            other => other?.0 as i64,
        };
        let barred_until = match why {
            RaiseReason::Told(Bar::None) => 0,
            RaiseReason::FailedOver if self.options.failover == Failover::Lossless => {
                reading.clock.grants_barred_until_ms
            }
            _ => self.barred_until(conn, reading, now).await?,
        };
        let seen = self.history.lock().seen().unwrap_or(reading.cursor());
        let stands = reading.cursor();
        let furthest =
            Cursor { epoch: seen.epoch.max(stands.epoch), revision: seen.revision.max(stands.revision) };
        let cursor = history::another(furthest, reading.clock.wall_ms as u64);
        self.go_on(conn, reading, cursor.revision, StoreTime(now as u64)).await?;
        // Only an administrator brings a retired store back into use.
        let retired_to = if matches!(why, RaiseReason::Told(_)) { "NULL" } else { "retired_to" };
        let sql = format!(
            "UPDATE solehold.clock SET epoch = {}, grants_barred_until_ms = {barred_until}, retired_to = {retired_to} \
             WHERE id = 1",
            cursor.epoch
        );
        conn.simple(&sql).await?;
        tracing::warn!(
            epoch = cursor.epoch,
            barred_ms = (barred_until - now).max(0),
            "{}",
            match why {
                RaiseReason::FailedOver =>
                    "PostgreSQL is on another timeline: it has failed over or was restored; began another history",
                RaiseReason::SetBack =>
                    "PostgreSQL was set back to an earlier state, or is a copy; began another history",
                RaiseReason::Told(_) => "an administrator declared the store restored; began another history",
            }
        );
        Ok(cursor)
    }

    /// When the longest lease that can have been granted has run out, and so has all that survived. What survived only
    /// ever lengthens the bar: what was lost is not among it.
    pub(crate) async fn barred_until(
        &self,
        conn: &Conn,
        reading: &Reading,
        now_ms: i64,
    ) -> Result<i64, Fault> {
        let sql = "SELECT greatest((SELECT max(deadline_ms) FROM solehold.sessions), \
                                   (SELECT max(deadline_ms) FROM solehold.leases WHERE lease_id IS NOT NULL), \
                                   $1 + (SELECT coalesce(nullif(greatest(ttl_max_ms, $2), 0), $3) FROM solehold.clock))";
        let given = self.options.ttl_max_ms.unwrap_or_default() as i64;
        let sql = conn.client.prepare_typed(sql, &[Type::INT8, Type::INT8, Type::INT8]).await?;
        let row = conn.client.query_one(&sql, &[&now_ms, &given, &(TTL_MAX_MS as i64)]).await?;
        Ok(reading.clock.grants_barred_until_ms.max(row.try_get(0)?))
    }

    /// Retires the store. All sessions and leases are locked before the clock, as in every transaction: a renewal that
    /// has begun is committed before, and one that comes later sees that the store is retired.
    pub(crate) async fn retire_to(&self, to: &str) -> Result<(), Fault> {
        let lent = self.lend(Purpose::Write).await?;
        let conn = &*lent;
        let work = async {
            conn.simple(LOCK_ALL).await?;
            self.lock_clock(conn).await?;
            let set = conn.client.prepare("UPDATE solehold.clock SET retired_to = $1 WHERE id = 1").await?;
            conn.client.execute(&set, &[&to]).await?;
            conn.simple("COMMIT").await
        };
        in_time("retiring the store", LOCKING_ALL, work).await?;
        lent.give_back();
        tracing::warn!(to, "retired the store; it rejects all commands");
        Ok(())
    }

    /// Locks the clock and reads it, with the identity of the server that its history was last seen on.
    async fn lock_history(&self, conn: &Conn) -> Result<LockedClock, Fault> {
        let reading = self.lock_clock(conn).await?;
        let sql =
            format!("SELECT {} FROM solehold.clock c WHERE c.id = 1", part::list::<ClockIdentityPart>());
        let rows = conn.client.query_typed(&sql, &[]).await?;
        let row = rows.first().ok_or_else(|| unreadable("the table solehold.clock has no row"))?;
        let kept: ClockIdentityPart = part::read(row)?;
        let (Some(system_id), Some(timeline)) = (kept.system_id, kept.timeline) else {
            return Ok(LockedClock { reading, identity: None });
        };
        let timeline = u32::from_str_radix(&timeline, 16)
            .map_err(|_| unreadable(format!("{timeline:?} is not a timeline")))?;
        let database = kept.database_oid.unwrap_or_default();
        let identity = Identity { system_id, timeline, database, table: kept.table_oid };
        Ok(LockedClock { reading, identity: Some(identity) })
    }

    /// Refuses while nothing is decided.
    pub(crate) fn check_barred(reading: &Reading, now: StoreTime) -> Result<(), Fault> {
        let left_ms = reading.clock.grants_barred_until_ms - now.0 as i64;
        if left_ms <= 0 {
            return Ok(());
        }
        Err(StoreError::Barred { retry_after_ms: left_ms as u64 }.into())
    }
}

fn older(identity: &Identity, known: &Identity) -> Fault {
    StoreError::Unavailable(format!(
        "PostgreSQL is on timeline {}, but this server has already seen timeline {}; this primary was replaced: shut \
         it down or rebuild it as a standby. If it is a restored backup, restart this server",
        identity.timeline, known.timeline
    ))
    .into()
}

struct LockedClock {
    reading: Reading,
    /// The server that its history was last seen on.
    identity: Option<Identity>,
}

/// Notes in the clock's row which server its history is on.
async fn keep(conn: &Conn, identity: &Identity) -> Result<(), Fault> {
    let set = "UPDATE solehold.clock SET system_id = $1, timeline = $2, database_oid = $3, table_oid = $4 WHERE id = 1";
    let set = conn.client.prepare(set).await?;
    let timeline = format!("{:08X}", identity.timeline);
    conn.client.execute(&set, &[&identity.system_id, &timeline, &identity.database, &identity.table]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use solehold_core::time::Revision;

    use super::*;

    fn point(epoch: u64, revision: u64, last_ms: i64) -> Point {
        Point { cursor: Cursor { epoch, revision: Revision(revision) }, last_ms }
    }

    #[test]
    fn a_history_that_goes_back_is_not_followed() {
        let tick = BootTime::from_ms;
        let mut history = KnownHistory::default();
        history.follow(point(1, 8, 500), tick(10), tick(12)).expect("the first");
        history.follow(point(1, 9, 500), tick(13), tick(15)).expect("it goes on");
        // Asked for before the later one was known: it may be right.
        history.follow(point(1, 8, 500), tick(14), tick(16)).expect("answers overtake each other");
        for older in [point(1, 8, 600), point(0, 90, 600), point(1, 9, 499)] {
            assert!(matches!(history.follow(older, tick(16), tick(17)), Err(Fault::SetBack)), "{older:?}");
        }
        history.follow(point(2, 1 << 33, 400), tick(18), tick(19)).expect("a new epoch");
    }
}
