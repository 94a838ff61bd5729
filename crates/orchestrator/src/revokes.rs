//! Requests to drop tasks. They go beside the tasks, so that one that hangs holds nothing back but what its own job
//! sends next.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::{
    TaskId,
    dispatch::Dispatch,
    limits::{OUTBOX_BATCH, REVOKE_WITHIN, REVOKES_AT_ONCE},
};

/// Most requests are answered within this time, and need no second look.
const GRACE: Duration = Duration::from_millis(100);

/// The requests of one channel, by the numbers of their rows. What is under way when this is dropped is given up: the
/// row is still there.
#[derive(Default)]
pub(super) struct Revokes {
    running: JoinSet<i64>,
    /// Whether each has ended. One that has is forgotten when its row is dealt with.
    known: HashMap<i64, bool>,
}

impl Revokes {
    /// Begins with these requests, as far as there is room, and waits for them for a short time.
    pub async fn ask(&mut self, way: &Arc<dyn Dispatch>, wanted: Vec<(i64, TaskId)>) {
        while let Some(ended) = self.running.try_join_next() {
            self.note(ended);
        }
        let mut wanted = wanted;
        wanted.retain(|(sequence, _)| !self.known.contains_key(sequence));
        if wanted.is_empty() || !self.has_room() {
            return;
        }
        let all = async {
            let mut wanted = wanted.into_iter();
            loop {
                while self.has_room()
                    && let Some((sequence, task)) = wanted.next()
                {
                    self.begin(way.clone(), sequence, task);
                }
                match self.running.join_next().await {
                    Some(ended) => self.note(ended),
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(GRACE, all).await;
    }

    /// Whether the request of this row has ended, be it because nobody answered in time.
    pub fn has_ended(&mut self, sequence: i64) -> bool {
        let has_ended = self.known.get(&sequence) == Some(&true);
        if has_ended {
            self.known.remove(&sequence);
        }
        has_ended
    }

    fn has_room(&self) -> bool {
        self.running.len() < REVOKES_AT_ONCE && self.known.len() < 2 * OUTBOX_BATCH.unsigned_abs() as usize
    }

    fn begin(&mut self, way: Arc<dyn Dispatch>, sequence: i64, task: TaskId) {
        self.known.insert(sequence, false);
        self.running.spawn(async move {
            if tokio::time::timeout(REVOKE_WITHIN, way.revoke(&task)).await.is_err() {
                tracing::debug!(%task, "workers did not answer a request to drop a task");
            }
            sequence
        });
    }

    fn note(&mut self, ended: Result<i64, tokio::task::JoinError>) {
        match ended {
            Ok(sequence) => drop(self.known.insert(sequence, true)),
            // It panicked, and it is not known which: those that have not ended are asked for again.
            Err(_) => self.known.retain(|_, has_ended| *has_ended),
        }
    }
}
