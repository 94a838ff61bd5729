//! A running check-work-mark system is moved over to the orchestrator under load, and back: every job is done once,
//! by what the workers count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    producer::{FutureProducer, FutureRecord},
};
use serde_json::{Value, json};
use solehold_testkit::{
    Kafka, Postgres, Program, Redis, Solehold, TempDir, free_port, package_file, python, wait_for,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_postgres::Client;

use crate::{
    broker::{PATIENCE, api_version, client},
    world::{GROUP, Mode, PARTITIONS, READY, TOPIC},
};

/// How many jobs each system does before the next one's turn, at least.
const EACH: i64 = 150;
/// Jobs whose marks are old enough to be gone from Redis. Their commands are still in the topic.
const EXPIRED: u64 = 30;
/// Every tenth command is that of an earlier job once more: this many jobs before it.
const AGAIN: u64 = 60;

struct Move {
    mode: Mode,
    kafka: Kafka,
    redis: Redis,
    postgres: Postgres,
    sql: Client,
    server: Option<Solehold>,
    workers: Arc<Workers>,
    files: TempDir,
    _serving: JoinSet<()>,
}

/// What workers are to the orchestrator: a service that does a task once, whatever comes again under its key.
struct Workers {
    redis: redis::aio::MultiplexedConnection,
    url: String,
    /// They take no tasks: jobs are under way, and stay so.
    are_busy: AtomicBool,
}

impl Workers {
    async fn start(redis: redis::aio::MultiplexedConnection) -> Result<(Arc<Self>, JoinSet<()>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let workers = Arc::new(Self { redis, url, are_busy: AtomicBool::new(false) });
        let served = workers.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let workers = served.clone();
                connections.spawn(async move { drop(workers.serve(stream).await) });
            }
        });
        Ok((workers, serving))
    }

    /// One request per connection.
    async fn serve(&self, mut stream: TcpStream) -> Result<()> {
        let mut read = Vec::new();
        let body = loop {
            let mut some = [0; 4096];
            let count = stream.read(&mut some).await?;
            ensure!(count > 0, "the request ended early");
            read.extend_from_slice(&some[..count]);
            let Some(head) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.unwrap_or("0").trim().parse()?;
            if read.len() >= head + 4 + length {
                break read[head + 4..head + 4 + length].to_vec();
            }
        };
        let answer = if self.are_busy.load(Ordering::SeqCst) {
            "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
        } else {
            self.work(&serde_json::from_slice(&body)?).await?;
            let result = json!({ "result": {} }).to_string();
            let length = result.len();
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{result}")
        };
        Ok(stream.write_all(answer.as_bytes()).await?)
    }

    /// The first stage of a job is what the other system does for it.
    async fn work(&self, task: &Value) -> Result<()> {
        let job = task["job"].as_str().context("a job")?;
        let stage = task["stage"].as_str().context("a stage")?;
        let mut redis = self.redis.clone();
        let key = format!("{job}/{stage}/{}", task["attempt"]);
        let is_new: i64 = redis::cmd("SADD").arg("taken").arg(key).query_async(&mut redis).await?;
        if is_new == 1 && stage == "decode" {
            let push = redis::cmd("RPUSH").arg("tasks").arg(format!("CREATE {job}")).to_owned();
            push.query_async::<()>(&mut redis).await?;
        }
        Ok(())
    }
}

/// Commands that keep coming, whoever reads them.
struct Load {
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Load {
    fn start(kafka: &Kafka) -> Result<Self> {
        let producer: FutureProducer = client(kafka).set("acks", "all").set("linger.ms", "2").create()?;
        let sent = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let count = sent.clone();
        let over = is_over.clone();
        let task = tokio::spawn(async move {
            // Slow enough for both systems, and they are never done.
            let mut rate = tokio::time::interval(Duration::from_millis(10));
            for number in 0.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                send(&producer, number).await?;
                count.store(number + 1, Ordering::SeqCst);
                if number % 10 == 0 && number >= AGAIN + EXPIRED {
                    send(&producer, number - AGAIN).await?;
                }
                rate.tick().await;
            }
            Ok(())
        });
        Ok(Self { sent, is_over, task })
    }

    /// Ends it, and returns how many jobs there are.
    async fn end(self) -> Result<u64> {
        self.is_over.store(true, Ordering::SeqCst);
        self.task.await??;
        Ok(self.sent.load(Ordering::SeqCst))
    }
}

async fn send(producer: &FutureProducer, number: u64) -> Result<()> {
    // The other system looks for `command`, where the orchestrator looks for `type`.
    let command = json!({
        "type": "CREATE", "command": "CREATE", "job_id": format!("job-{number}"),
        "organization_id": "acme", "match_id": format!("m-{number}"),
    });
    let key = format!("acme:m-{number}");
    let payload = command.to_string();
    let record = FutureRecord::to(TOPIC).key(&key).payload(&payload);
    producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
    Ok(())
}

