//! The client whose server is recorded. It runs below `strace` itself, so that what it was answered stands among the
//! system calls of the server, in one order.
//!
//! It starts the server, lets a few tasks acquire, renew, write and release, ends the server, and starts it again with
//! what is in its folder, as often as it is told to.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::json;
use solehold_api::{paths, resources::GrantBody, watch::WatchFrame};
use solehold_client::{Http, HttpConfig, gate::Source as _};
use solehold_clock::BootTime;
use solehold_core::key::Name;
use solehold_testkit::Solehold;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{MissedTickBehavior, interval},
};

use super::promises::{AnswerLine, Request, document};

/// The kind and the tenant of all resources.
pub const KIND: &str = "job";
pub const TENANT: &str = "default";
/// Resources, each with a task of its own.
pub const RESOURCES: usize = 4;

/// Much longer than a task leaves its lease alone, so that nothing runs out.
const TTL_MS: u64 = 200_000;
/// Between two requests of a task.
const STEP: Duration = Duration::from_millis(25);
/// Long enough for the work that the store does every second.
const LIFE_MIN: Duration = Duration::from_millis(1_500);
/// What the server prints, before its address, once it serves.
const LISTENING: &str = "solehold listening on ";

/// How the server is used.
#[derive(Debug, Clone, Args)]
pub struct Workload {
    /// How often the server is started
    #[arg(long, default_value_t = 4)]
    pub lives: usize,
    /// Requests of each task, between a start and an end
    #[arg(long, default_value_t = 60)]
    pub requests: usize,
    /// The size of the largest state document
    #[arg(long, default_value_t = 3_000)]
    pub document_bytes: usize,
    /// Decides what is asked for
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Workload {
    /// The same on a command line.
    pub fn arguments(&self) -> Vec<String> {
        let Self { lives, requests, document_bytes, seed } = self;
        let numbers = [("--lives", *lives), ("--requests", *requests), ("--document-bytes", *document_bytes)];
        let numbers = numbers.into_iter().flat_map(|(name, number)| [name.to_owned(), number.to_string()]);
        numbers.chain(["--seed".to_owned(), seed.to_string()]).collect()
    }
}

/// The recorded client's process.
#[derive(Debug, Args)]
pub struct ClientOptions {
    /// The data folder
    #[arg(long)]
    pub data: PathBuf,
    /// Where to write down what was answered
    #[arg(long)]
    pub answers: PathBuf,
    /// Where the server's log goes
    #[arg(long)]
    pub log: PathBuf,
    #[command(flatten)]
    pub workload: Workload,
}

/// Runs the workload.
pub async fn run(options: ClientOptions) -> Result<()> {
    let Workload { lives, seed, .. } = options.workload;
    let answers = Arc::new(Answers(Mutex::new(File::create(&options.answers)?)));
    let task = |number: usize| Task {
        name: format!("resource-{number}"),
        answers: answers.clone(),
        chance: StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number as u64)),
        token: None,
        sequence: 0,
        is_declared: false,
    };
    let mut tasks: Vec<Task> = (0..RESOURCES).map(task).collect();
    for life in 0..lives {
        let server = Server::start(&options.data, &options.log).await?;
        let watcher = tokio::spawn(watch(server.url.clone(), answers.clone()));
        try_join_all(tasks.iter_mut().map(|task| task.work(&server.url, &options.workload))).await?;
        watcher.abort();
        // Ended well in every second life, so that the next one begins with a snapshot or with a log.
        if life % 2 == 1 { server.terminate().await? } else { server.kill().await? }
    }
    Ok(())
}

/// The file of answers. A line is one `write(2)`.
struct Answers(Mutex<File>);

impl Answers {
    fn put(&self, line: &AnswerLine) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.0.lock().write_all(text.as_bytes()).context("cannot write down the answers")
    }
}

/// A server that ends with this process, however that ends.
struct Server {
    child: Child,
    url: String,
    /// Read until it ends, so that it can always print.
    lines: Lines<BufReader<ChildStdout>>,
}

impl Server {
    async fn start(data: &Path, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(Solehold::binary()?)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the server")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        while let Some(line) = lines.next_line().await? {
            if let Some(said) = line.strip_prefix(LISTENING) {
                let url = said.split(' ').next().unwrap_or_default().to_owned();
                return Ok(Self { child, url, lines });
            }
        }
        anyhow::bail!("the server has ended: {}", child.wait().await?)
    }

    async fn kill(mut self) -> Result<()> {
        self.child.start_kill()?;
        self.ended().await.map(drop)
    }

    async fn terminate(mut self) -> Result<()> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.context("the server has ended")?, Signal::TERM)?;
        let status = self.ended().await?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }

    async fn ended(&mut self) -> Result<ExitStatus> {
        while self.lines.next_line().await?.is_some() {}
        Ok(self.child.wait().await?)
    }
}

