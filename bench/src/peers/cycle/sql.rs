//! The hand-written SQL without HTTP: statements prepared once, over a connection that each task keeps.

use std::time::Instant;

use anyhow::{Result, ensure};
use tokio_postgres::{Client, Statement};

use super::Keys;
use crate::{
    cycles::hand_written::{ACQUIRE, LOCK, READ, RELEASE},
    round::{Turn, Turned},
};

pub struct Cycle {
    client: Client,
    lock: Statement,
    acquire: Statement,
    read: Statement,
    release: Statement,
    holder: String,
    keys: Keys,
}

impl Cycle {
    pub async fn open(client: Client, task: usize) -> Result<Self> {
        Ok(Self {
            lock: client.prepare(LOCK).await?,
            acquire: client.prepare(ACQUIRE).await?,
            read: client.prepare(READ).await?,
            release: client.prepare(RELEASE).await?,
            holder: format!("bench-{task}"),
            keys: Keys::of(task),
            client,
        })
    }
}

impl Turn for Cycle {
    async fn turn(&mut self) -> Result<Turned> {
        let key = self.keys.next();
        let began = Instant::now();
        let transaction = self.client.transaction().await?;
        transaction.query_opt(&self.lock, &[&key]).await?;
        let updated = transaction.execute(&self.acquire, &[&key, &self.holder]).await?;
        transaction.query_one(&self.read, &[&key]).await?;
        transaction.commit().await?;
        let latency = began.elapsed();
        ensure!(updated == 1, "{key} is held");
        let released = self.client.execute(&self.release, &[&key, &self.holder]).await?;
        ensure!(released == 1, "{key} was not held");
        Ok(Turned::whole(1, latency))
    }
}
