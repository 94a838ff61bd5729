//! Two servers over one PostgreSQL, four agents, and what can be done to them.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use solehold_clock::BootTime;
use solehold_testkit::{
    Postgres, Program, Solehold, SoleholdBuilder, TempDir, free_port, package_file, wait_for,
};
use uuid::Uuid;

use crate::{
    common::{BINARY, SOON, ask, server},
    ledger::Ledger,
    network::Network,
};

pub const SERVERS: usize = 2;
pub const AGENTS: usize = 4;
pub const RESOURCES: usize = 26;

pub struct World {
    pub network: Network,
    pub servers: Vec<Replica>,
    pub agents: Vec<Agent>,
    postgres: Postgres,
    folder: TempDir,
    /// In the environment of every process of the storm, so that none is left behind.
    mark: String,
}

/// A server at an address of its own, or the place of one that was killed.
pub struct Replica {
    builder: SoleholdBuilder,
    running: Option<Solehold>,
}

/// An agent with a name, or the place of one that has ended.
pub struct Agent {
    name: String,
    file: PathBuf,
    mark: String,
    running: Option<Program>,
    /// Logs of those of its name that have ended.
    past: String,
}

pub fn resource(number: usize) -> String {
    format!("job/{}", char::from(b'a' + number as u8))
}

impl World {
    pub async fn start(ttl: Duration, seed: u64) -> Result<Self> {
        let postgres = Postgres::start().await?;
        let folder = TempDir::new()?;
        let database = postgres.create_database("storm").await?;
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for _ in 0..SERVERS {
            let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
            let builder = server().engine(&database).listen(address);
            servers.push(Replica { running: Some(builder.start().await?), builder });
            addresses.push(address);
        }
        let network = Network::start(&addresses, seed).await?;
        let mark = Uuid::new_v4().to_string();
        let mut world = Self { network, servers, agents: Vec::new(), postgres, folder, mark };
        for number in 0..RESOURCES {
            ask(world.server()?, &format!("resource put {}", resource(number))).await?.good()?;
        }
        for number in 1..=AGENTS {
            let mut agent = world.agent(&format!("runner-{number}"), ttl)?;
            agent.start().await?;
            world.agents.push(agent);
        }
        Ok(world)
    }

    fn agent(&self, name: &str, ttl: Duration) -> Result<Agent> {
        let script = package_file("tests/storm/worker.py");
        let text = format!(
            "runner_id: {name}\nserver: {servers:?}\nplacement: assigned\n\
             lease_ttl_seconds: {ttl}\nheartbeat_interval_seconds: 2\nlease_retry_interval_seconds: 1\n\
             max_workers: 2\nmax_resources_per_worker: 16\ndrain_budget_seconds: 6\n\
             worker:\n  command: [python3, -u, {script:?}]\n  protocol: required\n  stop_timeout_seconds: 3\n  \
             env: {{ STORM_WRITES: {writes:?} }}\n  \
             restart: {{ first_seconds: 0.1, cap_seconds: 1, penalty_seconds: 1 }}\n",
            servers = self.network.urls(),
            ttl = ttl.as_secs_f64(),
            writes = self.writes(),
        );
        let file = self.folder.path().join(format!("{name}.yaml"));
        fs::write(&file, text)?;
        Ok(Agent { name: name.to_owned(), file, mark: self.mark.clone(), running: None, past: String::new() })
    }

    fn writes(&self) -> PathBuf {
        self.folder.path().join("writes")
    }

    pub fn ledger(&self) -> Result<Ledger> {
        Ledger::read(&self.writes())
    }

    /// A server that runs.
    pub fn server(&self) -> Result<&Solehold> {
        self.servers.iter().find_map(|replica| replica.running.as_ref()).context("a server")
    }

    /// Waits until the workers have written this much more, or for `most` if they do not.
    pub async fn writes_more(&self, count: u64, most: Duration) {
        let size = || fs::metadata(self.writes()).map_or(0, |file| file.len());
        // The shortest line of a write.
        let wanted = size() + count * "job/a 1 1 runner-1\n".len() as u64;
        let _ = wait_for("writes", most, async || size() >= wanted).await;
    }

    /// How often agents have logged this.
    pub fn logged(&self, text: &str) -> usize {
        self.agents.iter().map(|agent| agent.logs().matches(text).count()).sum()
    }

