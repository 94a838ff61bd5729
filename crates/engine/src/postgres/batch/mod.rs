//! One batch, one transaction: plan, lock, decide, write, commit; and how each failure is handled.
//!
//! ```text
//!   attempt --> committed    `learn` puts what was written into the cache, whose contents are only hints
//!           |-> Before       nothing was done: again with fresh rows, while `Tries` allows it (`next_try`)
//!           |-> Lost         no answer to COMMIT: looked up by its row in `commits` (`settle`); renewals are run again
//!           `-> Warned       it may not have reached a standby: the outcome is unknown
//! ```
//! Between attempts a batch keeps its `Tries` and the rows that were found late, and nothing else.

pub(crate) mod cache;
pub(crate) mod lines;
pub(crate) mod lock;
pub(crate) mod plan;
pub(crate) mod wanted;
pub(crate) mod write;

use std::{sync::Arc, time::Duration};

use solehold_core::{
    event::What,
    key::ResourceKey,
    ledger::Dirty,
    time::{Moment, StoreTime},
};
use solehold_trace::Span;
use tokio::join;
use tokio_postgres::error::Severity;
use uuid::Uuid;

use self::{
    cache::KnownResource,
    lock::LockedRows,
    plan::Plan,
    wanted::WantedRows,
    write::{ResourceChanges, RowsBefore, Writes},
};
use super::{
    PostgresStore,
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    statements::Sql,
    tables::{rows::DescribedResource, unreadable},
};
use crate::{
    clock::{BootTime, RetryPauses},
    observe::Lane,
    store::{BatchDecision, Cursor, Decider, StoreError},
};

/// How many attempts may run into locks of other batches.
const CONTENDED_MAX: u32 = 50;
/// And for how long they may.
const CONTENDED_FOR: Duration = Duration::from_secs(8);
/// How many attempts may find other rows than planned.
const STALE_MAX: u32 = 100;
/// How many connections may break before the store is reported as unavailable.
const BROKEN_MAX: u32 = 3;
/// How long to ask what became of a commit.
const SETTLE: Duration = Duration::from_secs(2);

enum AttemptError {
    /// Nothing was done.
    Before(Fault),
    /// COMMIT was sent, and no answer came. A batch with a row in `commits` can be asked for.
    Lost { decided: BatchDecision, cursor: Cursor, batch: Option<Uuid>, fault: Fault },
    /// COMMIT was answered with a warning: it may not have reached a standby.
    Warned(String),
}

impl<F: Into<Fault>> From<F> for AttemptError {
    fn from(fault: F) -> Self {
        Self::Before(fault.into())
    }
}

/// The attempts at one batch that went wrong so far.
#[derive(Default)]
struct Tries {
    contended: u32,
    stale: u32,
    broken: u32,
    pauses: RetryPauses,
    /// A commit without a row in `commits` may have happened.
    maybe_done: bool,
}

impl PostgresStore {
    pub(crate) async fn run(
        &self,
        mut wanted: WantedRows,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        let mut tries = Tries::default();
        let began = BootTime::now();
        let mut fresh = false;
        loop {
            let fault = match self.attempt(&wanted, fresh, lane, decider).await {
                Ok(decided) => return Ok(decided),
                Err(AttemptError::Warned(warning)) => {
                    return Err(StoreError::Unknown(format!("COMMIT returned a warning: {warning}")));
                }
                Err(AttemptError::Lost { decided, cursor, batch: Some(batch), fault }) => {
                    tracing::warn!(error = %fault, "lost the response to COMMIT; looking up its outcome");
                    if self.settle(batch).await? {
                        self.tell(cursor);
                        return Ok(decided);
                    }
                    fault
                }
                Err(AttemptError::Lost { fault, .. }) => {
                    tries.maybe_done = true;
                    fault
                }
                Err(AttemptError::Before(fault)) => fault,
            };
            if let Fault::Late(late) = &fault {
                wanted.add(late);
            }
            fresh = true;
            self.next_try(&mut tries, fault, began).await?;
        }
    }