impl Move {
    async fn new(mode: Mode) -> Result<Self> {
        let (kafka, redis, postgres) = tokio::try_join!(Kafka::start(), Redis::start(), Postgres::start())?;
        kafka.create_topic_named(TOPIC, PARTITIONS).await?;
        let server = match mode {
            Mode::Group => None,
            Mode::Leases => Some(Solehold::builder().start().await?),
        };
        let sql = postgres.connect().await?;
        let connection = redis::Client::open(format!("redis://{}/0", redis.address()))?;
        let connection = connection.get_multiplexed_async_connection().await?;
        let (workers, serving) = Workers::start(connection).await?;
        let files = TempDir::new()?;
        Ok(Self { mode, kafka, redis, postgres, sql, server, workers, files, _serving: serving })
    }

    fn redis_url(&self) -> String {
        format!("redis://{}/0", self.redis.address())
    }

    /// A pod of the other system.
    async fn other(&self, more: &[&str]) -> Result<Program> {
        let script = package_file("control/check_work_mark.py");
        let mut command = Command::new(python("peers")?);
        command.args(["-W", "ignore"]).arg(script).args([
            "--brokers",
            self.kafka.address(),
            "--topic",
            TOPIC,
        ]);
        command.args(["--api-version", api_version(&self.kafka), "--redis", &self.redis_url()]);
        command.args(["--session-timeout-ms", "3000"]).args(more);
        Program::start("check-work-mark", &command, "ready").await
    }

    fn config(&self, name: &str) -> Result<String> {
        let stage = |after: &[&str]| json!({ "task": "/work", "dispatch": "http", "after": after });
        let mut config = json!({
            "name": name,
            "kafka": {
                "brokers": self.kafka.address(), "topic": TOPIC, "group": GROUP, "partitions": PARTITIONS,
                "session_timeout": "6s", "broker_version": self.kafka.broker_version(),
                "partition_assignment": if self.mode == Mode::Group { "group" } else { "leases" },
            },
            "postgres": { "url": self.postgres.url() },
            "dispatchers": { "http": { "url": self.workers.url } },
            "stages": { "decode": stage(&[]), "render": stage(&["decode"]) },
            "http": { "listen": format!("127.0.0.1:{}", free_port()?) },
        });
        if let Some(server) = &self.server {
            config["leases"] = json!({ "server": server.url(), "ttl": "3s" });
        }
        let path = self.files.path().join(format!("{name}.yaml"));
        fs::write(&path, config.to_string())?;
        Ok(path.display().to_string())
    }

    /// A process of the orchestrator.
    async fn ours(&self, name: &str, what: &[&str]) -> Result<Program> {
        let mut command = Command::new(Solehold::binary()?);
        command.arg("orchestrator").args(what).args(["--config", &self.config(name)?]);
        Program::start("orchestrator", &command, READY).await
    }

