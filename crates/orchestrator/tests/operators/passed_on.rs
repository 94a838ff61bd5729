//! A server that was told of the orchestrator passes its jobs on to those who may see everything.

use std::{convert::Infallible, fs};

use anyhow::{Context, Result, ensure};
use axum::{
    Router,
    body::{Body, Bytes},
    http::HeaderMap,
    routing::get,
};
use futures_util::stream;
use rcgen::{CertificateParams, KeyPair};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{Solehold, free_port, golden, wait_for};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

use crate::world::{KEY, PATIENCE, World};

const JOBS: &str = "/api/v1/orchestrator/jobs";
const LETTERS: &str = "/api/v1/orchestrator/letters";

/// A server, and a key for it if it has keys.
struct Front {
    server: Solehold,
    key: Option<String>,
}

impl Front {
    async fn start(orchestrator: &str, more: &[(&str, &str)]) -> Result<Self> {
        let mut server = Solehold::builder().arg("--orchestrator").arg(orchestrator);
        for (flag, value) in more {
            server = server.arg(*flag).arg(*value);
        }
        Ok(Self { server: server.start().await?, key: None })
    }

    async fn ask_as(
        &self,
        key: Option<&str>,
        method: Method,
        path: &str,
        body: Value,
    ) -> Result<(u16, Value)> {
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        let mut request = client.request(method, format!("{}{path}", self.server.url()));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        // What a caller sends beside its key is not passed on.
        let answer = request.header("x-stranger", "caller").header("cookie", "a=b").send().await?;
        let status = answer.status().as_u16();
        let text = answer.text().await?;
        Ok((status, serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))?))
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let (status, body) = self.ask_as(self.key.as_deref(), Method::GET, path, Value::Null).await?;
        ensure!(status == 200, "{path}: {status} {body}");
        Ok(body)
    }

    /// The status, the code and the words of a refusal.
    async fn refusal(&self, path: &str) -> Result<(u16, String, String)> {
        self.refusal_as(self.key.as_deref(), path).await
    }

    async fn refusal_as(&self, key: Option<&str>, path: &str) -> Result<(u16, String, String)> {
        let (status, body) = self.ask_as(key, Method::GET, path, Value::Null).await?;
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        Ok((status, text("code"), text("detail")))
    }

    /// The whole answer to a path that is sent as it is.
    async fn get_raw(&self, path: &str) -> Result<String> {
        let address = self.server.url().strip_prefix("http://").context("an address")?;
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn make_key(&self, key: Value) -> Result<String> {
        let (status, made) =
            self.ask_as(self.key.as_deref(), Method::POST, "/api/v1/admin/keys", key).await?;
        ensure!(status == 201, "{status} {made}");
        Ok(made["key"].as_str().context("a key")?.to_owned())
    }
}

#[tokio::test]
async fn a_server_passes_jobs_on() -> Result<()> {
    let mut world = World::start().await?;
    let key_file = world.files.path().join("key");
    fs::write(&key_file, format!("{KEY}\n"))?;
    let key_file = key_file.display().to_string();
    // The first process is away: the second answers.
    let both = format!("http://127.0.0.1:{},{}", free_port()?, world.url);
    let mut front = Front::start(&both, &[("--orchestrator-key-file", &key_file)]).await?;
    assert_eq!(front.get(JOBS).await?, json!({ "jobs": [], "next": null }));
    answers_are_as_recorded(&world).await?;
    jobs_are_shown(&world, &front).await?;
    what_is_asked_is_checked(&front).await?;
    keys_see_all_or_nothing(&mut front).await?;
    a_key_that_is_refused_is_the_server_s(&world).await?;
    it_goes_down_and_comes_back(&mut world, &front).await
}