    /// Prepares the next attempt, or says why there is none.
    async fn next_try(&self, tries: &mut Tries, fault: Fault, began: BootTime) -> Result<(), StoreError> {
        let give_up = match &fault {
            Fault::Stale | Fault::Late(_) => {
                tries.stale += 1;
                if tries.stale.is_multiple_of(10) {
                    tries.pauses.pause().await;
                }
                tries.stale > STALE_MAX
            }
            Fault::Stepped | Fault::SetBack => {
                tries.contended += 1;
                match self.mend(&fault).await {
                    Ok(()) => {}
                    Err(fault) if fault.is_contention() => tries.pauses.pause().await,
                    Err(fault) => return Err(tries.told(fault)),
                }
                tries.contended > CONTENDED_MAX
            }
            contention if contention.is_contention() => {
                tries.contended += 1;
                tries.pauses.pause().await;
                tries.contended > CONTENDED_MAX || BootTime::now().since(began) > CONTENDED_FOR
            }
            broken if broken.is_lost_connection() => {
                self.pool.give_up_after(broken);
                tries.broken += 1;
                if broken.is_slow() || tries.broken >= BROKEN_MAX {
                    return Err(tries.told(fault));
                }
                return Ok(());
            }
            _ => return Err(tries.told(fault)),
        };
        if !give_up {
            return Ok(());
        }
        if tries.maybe_done {
            return Err(tries.told(fault));
        }
        Err(StoreError::Contended { attempts: tries.contended + tries.stale, last: fault.to_string() })
    }

