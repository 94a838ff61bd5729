//! An orchestrator as its operators meet it: the real binary on a real broker and a real database, with a service that
//! takes every task and reports nothing by itself.

use std::{fs, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use axum::{Router, http::StatusCode};
use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord},
};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{Kafka, Postgres, Program, Solehold, TempDir, wait_for};
use tokio::{net::TcpListener, process::Command, task::JoinSet};

use crate::tls;

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const TOPIC: &str = "jobs.commands";
pub const KEY: &str = "0123456789abcdef";
/// What the orchestrator says when it serves, before its address.
const READY: &str = "solehold orchestrator pod-1 serves jobs on ";

const FILE: &str = "orchestrator.yaml";

async fn orchestrator(files: &TempDir) -> Result<Program> {
    let mut command = std::process::Command::new(Solehold::binary()?);
    command.arg("orchestrator").arg("--config").arg(files.path().join(FILE));
    Program::start("orchestrator", &command, READY).await
}

fn producer(kafka: &Kafka) -> Result<FutureProducer> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", kafka.address()).set("acks", "all");
    if let Some(version) = kafka.broker_version() {
        client.set("api.version.request", "false").set("broker.version.fallback", version);
    }
    Ok(client.create()?)
}

pub struct World {
    pub url: String,
    pub postgres: Postgres,
    pub files: TempDir,
    pub config: Value,
    producer: FutureProducer,
    pub program: Program,
    pub kafka: Kafka,
    _service: JoinSet<()>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// What a command printed that went well, with times as words and blanks as one.
    pub fn good(self) -> Result<String> {
        ensure!(self.code == Some(0), "it ended with {:?}: {}{}", self.code, self.stdout, self.stderr);
        Ok(normalised(&self.stdout))
    }
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub kind: String,
    pub body: Value,
}

impl World {
    pub async fn start() -> Result<Self> {
        let files = TempDir::new()?;
        let (kafka, (postgres, url)) = tokio::try_join!(Kafka::start(), tls::database(files.path()))?;
        kafka.create_topic_named(TOPIC, 2).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let stage =
            |after: &[&str]| json!({ "task": "/work", "dispatch": "http", "after": after, "retries": 0 });
        let config = json!({
            "name": "pod-1",
            "kafka": {
                "brokers": kafka.address(), "topic": TOPIC, "group": "operators", "partitions": 2,
                "broker_version": kafka.broker_version(), "session_timeout": "6s",
            },
            "commands": { "labels": { "customer": "customer" } },
            "postgres": { "url": url },
            "dispatchers": {
                "http": { "url": format!("http://{}", listener.local_addr()?), "report_to": "http://us/reports" },
            },
            "stages": { "decode": stage(&[]), "detect": stage(&["decode"]) },
            "http": { "listen": "127.0.0.1:0", "api_key": KEY },
        });
        let mut service = JoinSet::new();
        let takes_all = Router::new().fallback(async || StatusCode::ACCEPTED);
        service.spawn(async move { axum::serve(listener, takes_all).await.expect("it serves") });
        // YAML takes JSON.
        fs::write(files.path().join(FILE), config.to_string())?;
        let program = orchestrator(&files).await?;
        let url = program.said().to_owned();
        let producer = producer(&kafka)?;
        Ok(Self { url, postgres, files, config, producer, program, kafka, _service: service })
    }

    /// The file of the orchestrator.
    pub fn own_file(&self) -> String {
        self.files.path().join(FILE).display().to_string()
    }

    /// Deletes the topic of commands, and makes it again under its name.
    pub async fn make_topic_anew(&mut self) -> Result<()> {
        self.kafka.delete_topic(TOPIC).await?;
        self.kafka.create_topic_named(TOPIC, 2).await?;
        self.producer = producer(&self.kafka)?;
        Ok(())
    }

    /// Starts the orchestrator again.
    pub async fn start_again(&mut self) -> Result<()> {
        self.program = orchestrator(&self.files).await?;
        self.url = self.program.said().to_owned();
        Ok(())
    }

    /// Sends a command to a partition.
    pub async fn send(&self, partition: i32, kind: &str, job: &str, of: &str) -> Result<()> {
        let command = json!({
            "type": kind, "job_id": job, "customer": "acme", "input": { "video": job },
        });
        let key = format!("acme:{of}");
        let payload = command.to_string();
        let record = FutureRecord::to(TOPIC).key(&key).payload(&payload).partition(partition);
        self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    /// Runs `solehold` with these arguments, separated by spaces.
    pub async fn run(&self, arguments: &str) -> Result<Ran> {
        self.run_as(arguments, &[]).await
    }

    /// The same with other variables.
    pub async fn run_as(&self, arguments: &str, variables: &[(&str, &str)]) -> Result<Ran> {
        let mut command = Command::new(Solehold::binary()?);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_"))
        {
            command.env_remove(name);
        }
        command.env("SOLEHOLD_ORCHESTRATOR", &self.url).env("SOLEHOLD_API_KEY", KEY);
        command.envs(variables.iter().copied()).args(arguments.split_whitespace());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.context("it does not end")??;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).context("not UTF-8");
        Ok(Ran { code: output.status.code(), stdout: text(output.stdout)?, stderr: text(output.stderr)? })
    }

