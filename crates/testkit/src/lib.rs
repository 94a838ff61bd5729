//! Real servers for tests, each private to its test, and the faults to try them with.
//!
//! ```text
//!   test process ── Postgres ──┐             ┌── postgres, in a temporary folder, on a reserved port
//!                   Solehold ──┼── Server ───┤
//!                   Kafka      │             │
//!                   RabbitMq   │             │
//!                   Mosquitto  │             │
//!                   Redis      │             │
//!                   Proxy      │             └── watchdog shell, reads a pipe that the test process holds
//! ```
//!
//! A server ends with its handle. When the test process itself ends, however it ends, the pipe closes
//! and the watchdog stops the server and removes its folder, so that not even a SIGKILL leaves one behind.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use solehold_testkit::{Postgres, Solehold};
//!
//! let database = Postgres::shared().await?.create_database("orders").await?;
//! let server = Solehold::builder().engine(&database).start().await?;
//! println!("{}", server.url());
//! # Ok(()) }
//! ```

mod cache;
mod fake_clock;
mod golden;
mod kafka;
mod mosquitto;
mod output;
mod package;
mod patroni;
mod pgbouncer;
mod port;
mod postgres;
mod proc;
mod program;
mod promql;
mod proxy;
mod python;
mod rabbitmq;
mod redis;
mod requests;
mod server;
mod small_disk;
mod solehold;
mod wait;
mod watchdog;

pub use fake_clock::FakeClock;
pub use golden::{docs, golden, golden_part, metrics_table};
pub use kafka::{Kafka, KafkaBuilder, KafkaTls};
pub use mosquitto::Mosquitto;
pub use package::package_file;
pub use patroni::{PatroniNode, PatroniOptions};
pub use pgbouncer::{PgBouncer, PoolMode};
pub use port::free_port;
pub use postgres::{Postgres, PostgresBuilder};
pub use program::Program;
pub use promql::{metrics_exported, metrics_named};
pub use proxy::Proxy;
pub use python::python;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use requests::{Fate, RequestProxy};
pub use small_disk::SmallDisk;
pub use solehold::{Solehold, SoleholdBuilder};
pub use tempfile::TempDir;
pub use wait::{Ready, wait_for};
