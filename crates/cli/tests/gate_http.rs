//! `solehold gate`: the proxy in front of a service that cannot change, and what `explain` says.

mod common;

use std::{
    process::Command,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use common::{BINARY, SOON, run, server};
use serde_json::{Value, json};
use solehold_testkit::{Program, Solehold, wait_for};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// A service that answers at once, except where its path says otherwise. Each request takes effect when it is answered.
#[derive(Clone, Default)]
struct Service {
    url: String,
    /// A request has arrived that is held until it may end.
    has_begun: Arc<Notify>,
    may_end: Arc<Notify>,
    /// The tokens of the requests that took effect, in this order.
    effects: Arc<Mutex<Vec<u64>>>,
}

impl Service {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = Self { url: format!("http://{}", listener.local_addr()?), ..Self::default() };
        tokio::spawn({
            let service = service.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let service = service.clone();
                    tokio::spawn(async move { service.serve(stream).await });
                }
            }
        });
        Ok(service)
    }

    fn effects(&self) -> Vec<u64> {
        self.effects.lock().expect("no thread panics with it").clone()
    }

    /// Whoever has hung up, a request that was begun is done to its end: services do not notice.
    async fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut head = Vec::new();
            let mut length = 0;
            let mut token = None::<u64>;
            loop {
                let mut line = String::new();
                anyhow::ensure!(stream.read_line(&mut line).await? > 0, "hung up");
                let lower = line.to_ascii_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse()?;
                }
                if let Some(value) = lower.strip_prefix("solehold-token:") {
                    token = Some(value.trim().parse()?);
                }
                if line == "\r\n" {
                    break;
                }
                head.push(line);
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
            if path.starts_with("/held") {
                self.has_begun.notify_one();
                self.may_end.notified().await;
            }
            self.effects.lock().expect("no thread panics with it").extend(token);
            let answer = match path.as_str() {
                "/held/closed" => return Ok(()),
                "/odd" => {
                    stream.write_all(b"220 ready\r\n\r\n").await?;
                    std::future::pending().await
                }
                "/large" => "x".repeat(2_000),
                _ => format!("{}{}", head.concat(), String::from_utf8(body)?),
            };
            let length = answer.len();
            let text =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nx-from: service\r\n\r\n{answer}");
            stream.write_all(text.as_bytes()).await?;
        }
    }
}

struct Proxy {
    url: String,
    http: reqwest::Client,
    program: Program,
}

impl Proxy {
    async fn start(server: &Solehold, upstream: &str, args: &str) -> Result<Self> {
        Self::of(server.url(), upstream, args).await
    }

    async fn of(server: &str, upstream: &str, args: &str) -> Result<Self> {
        let mut command = Command::new(BINARY);
        command.args(["gate", "http", "--kind", "scene", "--listen", "127.0.0.1:0", "--server", server]);
        command.args(["--upstream", upstream]).args(args.split_whitespace());
        let program = Program::start("gate", &command, "solehold gate http listening on ").await?;
        let url = program.said().split(',').next().context("an address")?.to_owned();
        Ok(Self { url, http: reqwest::Client::builder().no_proxy().build()?, program })
    }

    /// The status and the text that it has on the port of its health and metrics.
    async fn health(&self, path: &str) -> Result<(u16, String)> {
        let said = self.program.logs();
        let address =
            said.lines().find_map(|line| line.strip_prefix("solehold gate http serves metrics on "));
        answer(self.http.get(format!("{}{path}", address.context("an address")?))).await
    }