    /// A command of the operator's, and what it says.
    async fn operate(&self, what: &str) -> Result<Value> {
        let mut command = tokio::process::Command::new(Solehold::binary()?);
        command.arg("orchestrator").args(what.split(' ')).args(["--json", "--redis", &self.redis_url()]);
        let output = command.args(["--config", &self.config("operator")?]).output().await?;
        ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> Result<T> {
        let mut redis = self.workers.redis.clone();
        Ok(redis::cmd(command[0]).arg(&command[1..]).query_async(&mut redis).await?)
    }

    async fn count(&self, sql: &str) -> Result<i64> {
        Ok(self.sql.query_one(&format!("SELECT count(*) FROM orchestrator.{sql}"), &[]).await?.get(0))
    }

    async fn until(&self, what: &str, is: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let waited = wait_for(what, PATIENCE, async || is().await.unwrap_or_default()).await;
        waited.with_context(|| format!("waiting for {what}"))
    }

    /// How often each job was done, by the workers of both.
    async fn done(&self) -> Result<BTreeMap<String, u64>> {
        let tasks: Vec<String> = self.ask(&["LRANGE", "tasks", "0", "-1"]).await?;
        let mut done = BTreeMap::new();
        for task in tasks {
            let job = task.strip_prefix("CREATE ").context("a task")?.to_owned();
            *done.entry(job).or_default() += 1;
        }
        Ok(done)
    }

    /// Whether the group has committed everything that is in the topic.
    fn is_all_committed(&self) -> Result<bool> {
        let asking: BaseConsumer = client(&self.kafka).set("group.id", GROUP).create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_range(TOPIC, 0, PARTITIONS - 1);
        let committed = asking.committed_offsets(list, Duration::from_secs(10))?;
        for element in committed.elements() {
            let (_, high) = asking.fetch_watermarks(TOPIC, element.partition(), Duration::from_secs(10))?;
            if high > 0 && element.offset() != Offset::Offset(high) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Two pods of the other system work, and are stopped. A third dies after it has marked a job, before its commit.
    async fn the_other_system_works(&self) -> Result<()> {
        let pods = [self.other(&[]).await?, self.other(&[]).await?];
        let has_done = async || Ok(self.ask::<i64>(&["LLEN", "tasks"]).await? >= EACH);
        self.until("the other system to work", has_done).await?;
        // It does what the orchestrator would do, and the shadow does not disturb it.
        let shadowed = self.operate("shadow --until-caught-up").await?;
        ensure!(shadowed["summary"]["compared"].as_i64() >= Some(EACH / 2), "{shadowed}");
        for pod in &pods {
            pod.terminate().await?;
        }
        let third = self.other(&["--hold", "mark"]).await?;
        let is_held = async || Ok(third.logs().contains("held after mark of"));
        self.until("a job that is marked and not committed", is_held).await?;
        third.kill9().await?;
        for number in 0..EXPIRED {
            self.ask::<i64>(&["DEL", &format!("job:processed:job-{number}")]).await?;
        }
        Ok(())
    }

    async fn marks(&self) -> Result<BTreeSet<String>> {
        self.ask(&["KEYS", "job:processed:*"]).await
    }
}

async fn moves_over_and_back(mode: Mode) -> Result<()> {
    let world = Move::new(mode).await?;
    let load = Load::start(&world.kafka)?;
    world.the_other_system_works().await?;
    let before = world.done().await?.len();

    // Over.
    let imported = world.operate("import-marks").await?;
    ensure!(imported["imported"] == world.marks().await?.len() as u64, "{imported}");
    let pods = [world.ours("pod-1", &[]).await?, world.ours("pod-2", &[]).await?];
    world
        .until("jobs to succeed", async || Ok(world.count("jobs WHERE state = 'succeeded'").await? >= EACH))
        .await?;
    world.workers.are_busy.store(true, Ordering::SeqCst);
    world
        .until("jobs under way", async || Ok(world.count("jobs WHERE state = 'running'").await? >= 10))
        .await?;

    // And back, with jobs under way.
    for pod in &pods {
        ensure!(pod.terminate().await?.success(), "{}", pod.logs());
    }
    let under_way = world.count("jobs WHERE state = 'running'").await?;
    let exported = world.operate("export-marks").await?;
    let ours = world.count("jobs").await?;
    ensure!(exported["exported"] == ours && under_way > 0, "{exported}, {ours} jobs, {under_way} under way");
    let marked = world.marks().await?.len();
    // A group that still has members of the orchestrator refuses the other system, which is then started again.
    let started = async || world.other(&[]).await.ok();
    let other = wait_for("the other system to start", PATIENCE, started).await?;
    let draining = world.ours("pod-3", &["drain"]).await?;
    world.workers.are_busy.store(false, Ordering::SeqCst);
    let is_over = "jobs running: 0; messages to send: 0; unresolved letters: 0";
    world.until("the jobs to be finished", async || Ok(draining.logs().contains(is_over))).await?;
    let goes_on = async || Ok(world.marks().await?.len() >= marked + EACH as usize);
    world.until("the other system to work again", goes_on).await?;
    let sent = load.end().await?;
    world.until("the topic to be read", async || world.is_all_committed()).await?;
    other.terminate().await?;

    let done = world.done().await?;
    let missing: Vec<u64> = (0..sent).filter(|number| !done.contains_key(&format!("job-{number}"))).collect();
    let twice: Vec<_> = done.iter().filter(|(_, times)| **times > 1).collect();
    println!(
        "{mode:?}: {sent} jobs: {before} by the other system, {ours} by the orchestrator ({under_way} of them finished \
         after the move back), {} by the other system again; lost {}, done twice {}",
        done.len() as i64 - ours - before as i64,
        missing.len(),
        twice.len(),
    );
    ensure!(missing.is_empty() && twice.is_empty(), "lost: {missing:?}; done twice: {twice:?}");
    ensure!(done.len() as u64 == sent, "{} of {sent}", done.len());
    ensure!(world.count("jobs").await? == ours && world.count("jobs WHERE state <> 'succeeded'").await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_work_mark_system_moves_over_and_back_in_its_group() -> Result<()> {
    moves_over_and_back(Mode::Group).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_work_mark_system_moves_over_and_back_by_leases() -> Result<()> {
    moves_over_and_back(Mode::Leases).await
}
