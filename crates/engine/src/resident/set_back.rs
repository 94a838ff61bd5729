//! Begins another history of a store that was set back, and retires a store (rule 23).

use solehold_core::time::StoreTime;

use super::{
    Entry, Mark, ResidentStore,
    rows::{Rows, longest_ttl_ms},
    turn::WriteTurn,
};
use crate::{
    clock::wall_ms,
    history::{self, Bar},
    store::{Cursor, Store, StoreError},
};

impl ResidentStore {
    /// Begins another history. Nothing is decided for as long as a lost lease may live, unless an operator's `bar`
    /// overrides that. Only an operator brings a retired store back into use.
    pub(super) async fn jump(
        &self,
        turn: &mut WriteTurn,
        seen: Option<Cursor>,
        bar: Option<Bar>,
    ) -> Result<StoreTime, StoreError> {
        let tick = self.clock.now();
        let (mark, cursor) = {
            let rows = self.read();
            let now = rows.now(tick);
            let known = seen.map_or(rows.cursor, |seen| Cursor {
                epoch: seen.epoch.max(rows.cursor.epoch),
                revision: seen.revision.max(rows.cursor.revision),
            });
            let barred_until = match bar {
                None | Some(Bar::LongestTtl) => self.barred_until(&rows, now),
                Some(Bar::None) => StoreTime::default(),
            };
            let retired_to = rows.retired_to.clone().filter(|_| bar.is_none());
            let mark = Mark { barred_until, retired_to, ..self.mark_of(&rows, now, tick) };
            (mark, history::another(known, wall_ms()))
        };
        let now = mark.now;
        let barred_ms = mark.barred_until.ms_after(now);
        tracing::warn!(
            epoch = cursor.epoch,
            revision = cursor.revision.0,
            barred_ms,
            "the store was restored or copied; beginning another history"
        );
        let entry = Entry { mark, cursor, rows: Vec::new(), gone: Vec::new(), events: Vec::new() };
        self.append(turn, entry, |rows| rows.cursor = cursor).await?;
        Ok(now)
    }

    /// When the longest lease that can have been granted has expired, and so have all sessions and leases stored here.
    fn barred_until(&self, rows: &Rows, now: StoreTime) -> StoreTime {
        let longest_ms = self.options.ttl_max_ms.max(longest_ttl_ms(&rows.state));
        now.plus_ms(longest_ms).max(rows.barred_until)
    }

    /// A holder shows a sealed cursor. A store that is behind it was set back.
    pub(super) async fn witness_cursor(&self, sealed: &str) -> Result<(), StoreError> {
        let Some(proven) = self.seal.as_ref().and_then(|seal| seal.open(sealed)) else { return Ok(()) };
        if proven.cursor <= self.cursor() {
            return Ok(());
        }
        let mut turn = self.take_turn_to_write().await?;
        // Compared again: a batch that was under way may have brought the store there.
        if proven.cursor > self.cursor() {
            let store = self.cursor();
            tracing::error!(shown = ?proven.cursor, ?store, "a holder has a later cursor than the store; the store was set back");
            self.jump(&mut turn, Some(proven.cursor), None).await?;
        }
        Ok(())
    }

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
