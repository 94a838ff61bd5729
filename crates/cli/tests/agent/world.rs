//! An agent under test, and all processes that come from it, found by a mark in their environment.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use solehold_testkit::{Program, Solehold, TempDir, free_port, wait_for};
use uuid::Uuid;

use crate::common::{BINARY, SOON, ask};

/// A running agent.
pub struct Agent {
    program: Program,
    folder: TempDir,
    mark: String,
    metrics_port: u16,
}

/// What is started, beside what the test says: `worker` is a script for `sh`.
pub fn script(text: &str) -> String {
    format!("  command: [sh, -c, {}]\n", serde_json::to_string(text).expect("a string"))
}

/// A worker in Python: `text` runs with a connection `agent` and the functions `say` and `hear`.
pub fn python(text: &str) -> String {
    let prelude = r#"
import json, os, signal, socket, sys, time
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["SOLEHOLD_WORKER_SOCKET"])
lines = agent.makefile("r")
def say(**message): agent.sendall((json.dumps(message) + "\n").encode())
def hear(): return json.loads(lines.readline())
# In one write: a worker that is killed meanwhile has printed the whole line, or nothing.
def print(*words, flush=True): os.write(1, (" ".join(map(str, words)) + "\n").encode())
"#;
    let text = serde_json::to_string(&format!("{prelude}{text}")).expect("a string");
    format!("  command: [python3, -u, -c, {text}]\n")
}

impl Agent {
    /// Starts an agent under this name; `top` are lines of its file, and `worker` those of its section `worker`.
    pub async fn start(server: &Solehold, name: &str, top: &str, worker: &str) -> Result<Self> {
        Self::start_at(server.url(), name, top, worker).await
    }

    /// The same, with one server or a list of several as the file says it.
    pub async fn start_at(servers: &str, name: &str, top: &str, worker: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let metrics_port = free_port()?;
        let text = format!(
            "runner_id: {name}\nserver: {servers}\nmetrics_port: {metrics_port}\n{top}\nworker:\n{worker}"
        );
        fs::write(file_of(folder.path()), text)?;
        let mark = Uuid::new_v4().to_string();
        let mut command = Command::new(BINARY);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_"))
        {
            command.env_remove(name);
        }
        command.args(["agent", "--config"]).arg(file_of(folder.path())).env("AGENT_TEST_MARK", &mark);
        command.env("TMPDIR", folder.path());
        let program = Program::start("agent", &command, "solehold agent ").await?;
        Ok(Self { program, folder, mark, metrics_port })
    }

    /// The text of its configuration.
    pub fn configuration(&self) -> Result<String> {
        Ok(fs::read_to_string(file_of(self.folder.path()))?)
    }

    /// What is in its temporary folder of the files of its workers.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.folder.path())?.map(|entry| Ok(entry?.path()));
        let all: Vec<PathBuf> = entries.collect::<Result<_>>()?;
        let is_it = |path: &PathBuf| path.to_string_lossy().contains("/solehold-");
        Ok(all.into_iter().filter(is_it).collect())
    }

    /// Replaces its configuration, as programs do that write files whole.
    pub fn configure(&self, text: &str) -> Result<()> {
        let next = self.folder.path().join("next");
        fs::write(&next, text)?;
        Ok(fs::rename(next, file_of(self.folder.path()))?)
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Waits until it has logged this.
    pub async fn logs(&self, text: &str) -> Result<()> {
        let waited = wait_for(text, SOON, async || self.program.logs().contains(text)).await;
        waited.with_context(|| self.program.logs())
    }

    /// How often it has logged this.
    pub fn logged(&self, text: &str) -> usize {
        self.program.logs().matches(text).count()
    }

    /// Asks its health endpoint.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("http://127.0.0.1:{}{path}", self.metrics_port);
        let answer = reqwest::get(url).await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    pub async fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.get("/status").await?.1)?)
    }

    /// All processes with the mark that are not the agent or a keeper.
    pub fn descendants(&self) -> Vec<u32> {
        let mark = format!("AGENT_TEST_MARK={}", self.mark);
        let is_ours = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        processes().into_iter().filter(is_ours).filter(|pid| !is_binary(*pid)).collect()
    }

    /// Waits until this many processes of its workers run the program `name`.
    pub async fn runs(&self, name: &str, count: usize) -> Result<()> {
        let is_it = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(format!("{name}\0").as_bytes()))
        };
        let waited = wait_for(name, SOON, async || {
            self.descendants().iter().filter(|pid| is_it(pid)).count() == count
        });
        waited.await.with_context(|| self.program.logs())
    }

    /// Waits until nothing of its workers is left, and says how long that took.
    pub async fn nothing_left(&self) -> Result<Duration> {
        let began = Instant::now();
        wait_for("the workers to be gone", SOON, async || self.descendants().is_empty()).await?;
        Ok(began.elapsed())
    }

    /// Asks it to end, and checks that it did so well and left nothing.
    pub async fn drained(&self) -> Result<Duration> {
        let began = Instant::now();
        let status = self.program.terminate().await?;
        let took = began.elapsed();
        ensure!(status.success(), "{status}: {}", self.program.logs());
        ensure!(self.descendants().is_empty(), "left behind: {:?}", self.descendants());
        Ok(took)
    }
}

impl Drop for Agent {
    /// A test that fails must not leave what it was to show is ended.
    fn drop(&mut self) {
        for pid in self.descendants() {
            if let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn file_of(folder: &Path) -> PathBuf {
    folder.join("agent.yaml")
}

fn processes() -> Vec<u32> {
    let folder = fs::read_dir("/proc").into_iter().flatten().flatten();
    folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether it is the agent or a keeper: this binary, and not about to become a worker.
fn is_binary(pid: u32) -> bool {
    let binary = fs::canonicalize(BINARY).unwrap_or_else(|_| BINARY.into());
    let is_shim = fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).any(|arg| arg == b"__shim"));
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary) && !is_shim
}

/// Who holds a resource, if anyone does.
pub async fn holder(server: &Solehold, resource: &str) -> Result<Option<String>> {
    let all = ask(server, "lease ls --json").await?.json()?;
    let leases = all["leases"].as_array().context("a list")?;
    let (kind, key) = resource.split_once('/').context("KIND/KEY")?;
    let is_it = |lease: &&Value| lease["kind"] == kind && lease["key"] == key;
    Ok(leases.iter().find(is_it).and_then(|lease| lease["holder"].as_str()).map(str::to_owned))
}

/// Waits until it is held by this one.
pub async fn held_by(server: &Solehold, resource: &str, name: &str) -> Result<()> {
    wait_for("the holder", SOON, async || {
        holder(server, resource).await.ok().flatten().as_deref() == Some(name)
    })
    .await
}
