//! Where the next claim starts its scan.
//!
//! A claimed row leaves its place in the claim index, but its dead entry stays there until vacuum may remove it, and a
//! long-running reader that pins a snapshot keeps vacuum from it for as long as it runs. A claim that begins at the
//! lower end of the index would go over all dead entries since then, each time. So claims begin where the last one
//! ended, the floor, and an occasional full pass from the beginning finds what has appeared below it: rows released,
//! committed late, or more urgent. A full pass that takes long is made rarely: it may use one part in
//! [`FULL_PASS_SHARE`] of the time. Without dead entries it is short, and so it is frequent.

use std::time::Duration;

use parking_lot::Mutex;
use solehold_clock::BootTime;
use tokio_postgres::Row;

use crate::{
    Error,
    limits::{FULL_PASS_PAUSE_MAX, FULL_PASS_SHARE},
    row::Raw,
    statements::Start,
};

/// The floors of one table, shared by all tasks of a process.
#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<FloorState>);

#[derive(Debug, Default)]
struct FloorState {
    /// The key of the last fresh row that was claimed.
    fresh: Option<Vec<Raw>>,
    /// Up to when all that was due has been claimed.
    due: Option<Raw>,
    /// No full pass before this, unless there is no floor.
    next_full: Option<BootTime>,
    /// How many full passes have been made, each of which sets the floors: an older claim does not set them again.
    generation: u64,
    /// Which lane comes first changes with each claim, so that neither starves the other.
    due_first: bool,
}

/// One claim's way.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    floors: &'a Floors,
    pub(crate) start: Start,
    pub(crate) due_first: bool,
    pub(crate) fresh: Option<Vec<Raw>>,
    pub(crate) due: Option<Raw>,
    generation: u64,
    began: BootTime,
    finished: bool,
}

impl Floors {
    pub(crate) fn begin(&self) -> Pass<'_> {
        let began = BootTime::now();
        let mut state = self.0.lock();
        state.due_first = !state.due_first;
        let full = state.fresh.is_none() || state.next_full.is_none_or(|next| began >= next);
        if full {
            // Others go from the floor meanwhile.
            state.next_full = Some(began.plus(FULL_PASS_PAUSE_MAX));
        }
        let start = match (full, &state.fresh) {
            (false, _) => Start::Floor,
            (true, Some(_)) => Start::BeginningKnowingTheFloor,
            (true, None) => Start::Beginning,
        };
        Pass {
            floors: self,
            start,
            due_first: state.due_first,
            fresh: state.fresh.clone(),
            due: state.due.clone(),
            generation: state.generation,
            began,
            finished: false,
        }
    }

    pub(crate) fn full_passes(&self) -> u64 {
        self.0.lock().generation
    }
}

impl Pass<'_> {
    /// Moves the floors by what the claim answered.
    pub(crate) fn finish(mut self, header: &Row, limit: i64, key_columns: usize) -> Result<(), Error> {
        self.finished = true;
        let found = Header::read(header, limit, self.due_first, key_columns)?;
        let full = self.start != Start::Floor;
        let mut state = self.floors.0.lock();
        if full {
            let took = BootTime::now().since(self.began);
            state.next_full = Some(BootTime::now().plus(pause_after(took)));
            state.generation += 1;
        } else if state.generation != self.generation {
            return Ok(());
        }
        // What a full pass found below the floor is the last there was, unless there may be more.
        if found.fresh.is_some() && (found.ahead || found.fresh_full) {
            state.fresh = found.fresh;
        }
        if found.due.is_some() {
            state.due = found.due;
        }
        Ok(())
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // A full pass that failed or was given up has found nothing.
        if !self.finished && self.start != Start::Floor {
            self.floors.0.lock().next_full = None;
        }
    }
}

/// What the first row of an answer says.
struct Header {
    fresh: Option<Vec<Raw>>,
    fresh_full: bool,
    ahead: bool,
    due: Option<Raw>,
}

impl Header {
    fn read(header: &Row, limit: i64, due_first: bool, key_columns: usize) -> Result<Self, Error> {
        let fresh_rows: i64 = header.try_get("fresh_rows")?;
        let due_rows: i64 = header.try_get("due_rows")?;
        let due_limit = if due_first { limit } else { limit - fresh_rows };
        let fresh_limit = if due_first { limit - due_rows } else { limit };
        let key = (1..=key_columns)
            .map(|i| header.try_get::<_, Option<Raw>>(format!("floor_{i}").as_str()))
            .collect::<Result<Option<Vec<Raw>>, _>>()?;
        // Only types that every connection knows by the same number go back as they came.
        let known = |key: &Vec<Raw>| {
            key.iter().all(|raw| tokio_postgres::types::Type::from_oid(raw.kind.oid()).is_some())
        };
        Ok(Self {
            fresh: key.filter(known),
            fresh_full: fresh_rows == fresh_limit,
            ahead: header.try_get::<_, Option<bool>>("ahead")?.unwrap_or(true),
            due: match due_limit {
                0 => None,
                limit if due_rows < limit => Some(header.try_get("now")?),
                _ => header.try_get("last_due")?,
            },
        })
    }
}

fn pause_after(took: Duration) -> Duration {
    took.saturating_mul(FULL_PASS_SHARE).min(FULL_PASS_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_passes_use_a_small_share_of_the_time() {
        assert_eq!(pause_after(Duration::from_millis(2)), Duration::from_millis(40));
        assert_eq!(pause_after(Duration::from_secs(600)), FULL_PASS_PAUSE_MAX);
    }

    #[test]
    fn without_a_floor_every_pass_is_full_and_lanes_take_turns() {
        let floors = Floors::default();
        let one = floors.begin();
        let two = floors.begin();
        assert_eq!((one.start, two.start), (Start::Beginning, Start::Beginning));
        assert_ne!(one.due_first, two.due_first);
    }

    #[test]
    fn one_full_pass_at_a_time_and_a_failed_one_is_made_again() {
        let floors = Floors::default();
        floors.0.lock().fresh = Some(Vec::new());
        let full = floors.begin();
        assert_eq!(full.start, Start::BeginningKnowingTheFloor);
        assert_eq!(floors.begin().start, Start::Floor);
        drop(full);
        assert_eq!(floors.begin().start, Start::BeginningKnowingTheFloor);
    }
}
