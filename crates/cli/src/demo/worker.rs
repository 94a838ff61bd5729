//! The worker of the demo: writes to each of its counters twice per second, under its token.
//!
//! It does not look at its deadline before it writes. A worker that does can still be paused between looking and
//! writing; this one shows what the gate is for without waiting for that moment.

use std::{collections::BTreeMap, env, time::Duration};

use clap::Args;
use futures_util::future::join_all;
use reqwest::{Client as HttpClient, StatusCode, Url};
use serde_json::{Value, json};
use solehold_client::gate::{RESOURCE, TOKEN};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixStream, unix::OwnedWriteHalf},
    time::{MissedTickBehavior, interval},
};

use super::storage::WRITER;
use crate::error::{CommandError, CommandResult};

const WRITE_EVERY: Duration = Duration::from_millis(500);
const WRITE_MAX: Duration = Duration::from_secs(5);
const BEAT_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Where to write
    #[arg(long, value_name = "URL")]
    storage: Url,
}

struct Worker {
    runner: String,
    storage: Url,
    http: HttpClient,
    agent: OwnedWriteHalf,
    /// The resources that it works on, and their tokens.
    work: BTreeMap<String, u64>,
}

pub async fn run(args: WorkerArgs) -> CommandResult {
    let lacking =
        |_| CommandError::usage("this is the worker of `solehold demo`, and is started by its agents");
    let socket = env::var("SOLEHOLD_WORKER_SOCKET").map_err(lacking)?;
    let runner = env::var("SOLEHOLD_RUNNER_ID").map_err(lacking)?;
    let http = HttpClient::builder().no_proxy().timeout(WRITE_MAX).build();
    let http = http.map_err(|error| CommandError::broken(error.to_string()))?;
    let agent = UnixStream::connect(&socket).await;
    let agent =
        agent.map_err(|error| CommandError::broken(format!("cannot connect to {socket}: {error}")))?;
    let (lines, agent) = agent.into_split();
    let mut lines = BufReader::new(lines).lines();
    let mut worker = Worker { runner, storage: args.storage, http, agent, work: BTreeMap::new() };
    worker.say(json!({"type": "ready"})).await?;
    let mut write = interval(WRITE_EVERY);
    let mut beat = interval(BEAT_EVERY);
    for every in [&mut write, &mut beat] {
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            // Work first: after a pause it goes on where it was.
            biased;
            _ = write.tick() => worker.write().await,
            line = lines.next_line() => match line? {
                Some(line) => worker.hear(&line).await?,
                None => return Ok(()),
            },
            _ = beat.tick() => {
                let stats = json!({"counters": worker.work.len()});
                worker.say(json!({"type": "heartbeat", "stats": stats})).await?;
            }
        }
    }
}

impl Worker {
    async fn say(&mut self, message: Value) -> CommandResult {
        Ok(self.agent.write_all(format!("{message}\n").as_bytes()).await?)
    }

    async fn hear(&mut self, line: &str) -> CommandResult {
        let message: Value = serde_json::from_str(line)
            .map_err(|error| CommandError::broken(format!("the agent sent {line:?}: {error}")))?;
        let text = |field: &str| message[field].as_str().unwrap_or_default().to_owned();
        match message["type"].as_str() {
            Some("assign") => {
                let token = message["token"].as_u64().unwrap_or_default();
                self.work.insert(text("resource"), token);
            }
            Some("prepare") => self.say(json!({"type": "prepared", "id": message["id"]})).await?,
            Some("revoke") => {
                self.work.remove(&text("resource"));
                self.say(json!({"type": "drained", "id": message["id"]})).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes once to each counter. What is refused for good is no longer worked on.
    async fn write(&mut self) {
        let writes = self.work.iter().map(|(resource, token)| {
            let request = self.http.post(self.storage.clone()).header(RESOURCE, resource);
            let request = request.header(TOKEN, *token).header(WRITER, &self.runner);
            async move {
                let sent = request.send().await;
                let is_stale = sent.is_ok_and(|answer| answer.status() == StatusCode::PRECONDITION_FAILED);
                is_stale.then(|| resource.clone())
            }
        });
        let stale: Vec<String> = join_all(writes).await.into_iter().flatten().collect();
        for resource in stale {
            self.work.remove(&resource);
        }
    }
}
