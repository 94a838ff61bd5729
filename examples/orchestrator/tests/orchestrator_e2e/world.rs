//! A broker, a database, pods, workers, and a count of what took effect.

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use rdkafka::{
    Message as _,
    consumer::{BaseConsumer, Consumer as _, StreamConsumer},
    producer::{FutureProducer, FutureRecord},
};
use serde_json::{Value, json};
use solehold_testkit::{Kafka, Postgres, Program, Proxy, Solehold, TempDir, free_port, wait_for};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_postgres::{Client, NoTls};

use crate::{
    broker::{PATIENCE, client},
    line::Line,
};

pub const PARTITIONS: i32 = 12;
pub const TOPIC: &str = "polyvision.jobs.commands";
pub const GROUP: &str = "polyvision-orchestrator";
const TASKS: &str = "polyvision.tasks";
const REPORTS: &str = "polyvision.reports";

/// Who says which partition is whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Group,
    Leases,
}

#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub is_full: bool,
    /// Jobs under way in each step.
    pub jobs: u64,
    pub pods: usize,
}

impl Size {
    pub fn from_env() -> Self {
        let is_full = std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full");
        if is_full { Self { is_full, jobs: 2_200, pods: 4 } } else { Self { is_full, jobs: 200, pods: 2 } }
    }
}

/// A pod, and its own line to the database.
pub struct Pod {
    pub program: Program,
    pub database: Proxy,
}

pub struct World {
    pub mode: Mode,
    pub size: Size,
    pub kafka: Kafka,
    pub line: Line,
    pub postgres: Postgres,
    pub sql: Client,
    pub pods: BTreeMap<String, Pod>,
    pub session: Duration,
    pub server: Option<Solehold>,
    producer: FutureProducer,
    created: AtomicU64,
    files: TempDir,
    started: u32,
    _workers: JoinSet<()>,
    _driving: JoinSet<()>,
}

