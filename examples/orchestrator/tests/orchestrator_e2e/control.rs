//! The control: check, work, mark, commit, under the same kills. It does work twice, and drops a command.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use solehold_testkit::{Kafka, Program, Redis, package_file, python, wait_for};

use crate::broker::{PATIENCE, api_version, client};

pub struct Control {
    pub kafka: Kafka,
    pub redis: Redis,
    pub topic: String,
    producer: FutureProducer,
}

impl Control {
    pub async fn new() -> Result<Self> {
        let (kafka, redis) = tokio::try_join!(Kafka::start(), Redis::start())?;
        let topic = kafka.create_topic("commands", 1).await?;
        let producer = client(&kafka).set("acks", "all").create()?;
        Ok(Self { kafka, redis, topic, producer })
    }

    pub async fn start(&self, more: &[&str]) -> Result<Program> {
        let script = package_file("control/check_work_mark.py");
        let mut command = Command::new(python("peers")?);
        command.args(["-W", "ignore"]).arg(script);
        command.args(["--brokers", self.kafka.address(), "--topic", &self.topic]);
        command.args(["--api-version", api_version(&self.kafka)]);
        command.args(["--redis", &self.redis_url(), "--session-timeout-ms", "3000"]);
        command.args(more);
        Program::start("check-work-mark", &command, "ready").await
    }

    pub async fn send(&self, command: &str, job: &str) -> Result<()> {
        let payload = json!({ "job_id": job, "command": command }).to_string();
        let record = FutureRecord::to(&self.topic).key(job).payload(&payload);
        self.producer.send(record, PATIENCE).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    pub fn redis_url(&self) -> String {
        format!("redis://{}/0", self.redis.address())
    }

    pub async fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> Result<T> {
        let client = redis::Client::open(self.redis_url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut asking = redis::cmd(command[0]);
        asking.arg(&command[1..]);
        Ok(asking.query_async(&mut connection).await?)
    }

    /// What the loop has done, in order.
    async fn done(&self) -> Result<Vec<String>> {
        self.ask(&["LRANGE", "tasks", "0", "-1"]).await
    }

    /// Lets those go on that are held.
    pub async fn release(&self) -> Result<()> {
        self.ask(&["SET", "go", "1"]).await
    }

    pub async fn is_done(&self, what: &[&str]) -> Result<()> {
        let waiting = wait_for("the loop to have done its work", PATIENCE, async || {
            self.done().await.is_ok_and(|done| done.len() >= what.len())
        });
        waiting.await?;
        let done = self.done().await?;
        ensure!(done == what, "{done:?}");
        Ok(())
    }
}

pub async fn says(program: &Program, words: &str) -> Result<()> {
    wait_for(&format!("the loop to say {words:?}"), PATIENCE, async || program.logs().contains(words))
        .await
        .with_context(|| program.logs())
}

#[tokio::test]
async fn check_work_mark_does_work_twice_and_drops_a_cancel() -> Result<()> {
    let control = Control::new().await?;

    // Killed after the work, before the mark.
    control.send("CREATE", "a").await?;
    let first = control.start(&["--hold", "work"]).await?;
    says(&first, "held after work of a").await?;
    first.kill9().await?;
    let second = control.start(&[]).await?;
    control.is_done(&["CREATE a", "CREATE a"]).await?;
    println!("killed between the work and its mark: the job's tasks were created twice");

    // A command that follows under the same job is taken for a repetition.
    control.send("CANCEL", "a").await?;
    says(&second, "skipped CANCEL a").await?;
    control.is_done(&["CREATE a", "CREATE a"]).await?;
    println!("a CANCEL after its CREATE: dropped");
    second.kill9().await?;

    // Paused past its session between the check and the work: it goes on beside its successor.
    control.send("CREATE", "b").await?;
    let paused = control.start(&["--hold", "check"]).await?;
    says(&paused, "held after check of b").await?;
    paused.pause().await?;
    let _successor = control.start(&[]).await?;
    control.is_done(&["CREATE a", "CREATE a", "CREATE b"]).await?;
    control.release().await?;
    paused.resume()?;
    control.is_done(&["CREATE a", "CREATE a", "CREATE b", "CREATE b"]).await?;
    println!("paused past its session between the check and the work: the job's tasks were created twice");
    Ok(())
}
