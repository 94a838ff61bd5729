//! Requests to revoke tasks. They run in parallel to sending, so that one that hangs holds back only the next rows of
//! its own job.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::{
    dispatch::Dispatch,
    model::{
        limits::{OUTBOX_BATCH, REVOKE_WITHIN, REVOKES_AT_ONCE},
        task::TaskId,
    },
};

/// Most requests are answered within this time.
const GRACE: Duration = Duration::from_millis(100);

/// The requests of one channel, by the numbers of their rows. Dropping it abandons pending requests; their rows remain.
#[derive(Default)]
pub struct Revokes {
    running: JoinSet<i64>,
    /// Whether each request has ended. It is removed together with its row.
    known: HashMap<i64, bool>,
}

impl Revokes {
    /// Starts these requests, as far as there is room, and waits for them for a short time.
    pub async fn request(&mut self, way: &Arc<dyn Dispatch>, mut wanted: Vec<(i64, TaskId)>) {
        while let Some(ended) = self.running.try_join_next() {
            self.note(ended);
        }
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

    /// Whether the request of this row was answered or has timed out.
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
                tracing::debug!(%task, "workers did not confirm that a task was revoked");
            }
            sequence
        });
    }

    fn note(&mut self, ended: Result<i64, tokio::task::JoinError>) {
        match ended {
            Ok(sequence) => drop(self.known.insert(sequence, true)),
            // One panicked, and it is not known which: all pending ones are requested again.
            Err(_) => self.known.retain(|_, has_ended| *has_ended),
        }
    }
}
