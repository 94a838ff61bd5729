//! Connections to a database that may stop answering.

use std::ops::{Deref, DerefMut};

use deadpool_postgres::{Object, Pool};
use solehold_clock::{AlarmClock, BootClock, BootTime};

use crate::Error;

/// A connection of the pool. It goes back only by [`finish`](Self::finish): one that still owes an answer, because the
/// work on it was given up, would make the next caller wait for that answer.
pub(super) struct Connection(Option<Object>);

impl Connection {
    pub(super) async fn get(pool: &Pool) -> Result<Self, Error> {
        Ok(Self(Some(pool.get().await?)))
    }

    /// Returns it to the pool: every request on it has been answered.
    pub(super) fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Taken out of the pool, which makes a new one when it needs it.
        self.0.take().map(Object::take);
    }
}

impl Deref for Connection {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("taken only at the end")
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Object {
        self.0.as_mut().expect("taken only at the end")
    }
}

/// Gives `work` up at the deadline. Past it, nothing is begun.
pub(super) async fn until<T>(deadline: BootTime, work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::select! {
        biased;
        () = BootClock.wait_until(deadline) => {
            Err(Error::Connection("no answer before the leases ran out".into()))
        }
        done = work => Ok(done),
    }
}
