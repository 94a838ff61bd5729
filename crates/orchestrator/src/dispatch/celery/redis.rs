//! Celery's queues in Redis, as kombu keeps them: a list for each queue, with a JSON envelope for each message.
//!
//! Results stay in their list until they are in the database. One orchestrator at a time reads them, guarded by a key
//! that expires: two readers do no harm, but repeat the work.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use redis::{
    AsyncConnectionConfig, Client, RedisResult, Script, TlsCertificates, aio::MultiplexedConnection,
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use solehold_process::deadline::within;

use crate::dispatch::celery::{Broker, CeleryConfig, Message, REPORTS_MAX, control, invalid, read};
use crate::dispatch::{DispatchError, InvalidDispatcher, Reports};

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a reader that has stopped blocks the others.
const READER_MS: u64 = 3_000;
/// How long to wait before looking for results again.
const IDLE: Duration = Duration::from_millis(50);

/// KEYS: the result queue, its reader. ARGV: this reader, its expiry in ms, the most messages. The oldest messages are
/// at the end of the list.
const READ: &str = "
local reader = redis.call('GET', KEYS[2])
if reader and reader ~= ARGV[1] then return {} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return redis.call('LRANGE', KEYS[1], -tonumber(ARGV[3]), -1)";

/// KEYS: the reader. ARGV: this reader.
const LEAVE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end";

pub struct Redis {
    client: Client,
    result_queue: String,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Redis {
    pub fn new(config: &CeleryConfig, ca_cert: Option<Vec<u8>>) -> Result<Self, InvalidDispatcher> {
        let certificates = TlsCertificates { client_tls: None, root_cert: ca_cert };
        let client = if config.broker.starts_with("rediss://") {
            Client::build_with_tls(config.broker.as_str(), certificates)
        } else {
            Client::open(config.broker.as_str())
        };
        let client = client.or_else(|error| invalid(format!("`broker`: {error}")))?;
        Ok(Self { client, result_queue: config.result_queue().to_owned(), connection: Mutex::default() })
    }

    async fn connection(&self) -> Result<MultiplexedConnection, DispatchError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref() {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(Some(ANSWER_WITHIN));
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let fresh = within("connecting to Redis", CONNECT_WITHIN, connecting).await?;
        Ok(connection.insert(fresh).clone())
    }

    /// Runs a command. After a failure, the next one reconnects.
    async fn run<T>(
        &self,
        what: &'static str,
        command: impl AsyncFnOnce(&mut MultiplexedConnection) -> RedisResult<T>,
    ) -> Result<T, DispatchError> {
        let mut connection = self.connection().await?;
        let done = within(what, ANSWER_WITHIN, command(&mut connection)).await;
        if done.is_err() {
            *self.connection.lock().await = None;
        }
        Ok(done?)
    }

    /// A message as kombu writes it. The nameless exchange leads straight to a queue, also when kombu puts the message
    /// back after its visibility timeout.
    fn message(
        &self,
        routing_key: &str,
        exchange: &str,
        headers: &Value,
        body: &[u8],
        id: Option<&str>,
    ) -> String {
        let message = json!({
            "body": BASE64_STANDARD.encode(body),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {
                "correlation_id": id,
                "reply_to": self.result_queue,
                "delivery_mode": 2,
                "delivery_info": { "exchange": exchange, "routing_key": routing_key },
                "priority": 0,
                "body_encoding": "base64",
                // Of the message, not of the task: two messages of one task are acknowledged each.
                "delivery_tag": format!("{:032x}", rand::random::<u128>()),
            },
        });
        message.to_string()
    }

    async fn read(&self, me: &str, script: &Script) -> Result<Vec<String>, DispatchError> {
        self.run("reading results from Redis", async |connection| {
            let mut invocation = script.prepare_invoke();
            invocation.key(&self.result_queue).key(self.reader());
            invocation.arg(me).arg(READER_MS).arg(REPORTS_MAX).invoke_async(connection).await
        })
        .await
    }

    fn reader(&self) -> String {
        format!("{}.reader", self.result_queue)
    }

    async fn deliver(&self, messages: &[String], to: &dyn Reports) -> Result<(), DispatchError> {
        let reports = messages.iter().rev().filter_map(|message| {
            let message: Value = serde_json::from_str(message).ok()?;
            let body = BASE64_STANDARD.decode(message["body"].as_str()?).ok()?;
            read(message["properties"]["correlation_id"].as_str(), &body)
        });
        let delivered = to.deliver(reports.collect()).await;
        delivered.map_err(|error| DispatchError::Unreachable(format!("cannot store reports: {error}")))?;
        let mut removing = redis::pipe();
        for message in messages.iter().rev() {
            removing.lrem(&self.result_queue, -1, message).ignore();
        }
        self.run("removing results from Redis", async |connection| {
            removing.query_async::<()>(connection).await
        })
        .await
    }
}

#[async_trait]
impl Broker for Redis {
    async fn send(&self, messages: &[Message<'_>]) -> Vec<Result<(), DispatchError>> {
        if messages.is_empty() {
            return Vec::new();
        }
        let mut pushing = redis::pipe();
        for Message { queue, envelope } in messages {
            let headers = Value::Object(envelope.headers.clone());
            let message = self.message(queue, "", &headers, &envelope.body, Some(&envelope.id));
            pushing.lpush(*queue, message).ignore();
        }
        let sent = self
            .run("sending tasks to Redis", async |connection| pushing.query_async::<()>(connection).await)
            .await;
        // After a failure it is unknown which tasks arrived: all are sent again.
        messages.iter().map(|_| sent.clone()).collect()
    }

    async fn broadcast(&self, what: &Value) -> Result<(), DispatchError> {
        let headers = json!({ "clock": 0, "expires": 0 });
        let message = self.message("", control::EXCHANGE, &headers, what.to_string().as_bytes(), None);
        let database = self.client.get_connection_info().redis_settings().db();
        let channel = format!("/{database}.{}", control::EXCHANGE);
        self.run("publishing to workers through Redis", async |connection| {
            redis::cmd("PUBLISH").arg(channel).arg(message).query_async::<()>(connection).await
        })
        .await
    }

    async fn query(
        &self,
        method: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Vec<Value>, DispatchError> {
        let queue = format!("{:032x}.reply.{}", rand::random::<u128>(), control::EXCHANGE);
        self.broadcast(&control::query(method, arguments, &queue)).await?;
        tokio::time::sleep(within).await;
        let read = self.run("querying workers through Redis", async |connection| {
            let mut taking = redis::pipe();
            taking.atomic().lrange(&queue, 0, -1).del(&queue).ignore();
            taking.query_async::<(Vec<String>,)>(connection).await
        });
        let (messages,) = read.await?;
        let body = |message: &String| {
            let message: Value = serde_json::from_str(message).ok()?;
            let body = BASE64_STANDARD.decode(message["body"].as_str()?).ok()?;
            serde_json::from_slice(&body).ok()
        };
        Ok(messages.iter().filter_map(body).collect())
    }

    async fn results(&self, to: &dyn Reports) -> DispatchError {
        let me = format!("{:032x}", rand::random::<u128>());
        let script = Script::new(READ);
        let ended = loop {
            match self.read(&me, &script).await {
                Ok(messages) if messages.is_empty() => tokio::time::sleep(IDLE).await,
                Ok(messages) => {
                    if let Err(error) = self.deliver(&messages, to).await {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        let leaving = self.run("releasing the result queue in Redis", async |connection| {
            Script::new(LEAVE).key(self.reader()).arg(&me).invoke_async::<()>(connection).await
        });
        let _ = leaving.await;
        ended
    }
}
