//! The resident store as a [`Store`].

use std::{collections::VecDeque, time::Duration};

use async_trait::async_trait;
use solehold_core::{
    command::Footprint,
    event::Event,
    key::Name,
    ledger::{Dirty, Ledger},
    record::Record,
    time::{Moment, Revision, StoreTime},
};

use super::{
    Entry, Fold, Mark, ResidentStore, find, restart,
    rows::{self, Rows},
    turn::FORGET_MAX,
};
use crate::{
    clock::wall_ms,
    flow::{Exporter, Outlet},
    history::{self, Bar, SealedPoint},
    observe::Lane,
    store::*,
};

/// How often the clock's mark is persisted while no batch comes.
const MARK_EVERY: Duration = Duration::from_secs(1);
/// How long [`Store::news`] waits at most.
const NEWS_WAIT: Duration = Duration::from_secs(1);
/// Turns in one call, so that forgetting keeps up with whatever can be released.
const FORGET_TURNS_MAX: usize = 50;

#[async_trait]
impl Store for ResidentStore {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn transact(
        &self,
        _footprint: &Footprint,
        _lane: Lane,
        decider: &mut dyn Decider,
    ) -> Result<BatchDecision, StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let moment = {
            let rows = self.read();
            let now = rows.now(tick);
            rows.check_retired()?;
            if now < rows.barred_until {
                return Err(StoreError::Barred { retry_after_ms: rows.barred_until.ms_after(now) });
            }
            Moment { now, revision: rows.cursor.revision }
        };
        let mut layer = Ledger::over(self.read().state.clone());
        let decided = decider.decide(&mut layer, moment).map_err(|late| {
            let what = format!("the store is damaged: a lease is attached to {late}, which does not exist");
            StoreError::Unusable(what)
        })?;
        let (part, dirty) = layer.into_changes();
        if !dirty.is_empty() || decided.revision != moment.revision {
            self.commit(&mut turn, &part, dirty, self.mark(moment.now, tick), &decided).await?;
        }
        Ok(decided)
    }

    async fn load(&self, footprint: &Footprint) -> Result<LoadedRows, StoreError> {
        self.settled().await?;
        let rows = self.read();
        let state = find::part(&rows.state, footprint);
        let now = rows.now(self.clock.now());
        Ok(LoadedRows { state, now, cursor: rows.cursor, barred_until: rows.barred_until })
    }

    async fn find_resources(&self, query: &ResourceQuery) -> Result<ResourcePage, StoreError> {
        self.settled().await?;
        let (snapshot, indexed) = {
            let rows = self.read();
            (self.snapshot_of(&rows), find::indexed(&rows.state, query))
        };
        let query = query.clone();
        match indexed {
            // As few as one holder or session has.
            Some(keys) => Ok(snapshot.found(Some(&keys), &query)),
            None => self.aside(move || snapshot.found(None, &query)).await,
        }
    }

    async fn find_holders(&self, query: &HolderQuery) -> Result<HolderPage, StoreError> {
        self.settled().await?;
        let snapshot = self.snapshot();
        let query = query.clone();
        self.aside(move || snapshot.found_holders(&query)).await
    }

    async fn records(&self, collection: &Name) -> Result<Vec<Record>, StoreError> {
        self.settled().await?;
        let rows = self.snapshot().state;
        Ok(rows.records().filter(|r| r.collection == *collection).cloned().collect())
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        self.settled().await?;
        let (history, floor, head) = {
            let rows = self.read();
            match &self.history {
                Some(history) if query.after < rows.window_floor() => {
                    (history.clone(), rows.floor, rows.cursor)
                }
                // At most as many as the window has are looked at.
                _ => {
                    let events = find::events(&rows.events, query);
                    return Ok(EventPage { events, floor: rows.floor, head: rows.cursor });
                }
            }
        };
        let (mut events, dropped) = history.events(query).await?;
        // What was written meanwhile is told when it was taken over.
        events.retain(|event| event.revision <= head.revision);
        Ok(EventPage { events, floor: floor.max(dropped), head })
    }

    async fn news(&self, after: Cursor) -> Result<Cursor, StoreError> {
        let mut head = self.head.subscribe();
        // Out of time, the answer is the current position as well.
        let _ = tokio::time::timeout(NEWS_WAIT, head.wait_for(|head| *head > after)).await;
        self.settled().await?;
        Ok(self.read().cursor)
    }

    async fn due(&self, limit: usize) -> Result<Nominations, StoreError> {
        self.settled().await?;
        let mut rows = self.write();
        let now = rows.now(self.clock.now());
        let Rows { state, timers, .. } = &mut *rows;
        Ok(timers.due(state, now, limit))
    }

    async fn maintain(&self, retention: &Retention) -> Result<(), StoreError> {
        for _ in 0..FORGET_TURNS_MAX {
            if self.forget_some().await? < FORGET_MAX {
                break;
            }
        }
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        if tick.since(turn.marked) < MARK_EVERY {
            return Ok(());
        }
        turn.marked = tick;
        let (now, mark, folded) = {
            let rows = self.read();
            let now = rows.now(tick);
            let mark = self.mark_of(&rows, now, tick);
            let fold = |unfolded| Fold::new(&rows.state, unfolded, mark.clone(), rows.cursor);
            let folded = turn.journal.unfolded().map(fold);
            (now, mark, folded)
        };
        let dropped = self.wrote(turn.journal.tidy(folded, mark, retention).await)?;
        let mut rows = self.write();
        let floor = rows.floor.max(dropped.unwrap_or_default());
        rows.floor = floor;
        if rows.keeps_events {
            rows.drop_events(|first, _| first.revision <= floor);
        } else {
            rows.drop_events(|first, count| {
                retention.is_past(first, now) || count as u64 > retention.events_max
            });
        }
        Ok(())
    }

    fn unwritable(&self) -> Option<String> {
        self.unwritable.lock().clone()
    }

    async fn usage(&self, tenant: Option<&Name>) -> Result<Usage, StoreError> {
        self.settled().await?;
        let rows = self.read();
        Ok(rows.tally.usage(&rows.state, &rows.timers, tenant, rows.now(self.clock.now())))
    }

    async fn scan(&self, query: &ResourceQuery, pages: &Outlet<ResourcePage>) -> Result<(), StoreError> {
        self.settled().await?;
        let snapshot = self.snapshot();
        let mut query = query.clone();
        loop {
            let of = snapshot.clone();
            let asked = query.clone();
            let page = self.aside(move || of.found(None, &asked)).await?;
            query.after = page.keys.last().cloned();
            let more = page.more;
            pages.give(page).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn export(&self, out: &mut Exporter) -> Result<(), StoreError> {
        self.settled_or_retired().await?;
        let (snapshot, in_memory, retired) = {
            let rows = self.read();
            let in_memory = if self.history.is_none() { rows.events.clone() } else { VecDeque::new() };
            (self.snapshot_of(&rows), in_memory, rows.retired_to.is_some())
        };
        let Cursor { epoch, revision } = snapshot.cursor;
        let (floor, mut older) = match &self.history {
            Some(history) => {
                let (floor, events) = history.all(revision).await?;
                (floor.max(snapshot.floor), Some(events))
            }
            None => (snapshot.floor, None),
        };
        let now = snapshot.now;
        let header = Header { format: EXPORT_FORMAT, now, revision, epoch, floor, retired };
        out.put(Row::Header(header)).await?;
        snapshot.give_rows(out).await?;
        let is_kept = |event: &Event| event.revision > floor && event.revision <= revision;
        match &mut older {
            Some(older) => {
                while let Some(events) = older.next().await {
                    for event in events?.into_iter().filter(is_kept) {
                        out.put(Row::Event(event)).await?;
                    }
                }
            }
            None => {
                for event in in_memory.into_iter().filter(is_kept) {
                    out.put(Row::Event(event)).await?;
                }
            }
        }
        Ok(())
    }

    async fn import(&self, import: Import) -> Result<(), StoreError> {
        let Import { header, mut state, events, .. } = import;
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let (now, before) = {
            let rows = self.read();
            let is_empty = *rows.state == Ledger::default() && rows.cursor.revision == Revision(0);
            if !is_empty {
                return Err(StoreError::NotEmpty);
            }
            // Store time never goes back, not even by moving to another store.
            (rows.now(tick).max(header.now), rows.cursor)
        };
        restart::give_back(&mut state, header.now, now.ms_after(header.now), now, 0);
        let furthest = Cursor { epoch: header.epoch.max(before.epoch), revision: header.revision };
        let (cursor, barred_until) = if header.retired {
            (Cursor { epoch: furthest.epoch + 1, ..furthest }, StoreTime::default())
        } else {
            // The old store may still be running: wait out its leases, and give none of its tokens.
            let longest_ms = self.options.ttl_max_ms.max(rows::longest_ttl_ms(&state));
            (history::another(furthest, wall_ms()), now.plus_ms(longest_ms))
        };
        let dirty = Dirty::all_of(&state);
        let decided = BatchDecision { events, revision: cursor.revision };
        let mark = Mark { barred_until, ..self.mark(now, tick) };
        let entry = Entry::new(&state, &dirty, mark, &decided, cursor.epoch);
        // The floor first: it is true even if the rows do not follow.
        turn.journal.set_floor(header.floor)?;
        self.append(&mut turn, entry, |rows| {
            rows.since = (now, tick);
            rows.floor = header.floor;
            rows.cursor.epoch = cursor.epoch;
            rows.absorb(&state, &dirty, &decided);
        })
        .await
    }

    fn ttl_max_ms(&self) -> u64 {
        self.options.ttl_max_ms
    }

    fn seal(&self, cursor: Cursor) -> Option<String> {
        Some(self.seal.as_ref()?.seal(SealedPoint { cursor, timeline: 0 }))
    }

    async fn witness(&self, sealed: &str) -> Result<(), StoreError> {
        self.witness_cursor(sealed).await
    }

    async fn retire(&self, to: &str) -> Result<(), StoreError> {
        self.retire_to(to).await
    }

    async fn set_back(&self, seen: Option<Cursor>, bar: Bar) -> Result<(), StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        self.jump(&mut turn, seen, Some(bar)).await.map(|_| ())
    }

    fn cursor(&self) -> Cursor {
        self.read().cursor
    }

    async fn close(&self) {
        let mut turn = self.turn.lock().await;
        if turn.is_closed {
            return;
        }
        // Rows that may lack a journaled batch must not become the snapshot: the next start reads the log again.
        let folded = if turn.is_behind || turn.set_back.is_some() { Ok(()) } else { self.fold(&mut turn) };
        if let Err(error) = folded.and_then(|()| turn.journal.close()) {
            tracing::error!(%error, "cannot close the journal cleanly; the next start will replay its log");
        }
        turn.is_closed = self.read().keeps_events;
    }
}
