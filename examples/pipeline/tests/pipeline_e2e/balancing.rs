//! How long it takes to share out work when the fleet doubles.

use std::{fs, process::Command, time::Instant};

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use reqwest::Client;
use serde_json::{Value, json};
use solehold_testkit::{Program, Solehold, TempDir, package_file, wait_for};

use crate::world::PATIENCE;

const RESOURCES: usize = 300;
const BEFORE: usize = 5;
const AFTER: usize = 10;

struct Fleet {
    server: Solehold,
    http: Client,
    folder: TempDir,
    agents: Vec<Program>,
}

impl Fleet {
    async fn start() -> Result<Self> {
        let server = Solehold::builder().start().await?;
        let http = Client::builder().timeout(PATIENCE).build()?;
        Ok(Self { server, http, folder: TempDir::new()?, agents: Vec::new() })
    }

    /// Starts agents whose one worker each speaks and prepares, until there are this many.
    async fn grow(&mut self, to: usize) -> Result<()> {
        let worker = package_file("../workers/worker.py");
        let mut commands = Vec::new();
        for number in self.agents.len()..to {
            let text = format!(
                "runner_id: runner-{number}\nserver: {}\nmax_workers: 1\nmax_cameras_per_worker: 100\n\
                 lease_ttl_seconds: 30\nworker:\n  command: [python3, {worker:?}]\n  protocol: required\n\
                 \x20 env: {{WORK_EVERY_SECONDS: '60'}}\n",
                self.server.url()
            );
            let file = self.folder.path().join(format!("{number}.yaml"));
            fs::write(&file, text)?;
            let mut command = Command::new(Solehold::binary()?);
            command.args(["agent", "--config"]).arg(&file);
            commands.push(command);
        }
        let started = commands.iter().map(|command| Program::start("agent", command, "solehold agent "));
        self.agents.extend(try_join_all(started).await?);
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let url = format!("{}/api/v1{path}", self.server.url());
        Ok(self.http.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// How much each runner holds, the least first.
    async fn loads(&self) -> Result<Vec<u64>> {
        let listed = self.get("/runners?limit=100").await?;
        let runners = listed["runners"].as_array().context("runners")?.iter();
        let mut loads: Vec<u64> = runners.filter_map(|runner| runner["current_load"].as_u64()).collect();
        loads.sort_unstable();
        Ok(loads)
    }

    /// Waits until all is held by that many runners and nothing is left to move.
    async fn balanced(&self, runners: usize) -> Result<Vec<u64>> {
        let look = async || {
            let loads = self.loads().await.ok()?;
            let left = self.get("/deployments").await.ok()?["moves_left"].as_u64()?;
            let is_all = loads.len() == runners && loads.iter().sum::<u64>() == RESOURCES as u64;
            (is_all && left == 0 && loads[0] > 0).then_some(loads)
        };
        wait_for("the work to be balanced", PATIENCE, look).await
    }
}

/// Five more runners join five that share 300 resources.
pub async fn a_fleet_that_doubles_shares_the_work_out() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    fleet.grow(BEFORE).await?;
    for number in 0..RESOURCES {
        let url = format!("{}/api/v1/resources/job/{number}", fleet.server.url());
        fleet.http.put(url).json(&json!({})).send().await?.error_for_status()?;
    }
    fleet.balanced(BEFORE).await?;
    let began = Instant::now();
    fleet.grow(AFTER).await?;
    let started = began.elapsed();
    let loads = fleet.balanced(AFTER).await?;
    println!(
        "pipeline: {RESOURCES} resources from {BEFORE} to {AFTER} runners: balanced {:.1} s after the last has joined \
         (asked for: 10 s), {:.1} s after the first was started; loads {loads:?}",
        (began.elapsed() - started).as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}
