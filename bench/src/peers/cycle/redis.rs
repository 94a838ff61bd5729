//! Redis, as its own manual has a lock with one instance: set if absent with a time to live, and a script that deletes
//! the key if it still has the holder's value.

use std::time::Instant;

use anyhow::{Result, ensure};
use redis::{Script, aio::MultiplexedConnection};

use super::{Keys, TTL};
use crate::round::{Turn, Turned};

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub struct Cycle {
    connection: MultiplexedConnection,
    release: Script,
    keys: Keys,
    task: usize,
    cycles: u64,
}

impl Cycle {
    pub async fn new(connection: &MultiplexedConnection, task: usize) -> Result<Self> {
        let mut connection = connection.clone();
        let release = Script::new(RELEASE);
        release.load_async(&mut connection).await?;
        Ok(Self { connection, release, keys: Keys::of(task), task, cycles: 0 })
    }
}

impl Turn for Cycle {
    async fn turn(&mut self) -> Result<Turned> {
        self.cycles += 1;
        let value = format!("{}-{}", self.task, self.cycles);
        let key = self.keys.next();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&value).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        let began = Instant::now();
        let granted: Option<String> = set.query_async(&mut self.connection).await?;
        let latency = began.elapsed();
        ensure!(granted.is_some(), "{key} is held");
        let deleted: u64 = self.release.key(key).arg(&value).invoke_async(&mut self.connection).await?;
        ensure!(deleted == 1, "{key} was not held");
        Ok(Turned::whole(1, latency))
    }
}
