//! Sends recorded spans to a collector, in the background.

use std::time::Duration;

use reqwest::{
    Client, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use solehold_clock::BootTime;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::{
    Sampler, otlp,
    recorder::{self, QUEUE_MAX},
    span::FinishedSpan,
};

/// The most spans of one request.
const REQUEST_SPANS_MAX: usize = QUEUE_MAX / 8;
/// How long spans wait for others before they are sent.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// How long the collector may take for one request.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long the last spans may take when the process ends.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);
/// How often a collector that does not answer is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Where spans go, and what is said about this process.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// The collector's address for traces, as in `http://127.0.0.1:4318/v1/traces`.
    pub endpoint: String,
    /// Headers of each request: names and values.
    pub headers: Vec<(String, String)>,
    /// Attributes of this process, such as `service.name`.
    pub resource: Vec<(&'static str, String)>,
    /// Which traces are recorded.
    pub sampler: Sampler,
}

/// Why an exporter does not start.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The address is no URL of HTTP.
    #[error("{0:?} is not the URL of a collector, as in http://127.0.0.1:4318")]
    Endpoint(String),
    /// A header cannot be sent. Its value may be a secret.
    #[error("the header {0:?} cannot be sent")]
    Header(String),
    /// The HTTP client cannot be made.
    #[error("the HTTP client of traces: {0}")]
    Client(String),
    /// There is one already.
    #[error("traces are exported already")]
    Twice,
}

/// A running exporter.
#[derive(Debug)]
pub struct Exporter {
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts to record spans and to send them, in the current runtime. No collector is asked yet.
    pub fn start(config: ExportConfig) -> Result<Self, ExporterError> {
        let endpoint = Url::parse(&config.endpoint).ok();
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        let endpoint =
            endpoint.filter(is_http).ok_or_else(|| ExporterError::Endpoint(config.endpoint.clone()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &config.headers {
            let invalid = || ExporterError::Header(name.clone());
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::try_from(name).map_err(|_| invalid())?, value);
        }
        let client = Client::builder().default_headers(headers).timeout(ANSWER_WITHIN);
        let client = client.redirect(reqwest::redirect::Policy::none()).build();
        let client = client.map_err(|error| ExporterError::Client(error.to_string()))?;
        let spans = recorder::start(config.sampler).ok_or(ExporterError::Twice)?;
        let (end, ending) = oneshot::channel();
        let sending = Sending { client, endpoint, resource: config.resource, logged: None };
        Ok(Self { end: Some(end), task: tokio::spawn(sending.run(spans, ending)) })
    }

    /// Sends what is recorded, within two seconds, and ends.
    pub async fn flush(mut self) {
        drop(self.end.take());
        if tokio::time::timeout(FLUSH_WITHIN, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

struct Sending {
    client: Client,
    endpoint: Url,
    resource: Vec<(&'static str, String)>,
    logged: Option<BootTime>,
}

impl Sending {
    async fn run(mut self, mut spans: mpsc::Receiver<FinishedSpan>, mut ending: oneshot::Receiver<()>) {
        let mut batch = Vec::with_capacity(REQUEST_SPANS_MAX);
        let mut is_ending = false;
        while !is_ending {
            let gathered = tokio::time::timeout(SEND_EVERY, gather(&mut spans, &mut batch));
            tokio::select! {
                _ = gathered => {}
                _ = &mut ending => {
                    is_ending = true;
                    spans.close();
                }
            }
            self.send(&mut batch).await;
        }
        while spans.recv_many(&mut batch, REQUEST_SPANS_MAX).await > 0 {
            self.send(&mut batch).await;
        }
    }

    /// Sends spans once. What the collector does not take is dropped: spans are worth less than memory.
    async fn send(&mut self, batch: &mut Vec<FinishedSpan>) {
        let Some(recorder) = recorder::get().filter(|_| !batch.is_empty()) else { return };
        let count = batch.len() as u64;
        let body = otlp::request(recorder, &self.resource, batch).to_string();
        batch.clear();
        let sent = self.client.post(self.endpoint.clone()).body(body).send().await;
        match sent.and_then(reqwest::Response::error_for_status) {
            Ok(_) => recorder::exported(count),
            Err(error) => {
                recorder::dropped(count);
                self.log(count, &error.without_url());
            }
        }
    }

    fn log(&mut self, spans: u64, error: &reqwest::Error) {
        let now = BootTime::now();
        if self.logged.is_some_and(|logged| now.since(logged) < LOG_EVERY) {
            return;
        }
        self.logged = Some(now);
        let host = self.endpoint.host_str().unwrap_or_default();
        let dropped = recorder::counts().dropped;
        tracing::warn!(collector = host, spans, dropped, %error, "cannot export traces; spans were dropped");
    }
}

/// Fills a batch. What was gathered is kept when this is dropped.
async fn gather(spans: &mut mpsc::Receiver<FinishedSpan>, batch: &mut Vec<FinishedSpan>) {
    while batch.len() < REQUEST_SPANS_MAX {
        let left = REQUEST_SPANS_MAX - batch.len();
        if spans.recv_many(batch, left).await == 0 {
            std::future::pending::<()>().await;
        }
    }
}
