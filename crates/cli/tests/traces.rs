//! Traces, as a collector receives them: one tree from a client to the store, and a collector that is away or hangs
//! costs spans and nothing else.

mod common;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use common::{SOON, server};
use serde_json::Value;
use solehold_client::{ClientSession, Http, SessionConfig};
use solehold_testkit::{Postgres, Solehold, free_port, wait_for};
use solehold_trace::{ExportConfig, Exporter, Sampler, Span, SpanKind, within};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
};

/// A collector of OTLP over HTTP, which keeps the spans that it receives.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
    _serving: JoinSet<()>,
}

impl Collector {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = spans.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let kept = kept.clone();
                connections.spawn(async move { drop(receive(stream, &kept).await) });
            }
        });
        Ok(Self { url, spans, _serving: serving })
    }

    /// The span that is `is`, once it was received.
    async fn span(&self, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = async || self.spans.lock().await.iter().find(|span| is(span)).cloned();
        let waited = wait_for(what, SOON, found).await;
        let names = || async {
            self.spans.lock().await.iter().map(|span| span["name"].to_string()).collect::<Vec<_>>()
        };
        match waited {
            Ok(span) => Ok(span),
            Err(error) => Err(error.context(format!("received: {:?}", names().await))),
        }
    }

    /// The span of this name below another.
    async fn below(&self, parent: &Value, name: &str) -> Result<Value> {
        let is = |span: &Value| {
            span["parentSpanId"] == parent["spanId"]
                && span["traceId"] == parent["traceId"]
                && span["name"].as_str().is_some_and(|found| found.starts_with(name))
        };
        self.span(&format!("{name} below {}", parent["name"]), is).await
    }
}

/// Reads requests of one connection, and keeps their spans.
async fn receive(mut stream: TcpStream, kept: &Mutex<Vec<Value>>) -> Result<()> {
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            ensure!(stream.read_buf(&mut read).await? > 0, "closed");
        };
        let text = String::from_utf8_lossy(&read[..head]).to_lowercase();
        ensure!(text.starts_with("post /v1/traces "), "{text}");
        ensure!(
            text.contains("content-type: application/json") && text.contains("x-key: a secret"),
            "{text}"
        );
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.context("a length")?.trim().parse()?;
        while read.len() < head + length {
            ensure!(stream.read_buf(&mut read).await? > 0, "closed");
        }
        let body: Value = serde_json::from_slice(&read[head..head + length])?;
        read.drain(..head + length);
        for of in body["resourceSpans"].as_array().context("resources")? {
            let service = attribute(&of["resource"], "service.name").context("a service")?;
            for scope in of["scopeSpans"].as_array().context("scopes")? {
                for span in scope["spans"].as_array().context("spans")? {
                    let mut span = span.clone();
                    span["service"] = service.clone().into();
                    kept.lock().await.push(span);
                }
            }
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
            .await?;
    }
}

/// An attribute of a span or a resource, as text.
fn attribute(of: &Value, name: &str) -> Option<String> {
    let value = &of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == name)?["value"];
    value["stringValue"].as_str().or(value["intValue"].as_str()).map(str::to_owned)
}

fn times(span: &Value) -> Result<(u64, u64)> {
    let time = |name: &str| Ok::<u64, anyhow::Error>(span[name].as_str().context("a time")?.parse()?);
    Ok((time("startTimeUnixNano")?, time("endTimeUnixNano")?))
}