/// The tests of the server have no broker: docs/api.md is made with these answers, which are real ones.
async fn answers_are_as_recorded(world: &World) -> Result<()> {
    world.send(0, "CREATE", "video-17", "video-17").await?;
    world.state_when("video-17", "running").await?;
    world
        .report("video-17", "decode", 1, json!({ "kind": "succeeded", "result": { "frames": 1200 } }))
        .await?;
    world.job_when("video-17", |job| job["stages"][1]["state"] == "queued").await?;
    world.report("video-17", "detect", 1, json!({ "kind": "progress", "fraction": 0.5 })).await?;
    world.job_when("video-17", |job| job["progress"] == 0.75).await?;
    world.send(1, "CANCEL", "video-9", "video-9").await?;
    world.letters_when(1).await?;
    let mut recorded = json!({});
    for path in ["/jobs", "/jobs/video-17", "/letters"] {
        let query = if path == "/letters" { "?payload=false" } else { "" };
        recorded[path] = without_times(world.get(&format!("{path}{query}")).await?);
    }
    golden("../crates/server/tests/support/orchestrator.json", &format!("{recorded:#}\n"));
    Ok(())
}

/// With fixed values for those that differ from run to run.
fn without_times(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = match name.as_str() {
                    "epoch" | "revision" => json!(4),
                    _ => without_times(value.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_times(item.take())),
        Value::String(text) if text.starts_with("20") && text.ends_with('Z') => {
            *text = "2026-11-18T09:12:44.123Z".to_owned();
        }
        _ => {}
    }
    value
}

async fn jobs_are_shown(world: &World, front: &Front) -> Result<()> {
    for (partition, job) in [(0, "a"), (1, "b"), (0, "c/ü")] {
        world.send(partition, "CREATE", job, &format!("m-{partition}")).await?;
        world.state_when(job.replace('/', "%2F").as_str(), "running").await?;
    }
    world.report("b", "decode", 1, json!({ "kind": "failed", "reason": "no GPU" })).await?;
    world.state_when("b", "failed").await?;
    world.send(1, "CANCEL", "none", "m-9").await?;
    world.letters_when(2).await?;

    // Everything is as the orchestrator has it.
    let theirs = world.get("/jobs").await?;
    let ours = front.get(JOBS).await?;
    assert_eq!((&ours["jobs"], &ours["next"]), (&theirs["jobs"], &Value::Null));
    let b = &ours["jobs"][1];
    assert_eq!(
        (&b["reason"], &b["labels"]),
        (&json!("stage decode: no GPU"), &json!({ "customer": "acme" }))
    );
    assert!(b["epoch"].as_i64() >= Some(1) && b["attempts"].as_i64() >= Some(1), "{b}");
    let failed = front.get(&format!("{JOBS}?state=failed")).await?;
    assert_eq!(failed["jobs"], json!([b]));

    let page = front.get(&format!("{JOBS}?limit=2")).await?;
    assert_eq!((page["jobs"].as_array().map(Vec::len), &page["next"]), (Some(2), &json!("b")));
    let page = front.get(&format!("{JOBS}?limit=1&cursor=b")).await?;
    assert_eq!((&page["jobs"][0]["job_id"], &page["next"]), (&json!("c/ü"), &json!("c%2F%C3%BC")));
    let page = front.get(&format!("{JOBS}?cursor=c%252F%25C3%25BC")).await?;
    assert_eq!((&page["jobs"][0]["job_id"], &page["next"]), (&json!("video-17"), &Value::Null));

    let theirs = world.get("/jobs/c%2F%C3%BC").await?;
    let ours = front.get(&format!("{JOBS}/c%2F%C3%BC")).await?;
    for (name, value) in ours.as_object().context("a job")? {
        if name != "stages" {
            assert_eq!(value, &theirs[name], "{name}");
        }
    }
    for (ours, theirs) in
        ours["stages"].as_array().into_iter().flatten().zip(theirs["stages"].as_array().into_iter().flatten())
    {
        for (name, value) in ours.as_object().context("a stage")? {
            assert_eq!(value, &theirs[name], "{name}");
        }
    }
    assert_eq!(
        (&ours["input"], &ours["stages"][1]["after"]),
        (&json!({ "video": "c/ü" }), &json!(["decode"]))
    );

    let letters = front.get(LETTERS).await?;
    let mut theirs = world.get("/letters").await?["letters"].take();
    assert!(theirs[0]["payload"].is_string(), "{theirs}");
    for letter in theirs.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        letter.remove("payload");
    }
    assert_eq!(letters, json!({ "letters": theirs, "next": null }));
    assert_eq!(world.get("/letters?payload=false").await?["letters"][0]["payload"], Value::Null);
    Ok(())
}

