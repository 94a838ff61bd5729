//! The turn of the one writer at a time: it loads rows again that may be stale, and commits to journal and memory.

use std::sync::{Arc, atomic::Ordering};

use solehold_core::{
    forget,
    ledger::{Dirty, Ledger},
    time::StoreTime,
};
use tokio::sync::MutexGuard;

use super::{
    Entry, Image, Journal, Mark, ResidentStore, SetBack, restart, rows::Rows, tally::Tally, timers::Timers,
};
use crate::{
    clock::{BootTime, Clock},
    store::{BatchDecision, StoreError},
};

/// At most this many rows are forgotten in one turn, so that batches come in between.
pub(super) const FORGET_MAX: usize = 5_000;

pub(super) struct WriteTurn {
    pub(super) journal: Box<dyn Journal>,
    /// The journal may have a batch that the rows lack: load them again.
    pub(super) is_behind: bool,
    /// The journal lacks what the start has changed: the disk was full.
    pub(super) is_unfolded: bool,
    /// The journal was set back since it was last open, and another history has not begun yet.
    pub(super) set_back: Option<SetBack>,
    pub(super) is_closed: bool,
    /// When the clock's mark was last persisted.
    pub(super) marked: BootTime,
}

impl ResidentStore {
    /// Waits for a turn; the rows are then those of the journal.
    pub(super) async fn take_turn(&self) -> Result<MutexGuard<'_, WriteTurn>, StoreError> {
        let mut turn = self.turn.lock().await;
        if turn.is_closed {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        }
        if turn.is_behind {
            self.has_failed.store(true, Ordering::SeqCst);
            self.catch_up(&mut turn)?;
        }
        if let Some(set_back) = turn.set_back.clone() {
            self.has_failed.store(true, Ordering::SeqCst);
            tracing::warn!(
                why = set_back.why,
                "the data folder was restored or copied; beginning another history"
            );
            let now = self.jump(&mut turn, set_back.seen, None).await.map_err(nothing_done)?;
            turn.set_back = None;
            adopt(&mut *turn.journal, now);
        }
        Ok(turn)
    }

    /// Waits for a turn with a journal that can be written.
    pub(super) async fn take_turn_to_write(&self) -> Result<MutexGuard<'_, WriteTurn>, StoreError> {
        let mut turn = self.take_turn().await?;
        if turn.is_unfolded {
            self.fold(&mut turn).map_err(nothing_done)?;
            turn.is_unfolded = false;
        }
        Ok(turn)
    }

    /// Records how a write of the journal went, and logs when that changes.
    pub(super) fn wrote<T>(&self, written: Result<T, StoreError>) -> Result<T, StoreError> {
        self.note_written(written.as_ref().err().map(StoreError::cause));
        written
    }

    pub(super) fn note_written(&self, error: Option<String>) {
        let mut known = self.unwritable.lock();
        match (&*known, &error) {
            (None, Some(error)) => {
                tracing::error!(%error, "the journal cannot be written; serving reads only until it can")
            }
            (Some(_), None) => tracing::info!("the journal can be written again; accepting commands"),
            _ => {}
        }
        *known = error;
    }

    /// Brings the journal's snapshot up to date with all rows.
    pub(super) fn fold(&self, turn: &mut WriteTurn) -> Result<(), StoreError> {
        let tick = self.clock.now();
        let rows = self.read();
        let mark = self.mark_of(&rows, rows.now(tick), tick);
        self.wrote(turn.journal.fold(&rows.state, Dirty::default(), mark))
    }

    /// Loads the rows again after the journal failed. No command has begun, so another failure leaves nothing unknown.
    fn catch_up(&self, turn: &mut WriteTurn) -> Result<(), StoreError> {
        let at_least = |tick| self.read().now(tick);
        let JournaledRows { rows, unwritable, .. } =
            load(&mut *turn.journal, &*self.clock, at_least, &self.boot_id).map_err(nothing_done)?;
        self.head.send_replace(rows.cursor);
        *self.write() = rows;
        self.rows.clear_poison();
        turn.is_behind = false;
        turn.is_unfolded = unwritable.is_some();
        self.note_written(unwritable);
        self.has_failed.store(false, Ordering::SeqCst);
        tracing::info!("reloaded all rows from the journal");
        Ok(())
    }

    /// For readers: makes sure that the rows are those of the journal. Does not wait for a batch under way.
    pub(super) async fn settled(&self) -> Result<(), StoreError> {
        self.settled_or_retired().await?;
        self.read().check_retired()
    }

    /// As [`Self::settled`], for a store that may be retired.
    pub(super) async fn settled_or_retired(&self) -> Result<(), StoreError> {
        if self.has_failed.load(Ordering::SeqCst) || self.rows.is_poisoned() {
            drop(self.take_turn().await?);
        }
        Ok(())
    }

    /// Journals a batch, then absorbs it into the rows.
    pub(super) async fn commit(
        &self,
        turn: &mut WriteTurn,
        part: &Ledger,
        dirty: Dirty,
        mark: Mark,
        decided: &BatchDecision,
    ) -> Result<(), StoreError> {
        let entry = Entry::new(part, &dirty, mark, decided, self.read().cursor.epoch);
        self.append(turn, entry, |rows| rows.absorb(part, &dirty, decided)).await
    }

    /// Journals an entry, then changes the rows by `take_over`.
    pub(super) async fn append(
        &self,
        turn: &mut WriteTurn,
        entry: Entry,
        take_over: impl FnOnce(&mut Rows),
    ) -> Result<(), StoreError> {
        let barred_until = entry.mark.barred_until;
        let retired_to = entry.mark.retired_to.clone();
        // Stays set if this future is dropped halfway, or panics: the journal may then have what the rows lack.
        turn.is_behind = true;
        let appended = self.wrote(turn.journal.append(entry).await);
        self.has_failed.store(appended.is_err(), Ordering::SeqCst);
        appended?;
        let mut rows = self.write();
        rows.barred_until = barred_until;
        rows.retired_to = retired_to;
        take_over(&mut rows);
        self.head.send_replace(rows.cursor);
        turn.is_behind = false;
        Ok(())
    }

    /// Forgets rows that have ended; returns how many.
    pub(super) async fn forget_some(&self) -> Result<usize, StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let (now, mut part, revision) = {
            let mut rows = self.write();
            let now = rows.now(tick);
            let Rows { state, timers, .. } = &mut *rows;
            (now, timers.forgettable(state, now, FORGET_MAX), rows.cursor.revision)
        };
        forget(&mut part, now);
        let dirty = part.take_dirty();
        let count = dirty.requests.len() + dirty.resources.len();
        if count > 0 {
            let decided = BatchDecision { events: Vec::new(), revision };
            self.commit(&mut turn, &part, dirty, self.mark(now, tick), &decided).await?;
        }
        Ok(count)
    }
}