    async fn attempt(
        &self,
        wanted: &WantedRows,
        fresh: bool,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, AttemptError> {
        let lent = self.lend(Purpose::Write).await?;
        let result = self.work(&lent, wanted, fresh, lane, decider).await;
        let is_sound = match &result {
            Ok(_) | Err(AttemptError::Warned(_)) => true,
            Err(AttemptError::Before(fault)) if !fault.is_lost_connection() => {
                in_time("rolling back", ROUND_TRIP, lent.simple("ROLLBACK")).await.is_ok()
            }
            Err(_) => false,
        };
        if is_sound {
            lent.give_back();
        }
        result
    }

    async fn work(
        &self,
        conn: &Conn,
        wanted: &WantedRows,
        fresh: bool,
        lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, AttemptError> {
        let epoch = self.history.lock().seen().map(|seen| seen.epoch);
        let reading = Span::child("store.read", solehold_trace::current());
        let plan = self.plan(conn, wanted, fresh, lane).await?;
        let mut held = self.lock(conn, wanted, &plan, lane).await?;
        drop(reading);
        let now = self.time(&held.reading)?;
        // What is remembered was read in another history, in which ids may have meant other rows.
        if epoch != Some(held.reading.clock.epoch) {
            self.cache.clear();
            return Err(Fault::Stale.into());
        }
        Self::check_barred(&held.reading, now)?;
        let moment = Moment { now, revision: held.reading.clock.revision };
        let decided = decider.decide(&mut held.state, moment).map_err(Fault::from)?;
        let dirty = held.state.take_dirty().sorted();
        if dirty.is_empty() && decided.events.is_empty() && decided.revision == held.reading.clock.revision {
            in_time("rolling back", ROUND_TRIP, conn.simple("ROLLBACK")).await?;
            return Ok(decided);
        }
        if lane == Lane::Quiet && decided.revision != held.reading.clock.revision {
            return Err(unreadable("a renewal produced events").into());
        }
        self.write(conn, &plan, &held, dirty, decided, (lane == Lane::News).then_some(now)).await
    }

    /// Writes what is dirty and commits. With events, `clock` is the time that the clock goes on from.
    async fn write(
        &self,
        conn: &Conn,
        plan: &Plan,
        held: &LockedRows,
        dirty: Dirty,
        decided: BatchDecision,
        clock: Option<StoreTime>,
    ) -> Result<BatchDecision, AttemptError> {
        let now = clock.unwrap_or_default();
        let before = RowsBefore { resources: &held.resources, sessions: &held.sessions, now };
        let version_of = |id: i64| plan.known.get(&id).map_or(id, |k| k.is.version);
        let changes = ResourceChanges::by(&decided.events);
        let mut writes = Writes::of(&held.state, &dirty, &changes, &before, version_of)?;
        writes.events(&decided.events)?;
        let batch = Uuid::now_v7();
        let revision = decided.revision.0 as i64;
        let now = now.0 as i64;
        let number = held.reading.clock.number + 1;
        let commit = async {
            join!(biased;
                async {
                    conn.execute_if(clock.is_some(), Sql::LeaveWord, &[&batch, &number, &revision, &now]).await
                },
                conn.simple("COMMIT")
            )
        };
        conn.take_warning();
        let cursor = Cursor { epoch: held.reading.clock.epoch, revision: decided.revision };
        let sent = async { Ok(writes.send(conn, commit).await) };
        let _span = Span::child("store.commit", solehold_trace::current());
        let (fault, at_commit) = match in_time("committing", ROUND_TRIP, sent).await {
            Ok((Ok(()), (Ok(_), Ok(())))) => {
                if let Some(warning) = conn.take_warning() {
                    return Err(AttemptError::Warned(warning));
                }
                self.learn(plan, held, &dirty, &decided, &writes);
                if clock.is_some() {
                    self.tell(cursor);
                }
                return Ok(decided);
            }
            Ok((Err(fault), _)) | Ok((Ok(()), (Err(fault), _))) => (fault, false),
            Ok((Ok(()), (Ok(_), Err(fault)))) => (fault, true),
            Err(slow) => (slow, true),
        };
        let severity = match &fault {
            Fault::Postgres(error) => error.as_db_error().and_then(|db| db.parsed_severity()),
            _ => None,
        };
        // PostgreSQL's own word on a statement means that the transaction has failed. Anything else, and a COMMIT that
        // it was stopped in, leaves open what became of it: everything had been sent.
        match severity {
            Some(Severity::Error) => Err(AttemptError::Before(fault)),
            Some(_) if !at_commit => Err(AttemptError::Before(fault)),
            _ => Err(AttemptError::Lost { decided, cursor, batch: clock.is_some().then_some(batch), fault }),
        }
    }

    /// Remembers what was written, so that the next batch need not look it up.
    fn learn(
        &self,
        plan: &Plan,
        held: &LockedRows,
        dirty: &Dirty,
        decided: &BatchDecision,
        writes: &Writes<'_>,
    ) {
        let seen = writes.written.iter().filter_map(|(key, written)| {
            let resource = held.state.resource(key)?;
            let leases = [resource.lease.as_ref().map(|l| l.id), resource.pending.as_ref().map(|p| p.id)];
            let known = match (written.version, plan.known.get(&written.id)) {
                (None, Some(known)) if known.is_still(resource) => known.clone(),
                (None, Some(known)) => Arc::new(KnownResource::of(known.is.clone(), resource)),
                (version, _) => {
                    let is = DescribedResource {
                        id: written.id,
                        key: (*key).clone(),
                        version: version.unwrap_or(written.id),
                        declared: resource.declared.clone(),
                        created_at: resource.created_at,
                    };
                    Arc::new(KnownResource::of(is, resource))
                }
            };
            Some((known, leases))
        });
        self.cache.learn(seen);
        let idle = writes.idle.iter().filter_map(|id| plan.known.get(id));
        self.cache.learn_idle(idle.map(|known| KnownResource::idle(known.is.clone())));
        let is_idle =
            |key: &ResourceKey| held.resources.get(key).is_some_and(|s| writes.idle.contains(&s.id));
        let is_gone = |key: &&ResourceKey| held.state.resource(key).is_none() && !is_idle(key);
        let gone = dirty.resources.iter().filter(is_gone);
        let ended = decided.events.iter().filter_map(|event| match &event.what {
            What::Released(e) | What::Expired(e) | What::Revoked(e) => Some(e.lease),
            _ => None,
        });
        self.cache.forget(gone, ended);
        self.spent.lock().note(&held.state, dirty);
    }

    /// Asks what became of a batch whose COMMIT was not answered: whether it was committed. If it was not, it never
    /// will be.
    async fn settle(&self, batch: Uuid) -> Result<bool, StoreError> {
        let ask = async {
            let mut pauses = RetryPauses::default();
            loop {
                match self.ask_of(batch).await {
                    Ok(committed) => return committed,
                    Err(fault) => {
                        tracing::debug!(error = %fault, "cannot look up the outcome of a commit; will retry");
                        self.pool.give_up_after(&fault);
                    }
                }
                pauses.pause().await;
            }
        };
        let lost = "the response to COMMIT was lost, and its outcome cannot be looked up";
        tokio::time::timeout(SETTLE, ask).await.map_err(|_| StoreError::Unknown(lost.to_owned()))
    }

    async fn ask_of(&self, batch: Uuid) -> Result<bool, Fault> {
        let lent = self.lend(Purpose::Write).await?;
        lent.take_warning();
        let rows = in_time("asking about a commit", SETTLE, lent.query(Sql::SettleCommit, &[&batch])).await?;
        if let Some(warning) = lent.take_warning() {
            return Err(unreadable(format!("PostgreSQL returned a warning: {warning}")));
        }
        let row = rows.first().ok_or_else(|| unreadable("PostgreSQL returned no status of a commit"))?;
        let committed = row.try_get(0)?;
        lent.give_back();
        Ok(committed)
    }

    /// Wakes the tasks that wait for news.
    pub(crate) fn tell(&self, cursor: Cursor) {
        self.head.send_if_modified(|head| {
            let is_newer = cursor > *head;
            if is_newer {
                *head = cursor;
            }
            is_newer
        });
    }
}

impl Tries {
    fn told(&self, fault: Fault) -> StoreError {
        match fault.told() {
            StoreError::Unavailable(what) if self.maybe_done => StoreError::Unknown(what),
            other => other,
        }
    }
}