async fn what_is_asked_is_checked(front: &Front) -> Result<()> {
    let gone = front.refusal(&format!("{JOBS}/none")).await?;
    assert_eq!(gone, (404, "not_found".to_owned(), "there is no job none".to_owned()));
    for odd in
        ["?stat=failed", "?state=lost", "?after=a", "?tenant=acme", "?limit=0", "?cursor=a/b", "/a%00b"]
    {
        let (status, code, detail) = front.refusal(&format!("{JOBS}{odd}")).await?;
        assert_eq!((status, code.as_str()), (400, "invalid_field"), "{odd}: {detail}");
    }
    // Sent as they are: a client would take the dots out of the path.
    for dots in [".", "..", "%2E", "%2e%2e"] {
        let answer = front.get_raw(&format!("{JOBS}/{dots}")).await?;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"field\":\"id\""),
            "{dots}: {answer}"
        );
    }
    for (method, path) in [
        (Method::POST, JOBS.to_owned()),
        (Method::DELETE, format!("{JOBS}/a")),
        (Method::POST, format!("{JOBS}/a/cancel")),
        (Method::GET, "/api/v1/orchestrator/marks".to_owned()),
        (Method::POST, "/api/v1/orchestrator/reports".to_owned()),
    ] {
        let (status, body) = front.ask_as(front.key.as_deref(), method, &path, Value::Null).await?;
        assert!([404, 405].contains(&status), "{path}: {status} {body}");
    }
    Ok(())
}

async fn keys_see_all_or_nothing(front: &mut Front) -> Result<()> {
    front.key = Some(front.make_key(json!({ "name": "root", "role": "admin" })).await?);
    let reader = front.make_key(json!({ "name": "wall", "role": "reader" })).await?;
    let (status, _) = front.ask_as(Some(&reader), Method::GET, JOBS, Value::Null).await?;
    assert_eq!(status, 200);
    let acme = json!({ "name": "acme", "role": "admin", "tenant": "acme" });
    let some = json!({ "name": "some", "role": "reader", "only": [{ "kind": "job" }] });
    for (key, why) in [(acme, "limited to tenant acme"), (some, "limited to some of them")] {
        let key = front.make_key(key).await?;
        for path in [JOBS, &format!("{JOBS}/a"), LETTERS] {
            let (status, code, detail) = front.refusal_as(Some(&key), path).await?;
            assert_eq!((status, code.as_str()), (403, "forbidden"), "{path}");
            assert!(detail.contains(why), "{detail}");
        }
    }
    assert_eq!(front.refusal_as(None, JOBS).await?.0, 401);
    Ok(())
}

async fn a_key_that_is_refused_is_the_server_s(world: &World) -> Result<()> {
    let wrong = world.files.path().join("wrong");
    fs::write(&wrong, "another")?;
    let front =
        Front::start(&world.url, &[("--orchestrator-key-file", &wrong.display().to_string())]).await?;
    let (status, code, detail) = front.refusal(JOBS).await?;
    assert_eq!((status, code.as_str()), (502, "orchestrator_unavailable"));
    assert!(detail.contains("refuses the key of this server: check --orchestrator-key-file"), "{detail}");
    assert!(!detail.contains("another"), "{detail}");
    let none = Front::start(&world.url, &[]).await?;
    assert_eq!(none.refusal(JOBS).await?, (status, code, detail));
    Ok(())
}