#[tokio::test]
async fn one_acquire_is_one_tree_from_the_client_to_the_store() -> Result<()> {
    let (collector, postgres) = tokio::try_join!(Collector::start(), Postgres::start())?;
    let running = server().engine(postgres.url()).arg("--otlp-endpoint").arg(&collector.url);
    let running = running.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20secret").start().await?;
    let exporter = Exporter::start(ExportConfig {
        endpoint: format!("{}/v1/traces", collector.url),
        headers: vec![("x-key".to_owned(), "a secret".to_owned())],
        resource: vec![("service.name", "app".to_owned())],
        sampler: Sampler::default(),
    })?;
    let authority = Arc::new(Http::to(running.url())?);
    let session = ClientSession::open(authority, SessionConfig::new("worker")).await?;
    let root = Span::begin(SpanKind::Internal, None, || "handle an order".into());
    let guard = within(root.context(), session.acquire("job", "a")).await?;
    drop(root);
    guard.release().await?;

    let root = collector.span("the root", |span| span["name"] == "handle an order").await?;
    ensure!(root["parentSpanId"].is_null() && root["service"] == "app", "{root}");
    let client = collector.below(&root, "POST").await?;
    ensure!(client["kind"] == 3 && client["service"] == "app", "{client}");
    let served = collector.below(&client, "POST /api/v1/leases/batch/acquire").await?;
    ensure!(served["kind"] == 2 && served["service"] == "solehold", "{served}");
    ensure!(attribute(&served, "http.response.status_code").as_deref() == Some("200"), "{served}");
    ensure!(attribute(&served, "http.route").as_deref() == Some("/api/v1/leases/batch/acquire"), "{served}");
    let batch = collector.below(&served, "driver.batch").await?;
    ensure!(attribute(&batch, "solehold.batch.commands").as_deref() == Some("1"), "{batch}");
    ensure!(attribute(&batch, "solehold.queue.wait_us").is_some(), "{batch}");
    let transaction = collector.below(&batch, "store.transact").await?;
    ensure!(attribute(&transaction, "db.system.name").as_deref() == Some("postgres"), "{transaction}");
    let commit = collector.below(&transaction, "store.commit").await?;
    collector.below(&transaction, "store.read").await?;
    // Within one process, a span lies within its parent.
    for (outer, inner) in [(&served, &batch), (&batch, &transaction), (&transaction, &commit)] {
        let outer = times(outer)?;
        let inner = times(inner)?;
        ensure!(
            outer.0 <= inner.0 && inner.0 <= inner.1 && inner.1 <= outer.1 + 1_000_000,
            "{outer:?} {inner:?}"
        );
    }
    let refused = within(client_context(&root)?, session.acquire("job", "")).await;
    ensure!(refused.is_err());
    session.close().await;
    exporter.flush().await;
    Ok(())
}

/// The context of a span that was received.
fn client_context(span: &Value) -> Result<Option<solehold_trace::TraceContext>> {
    let text = |name: &str| span[name].as_str().map(str::to_owned).context("an id");
    Ok(Some(format!("00-{}-{}-01", text("traceId")?, text("spanId")?).parse()?))
}

/// How many spans a server has lost.
async fn dropped(running: &Solehold) -> Option<u64> {
    let text = reqwest::get(format!("{}/metrics", running.url())).await.ok()?.text().await.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("solehold_trace_spans_dropped_total "))?;
    line.trim().parse().ok()
}

/// More requests than spans have room in the queue.
async fn ask_much(running: &Solehold) -> Result<()> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut asking = JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        let url = format!("{}/api/v1/nodes", running.url());
        asking.spawn(async move {
            for _ in 0..400 {
                let answer = client.get(&url).timeout(Duration::from_secs(60)).send().await?;
                ensure!(answer.status().is_success(), "{}", answer.status());
            }
            Ok(())
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked??;
    }
    Ok(())
}

#[tokio::test]
async fn a_collector_that_hangs_or_is_away_costs_only_spans() -> Result<()> {
    // It accepts connections, as a process that is stopped does, and never answers.
    let hangs = TcpListener::bind("127.0.0.1:0").await?;
    let away = format!("127.0.0.1:{}", free_port()?);
    for collector in [hangs.local_addr()?.to_string(), away] {
        let running =
            server().env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{collector}")).start().await?;
        ask_much(&running).await?;
        let is_counted = async || dropped(&running).await.filter(|dropped| *dropped > 0);
        wait_for("spans to be dropped", SOON, is_counted).await?;
        let logged = async || running.logs().contains("cannot export traces; spans were dropped");
        wait_for("a line in the log", SOON, logged).await?;
        ask_much(&running).await?;
        ensure!(running.logs().matches("cannot export traces").count() == 1, "{}", running.logs());
        ensure!(running.terminate().await?.success());
    }
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_none_is_refused() -> Result<()> {
    for (name, value, told) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x", "is not the URL of a collector"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "OTEL_TRACES_SAMPLER is \"sometimes\""),
    ] {
        let folder = solehold_testkit::TempDir::new()?;
        let mut serve = common::command(["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        serve.arg(folder.path()).env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").env(name, value);
        let output = tokio::time::timeout(SOON, serve.output()).await??;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2) && error.contains(told), "{error}");
    }
    Ok(())
}
