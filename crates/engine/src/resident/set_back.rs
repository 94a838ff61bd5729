//! A resident store that was set back, or is retired (rule 23).

use solehold_core::time::StoreTime;

use super::{Entry, Mark, ResidentStore, Turn, rows::Rows};
use crate::{
    clock::wall_ms,
    history::{self, Bar},
    store::{Cursor, Store, StoreError},
};

impl ResidentStore {
    /// Goes on as another history (rule 23), and decides nothing for as long as a lost lease may live, unless people
    /// have `told` otherwise. Only they take up a store that was retired.
    pub(super) async fn jump(
        &self,
        turn: &mut Turn,
        seen: Option<Cursor>,
        told: Option<Bar>,
    ) -> Result<StoreTime, StoreError> {
        let tick = self.clock.now();
        let (mark, cursor) = {
            let rows = self.read();
            let now = rows.now(tick);
            let known = seen.map_or(rows.cursor, |seen| Cursor {
                epoch: seen.epoch.max(rows.cursor.epoch),
                revision: seen.revision.max(rows.cursor.revision),
            });
            let barred_until = match told {
                None | Some(Bar::LongestTtl) => self.barred_until(&rows, now),
                Some(Bar::None) => StoreTime::default(),
            };
            let retired_to = rows.retired_to.clone().filter(|_| told.is_none());
            let mark = Mark { barred_until, retired_to, ..self.mark_of(&rows, now, tick) };
            (mark, history::another(known, wall_ms()))
        };
        let (now, barred_ms) = (mark.now, mark.barred_until.ms_after(mark.now));
        tracing::warn!(
            epoch = cursor.epoch,
            revision = cursor.revision.0,
            barred_ms,
            "the store was set back to an earlier state, or is a copy: it goes on as another history"
        );
        let entry = Entry { mark, cursor, rows: Vec::new(), gone: Vec::new(), events: Vec::new() };
        self.append(turn, entry, |rows| rows.cursor = cursor).await?;
        Ok(now)
    }

    /// When the longest lease that can have been granted has run out, and so has all that is here.
    fn barred_until(&self, rows: &Rows, now: StoreTime) -> StoreTime {
        let longest_ms = self.options.ttl_max_ms.max(rows.longest_ttl_ms());
        now.plus_ms(longest_ms).max(rows.barred_until)
    }

    /// A holder shows how far the history had come. If the store is behind that, it was set back.
    pub(super) async fn witness_cursor(&self, sealed: &str) -> Result<(), StoreError> {
        let Some(proven) = self.seal.as_ref().and_then(|seal| seal.open(sealed)) else { return Ok(()) };
        if proven.cursor <= self.cursor() {
            return Ok(());
        }
        let mut turn = self.take_turn_to_write().await?;
        // Looked at again: what a batch under way brings was not there before.
        if proven.cursor > self.cursor() {
            tracing::error!(shown = ?proven.cursor, "a holder has seen more of the history than is here");
            self.jump(&mut turn, Some(proven.cursor), None).await?;
        }
        Ok(())
    }

    /// Retires the store, in a batch of its own.
    pub(super) async fn retire_to(&self, to: &str) -> Result<(), StoreError> {
        let mut turn = self.take_turn_to_write().await?;
        let tick = self.clock.now();
        let (mark, cursor) = {
            let rows = self.read();
            let mark = Mark { retired_to: Some(to.to_owned()), ..self.mark_of(&rows, rows.now(tick), tick) };
            (mark, rows.cursor)
        };
        let entry = Entry { mark, cursor, rows: Vec::new(), gone: Vec::new(), events: Vec::new() };
        self.append(&mut turn, entry, |_| ()).await
    }
}
