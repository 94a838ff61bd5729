//! A cycle: acquire and release. Each task has keys of its own and goes round them, so nothing is refused.

mod etcd;
mod http;
mod own_client;
mod redis;
mod sql;

use std::time::Duration;

use anyhow::Result;

use super::{servers::Servers, system::System};
use crate::{
    cycles::load::{SCENES_A_CONNECTION, scene},
    round::{Round, Turn, measure},
};

/// The systems that have cycles: all.
pub const SYSTEMS: &[System] = &[
    System::Embedded,
    System::EmbeddedHttp,
    System::Postgres,
    System::PostgresHttp,
    System::Redis,
    System::Etcd,
    System::EtcdSession,
    System::Sql,
    System::SqlHttp,
];

/// How long an acquired lock would be held, where it is not attached to a session.
const TTL: Duration = Duration::from_secs(30);

/// Runs cycles in a number of tasks until the duration is over.
pub async fn round(servers: &Servers, system: System, tasks: usize, duration: Duration) -> Result<Round> {
    let meter = servers.meter(system)?;
    match system {
        System::Embedded | System::Postgres => {
            let locks = &servers.ours(system)?.locks;
            let task = async |task| Ok(own_client::Cycle::new(locks, Keys::of(task)));
            measure(&meter, all(tasks, task).await?, duration).await
        }
        System::EmbeddedHttp | System::PostgresHttp => {
            let address = servers.ours(system)?.address;
            measure(&meter, all(tasks, async |task| http::Cycle::open(address, task).await).await?, duration)
                .await
        }
        System::SqlHttp => {
            let address = servers.sql_http()?;
            let task = async |task| http::SceneCycle::open(address, task).await;
            measure(&meter, all(tasks, task).await?, duration).await
        }
        System::Redis => {
            let connection = &servers.redis()?.connection;
            let task = async |task| redis::Cycle::new(connection, task).await;
            measure(&meter, all(tasks, task).await?, duration).await
        }
        System::Etcd => {
            let client = &servers.etcd()?.client;
            let task = async |task| Ok(etcd::LeaseCycle::new(client, Keys::of(task)));
            measure(&meter, all(tasks, task).await?, duration).await
        }
        System::EtcdSession => {
            let client = &servers.etcd()?.client;
            let lease = client.clone().grant(TTL.max(duration * 10)).await?;
            let task = async |task| Ok(etcd::KeyCycle::new(client, lease, Keys::of(task)));
            measure(&meter, all(tasks, task).await?, duration).await
        }
        System::Sql => {
            let task = async |task| sql::Cycle::open(servers.sql().await?, task).await;
            measure(&meter, all(tasks, task).await?, duration).await
        }
    }
}

/// The tasks, with their connections open.
async fn all<T: Turn>(tasks: usize, task: impl AsyncFn(usize) -> Result<T>) -> Result<Vec<T>> {
    let mut all = Vec::with_capacity(tasks);
    for number in 0..tasks {
        all.push(task(number).await?);
    }
    Ok(all)
}

/// The keys of a task.
struct Keys {
    names: Vec<String>,
    next: usize,
}

impl Keys {
    fn of(task: usize) -> Self {
        Self { names: (0..SCENES_A_CONNECTION).map(|index| scene(task, index)).collect(), next: 0 }
    }

    fn next(&mut self) -> &str {
        self.next = (self.next + 1) % self.names.len();
        &self.names[self.next]
    }
}
