//! Acquire and release cycles over HTTP: Solehold and hand-written SQL in one run, on one machine, as ratios.
//!
//! Rounds of the two alternate, and the ratio is that of the medians, since such machines are shared and noisy.

mod bare;
pub mod hand_written;
mod heartbeat;
pub mod load;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Args;
use hdrhistogram::Histogram;
use solehold_core::{
    command::Command,
    key::{Name, ResourceKey},
};
use solehold_engine::{Engine, clock::BootClock, resident, store::Store};
use solehold_server::{Running, Server, ServerConfig};

use bare::Bare;
use hand_written::HandWritten;
use load::{HAND_WRITTEN_SCENES, Measurement, SCENES, SCENES_A_CONNECTION};

use crate::{commands, engine::temporary_folder};

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true))]
pub struct Options {
    /// Measure the embedded engine, in a temporary folder
    #[arg(long, group = "which")]
    embedded: bool,
    /// Measure PostgreSQL, beside hand-written SQL on the same server: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL", group = "which")]
    engine: Option<String>,
    /// Numbers of connections; each is one measurement
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "64,256")]
    connections: Vec<NonZeroUsize>,
    /// Length of each round
    #[arg(long, value_name = "N", default_value = "5")]
    seconds: NonZeroU32,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "3")]
    rounds: NonZeroUsize,
}

impl Options {
    fn connections(&self) -> impl Iterator<Item = usize> {
        self.connections.iter().map(|connections| connections.get())
    }

    fn round(&self) -> Duration {
        Duration::from_secs(self.seconds.get().into())
    }
}

pub async fn run(options: Options) -> Result<()> {
    let most = options.connections().max().unwrap_or(1);
    let scenes: Vec<_> = (0..most)
        .flat_map(|connection| (0..SCENES_A_CONNECTION).map(move |index| load::scene(connection, index)))
        .collect();
    if let Some(url) = &options.engine {
        let hand_written = HandWritten::start(url, &scenes).await?;
        let store = solehold_engine::open(url).await?;
        let ours = Ours::start(store, &scenes).await?;
        compare(&options, &ours, Some(&hand_written), "postgres").await?;
        ours.stop(&scenes).await?;
        hand_written.stop().await?;
    }
    if options.embedded {
        let folder = temporary_folder(&std::env::temp_dir())?;
        let store = solehold_engine::open(&folder.path().to_string_lossy()).await?;
        let ours = Ours::start(store, &scenes).await?;
        compare(&options, &ours, None, "embedded").await?;
        ours.stop(&scenes).await?;
    }
    floors(&options, &scenes).await
}

/// Measures the client and HTTP alone, and our server over a store in memory.
async fn floors(options: &Options, scenes: &[String]) -> Result<()> {
    let bare = Bare::start().await?;
    let ours = Ours::start(resident::memory(BootClock)?, scenes).await?;
    println!("for comparison, without a durable store:");
    print_head();
    for connections in options.connections() {
        for (who, address) in [("http alone", bare.address), ("in memory", ours.0.local_addr())] {
            let mut side = Side::default();
            side.add(load::cycles(address, SCENES, connections, options.round()).await?)?;
            side.print(connections, who);
        }
    }
    ours.stop(scenes).await?;
    bare.stop();
    Ok(())
}

/// A server on loopback without rate limits.
fn config() -> ServerConfig {
    let mut config = ServerConfig { listen: ([127, 0, 0, 1], 0).into(), ..ServerConfig::default() };
    config.limits.requests_per_second = 0;
    config
}

/// Our server over an engine, with the scenes declared.
struct Ours(Running);

impl Ours {
    async fn start(store: Arc<dyn Store>, scenes: &[String]) -> Result<Self> {
        let running = Server::start(config(), store).await?;
        let declare = |key| Command::Declare { key, declaration: Default::default(), only_new: false };
        submit_all(running.engine(), scenes, declare).await?;
        Ok(Self(running))
    }

    async fn stop(self, scenes: &[String]) -> Result<()> {
        let delete = |key| Command::Delete { key, force: true, fenced: true };
        submit_all(self.0.engine(), scenes, delete).await?;
        self.0.shutdown().await;
        Ok(())
    }
}

async fn submit_all(
    engine: &Engine,
    scenes: &[String],
    command: impl Fn(ResourceKey) -> Command,
) -> Result<()> {
    let mut all = Vec::with_capacity(scenes.len());
    for scene in scenes {
        let tenant = Name::new("default")?;
        let kind = Name::new("scene")?;
        all.push(command(ResourceKey::new(tenant, kind, Name::new(scene)?)));
    }
    commands::submit_all(engine, all).await?;
    Ok(())
}

async fn compare(
    options: &Options,
    ours: &Ours,
    hand_written: Option<&HandWritten>,
    engine: &str,
) -> Result<()> {
    println!(
        "{engine}: acquire+release cycles over HTTP, {} rounds of {:?} each",
        options.rounds,
        options.round()
    );
    print_head();
    for connections in options.connections() {
        let mut us = Side::default();
        let mut them = Side::default();
        for _ in 0..options.rounds.get() {
            if let Some(hand_written) = hand_written {
                them.add(
                    load::cycles(hand_written.address(), HAND_WRITTEN_SCENES, connections, options.round())
                        .await?,
                )?;
            }
            us.add(load::cycles(ours.0.local_addr(), SCENES, connections, options.round()).await?)?;
        }
        if hand_written.is_some() {
            them.print(connections, "hand-written SQL");
        }
        us.print(connections, "solehold");
        if hand_written.is_some() {
            println!("{connections:>11}  {:>14}  {:>8.1}x", "ratio", us.median() / them.median());
        }
    }
    let [few, many] = heartbeat::medians(ours.0.engine()).await?;
    let [few_leases, many_leases] = heartbeat::LEASES;
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!(
        "heartbeat of a runner: {few_leases} leases {few:?}, {many_leases} leases {many:?}, ratio {ratio:.2}"
    );
    Ok(())
}

fn print_head() {
    println!(
        "{:>11}  {:>14}  {:>9}  {:>9}  {:>8}  {:>12}",
        "connections", "who", "cycles/s", "p50 ms", "p99 ms", "CPU µs/cycle"
    );
}

/// The rounds of one side.
#[derive(Default)]
struct Side {
    rates: Vec<f64>,
    /// CPU time of this process: client and server, but no database.
    cpu: Duration,
    cycles: u64,
    latency_us: Option<Histogram<u64>>,
}

impl Side {
    fn add(&mut self, measured: Measurement) -> Result<()> {
        self.rates.push(measured.rate());
        self.cpu += measured.cpu;
        self.cycles += measured.cycles;
        match &mut self.latency_us {
            Some(all) => all.add(measured.latency_us).context("histograms of one shape")?,
            None => self.latency_us = Some(measured.latency_us),
        }
        Ok(())
    }

    fn median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn print(&self, connections: usize, who: &str) {
        let at = |q: f64| self.latency_us.as_ref().map_or(0.0, |l| l.value_at_quantile(q) as f64 / 1_000.0);
        let rate = self.median();
        let p50 = at(0.5);
        let p99 = at(0.99);
        let cpu_us = self.cpu.as_secs_f64() * 1e6 / self.cycles.max(1) as f64;
        println!("{connections:>11}  {who:>14}  {rate:>9.0}  {p50:>9.2}  {p99:>8.2}  {cpu_us:>12.0}");
    }
}