    /// A gauge of the proxy's metrics.
    async fn gauge(&self, name: &str) -> Result<f64> {
        let (status, text) = self.health("/metrics").await?;
        anyhow::ensure!(status == 200, "{status} {text}");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.with_context(|| format!("no {name} in:\n{text}"))
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

/// The time that a newer request waits, which tests wait out.
const SHORT: &str = "--patience 200ms";

/// Repeats a request while requests with older tokens keep it out.
async fn passes(proxy: &Proxy, path: &str, token: u64) -> Result<()> {
    wait_for("older requests to have ended", SOON, async || match problem(proxy.put(path, token)).await {
        Ok((503, code, _)) if code == "in_flight" => None,
        Ok(refused) => Some(Err(anyhow::anyhow!("{refused:?}"))),
        // What the service answers is no problem document.
        Err(_) => Some(Ok(())),
    })
    .await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_change_is_fenced() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, "--body-max 1000").await?;
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
    let (status, code, detail) = problem(proxy.put("/large", old)).await?;
    assert_eq!((status, code.as_str()), (502, "answer_too_large"), "{detail}");

    let new = grant(&server, "two").await?;
    assert_eq!(answer(proxy.put("/", new)).await?.0, 200);
    let (status, code, detail) = problem(proxy.put("/", old)).await?;
    assert_eq!((status, code.as_str()), (412, "stale"), "{detail}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_request_stays_out_while_an_older_one_that_was_answered_504_still_runs() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let args = format!("--answer-within 500ms {SHORT} --metrics-listen 127.0.0.1:0");
    let proxy = Proxy::start(&server, &service.url, &args).await?;
    let old = grant(&server, "one").await?;
    let (status, code, detail) = problem(proxy.put("/held", old)).await?;
    assert_eq!((status, code.as_str()), (504, "unknown_outcome"), "{detail}");
    // Requests of the same token run side by side.
    assert_eq!(answer(proxy.put("/", old)).await?.0, 200);
    assert_eq!(service.effects(), [old]);

    let new = grant(&server, "two").await?;
    let refused = proxy.put("/", new).send().await?;
    let has_hint = refused.headers().contains_key("retry-after");
    let status = refused.status().as_u16();
    let text = refused.text().await?;
    assert!(status == 503 && has_hint, "{status} {text}; took effect: {:?}", service.effects());
    let expected = format!("the oldest has token {old}");
    assert!(text.contains("\"in_flight\"") && text.contains(&expected), "{text}");
    assert_eq!(service.effects(), [old], "the newer one has not passed");
    assert_eq!(proxy.gauge("solehold_gate_requests_unattended").await?, 1.0);
    assert!(
        proxy.program.logs().contains("request is still running in the service"),
        "{}",
        proxy.program.logs()
    );

    service.may_end.notify_one();
    passes(&proxy, "/", new).await?;
    assert_eq!(service.effects(), [old, old, new]);
    assert_eq!(proxy.gauge("solehold_gate_requests_running").await?, 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_request_stays_out_while_an_older_one_whose_caller_hung_up_still_runs() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, &format!("{SHORT} --metrics-listen 127.0.0.1:0")).await?;
    let old = grant(&server, "one").await?;
    for path in ["/held", "/held/closed"] {
        let caller = tokio::spawn(proxy.put(path, old).send());
        service.has_begun.notified().await;
        caller.abort();
        let _ = caller.await;
    }
    wait_for("the gate to notice", SOON, async || {
        proxy.gauge("solehold_gate_requests_unattended").await.is_ok_and(|count| count == 2.0)
    })
    .await?;
    let new = grant(&server, "two").await?;
    for ended in 0..2 {
        let (status, code, detail) = problem(proxy.put("/", new)).await?;
        assert_eq!((status, code.as_str()), (503, "in_flight"), "{ended} {detail} {:?}", service.effects());
        // One gives an answer that nobody waits for, the other only closes its connection.
        service.may_end.notify_one();
        wait_for("one to end", SOON, async || {
            proxy
                .gauge("solehold_gate_requests_running")
                .await
                .is_ok_and(|count| count < 2.0 - f64::from(ended))
        })
        .await?;
    }
    passes(&proxy, "/", new).await?;
    assert_eq!(service.effects(), [old, old, new]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_end_cannot_be_known_keeps_newer_ones_out() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, &format!("{SHORT} --metrics-listen 127.0.0.1:0")).await?;
    let old = grant(&server, "one").await?;
    // The service speaks something else than HTTP, and keeps its connection.
    let (status, code, detail) = problem(proxy.put("/odd", old)).await?;
    assert_eq!((status, code.as_str()), (504, "unknown_outcome"), "{detail}");
    let new = grant(&server, "two").await?;
    for _ in 0..2 {
        let (status, code, detail) = problem(proxy.put("/", new)).await?;
        assert_eq!((status, code.as_str()), (503, "in_flight"), "{detail}");
    }
    assert_eq!(proxy.gauge("solehold_gate_requests_lost").await?, 1.0);
    assert!(proxy.program.logs().contains("cannot tell when a request ends"), "{}", proxy.program.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn older_requests_are_cut_off_only_where_that_is_asked_for() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, &format!("{SHORT} --cut")).await?;
    let old = grant(&server, "one").await?;
    let late = tokio::spawn(problem(proxy.put("/held", old)));
    service.has_begun.notified().await;
    let new = grant(&server, "two").await?;
    assert_eq!(answer(proxy.put("/", new)).await?.0, 200);
    let (status, code, detail) = late.await??;
    assert_eq!((status, code.as_str()), (504, "cut"));
    assert!(detail.contains("may have taken effect or not"), "{detail}");
    // What the guide warns of: the service goes on without a connection.
    service.may_end.notify_one();
    wait_for("the late effect", SOON, async || service.effects() == [new, old]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_bounded() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let args = "--answer-within 500ms --in-flight-per-resource 1";
    let proxy = Proxy::start(&server, &service.url, args).await?;
    let token = grant(&server, "one").await?;
    assert_eq!(problem(proxy.put("/held", token)).await?.0, 504);
    let (status, code, detail) = problem(proxy.put("/", token)).await?;
    assert_eq!((status, code.as_str()), (503, "too_many_in_flight"), "{detail}");
    service.may_end.notify_one();
    wait_for("the place to be free", SOON, async || {
        answer(proxy.put("/", token)).await.is_ok_and(|(status, _)| status == 200)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_be_reached_has_done_nothing() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let nobody = format!("http://127.0.0.1:{}", solehold_testkit::free_port()?);
    let proxy = Proxy::start(&server, &nobody, "").await?;
    for holder in ["one", "two"] {
        let token = grant(&server, holder).await?;
        let (status, code, detail) = problem(proxy.put("/", token)).await?;
        assert_eq!((status, code.as_str()), (502, "unreachable"));
        assert!(detail.contains("nothing was done"), "{detail}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_counted_and_logged_in_one_line() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, "--metrics-listen 127.0.0.1:0").await?;
    let old = grant(&server, "one").await?;
    let new = grant(&server, "two").await?;
    assert_eq!(answer(proxy.put("/", new)).await?.0, 200);
    for _ in 0..3 {
        assert_eq!(problem(proxy.put("/a?secret=hunter2", old)).await?.0, 412);
    }
    let is_refusal = |line: &&str| line.contains("request refused");
    let count = async || proxy.program.logs().lines().filter(is_refusal).count() >= 3;
    wait_for("three lines in the log", SOON, count).await?;
    let logs = proxy.program.logs();
    let lines: Vec<&str> = logs.lines().filter(is_refusal).collect();
    assert_eq!(lines.len(), 3, "{logs}");
    for part in [" INFO ", "PUT", "/a", "scene/lobby", &old.to_string(), "412", "stale", "the newest is"] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    assert!(!logs.contains("hunter2"), "{logs}");
    assert_eq!(proxy.gauge("solehold_gate_requests_refused_total{code=\"stale\"}").await?, 3.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_the_gate_does_not_guard_is_named() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, "--kind camera").await?;
    let request = proxy.http.put(&proxy.url).header("Solehold-Resource", "job/nightly");
    let (status, code, detail) = problem(request.header("Solehold-Token", 1)).await?;
    assert_eq!((status, code.as_str()), (400, "unguarded_kind"), "{detail}");
    assert!(detail.contains("\"job\"") && detail.contains("scene, camera"), "{detail}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_says_which_server_it_cannot_reach() -> Result<()> {
    let nobody = format!("http://127.0.0.1:{}", solehold_testkit::free_port()?);
    let service = Service::start().await?;
    let proxy = Proxy::of(&nobody, &service.url, "--metrics-listen 127.0.0.1:0").await?;
    let said = format!("no server at {nobody}");
    wait_for("it to be logged", SOON, async || proxy.program.logs().contains(&said)).await?;
    let (status, code, detail) = problem(proxy.put("/", 1)).await?;
    assert_eq!((status, code.as_str()), (503, "undecidable"), "{detail}");
    assert!(detail.contains(&said), "{detail}");
    let (status, text) = proxy.health("/readyz").await?;
    assert!(status == 503 && text.contains(&said), "{status} {text}");
    assert_eq!(proxy.health("/healthz").await?, (200, "ok\n".to_owned()));
    let logs = proxy.program.logs();
    assert_eq!(logs.matches("the gate cannot reach the server").count(), 1, "{logs}");
    Ok(())
}

/// Makes a key; the first one is made without showing any.
async fn key(server: &Solehold, admin: Option<&str>, body: Value) -> Result<String> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    let mut request = http.post(format!("{}/api/v1/admin/keys", server.url())).json(&body);
    if let Some(admin) = admin {
        request = request.bearer_auth(admin);
    }
    let made = request.send().await?.error_for_status()?.json::<Value>().await?;
    Ok(made["key"].as_str().context("a key")?.to_owned())
}

/// The server answers, so it is not away: nothing is admitted that a gate that fails open would admit without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_whose_key_is_refused_does_not_fail_open() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let old = grant(&server, "one").await?;
    let _new = grant(&server, "two").await?;
    key(&server, None, json!({ "name": "admin", "role": "admin" })).await?;
    let service = Service::start().await?;
    for api_key in ["", "--api-key wrong"] {
        let args = format!("--fail-open {api_key} --metrics-listen 127.0.0.1:0");
        let proxy = Proxy::start(&server, &service.url, &args).await?;
        let is_said = async || proxy.program.logs().contains("the server refuses the gate");
        wait_for("it to be logged", SOON, is_said).await?;
        for _ in 0..20 {
            let (status, code, detail) = problem(proxy.put("/", old)).await?;
            assert_eq!((status, code.as_str()), (503, "undecidable"), "{detail}");
            assert!(detail.contains("refuses") && detail.contains("unauthorized"), "{detail}");
        }
        assert_eq!(proxy.gauge("solehold_gate_denied").await?, 1.0);
        let (status, text) = proxy.health("/readyz").await?;
        assert!(status == 503 && text.contains("unauthorized"), "{status} {text}");
        let logs = proxy.program.logs();
        assert_eq!(logs.matches(" ERROR ").count(), 1, "{logs}");
    }
    assert_eq!(service.effects(), Vec::<u64>::new());
    Ok(())
}

/// Any caller can name any resource: one that the gate's key is not for says nothing of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_the_key_of_a_gate_is_not_for_opens_it_for_no_other() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let old = grant(&server, "one").await?;
    let new = grant(&server, "two").await?;
    let admin = key(&server, None, json!({ "name": "admin", "role": "admin" })).await?;
    let scopes = json!([{ "kind": "scene", "key_prefix": "lob" }]);
    let limited = json!({ "name": "gate", "role": "reader", "only": scopes });
    let limited = key(&server, Some(&admin), limited).await?;
    let service = Service::start().await?;
    let args = format!("--fail-open --api-key {limited} --metrics-listen 127.0.0.1:0");
    let proxy = Proxy::start(&server, &service.url, &args).await?;
    wait_for("a ready gate", SOON, async || {
        proxy.health("/readyz").await.is_ok_and(|(status, _)| status == 200)
    })
    .await?;
    let forged = new + 1_000;
    for _ in 0..20 {
        let request = proxy.http.put(&proxy.url).header("Solehold-Resource", "scene/cellar");
        let (status, code, detail) = problem(request.header("Solehold-Token", 1)).await?;
        assert_eq!((status, code.as_str()), (503, "undecidable"), "{detail}");
        assert!(detail.contains("may not see"), "{detail}");
        let (status, code, detail) = problem(proxy.put("/", forged)).await?;
        assert_eq!((status, code.as_str()), (409, "never_given"), "{detail}");
    }
    assert_eq!(problem(proxy.put("/", old)).await?.0, 412);
    assert_eq!(answer(proxy.put("/", new)).await?.0, 200);
    assert_eq!(proxy.gauge("solehold_gate_denied").await?, 0.0);
    assert_eq!(proxy.health("/readyz").await?.0, 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_is_told_who_asked() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let proxy = Proxy::start(&server, &service.url, "").await?;
    let request = proxy.http.get(format!("{}/", proxy.url)).header("X-Forwarded-For", "203.0.113.5");
    let (status, seen) = answer(request).await?;
    let host = proxy.url.strip_prefix("http://").context("a host")?;
    assert_eq!(status, 200, "{seen}");
    for line in [
        "x-forwarded-for: 203.0.113.5, 127.0.0.1\r\n",
        "x-forwarded-proto: http\r\n",
        &format!("x-forwarded-host: {host}\r\n"),
    ] {
        assert!(seen.to_ascii_lowercase().contains(line), "{line} is not in:\n{seen}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_serves_tls() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let service = Service::start().await?;
    let folder = solehold_testkit::TempDir::new()?;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let cert = common::write(folder.path(), "cert.pem", &made.cert.pem())?;
    let key = common::write(folder.path(), "key.pem", &made.signing_key.serialize_pem())?;
    let proxy = Proxy::start(&server, &service.url, &format!("--tls-cert {cert} --tls-key {key}")).await?;
    let url = proxy.url.replace("127.0.0.1", "localhost");
    assert!(url.starts_with("https://"), "{url}");
    let root = reqwest::Certificate::from_pem(made.cert.pem().as_bytes())?;
    let http = reqwest::Client::builder().no_proxy().add_root_certificate(root).build()?;
    let (status, seen) = answer(http.get(&url)).await?;
    assert_eq!(status, 200, "{seen}");
    assert!(seen.to_ascii_lowercase().contains("x-forwarded-proto: https\r\n"), "{seen}");

    let upstream = ["gate", "http", "--kind", "scene", "--upstream", "http://x"];
    let half = run(upstream.iter().chain(&["--tls-cert", cert.as_str()])).await?;
    assert!(half.code == Some(2) && half.stderr.contains("--tls-key"), "{half:?}");
    let swapped = run(upstream.iter().chain(&["--tls-cert", key.as_str(), "--tls-key", &cert])).await?;
    assert!(swapped.code == Some(2) && swapped.stderr.contains("cannot use"), "{swapped:?}");
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
    for (upstream, fault) in [
        ("ftp://x", "is a URL of the scheme \"ftp\""),
        ("http://u:hunter2@x", "has a user or a password"),
        ("http://x/?key=hunter2", "has a query"),
        ("http://x/#hunter2", "has a fragment"),
    ] {
        let odd = run(["gate", "http", "--kind", "scene", "--upstream", upstream]).await?;
        let told = format!("--upstream {fault}; write http://HOST:PORT/PATH");
        assert!(odd.code == Some(2) && odd.stderr.contains(&told), "{odd:?}");
        assert!(!odd.stderr.contains("hunter2"), "{odd:?}");
    }
    let odd = run(["gate", "http", "--kind", "scene", "--upstream", "http://x", "--cache-ttl", "0s"]).await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("above 0"), "{odd:?}");
    Ok(())
}
