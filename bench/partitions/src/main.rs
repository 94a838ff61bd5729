//! Messages per second with inbox and commits, on one broker and in one run: the partitioned consumer of
//! `solehold-kafka` over PostgreSQL, and beside it the loop of check, work, mark and commit over Redis that it
//! replaces (`examples/orchestrator/control/check_work_mark.py`, aiokafka, one commit per message).
//!
//! Both consume the same topic of 12 partitions, each in one process, and do the same work: they note the job.
//! PostgreSQL syncs every commit; Redis keeps everything in memory.

use std::{
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Manager, Pool, Transaction};
use rdkafka::producer::{FutureProducer, FutureRecord};
use solehold_kafka::{
    Brokers, Consumer, ConsumerMetrics, ConsumerSettings, Done, Failure, Handler, Leaving, Message,
};
use solehold_sql::{
    inbox::{Inbox, Key, Mark, Marked, PayloadHash},
    partitions::{Partitions, Tenure},
};
use solehold_testkit::{Kafka, Postgres, Program, Redis, package_file, python, wait_for};
use tokio::sync::watch;
use tokio_postgres::{NoTls, types::Type};

const TOPIC: &str = "jobs.commands";
const PARTITIONS: i32 = 12;
const PATIENCE: Duration = Duration::from_secs(600);
/// Messages for the consumer; the loop gets a tenth of them.
const MESSAGES: usize = 100_000;

/// Notes each message once.
struct Notes {
    inbox: Inbox,
}

impl Handler for Notes {
    type Effect = String;
    type Receipt = ();

    async fn work(&self, message: &Message) -> Result<String, Failure> {
        let payload = message.payload.as_deref().unwrap_or_default();
        String::from_utf8(payload.to_vec()).map_err(|error| Failure::Poison(error.to_string()))
    }

    async fn commit(
        &self,
        transaction: &Transaction<'_>,
        tenure: &Tenure,
        done: &[Done<String>],
    ) -> Result<(), solehold_sql::Error> {
        let scope = format!("partition {}", tenure.partition.number);
        let jobs: Vec<_> = done.iter().filter_map(|done| Some((done, done.effect.as_ref().ok()?))).collect();
        let mark = |(done, job): &(&Done<String>, &String)| {
            let payload = PayloadHash::of(job.as_bytes());
            Ok(Mark { key: Key::new(&scope, "CREATE", job)?, payload, position: done.message.offset })
        };
        let marks = jobs.iter().map(mark).collect::<Result<Vec<_>, solehold_sql::Error>>()?;
        let met = self.inbox.mark_all(&**transaction, &marks).await?;
        let new = jobs.iter().zip(met).filter(|(_, met)| *met == Marked::New);
        let new: Vec<&str> = new.map(|((_, job), _)| job.as_str()).collect();
        let note = "INSERT INTO effects SELECT unnest($1::text[])";
        transaction.execute_typed(note, &[(&new, Type::TEXT_ARRAY)]).await?;
        Ok(())
    }

    async fn attend(&self, _tenure: Tenure, mut leaving: Leaving) {
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (kafka, postgres, redis) = tokio::try_join!(Kafka::start(), Postgres::start(), Redis::start())?;
    kafka.create_topic_named(TOPIC, PARTITIONS).await?;
    produce(&kafka).await?;
    println!("{MESSAGES} messages in {PARTITIONS} partitions of one broker");
    let loops = check_work_mark(&kafka, &redis, MESSAGES / 10).await?;
    println!("check, work, mark, commit (aiokafka, Redis): {loops:.0} messages per second");
    let ours = consume(&kafka, &postgres).await?;
    println!(
        "partitioned consumer (inbox, effect and position in PostgreSQL): {ours:.0} messages per second"
    );
    println!("{:.1} times", ours / loops);
    Ok(())
}

fn brokers(kafka: &Kafka) -> Brokers {
    let broker_version = kafka.broker_version().map(str::to_owned);
    Brokers { broker_version, ..Brokers::at(kafka.address()) }
}

async fn produce(kafka: &Kafka) -> Result<()> {
    let producer: FutureProducer = brokers(kafka).client()?.set("linger.ms", "20").create()?;
    for batch in (0..MESSAGES).collect::<Vec<_>>().chunks(10_000) {
        let sending = batch.iter().map(|number| {
            let producer = &producer;
            async move {
                let key = format!("org-{}:match-{number}", number % 7);
                let command = command(*number);
                let record = FutureRecord::to(TOPIC).key(&key).payload(&command);
                producer.send(record, PATIENCE).await.map_err(|(error, _)| error)
            }
        });
        for sent in futures_util::future::join_all(sending).await {
            sent?;
        }
    }
    Ok(())
}

fn command(number: usize) -> String {
    format!(r#"{{"command": "CREATE", "job_id": "job-{number}"}}"#)
}

async fn check_work_mark(kafka: &Kafka, redis: &Redis, count: usize) -> Result<f64> {
    let script = "../../examples/orchestrator/control/check_work_mark.py";
    let mut command = Command::new(python("peers")?);
    command.args(["-W", "ignore"]).arg(package_file(script));
    command.args(["--brokers", kafka.address(), "--redis", &format!("redis://{}/0", redis.address())]);
    let api_version = kafka.broker_version().map_or("auto", |_| "0.9");
    command.args(["--topic", TOPIC, "--api-version", api_version, "--count", &count.to_string()]);
    let program = Program::start("check-work-mark", &command, "ready").await?;
    let line = wait_for("the loop to be through", PATIENCE, async || {
        let logs = program.logs();
        logs.lines().find(|line| line.starts_with("handled ")).map(str::to_owned)
    });
    let line = line.await?;
    let seconds = line.rsplit(' ').nth(1).and_then(|seconds| seconds.parse::<f64>().ok());
    Ok(count as f64 / seconds.with_context(|| format!("a time in {line:?}"))?)
}

async fn consume(kafka: &Kafka, postgres: &Postgres) -> Result<f64> {
    let partitions = Partitions::new("partitions")?;
    let inbox = Inbox::new("inbox")?;
    let sql = postgres.connect().await?;
    let tables = format!(
        "{};{};CREATE TABLE effects (job text NOT NULL)",
        partitions.schema().trim_end().trim_end_matches(';'),
        inbox.migration()
    );
    sql.batch_execute(&tables).await?;
    let pool = Pool::builder(Manager::new(postgres.url().parse()?, NoTls)).max_size(14).build()?;
    let (end, ending) = watch::channel(false);
    let consumer = Consumer {
        settings: ConsumerSettings {
            group: "bench".to_owned(),
            parallel: 500,
            ..ConsumerSettings::default()
        },
        brokers: brokers(kafka),
        pool,
        partitions,
        handler: Arc::new(Notes { inbox }),
        metrics: Arc::new(ConsumerMetrics::default()),
        name: "bench".to_owned(),
        leases: None,
        hook: None,
    };
    let running = tokio::spawn(consumer.run(ending));
    let count =
        async || sql.query_one("SELECT count(*) FROM effects", &[]).await.map(|row| row.get::<_, i64>(0));
    wait_for("the first effect", PATIENCE, async || count().await.is_ok_and(|count| count > 0)).await?;
    let began = Instant::now();
    let first = count().await?;
    let all = async || count().await.is_ok_and(|count| count >= MESSAGES as i64);
    wait_for("every message to take effect", PATIENCE, all).await?;
    let took = began.elapsed();
    ensure!(count().await? == MESSAGES as i64, "a message took effect twice");
    end.send(true)?;
    running.await??;
    Ok((MESSAGES as i64 - first) as f64 / took.as_secs_f64())
}
