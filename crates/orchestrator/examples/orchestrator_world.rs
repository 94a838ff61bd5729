//! A real orchestrator for the checks of the dashboard and of the HTTP surface (`scripts/check-dashboard`,
//! `scripts/check-surface`): with a broker and a database of its own, until stdin is closed.
//!
//! ```text
//!   stdout  {"url": "http://127.0.0.1:41233", "key": "..."}      once it serves, and after `start`
//!   stdin   {"partition": 0, "key": "acme:7", "command": {...}}   sends a command, and prints "done"
//!           "kill"                                                ends the orchestrator, and prints "done"
//!           "start"                                               starts it again
//! ```

use std::{fs, io, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use axum::{Router, http::StatusCode};
use rdkafka::{
    ClientConfig,
    producer::{FutureProducer, FutureRecord},
};
use serde::Deserialize;
use serde_json::{Value, json};
use solehold_testkit::{Kafka, Postgres, Program, Solehold, TempDir, free_port};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

const TOPIC: &str = "jobs.commands";
const KEY: &str = "0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Request {
    Send { partition: i32, key: String, command: Value },
    Word(String),
}

#[tokio::main]
async fn main() -> Result<()> {
    let files = TempDir::new()?;
    let (kafka, postgres) = tokio::try_join!(Kafka::start(), Postgres::start())?;
    kafka.create_topic_named(TOPIC, 2).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let config = config(&kafka, &postgres, &format!("http://{}", listener.local_addr()?))?;
    let mut service = JoinSet::new();
    // It takes every task; the test reports in its place.
    let takes_all = Router::new().fallback(async || StatusCode::ACCEPTED);
    service.spawn(async move { axum::serve(listener, takes_all).await });
    let file = files.path().join("orchestrator.yaml");
    fs::write(&file, config.to_string())?;
    let mut command = Command::new(Solehold::binary()?);
    command.arg("orchestrator").arg("--config").arg(&file);
    let producer = producer(&kafka)?;
    let mut program = start(&command).await?;
    let (send, mut lines) = mpsc::channel(1);
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if send.blocking_send(line).is_err() {
                break;
            }
        }
    });
    while let Some(line) = lines.recv().await {
        match serde_json::from_str(&line).with_context(|| format!("not a request: {line}"))? {
            Request::Send { partition, key, command } => {
                let payload = command.to_string();
                let record = FutureRecord::to(TOPIC).key(&key).payload(&payload).partition(partition);
                producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
                println!("\"done\"");
            }
            Request::Word(word) if word == "kill" => {
                program.kill9().await?;
                println!("\"done\"");
            }
            Request::Word(word) if word == "start" => program = start(&command).await?,
            Request::Word(word) => bail!("unknown request {word:?}"),
        }
    }
    Ok(())
}

async fn start(command: &Command) -> Result<Program> {
    let program =
        Program::start("orchestrator", command, "solehold orchestrator pod-1 serves jobs on ").await?;
    println!("{}", json!({ "url": program.said(), "key": KEY }));
    Ok(program)
}

fn config(kafka: &Kafka, postgres: &Postgres, workers: &str) -> Result<Value> {
    let stage = |after: &[&str]| json!({ "task": "/work", "dispatch": "http", "after": after, "retries": 1 });
    Ok(json!({
        "name": "pod-1",
        "kafka": {
            "brokers": kafka.address(), "topic": TOPIC, "group": "dashboard", "partitions": 2,
            "broker_version": kafka.broker_version(), "session_timeout": "6s",
        },
        "commands": { "labels": { "organization_id": "organization_id" } },
        "postgres": { "url": postgres.url() },
        "dispatchers": { "http": { "url": workers, "report_to": "http://us/reports" } },
        "stages": { "decode": stage(&[]), "detect": stage(&["decode"]), "report": stage(&["detect"]) },
        "http": { "listen": format!("127.0.0.1:{}", free_port()?), "api_key": KEY },
    }))
}

fn producer(kafka: &Kafka) -> Result<FutureProducer> {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", kafka.address()).set("acks", "all");
    if let Some(version) = kafka.broker_version() {
        client.set("api.version.request", "false").set("broker.version.fallback", version);
    }
    Ok(client.create()?)
}