async fn it_goes_down_and_comes_back(world: &mut World, front: &Front) -> Result<()> {
    world.program.kill9().await?;
    let (status, code, detail) = front.refusal(JOBS).await?;
    assert_eq!((status, code.as_str()), (502, "orchestrator_unavailable"));
    assert!(detail.contains(&format!("no server at {}", world.url)), "{detail}");
    assert_eq!(detail.matches("no server at ").count(), 2, "{detail}");
    // The server itself is well.
    assert_eq!(front.get("/readyz").await?["ready"], true);
    let address = world.url.strip_prefix("http://").context("an address")?.to_owned();
    world.config["http"]["listen"] = json!(address);
    fs::write(world.own_file(), world.config.to_string())?;
    world.start_again().await?;
    let back = async || front.get(JOBS).await.ok();
    let jobs = wait_for("the orchestrator is back", PATIENCE, back).await?;
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(4));
    // One that answers nothing is not waited for without end.
    world.program.pause().await?;
    let (status, _, detail) = front.refusal(JOBS).await?;
    assert!(status == 502 && detail.contains("within"), "{status} {detail}");
    world.program.resume()?;
    wait_for("the orchestrator goes on", PATIENCE, back).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_without_an_orchestrator_says_so() -> Result<()> {
    let front = Front { server: Solehold::builder().start().await?, key: None };
    for path in [JOBS, &format!("{JOBS}/a"), LETTERS] {
        let (status, code, detail) = front.refusal(path).await?;
        assert_eq!((status, code.as_str()), (404, "not_found"), "{path}");
        assert!(detail.contains("this server was started without --orchestrator"), "{detail}");
    }
    Ok(())
}

/// A peer that is no orchestrator: it answers without end, with other JSON, or sends elsewhere.
#[tokio::test]
async fn whatever_answers_instead_is_bounded() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (tell, mut told) = mpsc::channel(100);
    let endless = async move |headers: HeaderMap| {
        let _ = tell.try_send(headers);
        let piece = || Ok::<_, Infallible>(Bytes::from(vec![b' '; 64 * 1024]));
        Body::from_stream(stream::repeat_with(piece))
    };
    let routes = Router::new()
        .route("/jobs", get(endless))
        .route("/jobs/odd", get(async || r#"{"job_id": 7}"#))
        .route("/jobs/away", get(async || axum::response::Redirect::temporary("/jobs/odd")));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, routes).await });
    let front = Front::start(&url, &[]).await?;
    for (path, why) in [
        (JOBS.to_owned(), "its answer has more than 8388608 bytes"),
        (format!("{JOBS}/odd"), "gave an answer that is not of an orchestrator"),
        (format!("{JOBS}/away"), "answered 307 Temporary Redirect without saying why"),
        (LETTERS.to_owned(), "answered 404 Not Found without saying why"),
    ] {
        let (status, code, detail) = front.refusal(&path).await?;
        assert_eq!((status, code.as_str()), (502, "orchestrator_unavailable"), "{path}: {detail}");
        assert!(detail.contains(why), "{detail}");
    }
    let headers = told.recv().await.context("a request")?;
    let mut names: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
    names.retain(|name| !["accept", "host", "user-agent"].contains(name));
    assert!(names.is_empty(), "nothing of the caller is passed on: {names:?}");
    Ok(())
}

/// By TLS, whose authority is given; what is there is a server without jobs.
#[tokio::test]
async fn the_certificate_of_the_orchestrator_is_checked() -> Result<()> {
    let files = solehold_testkit::TempDir::new()?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
    let [cert, secret] = ["cert.pem", "key.pem"].map(|name| files.path().join(name).display().to_string());
    fs::write(&cert, certificate.pem())?;
    fs::write(&secret, key.serialize_pem())?;
    let port = free_port()?;
    let address = format!("127.0.0.1:{port}").parse()?;
    let secured =
        Solehold::builder().listen(address).arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&secret);
    let _secured = secured.start().await?;
    let url = format!("https://localhost:{port}");
    let trusting = Front::start(&url, &[("--orchestrator-ca-cert", &cert)]).await?;
    let (status, _, detail) = trusting.refusal(JOBS).await?;
    assert!(status == 502 && detail.contains("it answered no_such_route"), "{detail}");
    let doubting = Front::start(&url, &[]).await?;
    let (status, _, detail) = doubting.refusal(JOBS).await?;
    assert!(
        status == 502 && detail.contains(&format!("the certificate of {url} is not trusted")),
        "{detail}"
    );
    Ok(())
}
