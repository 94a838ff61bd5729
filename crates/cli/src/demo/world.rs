//! The processes of the demo: a server, and agents with all that they start. They are real, and so is what happens to
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command as StdCommand, Stdio},
    time::Duration,
};

use clap::Args;
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use solehold_agent::keep::{SharedFolder, proc};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command as ChildCommand},
};

use super::{GRACE_SECONDS, KIND, TTL_SECONDS};
use crate::error::{CommandError, CommandResult};

/// How long the server may take to start, and anything to end.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(10);
/// Longer than a worker waits between two writes.
const WRITES_FIRST: Duration = Duration::from_secs(1);
/// Lines of a log that are shown after a failure.
const LOG_LINES: usize = 12;

/// Another command of this binary.
#[derive(Debug, Args)]
pub struct PartArgs {
    /// The process of the demo
    #[arg(long)]
    parent: i32,
    /// The command
    #[arg(last = true)]
    command: Vec<String>,
}

/// Becomes the command, after the kernel was asked to kill it with the demo. Comes back only with an error.
pub fn become_part(args: &PartArgs) -> CommandError {
    let failed = |error: io::Error| CommandError::broken(format!("cannot start a part of the demo: {error}"));
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return failed(error.into());
    }
    // A demo that ended before that call sends no signal.
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return failed(io::Error::other("the demo has ended"));
    }
    match env::current_exe() {
        Ok(program) => failed(StdCommand::new(program).args(&args.command).exec()),
        Err(error) => failed(error),
    }
}

/// A process of the demo, which is killed with it.
struct Part {
    child: Child,
    pid: Pid,
}

impl Part {
    /// Kills it, and all below it: at one moment, as far as they can notice. A keeper that sees its agent end would
    /// hand its leases back, and a machine without power does not.
    async fn kill(&mut self) {
        self.signal_all(Signal::STOP);
        proc::kill_below(self.pid, &BTreeSet::new());
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = tokio::time::timeout(END_MAX, self.child.wait()).await;
    }

    /// Signals the process and then all below it.
    fn signal_all(&self, signal: Signal) {
        let _ = kill_process(self.pid, signal);
        // A second time for what was started in between.
        for _ in 0..2 {
            proc::signal_group_and_below(None, self.pid, signal);
        }
    }

    /// Continues what is below before the process itself: the workers come back first, and have written once more when
    /// their agent finds out that its leases are gone.
    async fn resume(&self) {
        proc::signal_group_and_below(None, self.pid, Signal::CONT);
        tokio::time::sleep(WRITES_FIRST).await;
        let _ = kill_process(self.pid, Signal::CONT);
    }
}

pub struct DemoWorld {
    folder: SharedFolder,
    program: PathBuf,
    server: Option<Part>,
    /// Where the server listens: the same port after a restart.
    address: Option<SocketAddr>,
    agents: BTreeMap<String, Part>,
    started: usize,
}

impl DemoWorld {
    pub fn open() -> CommandResult<Self> {
        let parent = env::temp_dir();
        // That of a demo that was killed is removed, too.
        let folder = SharedFolder::make(&parent, "solehold-demo-").map_err(|error| {
            CommandError::broken(format!("cannot make a folder in {}: {error}", parent.display()))
        })?;
        let program = env::current_exe();
        let program =
            program.map_err(|error| CommandError::broken(format!("cannot find myself: {error}")))?;
        Ok(Self { folder, program, server: None, address: None, agents: BTreeMap::new(), started: 0 })
    }

    /// Starts the server, and waits until it listens.
    pub async fn start_server(&mut self) -> CommandResult<SocketAddr> {
        let listen = self.address.map_or_else(|| "127.0.0.1:0".to_owned(), |address| address.to_string());
        let data = self.folder.path().join("data");
        let args = ["serve", "--node-id", "demo", "--listen", &listen, "--data-dir", &data.to_string_lossy()];
        let mut part = self.start("server", &args, Stdio::piped())?;
        let stdout =
            part.child.stdout.take().ok_or_else(|| CommandError::broken("the server has no stdout"))?;
        let mut lines = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(START_MAX, lines.next_line()).await;
        // As in `solehold listening on http://127.0.0.1:7070 (...)`.
        let line = first.ok().and_then(Result::ok).flatten().unwrap_or_default();
        let address = line.split_whitespace().find_map(|word| word.strip_prefix("http://")?.parse().ok());
        let address = address.ok_or_else(|| CommandError::broken("the server of the demo did not start"))?;
        self.server = Some(part);
        self.address = Some(address);
        Ok(address)
    }

