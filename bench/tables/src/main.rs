//! Prints what every query reads over a million rows in each table, and fails when one reads too much.

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use solehold_bench_tables::plan::FACTOR_MAX;
use solehold_orchestrator::model::limits::CLEANING_EVERY;

/// What every query reads over large tables.
#[derive(Debug, Parser)]
struct Cli {
    /// Rows of each table.
    #[arg(long, default_value_t = 1_000_000)]
    rows: i64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Cli { rows } = Cli::parse();
    let began = Instant::now();
    let say = |what: &str| eprintln!("{:4.0} s: {what}", began.elapsed().as_secs_f64());
    let findings = solehold_bench_tables::run(rows, say).await?;
    println!("{rows} rows in each table\n\n{}", findings.table());
    let share = findings.cleaning.as_secs_f64() / CLEANING_EVERY.as_secs_f64() * 100.0;
    println!("one cleaning of 12 partitions: {:.1?}, {share:.2} % of one core", findings.cleaning);
    let excessive = findings.excessive();
    let count = excessive.len();
    ensure!(
        excessive.is_empty(),
        "{count} statements read more than {FACTOR_MAX} times what they return:\n{}",
        excessive.join("\n")
    );
    Ok(())
}