impl World {
    pub async fn start(mode: Mode, size: Size) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let builder = Kafka::builder()?.advertise(listener.local_addr()?);
        let line = Line::start(listener, builder.addr()).await?;
        let (kafka, postgres) = tokio::try_join!(builder.start(), Postgres::start())?;
        for (topic, partitions) in [(TOPIC, PARTITIONS), (TASKS, PARTITIONS), (REPORTS, 4)] {
            kafka.create_topic_named(topic, partitions).await?;
        }
        let server = match mode {
            Mode::Group => None,
            Mode::Leases => Some(Solehold::builder().start().await?),
        };
        let (sql, driving) = connect(&postgres.url()).await?;
        let producer = client(&kafka).set("acks", "all").set("linger.ms", "5").create()?;
        let workers = workers(&kafka, if size.is_full { 2 } else { 1 })?;
        // In leases mode, the ttl.
        let session = Duration::from_secs(if mode == Mode::Group { 6 } else { 3 });
        let mut world = Self {
            mode,
            size,
            kafka,
            line,
            postgres,
            sql,
            pods: BTreeMap::new(),
            session,
            server,
            producer,
            created: AtomicU64::new(0),
            files: TempDir::new()?,
            started: 0,
            _workers: workers,
            _driving: driving,
        };
        for _ in 0..size.pods {
            world.add_pod().await?;
        }
        world.sql.batch_execute(COUNTING).await?;
        world.all_owned().await?;
        Ok(world)
    }

    /// Starts a pod under a new name.
    pub async fn add_pod(&mut self) -> Result<String> {
        self.started += 1;
        let name = format!("pod-{}", self.started);
        let database = Proxy::start(self.postgres.addr()).await?;
        let config = self.files.path().join(format!("{name}.yaml"));
        fs::write(&config, self.config(&name, &database)?)?;
        let mut command = Command::new(Solehold::binary()?);
        command.arg("orchestrator").arg("--config").arg(&config);
        let program = Program::start("orchestrator", &command, READY).await?;
        self.pods.insert(name.clone(), Pod { program, database });
        Ok(name)
    }

    fn config(&self, name: &str, database: &Proxy) -> Result<String> {
        let direct = self.postgres.addr().to_string();
        let cuttable = database.addr().to_string();
        let url = self.postgres.url().replace(&direct, &cuttable);
        let stage = |after: &[&str]| json!({ "task": TASKS, "dispatch": "kafka", "after": after });
        let mut config = json!({
            "name": name,
            "kafka": {
                "brokers": self.kafka.address(),
                "topic": TOPIC,
                "group": GROUP,
                "session_timeout": format!("{}s", self.session.as_secs()),
                "partition_assignment": if self.mode == Mode::Group { "group" } else { "leases" },
                "broker_version": self.kafka.broker_version(),
            },
            "commands": {
                "labels": { "organization_id": "organization_id", "match_id": "match_id" },
                "key": "{labels.organization_id}:{labels.match_id}",
            },
            "postgres": { "url": url },
            "dispatchers": { "kafka": { "reports_topic": REPORTS } },
            "stages": {
                "decode": stage(&[]),
                "detect_players": stage(&["decode"]),
                "detect_ball": stage(&["decode"]),
                "render": stage(&["detect_players", "detect_ball"]),
            },
            "http": { "listen": format!("127.0.0.1:{}", free_port()?) },
        });
        if let Some(server) = &self.server {
            config["leases"] =
                json!({ "server": server.url(), "ttl": format!("{}s", self.session.as_secs()) });
        }
        // YAML takes JSON.
        Ok(serde_json::to_string_pretty(&config)?)
    }

    /// Creates jobs, and returns when the broker has their commands.
    pub async fn create_jobs(&self, count: u64) -> Result<()> {
        let first = self.created.fetch_add(count, Ordering::SeqCst);
        let sending = (first..first + count).map(|number| async move {
            let command = command(number);
            let key = format!("org-{}:match-{number}", number % 7);
            let record = FutureRecord::to(TOPIC).key(&key).payload(&command);
            self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error)
        });
        for sent in futures_util::future::join_all(sending).await {
            sent?;
        }
        Ok(())
    }

    /// Creates a job in each of these partitions, and waits until all of them are there: work goes on.
    pub async fn probe(&self, partitions: &[i32]) -> Result<()> {
        let mut jobs = Vec::new();
        for partition in partitions {
            let number = self.created.fetch_add(1, Ordering::SeqCst);
            let command = command(number);
            let key = format!("org-{}:match-{number}", number % 7);
            let record = FutureRecord::to(TOPIC).key(&key).payload(&command).partition(*partition);
            self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
            jobs.push(format!("job-{number}"));
        }
        let count = "SELECT count(*) FROM orchestrator.jobs WHERE job_id = ANY($1)";
        wait_for("new jobs in these partitions", PATIENCE, async || {
            let row = self.sql.query_one(count, &[&jobs]).await;
            row.is_ok_and(|row| row.get::<_, i64>(0) == jobs.len() as i64)
        })
        .await
    }

    pub fn created(&self) -> u64 {
        self.created.load(Ordering::SeqCst)
    }

    /// Waits until that many jobs have succeeded.
    pub async fn succeeded(&self, count: u64) -> Result<()> {
        let done = "SELECT count(*) FROM orchestrator.jobs WHERE state = 'succeeded'";
        let what = format!("{count} jobs to succeed");
        let waiting = wait_for(&what, PATIENCE, async || {
            self.sql.query_one(done, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) as u64 >= count)
        });
        match waiting.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.standing().await?)),
        }
    }

    /// How everything stands, for whoever must find out why it does not go on.
    async fn standing(&self) -> Result<String> {
        let mut told = String::new();
        for (what, sql) in [
            ("jobs", "SELECT state || ' ' || count(*) FROM orchestrator.jobs GROUP BY state"),
            (
                "stages",
                "SELECT partition || ' ' || stage || ' ' || state || ' ' || count(*) FROM orchestrator.stages \
                 WHERE state NOT IN ('succeeded', 'waiting') GROUP BY partition, stage, state ORDER BY 1",
            ),
            (
                "partitions",
                "SELECT partition || ' ' || owner || ' ' || epoch || ' ' || next_offset \
                 FROM orchestrator.partitions ORDER BY partition",
            ),
            ("mailbox", "SELECT partition || ' ' || count(*) FROM orchestrator.mailbox GROUP BY partition"),
            (
                "outbox",
                "SELECT partition || ' ' || kind || ' ' || count(*) FROM orchestrator.outbox GROUP BY partition, kind",
            ),
        ] {
            let rows = self.sql.query(sql, &[]).await?;
            let rows: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
            told.push_str(&format!("{what}: {rows:?}\n"));
        }
        told.push_str(&format!("ends: {:?}\n", self.ends()));
        for (name, pod) in &self.pods {
            let logs = pod.program.logs();
            let lines: Vec<&str> = logs.lines().collect();
            told.push_str(&format!("{name}:\n{}\n", lines[lines.len().saturating_sub(30)..].join("\n")));
        }
        Ok(told)
    }

    /// Which partitions a pod has, and the epoch of each.
    pub async fn partitions_of(&self, owner: &str) -> Result<BTreeMap<i32, i64>> {
        let read = "SELECT partition, epoch FROM orchestrator.partitions WHERE owner = $1";
        let rows = self.sql.query(read, &[&owner]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Waits until every partition is owned by a pod that runs, and every pod has one.
    pub async fn all_owned(&self) -> Result<()> {
        let names: Vec<&str> = self.pods.keys().map(String::as_str).collect();
        let owners =
            "SELECT count(*), count(DISTINCT owner) FROM orchestrator.partitions WHERE owner = ANY($1)";
        let waiting =
            wait_for("every partition to have a pod, and every pod a partition", PATIENCE, async || {
                let Ok(row) = self.sql.query_one(owners, &[&names]).await else { return false };
                (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (i64::from(PARTITIONS), names.len() as i64)
            });
        match waiting.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.standing().await?)),
        }
    }

    /// Connects to the database again.
    pub async fn reconnect(&mut self) -> Result<()> {
        let url = self.postgres.url();
        let found = wait_for("the database", PATIENCE, async || connect(&url).await.ok()).await?;
        (self.sql, self._driving) = found;
        Ok(())
    }

    /// Where each partition of the commands ends, by the broker.
    pub fn ends(&self) -> Result<BTreeMap<i32, i64>> {
        let consumer: BaseConsumer = client(&self.kafka).create()?;
        let end = |partition| {
            let (_, end) = consumer.fetch_watermarks(TOPIC, partition, Duration::from_secs(30))?;
            Ok((partition, end))
        };
        (0..PARTITIONS).map(end).collect()
    }
}

