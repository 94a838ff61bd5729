//! Resident memory per lease of the embedded store.
//!
//! A temporary data folder is filled with leases, each on a resource of its own and held by one of a thousand holders.
//! A second process opens the folder, since a fresh process is the plainest measure, prints the resident memory per
//! lease, then reads everything as an export and as the snapshot of a watch and prints how much the memory has grown.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command as Process,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use solehold_core::command::{AskedTenure, Command};
use solehold_engine::{
    Engine, EngineOptions,
    clock::BootClock,
    embedded::Folder,
    resident::{ResidentOptions, ResidentStore},
    watch::{Filter, Frame},
};

use crate::commands;

const AT_ONCE: usize = 1_000;
/// Longer than this takes.
const TTL_MS: u64 = 3_600_000;

/// The resident memory of this process.
pub fn resident_kb() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

fn acquire(n: usize) -> Command {
    let key = commands::resource(format!("cam-{n:08}"));
    let holder = commands::name(format!("runner-{:04}", n % 1_000));
    Command::Acquire(commands::named(commands::acquire(key, holder, AskedTenure::Own { ttl_ms: TTL_MS })))
}

fn open(folder: &Path) -> Result<Engine> {
    let options = ResidentOptions { ttl_max_ms: TTL_MS, ..ResidentOptions::default() };
    let store = ResidentStore::embedded_with(Folder::open(folder)?, BootClock, options)?;
    Ok(Engine::start(store, EngineOptions::default(), Arc::new(())))
}

async fn fill(folder: &Path, leases: usize) -> Result<()> {
    let before = resident_kb()?;
    let engine = open(folder)?;
    for from in (0..leases).step_by(AT_ONCE) {
        let acquires = (from..(from + AT_ONCE).min(leases)).map(acquire).collect();
        commands::submit_all(&engine, acquires).await?;
    }
    report("after granting them", before, leases)?;
    engine.stop().await;
    Ok(())
}

async fn measure(folder: &Path, leases: usize) -> Result<()> {
    let before = resident_kb()?;
    let engine = open(folder)?;
    report("after a start", before, leases)?;
    let before = resident_kb()?;
    let mut export = engine.export()?;
    let mut rows = 0;
    while let Some(piece) = export.next().await {
        rows += piece?.len();
    }
    println!("export of {rows} rows: {} MB more", (resident_kb()?.saturating_sub(before)) / 1_024);
    let before = resident_kb()?;
    let mut watch = engine.watch(None, Filter::default()).await?;
    let mut resources = 0;
    while let Some(Frame::Snapshot(page)) = watch.next().await {
        resources += page.keys.len();
        if !page.more {
            break;
        }
    }
    println!(
        "snapshot of {resources} resources: {} MB more",
        (resident_kb()?.saturating_sub(before)) / 1_024
    );
    engine.stop().await;
    Ok(())
}

fn report(when: &str, before_kb: u64, leases: usize) -> Result<()> {
    let kb = resident_kb()?.saturating_sub(before_kb);
    println!("{leases} leases {when}: {} MB, {} bytes each", kb / 1_024, kb * 1_024 / leases as u64);
    Ok(())
}

#[derive(Debug, Args)]
pub struct Options {
    /// Number of leases
    #[arg(default_value_t = 200_000)]
    leases: usize,
    /// A folder that is filled already: the second process
    #[arg(hide = true)]
    filled: Option<PathBuf>,
}

pub async fn run(Options { leases, filled }: Options) -> Result<()> {
    if let Some(folder) = filled {
        return measure(&folder, leases).await;
    }
    let folder = tempfile::tempdir()?;
    fill(folder.path(), leases).await?;
    let mut again = Process::new(std::env::current_exe()?);
    let status = again.args(["memory", &leases.to_string()]).arg(folder.path()).status()?;
    ensure!(status.success(), "the second process failed");
    Ok(())
}