/// Writes down every change that a watcher is told of.
async fn watch(url: String, answers: Arc<Answers>) -> Result<()> {
    let authority = Http::new(HttpConfig::new([url]))?;
    let mut frames = authority.watch(&Name::new(TENANT)?, Some(&Name::new(KIND)?), None).await?;
    while let Some(frame) = frames.next().await? {
        if let WatchFrame::Event(event) = frame {
            let cursor = event.cursor;
            answers.put(&AnswerLine::Watched { epoch: cursor.epoch, revision: cursor.revision })?;
        }
    }
    Ok(())
}

/// What a task knows of its resource.
struct Task {
    name: String,
    answers: Arc<Answers>,
    chance: StdRng,
    /// Of the lease that it holds.
    token: Option<u64>,
    /// Of the last request that has one.
    sequence: u64,
    is_declared: bool,
}

impl Task {
    /// As many requests as the workload says, and more until the life of the server was long enough.
    async fn work(&mut self, url: &str, workload: &Workload) -> Result<()> {
        let http = reqwest::Client::new();
        let began = BootTime::now();
        let mut step = interval(STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut left = workload.requests;
        while left > 0 || BootTime::now().since(began) < LIFE_MIN {
            step.tick().await;
            let request = self.next(workload);
            self.send(&http, url, request).await.with_context(|| format!("{request:?} of {}", self.name))?;
            left = left.saturating_sub(1);
        }
        Ok(())
    }

    fn next(&mut self, workload: &Workload) -> Request {
        self.sequence += 1;
        let ttl_ms = TTL_MS + self.sequence;
        match self.token {
            _ if !self.is_declared => Request::Declare,
            None => Request::Acquire { ttl_ms },
            Some(_) => match self.chance.random_range(0..10) {
                0..3 => Request::Renew { ttl_ms },
                3..8 => {
                    let bytes =
                        self.chance.random_range(workload.document_bytes / 2..workload.document_bytes);
                    Request::Write { sequence: self.sequence, bytes }
                }
                _ => Request::Release,
            },
        }
    }

    async fn send(&mut self, http: &reqwest::Client, url: &str, request: Request) -> Result<()> {
        let name = self.name.as_str();
        let resource = || name.to_owned();
        let token = self.token;
        let lease = || paths::resource_lease(KIND, name);
        let (method, path, body) = match request {
            Request::Declare => (Method::PUT, paths::resource(KIND, name), json!({})),
            Request::Acquire { ttl_ms } => {
                (Method::POST, lease(), json!({ "holder": "ann", "ttl_ms": ttl_ms }))
            }
            Request::Renew { ttl_ms } => {
                let path = paths::resource_lease_renew(KIND, name);
                (Method::POST, path, json!({ "token": token, "ttl_ms": ttl_ms }))
            }
            Request::Write { sequence, bytes } => {
                let document = document(sequence, bytes);
                let body = json!({ "token": token, "sequence": sequence, "document": document });
                (Method::PUT, paths::resource_state(KIND, name), body)
            }
            Request::Release => (Method::DELETE, lease(), json!({ "token": token })),
        };
        self.answers.put(&AnswerLine::Sent { resource: resource(), request })?;
        let answer = answered(http, method, &format!("{url}{path}"), &body).await?;
        match request {
            Request::Declare => self.is_declared = true,
            Request::Acquire { .. } => {
                let grant: GrantBody = serde_json::from_slice(&answer)?;
                self.token = Some(grant.lease.token);
            }
            Request::Renew { .. } | Request::Write { .. } => {}
            Request::Release => self.token = None,
        }
        self.answers.put(&AnswerLine::Answered { resource: resource(), token: self.token })
    }
}

async fn answered(
    http: &reqwest::Client,
    method: Method,
    url: &str,
    body: &impl Serialize,
) -> Result<Vec<u8>> {
    let answer = http.request(method, url).json(body).send().await?;
    let status = answer.status();
    let bytes = answer.bytes().await?;
    ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&bytes));
    Ok(bytes.to_vec())
}