    /// Kills the server.
    pub async fn cut(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().await;
        }
    }

    /// Starts an agent, and gives the name of its runner.
    pub fn add_runner(&mut self, storage: SocketAddr) -> CommandResult<String> {
        self.started += 1;
        let name = format!("runner-{}", self.started);
        let file = self.folder.path().join(format!("{name}.yaml"));
        let server = self.address.ok_or_else(|| CommandError::broken("the server was never started"))?;
        // A quoted string of JSON is one of YAML.
        let program = serde_json::json!(self.program.to_string_lossy());
        let text = format!(
            "runner_id: {name}\n\
             server: {server}\n\
             kinds: [{KIND}]\n\
             lease_ttl_seconds: {TTL_SECONDS}\n\
             heartbeat_interval_seconds: 1\n\
             lease_retry_interval_seconds: 1\n\
             grace_seconds: {GRACE_SECONDS}\n\
             drain_budget_seconds: 10\n\
             max_workers: 2\n\
             max_resources_per_worker: 16\n\
             worker:\n\
             \x20 command: [{program}, demo, worker, --storage, 'http://{storage}/']\n\
             \x20 protocol: required\n"
        );
        let written = fs::write(&file, text);
        written.map_err(|error| CommandError::broken(format!("cannot write {}: {error}", file.display())))?;
        let part = self.start(&name, &["agent", "--config", &file.to_string_lossy()], Stdio::null())?;
        self.agents.insert(name.clone(), part);
        Ok(name)
    }

    /// A part of this name, which logs to a file of this name.
    fn start(&self, name: &str, args: &[&str], stdout: Stdio) -> CommandResult<Part> {
        let failed = |error: io::Error| CommandError::broken(format!("cannot start {name}: {error}"));
        let log = self.log(name);
        let stderr = fs::OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
        let mut command = ChildCommand::new(&self.program);
        let ours = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
        for (variable, _) in env::vars_os() {
            let text = variable.to_string_lossy();
            if text.starts_with("SOLEHOLD_") || ours.contains(&text.as_ref()) {
                command.env_remove(&variable);
            }
        }
        let parent = getpid().to_string();
        command.args(["demo", "part", "--parent", &parent, "--"]).args(args);
        // Ctrl-C is for the demo, which then ends them.
        command.env("TMPDIR", self.folder.path()).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(failed)?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let pid = pid.ok_or_else(|| CommandError::broken(format!("{name} has ended at once")))?;
        Ok(Part { child, pid })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    pub async fn kill(&mut self, runner: &str) {
        if let Some(mut agent) = self.agents.remove(runner) {
            agent.kill().await;
        }
    }

    pub fn pause(&self, runner: &str) {
        if let Some(agent) = self.agents.get(runner) {
            agent.signal_all(Signal::STOP);
        }
    }

    pub async fn resume(&self, runner: &str) {
        if let Some(agent) = self.agents.get(runner) {
            agent.resume().await;
        }
    }

    /// Asks an agent to hand over what it has, and to end.
    pub fn drain(&self, runner: &str) {
        if let Some(agent) = self.agents.get(runner) {
            let _ = kill_process(agent.pid, Signal::TERM);
        }
    }

    /// The runners whose agents have ended since this was last asked.
    pub fn ended(&mut self) -> Vec<String> {
        let has_ended = |agent: &mut Part| !matches!(agent.child.try_wait(), Ok(None));
        let ended = self.agents.iter_mut().filter_map(|(name, agent)| has_ended(agent).then(|| name.clone()));
        let ended: Vec<String> = ended.collect();
        for name in &ended {
            self.agents.remove(name);
        }
        ended
    }

    /// The last lines of every log.
    pub fn logs(&self) -> String {
        let names = (1..=self.started).map(|number| format!("runner-{number}"));
        let tails = ["server".to_owned()].into_iter().chain(names).map(|name| tail(&self.log(&name), &name));
        tails.collect()
    }

    /// Ends everything, and removes the folder.
    pub async fn close(mut self) {
        for (_, mut agent) in std::mem::take(&mut self.agents) {
            agent.kill().await;
        }
        self.cut().await;
        self.remove();
    }

    fn remove(&self) {
        // Something that was just killed may still write: once more, then.
        self.folder.leave();
        if self.folder.path().exists() {
            self.folder.leave();
        }
    }
}

impl Drop for DemoWorld {
    /// Also when a panic ends the demo. The parts are killed with their handles.
    fn drop(&mut self) {
        for agent in self.agents.values() {
            agent.signal_all(Signal::STOP);
            proc::kill_below(agent.pid, &BTreeSet::new());
        }
        self.remove();
    }
}

fn tail(log: &Path, name: &str) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LOG_LINES));
    last.map(|line| format!("{name}: {line}\n")).collect()
}
