//! `solehold gate`: the proxy in front of a service that cannot change, and what `explain` says.

mod common;

use std::{process::Command, sync::Arc};

use anyhow::{Context, Result};
use common::{BINARY, SOON, run, server};
use serde_json::{Value, json};
use solehold_testkit::{Program, Solehold};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// A service that answers at once, except where its path says otherwise.
async fn service() -> Result<(String, Arc<Notify>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let hangs = Arc::new(Notify::new());
    tokio::spawn({
        let hangs = hangs.clone();
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, hangs.clone()));
            }
        }
    });
    Ok((url, hangs))
}

async fn serve(stream: TcpStream, hangs: Arc<Notify>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            anyhow::ensure!(stream.read_line(&mut line).await? > 0, "hung up");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        if path == "/hang" {
            hangs.notify_one();
            std::future::pending::<()>().await;
        }
        let answer = match path.as_str() {
            "/large" => "x".repeat(2_000),
            _ => format!("{}{}", head.concat(), String::from_utf8(body)?),
        };
        let text =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-from: service\r\n\r\n{answer}", answer.len());
        stream.write_all(text.as_bytes()).await?;
    }
}

struct Proxy {
    url: String,
    http: reqwest::Client,
    _program: Program,
}

impl Proxy {
    async fn start(server: &Solehold, upstream: &str, args: &str) -> Result<Self> {
        let mut command = Command::new(BINARY);
        command.args([
            "gate",
            "http",
            "--kind",
            "scene",
            "--listen",
            "127.0.0.1:0",
            "--server",
            server.url(),
        ]);
        command.args(["--upstream", upstream]).args(args.split_whitespace());
        let program = Program::start("gate", &command, "solehold gate http listening on ").await?;
        let url = program.said().split(',').next().context("an address")?.to_owned();
        Ok(Self { url, http: reqwest::Client::builder().no_proxy().build()?, _program: program })
    }

    fn put(&self, path: &str, token: u64) -> reqwest::RequestBuilder {
        let request = self.http.put(format!("{}{path}", self.url)).timeout(SOON);
        request.header("Solehold-Resource", "scene/lobby").header("Solehold-Token", token)
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Result<(u16, String)> {
    let answer = request.send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}

/// The status, the code and the detail of a refusal.
async fn problem(request: reqwest::RequestBuilder) -> Result<(u16, String, String)> {
    let (status, text) = answer(request).await?;
    let problem: Value = serde_json::from_str(&text).with_context(|| format!("{status} {text}"))?;
    let part = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    Ok((status, part("code"), part("detail")))
}

/// Acquires the lobby once its present holder has lost it, and returns the token.
async fn grant(server: &Solehold, holder: &str) -> Result<u64> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let lease = format!("{}/api/v1/resources/scene/lobby/lease", server.url());
    http.post(format!("{lease}/revoke")).json(&json!({ "fenced": true })).send().await?;
    let grant = http.post(&lease).json(&json!({ "holder": holder, "ttl_ms": 600_000 })).send().await?;
    grant.error_for_status()?.json::<Value>().await?["token"].as_u64().context("a token")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_change_is_fenced() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let (upstream, hangs) = service().await?;
    let proxy = Proxy::start(&server, &upstream, "--patience 1s --body-max 1000").await?;
    let old = grant(&server, "one").await?;
    let (status, seen) = answer(proxy.put("/a?b=c", old).body("hello").header("connection", "x-hop")).await?;
    assert!(
        status == 200 && seen.starts_with("PUT /a?b=c HTTP/1.1") && seen.ends_with("hello"),
        "{status} {seen}"
    );
    assert_eq!(answer(proxy.http.get(format!("{}/", proxy.url))).await?.0, 200, "reads need no token");
    let (status, code, _) = problem(proxy.http.put(&proxy.url)).await?;
    assert_eq!((status, code.as_str()), (400, "bad_request"));
    let (status, code, detail) = problem(proxy.put("/", old).body("x".repeat(1_001))).await?;
    assert_eq!((status, code.as_str()), (413, "too_large"), "{detail}");
    assert_eq!(problem(proxy.put("/large", old)).await?.0, 502);

    // A request that hangs in the service does not keep the next holder out for ever.
    let late = tokio::spawn(problem(proxy.put("/hang", old)));
    hangs.notified().await;
    let new = grant(&server, "two").await?;
    assert_eq!(answer(proxy.put("/", new)).await?.0, 200);
    let (status, code, detail) = late.await??;
    assert_eq!((status, code.as_str()), (504, "cut"));
    assert!(detail.contains("may have taken effect or not"), "{detail}");
    let (status, code, detail) = problem(proxy.put("/", old)).await?;
    assert_eq!((status, code.as_str()), (412, "stale"), "{detail}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_answer_leaves_the_outcome_unknown() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let (upstream, _) = service().await?;
    let proxy = Proxy::start(&server, &upstream, "--answer-within 500ms").await?;
    let token = grant(&server, "one").await?;
    let (status, code, detail) = problem(proxy.put("/hang", token)).await?;
    assert_eq!((status, code.as_str()), (504, "unknown_outcome"));
    assert!(detail.contains("the request may have taken effect or not"), "{detail}");
    let nobody = format!("http://127.0.0.1:{}", solehold_testkit::free_port()?);
    let proxy = Proxy::start(&server, &nobody, "").await?;
    let (status, code, detail) = problem(proxy.put("/", token)).await?;
    assert_eq!((status, code.as_str()), (502, "unreachable"));
    assert!(detail.contains("nothing was done"), "{detail}");
    Ok(())
}

#[tokio::test]
async fn what_a_gate_is_worth_is_explained() -> Result<()> {
    let text = run(["gate", "explain"]).await?.good()?;
    for words in ["ATOMIC\n", "BOUNDED BY LAG\n", "ADVISORY\n", "stale reads", "deletes", "--fail-open"] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    assert_eq!(run(["gate", "explain", "--json"]).await?.json()?.as_array().map(Vec::len), Some(8));
    let odd = run(["gate", "http", "--kind", "scene", "--upstream", "ftp://x"]).await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("write http://HOST:PORT"), "{odd:?}");
    let odd = run(["gate", "http", "--kind", "scene", "--upstream", "http://x", "--cache-ttl", "0s"]).await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("above 0"), "{odd:?}");
    Ok(())
}