/// The line by which a pod says that it serves.
pub const READY: &str = "solehold orchestrator pod-";

/// Counts every transition, whoever makes it: a stage that succeeded, and a task that was ordered. Notes when
/// something is written for a partition.
pub const COUNTING: &str = "
CREATE TABLE effects (what text NOT NULL, job_id text NOT NULL, stage text NOT NULL, attempt integer NOT NULL);
CREATE FUNCTION count_stage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO effects VALUES ('succeeded', NEW.job_id, NEW.stage, NEW.attempt); RETURN NULL; END $$;
CREATE TRIGGER count_stage AFTER UPDATE ON orchestrator.stages FOR EACH ROW
    WHEN (NEW.state = 'succeeded' AND OLD.state <> 'succeeded') EXECUTE FUNCTION count_stage();
CREATE FUNCTION count_task() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO effects VALUES ('ordered', NEW.job_id, NEW.stage, NEW.attempt); RETURN NULL; END $$;
CREATE TRIGGER count_task AFTER INSERT ON orchestrator.outbox FOR EACH ROW
    WHEN (NEW.kind = 'send') EXECUTE FUNCTION count_task();
CREATE TABLE writes (partition integer NOT NULL, is_message boolean NOT NULL, at timestamptz NOT NULL);
CREATE FUNCTION time_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO writes VALUES (NEW.partition, NEW.next_offset > OLD.next_offset, clock_timestamp()); RETURN NULL; END $$;
CREATE TRIGGER time_write AFTER UPDATE ON orchestrator.partitions FOR EACH ROW
    WHEN (NEW.epoch = OLD.epoch) EXECUTE FUNCTION time_write();
";

fn command(number: u64) -> String {
    json!({
        "type": "CREATE",
        "job_id": format!("job-{number}"),
        "organization_id": format!("org-{}", number % 7),
        "match_id": format!("match-{number}"),
        "input": { "video": format!("{number}.mp4") },
    })
    .to_string()
}

async fn connect(url: &str) -> Result<(Client, JoinSet<()>)> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let mut driving = JoinSet::new();
    driving.spawn(async move { drop(connection.await) });
    Ok((client, driving))
}

/// Fast workers: each task is reported as begun and as done, every fifth one twice.
fn workers(kafka: &Kafka, count: usize) -> Result<JoinSet<()>> {
    let mut workers = JoinSet::new();
    let producer: Arc<FutureProducer> = Arc::new(client(kafka).set("linger.ms", "5").create()?);
    for _ in 0..count {
        let consumer: StreamConsumer = client(kafka)
            .set("group.id", "workers")
            .set("session.timeout.ms", "6000")
            .set("auto.offset.reset", "earliest")
            .create()?;
        consumer.subscribe(&[TASKS])?;
        // To drop it would wait for a broker that is gone by then.
        let consumer: &'static StreamConsumer = Box::leak(Box::new(consumer));
        let producer = Arc::clone(&producer);
        workers.spawn(async move {
            let mut reports = JoinSet::new();
            loop {
                while reports.try_join_next().is_some() {}
                let Ok(message) = consumer.recv().await else { continue };
                let Ok(task) = serde_json::from_slice::<Value>(message.payload().unwrap_or_default()) else {
                    continue;
                };
                let times = if message.offset() % 5 == 0 { 2 } else { 1 };
                reports.spawn(report(Arc::clone(&producer), task, times));
            }
        });
    }
    Ok(workers)
}

/// A report is lost only if the broker is away for minutes.
async fn report(producer: Arc<FutureProducer>, task: Value, times: usize) {
    let key = task["key"].as_str().unwrap_or_default();
    let id = &task;
    for kind in ["started", "succeeded"] {
        let mut report =
            json!({ "job": id["job"], "stage": id["stage"], "attempt": id["attempt"], "kind": kind });
        if kind == "succeeded" {
            report["result"] = json!({ "by": "a worker" });
        }
        let payload = report.to_string();
        for _ in 0..times {
            let record = FutureRecord::to(REPORTS).key(key).payload(&payload);
            let _ = producer.send(record, PATIENCE).await;
        }
    }
}