    /// What a command prints for people.
    pub async fn seen(&self, arguments: &str) -> Result<String> {
        self.run(arguments).await?.good().context(arguments.to_owned())
    }

    /// What a command prints for programs.
    pub async fn json(&self, arguments: &str) -> Result<Value> {
        let text = self.run(&format!("{arguments} --json")).await?.good()?;
        serde_json::from_str(&text).with_context(|| format!("{arguments}: not JSON: {text}"))
    }

    /// How a command is refused, for people and for programs: its exit code, its one line, and the code of the problem.
    pub async fn refused(&self, arguments: &str) -> Result<(i32, String, String)> {
        self.refused_as(arguments, &[]).await
    }

    /// The same with other variables.
    pub async fn refused_as(
        &self,
        arguments: &str,
        variables: &[(&str, &str)],
    ) -> Result<(i32, String, String)> {
        let Ran { code, stdout, stderr } = self.run_as(arguments, variables).await?;
        ensure!(stdout.is_empty() && stderr.lines().count() == 1, "{arguments}: {stdout}{stderr}");
        let by_json = self.run_as(&format!("{arguments} --json"), variables).await?;
        ensure!(by_json.code == code && by_json.stdout.is_empty(), "{arguments}: {by_json:?}");
        let problem: Value = serde_json::from_str(&by_json.stderr).context(by_json.stderr)?;
        let line = stderr.trim().strip_prefix("error: ").context("an error")?;
        ensure!(problem["detail"] == line, "{problem} and not {line}");
        let name = problem["code"].as_str().context("a code")?.to_owned();
        Ok((code.context("a code")?, line.to_owned(), name))
    }

    /// A request over HTTP, with the key.
    pub async fn ask(&self, method: Method, path: &str, body: impl Into<String>) -> Result<Answer> {
        self.ask_as(method, path, body, &[("x-api-key", KEY)]).await
    }

    /// The same with other headers.
    pub async fn ask_as(
        &self,
        method: Method,
        path: &str,
        body: impl Into<String>,
        headers: &[(&str, &str)],
    ) -> Result<Answer> {
        let client = reqwest::Client::new();
        let mut request = client.request(method, format!("{}{path}", self.url)).body(body.into());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.timeout(PATIENCE).send().await?;
        let status = answer.status().as_u16();
        let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        let text = answer.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer { status, kind, body })
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.ask(Method::GET, path, "").await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
        Ok(answer.body)
    }

    /// How a request is refused: its status and what it says. Every refusal is a problem document.
    pub async fn refusal(
        &self,
        method: Method,
        path: &str,
        body: impl Into<String>,
    ) -> Result<(u16, String, String)> {
        let answer = self.ask(method, path, body).await?;
        ensure!(answer.kind == "application/problem+json", "{path}: {answer:?}");
        let text = |name: &str| answer.body[name].as_str().unwrap_or_default().to_owned();
        ensure!(answer.body["status"] == answer.status, "{answer:?}");
        Ok((answer.status, text("code"), text("detail")))
    }

    /// What a worker says.
    pub async fn report(&self, job: &str, stage: &str, attempt: u32, kind: Value) -> Result<()> {
        let mut report = kind;
        for (name, value) in [("job", json!(job)), ("stage", json!(stage)), ("attempt", json!(attempt))] {
            report[name] = value;
        }
        let answer = self.ask(Method::POST, "/reports", report.to_string()).await?;
        ensure!(answer.status == 202, "{answer:?}");
        Ok(())
    }

    /// Waits until a job is as it should be.
    pub async fn job_when(&self, job: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let path = format!("/jobs/{job}");
        let look = async || self.get(&path).await.ok().filter(|job| is(job));
        wait_for(&format!("job {job}"), PATIENCE, look).await
    }

    pub async fn state_when(&self, job: &str, state: &str) -> Result<Value> {
        self.job_when(job, |job| job["state"] == state).await
    }

    /// Waits until that many letters are open.
    pub async fn letters_when(&self, count: usize) -> Result<Value> {
        let is = |found: &Value| found["letters"].as_array().map(Vec::len) == Some(count);
        let look = async || self.get("/letters").await.ok().filter(|found| is(found));
        wait_for(&format!("{count} letters"), PATIENCE, look).await
    }

    /// A file that says something else than the orchestrator's own.
    pub fn file(&self, change: impl FnOnce(&mut Value)) -> Result<String> {
        let mut config = self.config.clone();
        change(&mut config);
        let path = self.files.path().join("other.yaml");
        fs::write(&path, config.to_string())?;
        Ok(path.display().to_string())
    }
}

/// Times as a word, and blanks as one.
fn normalised(text: &str) -> String {
    fn word(word: &str) -> &str {
        let is_time = word.starts_with("20") && word.contains('T') && word.ends_with('Z');
        if is_time { "TIME" } else { word }
    }
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.trim_end().lines().map(line).collect::<Vec<_>>().join("\n")
}
