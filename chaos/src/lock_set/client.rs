//! A client: lock, read, work, write, unlock.

use std::{fs::File, io::Write as _, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use clap::Args;
use rand::RngExt as _;
use solehold_clock::{AlarmClock as _, BootClock, BootTime};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    lock::{EtcdLock, Lock, OurLock},
    store::{StoreClient, Stored},
};

/// What it prints when it has begun.
pub const READY: &str = "lock-set client begins";

/// How long it works between reading and writing.
const WORK: Duration = Duration::from_millis(100);

/// One client process.
#[derive(Debug, Args)]
pub struct ClientOptions {
    #[arg(long)]
    name: String,
    #[arg(long, conflicts_with = "etcd")]
    solehold: Option<String>,
    #[arg(long)]
    etcd: Option<String>,
    #[arg(long)]
    store: String,
    #[arg(long)]
    log: PathBuf,
}

/// Adds elements until SIGTERM.
pub async fn run(options: ClientOptions) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut log = File::create(&options.log)?;
    let store = StoreClient::new(&options.store)?;
    match (&options.solehold, &options.etcd) {
        (Some(url), None) => {
            add(OurLock::open(url, &options.name).await?, &store, &mut log, &mut terminate).await
        }
        (None, Some(url)) => add(EtcdLock::new(url)?, &store, &mut log, &mut terminate).await,
        _ => bail!("--solehold or --etcd is missing"),
    }
}

async fn add(
    lock: impl Lock,
    store: &StoreClient,
    log: &mut File,
    terminate: &mut tokio::signal::unix::Signal,
) -> Result<()> {
    println!("{READY}");
    loop {
        let held = tokio::select! {
            held = lock.acquire() => held,
            _ = terminate.recv() => return Ok(()),
        };
        // It was not to be had in time.
        let Ok(held) = held else { continue };
        let token = lock.token(&held);
        let element = rand::rng().random::<u64>() >> 1;
        let mut set = store.read().await?;
        BootClock.wait_until(BootTime::now().plus(WORK)).await;
        set.insert(element);
        match store.write(&set, token).await? {
            Stored::Done => writeln!(log, "added {element}"),
            Stored::Refused => writeln!(log, "refused"),
        }
        .context("cannot write the log")?;
        lock.release(held).await;
    }
}
