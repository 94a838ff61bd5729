//! The same pipeline with Celery's own workers: the example's files, as its users run them.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::{Value, json};
use solehold_testkit::{
    Kafka, Postgres, Program, RabbitMq, Redis, Solehold, TempDir, free_port, package_file, python, wait_for,
};
use tokio_postgres::Client;

use crate::{
    broker::{PATIENCE, api_version, client},
    world::{COUNTING, PARTITIONS, READY, Size, TOPIC},
};

/// The file of the example.
const FILE: &str = include_str!("../../orchestrator.yaml");

struct Pipeline {
    kafka: Kafka,
    postgres: Postgres,
    sql: Client,
    broker: String,
    files: TempDir,
}

impl Pipeline {
    async fn new(broker: String) -> Result<Self> {
        let (kafka, postgres) = tokio::try_join!(Kafka::start(), Postgres::start())?;
        kafka.create_topic_named(TOPIC, PARTITIONS).await?;
        let sql = postgres.connect().await?;
        Ok(Self { kafka, postgres, sql, broker, files: TempDir::new()? })
    }

    /// Starts a pod with a file as it is, but for the addresses in it.
    async fn pod(&self, name: &str, file: &str) -> Result<Program> {
        let session = match self.kafka.broker_version() {
            Some(version) => format!("session_timeout: 6s\n  broker_version: '{version}'"),
            None => "session_timeout: 6s".to_owned(),
        };
        let mut file = file.to_owned();
        for (given, here) in [
            ("localhost:9092", self.kafka.address()),
            ("session_timeout: 10s", &session),
            ("postgres://polyvision@localhost/polyvision", &self.postgres.url()),
            ("amqp://guest:guest@localhost:5672//", &self.broker),
        ] {
            ensure!(file.matches(given).count() == 1, "{given} is not in the file once");
            file = file.replace(given, here);
        }
        file.push_str(&format!("name: {name}\nhttp: {{listen: '127.0.0.1:{}'}}\n", free_port()?));
        let path = self.files.path().join(format!("{name}.yaml"));
        fs::write(&path, file)?;
        let mut command = Command::new(Solehold::binary()?);
        command.arg("orchestrator").arg("--config").arg(&path);
        Program::start("orchestrator", &command, READY).await
    }

    async fn worker(&self, name: &str, step_s: u32, transport_options: Value) -> Result<Program> {
        let mut command = Command::new(python("peers")?);
        command.args(["-m", "celery", "--workdir"]).arg(package_file(""));
        command.args(["-A", "worker", "worker"]);
        command.args(["--pool", "solo", "--loglevel", "info", "--hostname", &format!("{name}@test")]);
        command.env("BROKER", &self.broker).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env("STEP_S", step_s.to_string()).env("TRANSPORT_OPTIONS", transport_options.to_string());
        Program::start("celery", &command, "ready ").await
    }

