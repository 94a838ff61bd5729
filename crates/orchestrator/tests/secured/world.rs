//! An orchestrator whose tasks, reports and events go by Kafka, as its commands do: every client that it has.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rdkafka::{
    Message as _,
    consumer::{Consumer as _, StreamConsumer},
    producer::{FutureProducer, FutureRecord},
};
use serde_json::{Value, json};
use solehold_kafka::Brokers;
use solehold_testkit::{Kafka, Postgres, Program, Solehold, TempDir};

pub const PATIENCE: Duration = Duration::from_secs(60);
/// Not too short: librdkafka cannot read the list of an old broker with a few short names ("tmpabuf memory shortage").
const COMMANDS: &str = "polyvision.jobs.commands";
const TASKS: &str = "polyvision.jobs.decode.tasks";
const REPORTS: &str = "polyvision.jobs.decode.reports";
const EVENTS: &str = "polyvision.jobs.events";

/// An authority, and what it signs.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "the authority");
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    /// A certificate and its key.
    pub fn sign(&self, name: &str) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        // OpenSSL takes a certificate with the name of its issuer for one that signed itself.
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stderr: String,
}

pub struct World {
    pub kafka: Kafka,
    database: String,
    pub files: TempDir,
}

impl World {
    /// A broker with the topics that an orchestrator needs, and a database.
    pub async fn new(kafka: Kafka, name: &str) -> Result<Self> {
        for topic in [COMMANDS, TASKS, REPORTS, EVENTS] {
            kafka.create_topic_named(topic, 2).await?;
        }
        let database = Postgres::shared().await?.create_database(name).await?;
        Ok(Self { kafka, database, files: TempDir::new()? })
    }

    /// Keeps a file, and returns where.
    pub fn keep(&self, name: &str, text: &str) -> Result<String> {
        let path = self.files.path().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// A configuration that reaches the brokers in this way.
    pub fn file(&self, name: &str, way: &Value) -> Result<String> {
        let mut kafka = json!({
            "topic": COMMANDS, "group": name, "partitions": 2, "events_topic": EVENTS,
            "session_timeout": "6s", "headers": false,
        });
        for (key, value) in way.as_object().context("an object")? {
            kafka[key] = value.clone();
        }
        let config = json!({
            "name": name,
            "kafka": kafka,
            "postgres": { "url": self.database, "schema": name.replace('-', "_") },
            "dispatchers": { "kafka": { "reports_topic": REPORTS } },
            "stages": { "decode": { "task": TASKS, "dispatch": "kafka" } },
            "http": { "listen": "127.0.0.1:0" },
        });
        self.keep(&format!("{name}.yaml"), &config.to_string())
    }

    /// Runs `solehold orchestrator` with these arguments to its end.
    pub async fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = tokio::process::Command::from(orchestrator()?);
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.context("it does not end")??;
        Ok(Ran { code: output.status.code(), stderr: String::from_utf8(output.stderr)? })
    }

    /// What `--check` says of brokers that are reached in this way.
    pub async fn check(&self, way: &Value) -> Result<Ran> {
        let file = self.file("checked", way)?;
        self.run(&["--check", "--config", &file]).await
    }

    /// Makes sure that `--check` fails, and says why in one line.
    pub async fn is_refused(&self, way: &Value, code: i32, why: &str) -> Result<()> {
        let ran = self.check(way).await?;
        ensure!(ran.code == Some(code) && ran.stderr.lines().count() == 1, "{way}: {ran:?}");
        ensure!(ran.stderr.contains(why), "{way}: no {why:?} in {}", ran.stderr);
        Ok(())
    }

    pub async fn start(&self, name: &str, way: &Value) -> Result<Program> {
        let mut command = orchestrator()?;
        command.arg("--config").arg(self.file(name, way)?);
        Program::start("orchestrator", &command, &format!("solehold orchestrator {name} serves jobs on "))
            .await
    }

    /// A job from its command to its last event. Command, task, report and event go by these brokers, and by no other
    /// way could they.
    pub async fn a_job_succeeds(&self, name: &str, way: &Value) -> Result<()> {
        let checked = self.check(way).await?;
        ensure!(checked.code == Some(0), "{checked:?}");
        let program = self.start(name, way).await?;
        let clients = Clients::new(way, name)?;
        let command = json!({
            "type": "CREATE", "job_id": name, "organization_id": "acme", "match_id": name, "input": {},
        });
        clients.send(COMMANDS, &format!("acme:{name}"), &command).await?;
        let task = clients.find(TASKS, |task| task["job"] == name).await?;
        for kind in [json!({ "kind": "started" }), json!({ "kind": "succeeded", "result": 7 })] {
            let mut report = json!({ "job": name, "stage": "decode", "attempt": task["attempt"] });
            for (key, value) in kind.as_object().context("an object")? {
                report[key] = value.clone();
            }
            clients.send(REPORTS, name, &report).await?;
        }
        clients.find(EVENTS, |event| event["job_id"] == name && event["type"] == "succeeded").await?;
        // Reads a message that took effect.
        let file = self.file(name, way)?;
        let anew = self.run(&["begin-anew", "--config", &file]).await?;
        ensure!(anew.code == Some(2) && anew.stderr.contains("has a message that took effect"), "{anew:?}");
        let ended = program.terminate().await?;
        ensure!(ended.success(), "{ended}: {}", program.logs());
        Ok(())
    }
}

fn orchestrator() -> Result<Command> {
    let mut command = Command::new(Solehold::binary()?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_")) {
        command.env_remove(name);
    }
    command.arg("orchestrator");
    Ok(command)
}

/// The other side: who sends commands, a worker, and who reads events.
struct Clients {
    brokers: Brokers,
    name: String,
    producer: FutureProducer,
}

impl Clients {
    fn new(way: &Value, name: &str) -> Result<Self> {
        let brokers: Brokers = serde_json::from_value(way.clone())?;
        let producer = brokers.client()?.set("acks", "all").create()?;
        Ok(Self { brokers, name: name.to_owned(), producer })
    }

    async fn send(&self, topic: &str, key: &str, message: &Value) -> Result<()> {
        let payload = message.to_string();
        let record = FutureRecord::to(topic).key(key).payload(&payload);
        self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    async fn find(&self, topic: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut client = self.brokers.client()?;
        client.set("group.id", format!("{}-{topic}", self.name)).set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = client.create()?;
        consumer.subscribe(&[topic])?;
        let found = async {
            loop {
                let message = consumer.recv().await?;
                let message = serde_json::from_slice(message.payload().unwrap_or_default())?;
                if is_it(&message) {
                    return anyhow::Ok(message);
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.with_context(|| format!("nothing in {topic}"))?
    }
}
