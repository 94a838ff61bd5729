//! Tasks to a service over HTTP.
//!
//! ```text
//!   POST {url}{task}                       200: {"result": ...}   the task is done
//!   Idempotency-Key: match-17:detect:2     202                    the service reports later, to `report_to`
//!   {"job", "stage", "attempt", ...}       4xx                    the service refuses the task: the attempt has failed
//!                                          408, 425, 429, 5xx     it is sent again
//! ```
//!
//! A result that is too large to be read fails the attempt: the task was done, and done again it would answer the same.
//!
//! A task may arrive twice, with the same key. A service that answers at once must do so within `timeout`; its answer
//! is in the database before the task counts as sent, so that it is not lost with the orchestrator.

use std::{future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use reqwest::{
    Client, StatusCode,
    header::{HeaderMap, HeaderName, HeaderValue},
    redirect,
};
use serde::Deserialize;
use serde_json::Value;

use crate::dispatch::{Dispatch, DispatchError, Finding, InvalidDispatcher, Reports};
use crate::{
    config::{HttpTasksConfig, Time},
    dispatch::wire,
    model::{
        pipeline::{DispatchKind, StagePlan},
        task::{Report, ReportKind, Task, TaskId},
    },
};

/// The default of `dispatchers.http.timeout`.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many requests of one batch are under way at once.
const PARALLEL: usize = 32;
/// The largest answer with a result.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// How much of any other answer is read.
const SHOWN_BYTES: usize = 800;
/// How much of a refusal is kept.
const SHOWN_CHARS: usize = 200;

pub struct Http {
    config: HttpTasksConfig,
    timeout: Duration,
    client: Client,
    reports: Arc<dyn Reports>,
}

impl Http {
    /// Nothing is connected yet. Results in responses go to `reports`.
    pub fn new(config: &HttpTasksConfig, reports: Arc<dyn Reports>) -> Result<Self, InvalidDispatcher> {
        let invalid = |what: String| InvalidDispatcher::new(DispatchKind::Http, what);
        let url: reqwest::Url =
            config.url.parse().map_err(|error| invalid(format!("`url` {:?}: {error}", config.url)))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid(format!("`url` {:?} must begin with http:// or https://", config.url)));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let wrong = || {
                invalid(format!("`headers`: {name:?} is not a valid header name, or has an invalid value"))
            };
            let key = HeaderName::try_from(name.as_str()).map_err(|_| wrong())?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        let timeout = config.timeout.map_or(TIMEOUT, |Time(time)| time);
        let client = Client::builder()
            .default_headers(headers)
            .timeout(timeout)
            // A redirected POST becomes a GET, and headers are not for others.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| invalid(error.to_string()))?;
        Ok(Self { config: config.clone(), timeout, client, reports })
    }

    async fn send_one(&self, task: &Task) -> Result<(), DispatchError> {
        let unreachable = |error: String| DispatchError::Unreachable(error);
        let path = task.name.trim_start_matches('/');
        let url = format!("{}/{path}", self.config.url.trim_end_matches('/'));
        let request = self
            .client
            .post(&url)
            .header("idempotency-key", wire::header(&task.id))
            .json(&wire::task(task, self.config.report_to.as_deref()));
        let answer =
            request.send().await.map_err(|error| unreachable(format!("{url}: {}", with_causes(&error))))?;
        let status = answer.status();
        if status == StatusCode::ACCEPTED {
            return Ok(());
        }
        let most = if status.is_success() { ANSWER_BYTES_MAX } else { SHOWN_BYTES };
        let body = read(answer, most)
            .await
            .map_err(|error| unreachable(format!("{url}: {}", with_causes(&error))))?;
        match status {
            status if status.is_success() => {
                let result =
                    result(&body).map_err(|error| DispatchError::Refused(format!("{url}: {error}")))?;
                let report = Report { id: task.id.clone(), kind: ReportKind::Succeeded { result } };
                let delivered = self.reports.deliver(vec![report]).await;
                delivered.map_err(|error| unreachable(format!("cannot store the result: {error}")))
            }
            status => {
                let shown: String = String::from_utf8_lossy(&body.bytes).chars().take(SHOWN_CHARS).collect();
                let text = format!("{url} responded {status}: {shown}");
                Err(if is_final(status) { DispatchError::Refused(text) } else { unreachable(text) })
            }
        }
    }
}

/// Whether a retry would get the same response.
fn is_final(status: StatusCode) -> bool {
    let again = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::CONFLICT,
    ];
    status.is_redirection() || status.is_client_error() && !again.contains(&status)
}

/// The error with its causes: reqwest's own text omits "connection refused".
fn with_causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The part of a response body that was read.
#[derive(Default)]
struct Body {
    bytes: Vec<u8>,
    /// Whether there is more.
    is_cut: bool,
}

/// Reads no more than `most` bytes.
async fn read(mut answer: reqwest::Response, most: usize) -> Result<Body, reqwest::Error> {
    let mut body = Body::default();
    while let Some(chunk) = answer.chunk().await? {
        let room = most - body.bytes.len();
        body.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            body.is_cut = true;
            break;
        }
    }
    Ok(body)
}

#[derive(Debug, thiserror::Error)]
enum InvalidResponse {
    #[error(
        "the response has more than {ANSWER_BYTES_MAX} bytes: store the result elsewhere, and return its location"
    )]
    TooLarge,
    #[error("the response is not a JSON object such as {{\"result\": ...}} ({0})")]
    NotJson(#[from] serde_json::Error),
}

/// The result in a service's response; null if the body is empty.
fn result(body: &Body) -> Result<Value, InvalidResponse> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        result: Value,
    }
    if body.is_cut {
        return Err(InvalidResponse::TooLarge);
    }
    if body.bytes.is_empty() {
        return Ok(Value::Null);
    }
    Ok(serde_json::from_slice::<Answer>(&body.bytes)?.result)
}

#[async_trait]
impl Dispatch for Http {
    async fn send(&self, tasks: &[Task]) -> Vec<Result<(), DispatchError>> {
        let sending: Vec<_> = tasks.iter().map(|task| self.send_one(task)).collect();
        stream::iter(sending).buffered(PARALLEL).collect().await
    }

    /// A service has no queue to remove a task from: the report of an old attempt does not count.
    async fn revoke(&self, _task: &TaskId) {}

    /// Reports come in responses, or to `/reports` of the HTTP API.
    async fn reports(&self, _to: &dyn Reports) -> DispatchError {
        future::pending().await
    }

    async fn check(&self, stages: &[StagePlan]) -> Result<Vec<Finding>, DispatchError> {
        let mut findings = Vec::new();
        if let Err(error) = self.client.head(&self.config.url).send().await {
            let text = format!("{}: {}", self.config.url, with_causes(&error));
            findings.push(Finding::problem(text));
        }
        if self.config.report_to.is_none() {
            for stage in stages.iter().filter(|stage| stage.run_timeout > self.timeout) {
                findings.push(Finding::warning(format!(
                    "stage {}: run_timeout ({:?}) is longer than timeout ({:?}), and report_to is not set: a service that \
                     takes longer than timeout cannot report its result",
                    stage.name, stage.run_timeout, self.timeout
                )));
            }
        }
        Ok(findings)
    }
}