    /// Creates a job by the example's own producer.
    fn produce(&self, match_id: &str) -> Result<()> {
        let mut command = Command::new(python("peers")?);
        command.arg(package_file("produce.py"));
        command.args(["--brokers", self.kafka.address(), "--api-version", api_version(&self.kafka)]);
        command.args(["--organization", "acme"]);
        let output = command.args(["--match", match_id, "a.mp4"]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    async fn succeeded(&self, jobs: i64) -> Result<()> {
        let done = "SELECT count(*) FROM orchestrator.jobs WHERE state = 'succeeded'";
        wait_for(&format!("{jobs} jobs to succeed"), PATIENCE, async || {
            self.sql.query_one(done, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == jobs)
        })
        .await
    }

    async fn effects(&self) -> Result<i64> {
        let count = "SELECT count(*) FROM effects WHERE what = 'succeeded'";
        Ok(self.sql.query_one(count, &[]).await?.get(0))
    }
}

/// Commands of the design that the example is taken from. Its consumer reads only the `job_id`: the rest is the
/// payload, and the key is `{organization_id}:{match_id}`.
#[tokio::test]
async fn a_job_id_a_payload_and_a_key_are_enough_for_celery_tasks() -> Result<()> {
    let rabbit = RabbitMq::start().await?;
    let pipeline = Pipeline::new(rabbit.url()).await?;
    let before = FILE.split("  labels:").next();
    let after = FILE.split("\npostgres:").nth(1);
    let (before, after) = before.zip(after).context("the sections of the file")?;
    let file = format!("{before}  input: payload\n\npostgres:{after}")
        .replace("'{labels.organization_id}, {labels.match_id}'", "'{key}, {input.video}'");
    let pod = pipeline.pod("pod-1", &file).await?;
    let _worker = pipeline.worker("first", 0, json!({})).await?;
    let producer: FutureProducer = client(&pipeline.kafka).set("acks", "all").create()?;
    let said = [json!({ "job_id": "job-1", "payload": { "video": "a.mp4" } }), json!({ "job_id": "job-2" })];
    for command in said.map(|command| command.to_string()) {
        let record = FutureRecord::to(TOPIC).key("acme:final-2026").payload(&command);
        producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
    }
    pipeline.succeeded(1).await.with_context(|| pod.logs())?;
    let result = "SELECT result::text FROM orchestrator.stages WHERE job_id = 'job-1' AND stage = 'render'";
    let result: Value = serde_json::from_str(pipeline.sql.query_one(result, &[]).await?.get(0))?;
    let expected = json!({
        "url": "s3://videos/job-1.mp4", "title": "acme:final-2026, a.mp4: 22 players, 1 ball",
    });
    ensure!(result == expected, "{result}");
    // Without its payload it is a letter, which says so.
    let reason = "SELECT reason FROM orchestrator.letters";
    let reason: String = pipeline.sql.query_one(reason, &[]).await?.get(0);
    ensure!(reason == "the message has no payload (commands.input)", "{reason}");
    Ok(())
}

fn times(programs: &[&Program], words: &str) -> usize {
    programs.iter().map(|program| program.logs().matches(words).count()).sum()
}

/// Redis delivers a task of 12 s again after 5 s, to another worker. Both report; one effect.
#[tokio::test]
async fn a_task_that_outlasts_the_visibility_timeout_takes_effect_once() -> Result<()> {
    let redis = Redis::start().await?;
    let pipeline = Pipeline::new(format!("redis://{}/0", redis.address())).await?;
    let file = FILE.split("  detect_players:").next().unwrap_or_default();
    let pod = pipeline.pod("pod-1", file).await?;
    pipeline.sql.batch_execute(COUNTING).await?;
    let soon =
        json!({ "visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1 });
    let first = pipeline.worker("first", 6, soon.clone()).await?;
    let second = pipeline.worker("second", 6, soon).await?;
    pipeline.produce("final")?;
    let workers = [&first, &second];
    wait_for("both workers to be done with it", PATIENCE, async || times(&workers, "succeeded in") >= 2)
        .await
        .with_context(|| format!("{}\n{}\n{}", pod.logs(), first.logs(), second.logs()))?;
    pipeline.succeeded(1).await?;
    // The later result is in the queue before the worker says so; it leaves the queue when it is in the database.
    let left = "SELECT count(*) FROM orchestrator.mailbox";
    let client = redis::Client::open(format!("redis://{}/0", redis.address()))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    wait_for("the later result to be taken", PATIENCE, async || {
        let queue =
            redis::cmd("LLEN").arg("solehold.results").query_async::<u64>(&mut connection.clone()).await;
        let mail = pipeline.sql.query_one(left, &[]).await.map(|row| row.get::<_, i64>(0));
        matches!((queue, mail), (Ok(0), Ok(0)))
    })
    .await?;
    let _ = &mut connection;
    let row = pipeline.sql.query_one("SELECT attempt FROM orchestrator.stages", &[]).await?;
    ensure!(row.get::<_, i32>(0) == 1, "the first attempt");
    let effects = pipeline.effects().await?;
    ensure!(effects == 1, "{effects} effects");
    println!(
        "a task of 12 s under a visibility timeout of 5 s: {} runs, {effects} effect",
        times(&workers, "succeeded in")
    );
    Ok(())
}

/// Pods and workers are killed while jobs are under way; every stage takes effect once.
#[tokio::test]
async fn celery_workers_and_pods_are_killed_and_every_job_succeeds() -> Result<()> {
    let jobs = if Size::from_env().is_full { 40 } else { 4 };
    let rabbit = RabbitMq::start().await?;
    let pipeline = Pipeline::new(rabbit.url()).await?;
    let pod = pipeline.pod("pod-1", FILE).await?;
    pipeline.sql.batch_execute(COUNTING).await?;
    let worker = pipeline.worker("first", 0, json!({})).await?;
    for number in 0..jobs {
        pipeline.produce(&format!("match-{number}"))?;
    }
    wait_for("the first effect", PATIENCE, async || pipeline.effects().await.is_ok_and(|count| count > 0))
        .await?;
    pod.kill9().await?;
    worker.kill9().await?;
    let _worker = pipeline.worker("second", 0, json!({})).await?;
    let _pod = pipeline.pod("pod-2", FILE).await?;
    pipeline.succeeded(jobs).await?;
    let title = "SELECT DISTINCT result->>'title' FROM orchestrator.stages WHERE stage = 'render' ORDER BY 1";
    let title: String = pipeline.sql.query(title, &[]).await?[0].get(0);
    ensure!(title == "acme, match-0: 22 players, 1 ball", "{title}");
    let effects = pipeline.effects().await?;
    ensure!(effects == jobs * 4, "{effects} effects of {jobs} jobs");
    println!("Celery: {jobs} jobs of 4 stages, a pod and a worker killed: {effects} effects");
    Ok(())
}