    /// Waits until each resource is written by somebody, from now on.
    pub async fn is_worked_on(&self, within: Duration) -> Result<()> {
        let now = BootTime::now();
        let count = || self.ledger().map_or(0, |ledger| ledger.written_since(now));
        let waited = wait_for("all resources to be worked on", within, async || count() == RESOURCES).await;
        waited.with_context(|| format!("{} of {RESOURCES} are; logs in {:?}", count(), self.keep_logs()))
    }

    /// Hand-overs that were completed, by the events.
    pub async fn hand_overs(&self) -> Result<i64> {
        let database = self.postgres.url_for("storm_1");
        let (client, connection) = tokio_postgres::connect(&database, tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        let sql = "SELECT count(*) FROM solehold.lease_events a JOIN solehold.lease_events p USING (lease_id)
                   WHERE a.event_type = 'lease_acquired' AND p.event_type = 'lease_pending'";
        Ok(client.query_one(sql, &[]).await?.get(0))
    }

    /// Writes the logs of all agents and all writes where they outlive the test, to look for the cause of a failure.
    pub fn keep_logs(&self) -> Option<PathBuf> {
        let folder = tempfile_folder()?;
        for agent in &self.agents {
            fs::write(folder.join(format!("{}.log", agent.name)), agent.logs()).ok()?;
        }
        fs::copy(self.writes(), folder.join("writes")).ok()?;
        Some(folder)
    }
}

fn tempfile_folder() -> Option<PathBuf> {
    let folder = std::env::temp_dir().join(format!("solehold-storm-{}", std::process::id()));
    fs::create_dir_all(&folder).ok()?;
    Some(folder)
}

impl Replica {
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(server) = self.running.take() {
            server.kill9().await?;
        }
        Ok(())
    }

    pub async fn start(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.builder.start().await?);
        }
        Ok(())
    }
}

impl Agent {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it and those of its name before it have printed.
    fn logs(&self) -> String {
        let running = self.running.as_ref().map(Program::logs).unwrap_or_default();
        format!("{}{running}", self.past)
    }

    pub async fn start(&mut self) -> Result<()> {
        if self.running.is_none() {
            let mut command = Command::new(BINARY);
            command.args(["agent", "--config"]).arg(&self.file).env("STORM_MARK", &self.mark);
            self.running = Some(Program::start("agent", &command, "solehold agent ").await?);
        }
        Ok(())
    }

    /// Kills the agent alone: its keepers do what is theirs.
    pub async fn kill(&mut self) -> Result<()> {
        let Some(program) = self.running.take() else { return Ok(()) };
        self.signal(&program, Signal::KILL)?;
        let exit = format!("/proc/{}/stat", program.pid()?);
        let is_over = async || fs::read_to_string(&exit).is_ok_and(|stat| stat.contains(") Z "));
        wait_for("the agent to end", SOON, is_over).await?;
        self.past += &program.logs();
        Ok(())
    }

    /// Stops the agent alone, as a debugger would; its keepers and workers run.
    pub fn pause(&self) -> Result<()> {
        self.running.as_ref().map_or(Ok(()), |program| self.signal(program, Signal::STOP))
    }

    pub fn resume(&self) -> Result<()> {
        self.running.as_ref().map_or(Ok(()), |program| self.signal(program, Signal::CONT))
    }

    /// Lets it end as service managers do.
    pub async fn drain(&mut self) -> Result<()> {
        let Some(program) = self.running.take() else { return Ok(()) };
        program.terminate().await?;
        self.past += &program.logs();
        Ok(())
    }

    fn signal(&self, program: &Program, signal: Signal) -> Result<()> {
        let pid = program.pid()?.try_into().ok().and_then(Pid::from_raw).context("a process")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for World {
    /// Whatever the agents have left ends with the storm.
    fn drop(&mut self) {
        self.agents.clear();
        let mark = format!("STORM_MARK={}", self.mark);
        for pid in marked(&mark) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn marked(mark: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(is_marked).filter_map(Pid::from_raw).collect()
}

/// Fails with everything that is needed to look for the cause.
pub fn check(world: &World) -> Result<()> {
    let overlaps = world.ledger()?.overlaps();
    let lines: Vec<String> = overlaps.iter().map(ToString::to_string).collect();
    ensure!(overlaps.is_empty(), "two at once:\n{}\nlogs in {:?}", lines.join("\n"), world.keep_logs());
    Ok(())
}
