//! What a long snapshot, such as that of a dump or an export, costs batches and renewals. Both are run without one and
//! then under one, and the ratio is printed: of the time, and of the pages that PostgreSQL reads, which no other load
//! on the machine can change.
//!
//! Each batch touches other rows than the last ones, so that only the clock, which all batches share, can slow them
//! down.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use solehold_core::{command::Command, key::SessionId, lease::Declaration};
use solehold_engine::{
    clock::BootTime,
    postgres::{PostgresOptions, PostgresStore},
};
use tokio_postgres::NoTls;
use uuid::Uuid;

use super::commit;
use crate::commands;

/// Commits a batch of one command, which must not be refused.
async fn commit_one(store: &PostgresStore, command: Command) -> Result<()> {
    let outcome = commit(store, vec![command]).await?.pop().context("an outcome")?;
    outcome?;
    Ok(())
}

fn session(n: usize) -> SessionId {
    SessionId(Uuid::from_u128(n as u128 + 1))
}

fn each(pages: i64, batches: usize) -> i64 {
    pages / batches as i64
}

/// The middle one of many durations.
fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Runs batches, each with a renewal after it, and returns the median times of the last half of each.
async fn measure(store: &PostgresStore, rows: usize, batches: usize) -> Result<[Duration; 2]> {
    let mut took = [Vec::new(), Vec::new()];
    for n in 0..batches {
        let key = commands::resource(format!("job-{}", n % rows));
        // Each round over the rows changes them.
        let declaration = Declaration { lock_delay_ms: (n / rows % 2) as u64, ..Default::default() };
        let declare = Command::Declare { key, declaration, only_new: false };
        let beat = commands::heartbeat(session(n % rows));
        for (took, command) in took.iter_mut().zip([declare, beat]) {
            let began = BootTime::now();
            commit_one(store, command).await?;
            if n >= batches / 2 {
                took.push(BootTime::now().since(began));
            }
        }
    }
    Ok(took.map(median))
}

/// The pages that PostgreSQL has looked at in this database so far. Other connections report theirs within a second.
async fn pages(client: &tokio_postgres::Client) -> i64 {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let sum =
        "SELECT (blks_hit + blks_read)::bigint FROM pg_stat_database WHERE datname = current_database()";
    client.query_one(sum, &[]).await.expect("statistics").get(0)
}

#[derive(Debug, Args)]
pub struct Options {
    /// The database: postgres://USER@HOST/DATABASE
    url: String,
    /// Number of rows that batches change in turn
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    rows: usize,
    /// Number of batches
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    batches: usize,
}

pub async fn run(Options { url, rows, batches }: Options) -> Result<()> {
    let store = PostgresStore::open(&url, PostgresOptions::default()).await?;
    for n in 0..rows {
        let holder = commands::name(format!("holder-{n}"));
        commit_one(&store, commands::open_session(session(n), holder, 24 * 3_600_000)).await?;
    }
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let (reader, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    // Once over all rows before it counts: they are all new.
    measure(&store, rows, rows).await?;
    let began = pages(&reader).await;
    let [batch, renewal] = measure(&store, rows, batches).await?;
    let without = pages(&reader).await - began;
    println!(
        "without a snapshot: batch {batch:?}, renewal {renewal:?}, {} pages for both",
        each(without, batches)
    );
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let pinned = client.build_transaction().isolation_level(level).start().await?;
    pinned.query("SELECT count(*) FROM solehold.clock", &[]).await?;
    let began = pages(&reader).await;
    let [slow_batch, slow_renewal] = measure(&store, rows, batches).await?;
    let under = pages(&reader).await - began;
    println!(
        "after {batches} batches under one: batch {slow_batch:?}, renewal {slow_renewal:?}, {} pages for both",
        each(under, batches)
    );
    println!(
        "ratio: batch {:.2}, renewal {:.2}, pages {:.2}",
        slow_batch.as_secs_f64() / batch.as_secs_f64(),
        slow_renewal.as_secs_f64() / renewal.as_secs_f64(),
        under as f64 / without as f64
    );
    Ok(())
}