/// Records that this process continues the journal's history. If that fails, the next start may miss that the folder
/// was set back, or bars once more.
pub(super) fn adopt(journal: &mut dyn Journal, now: StoreTime) {
    if let Err(error) = journal.adopt(now) {
        tracing::warn!(%error, "cannot record that the data folder is in use; a restored copy of it may go unnoticed until the next start");
    }
}

/// A journal that fails before a command has begun leaves nothing unknown.
fn nothing_done(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown(what) => StoreError::Unavailable(what),
        other => other,
    }
}

pub(super) struct JournaledRows {
    pub(super) rows: Rows,
    /// Why what the start has changed could not be written, as when the disk is full.
    pub(super) unwritable: Option<String>,
    pub(super) set_back: Option<SetBack>,
}

/// Loads all rows and resumes store time (rule 3), never before `at_least`. A journal on a full disk can be read too.
pub(super) fn load(
    journal: &mut dyn Journal,
    clock: &dyn Clock,
    at_least: impl FnOnce(BootTime) -> StoreTime,
    boot_id: &str,
) -> Result<JournaledRows, StoreError> {
    let Image { mut state, events, cursor, floor, mark, set_back } = journal.load()?;
    // Not before: many rows take a while, and the grace that holders get must not pass meanwhile.
    let tick = clock.now();
    let (now, dirty) = restart::resume_time(&mut state, mark.as_ref(), tick);
    let now = now.max(at_least(tick));
    let barred_until = mark.as_ref().map_or(StoreTime::default(), |mark| {
        let is_barred = mark.barred_until > mark.now;
        // Time during which no store was running does not count.
        let gap_ms = if mark.is_of_this_boot(tick) { 0 } else { now.ms_after(mark.now) };
        if is_barred { mark.barred_until.plus_ms(gap_ms) } else { mark.barred_until }
    });
    let retired_to = mark.as_ref().and_then(|mark| mark.retired_to.clone());
    let mut unwritable = None;
    if mark.is_some() {
        let mark = Mark {
            now,
            boot_id: boot_id.to_owned(),
            tick_ms: tick.as_ms(),
            barred_until,
            retired_to: retired_to.clone(),
        };
        match journal.fold(&state, dirty, mark) {
            Err(error @ StoreError::Unknown(_)) => unwritable = Some(error.cause()),
            folded => folded?,
        }
    }
    let rows = Rows {
        events,
        timers: Timers::of(&state),
        tally: Tally::of(&state),
        state: Arc::new(state),
        cursor,
        floor,
        keeps_events: journal.history().is_some(),
        barred_until,
        retired_to,
        since: (now, tick),
    };
    Ok(JournaledRows { rows, unwritable, set_back })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use solehold_core::{
        key::{Document, HolderKey, Name, SessionId},
        limits::RESTART_GRACE_MS,
        session::{Session, Standing},
        time::Revision,
    };

    use super::*;
    use crate::{
        clock::{ManualClock, boot_id},
        resident::{Fold, JournaledEvents, NoJournal, Unfolded},
        store::Retention,
    };

    /// A journal with one live session that takes a minute to load.
    struct SlowJournal {
        clock: Arc<ManualClock>,
        session: Session,
        mark: Mark,
    }

    #[async_trait]
    impl Journal for SlowJournal {
        fn history(&self) -> Option<Arc<dyn JournaledEvents>> {
            None
        }

        fn load(&mut self) -> Result<Image, StoreError> {
            self.clock.advance_ms(60_000);
            let mut image = NoJournal.load()?;
            image.state.load_session(self.session.clone());
            Ok(Image { mark: Some(self.mark.clone()), ..image })
        }

        async fn append(&mut self, _: Entry) -> Result<(), StoreError> {
            Ok(())
        }

        fn unfolded(&mut self) -> Option<&Unfolded> {
            None
        }

        fn fold(&mut self, _: &Ledger, _: Dirty, _: Mark) -> Result<(), StoreError> {
            Ok(())
        }

        async fn tidy(
            &mut self,
            _: Option<Fold>,
            _: Mark,
            _: &Retention,
        ) -> Result<Option<Revision>, StoreError> {
            Ok(None)
        }

        fn set_floor(&mut self, _: Revision) -> Result<(), StoreError> {
            Ok(())
        }

        fn close(&mut self) -> Result<(), StoreError> {
            Ok(())
        }
    }

    /// The grace of rule 3 is for holders to come back, not for the rows to be read.
    #[test]
    fn a_session_has_the_whole_grace_after_a_load_that_takes_a_minute() {
        let name = |text: &str| Name::new(text).expect("a name");
        let stopped_at = StoreTime(1_000_000);
        let session = Session {
            id: SessionId(uuid::Uuid::from_u128(1)),
            holder: HolderKey { tenant: name("acme"), name: name("ann") },
            by: None,
            ttl_ms: 30_000,
            opened_at: stopped_at,
            renewed_at: stopped_at,
            deadline: stopped_at.plus_ms(20_000),
            standing: Standing::Current,
            capacity: None,
            lease_count: 0,
            waiting: 0,
            lease_revision: Revision(0),
            metrics: Document::default(),
        };
        let id = session.id;
        let clock = Arc::new(ManualClock::default());
        let mark = Mark { now: stopped_at, boot_id: boot_id(), ..Mark::default() };
        let mut journal = SlowJournal { clock: clock.clone(), session, mark };
        let loaded = load(&mut journal, &*clock, |_| StoreTime::default(), &boot_id()).expect("loaded");
        let deadline = loaded.rows.state.session(id).expect("it is there").deadline;
        assert_eq!(deadline.ms_after(loaded.rows.now(clock.now())), RESTART_GRACE_MS);
    }
}
