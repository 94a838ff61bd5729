//! Every recipe against the real thing: a holder is paused, another takes over and writes, and the first one wakes up
//! and writes, too. Behind a gate nothing of it is left; in the control beside it, without a gate, it overwrites.
//!
//! `SOLEHOLD_E2E=full` (`make e2e EXAMPLE=gates`) runs 10,000 pauses.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::{collections::BTreeMap, path::PathBuf, process::Command, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    extract::State,
    routing::{get, put},
};
use gates::{
    files::{Written, write_fenced},
    objects::{self, Bucket},
    redis::{Redis, Reply},
};
use solehold_client::{
    ClientSession, Http, SessionConfig, Token,
    gate::{Gate, GateOptions, Verdict},
};
use solehold_sql::fenced::{Fencing, Marks, column, guarded_update, is_stale};
use solehold_testkit::{Postgres, Program, Redis as RedisServer, Solehold, TempDir};
use tokio::{net::TcpListener, sync::Mutex};
use tokio_postgres::{Client, NoTls};

/// A place that is written to, behind a gate and without one.
#[async_trait]
trait Place: Send {
    fn name(&self) -> &'static str;
    /// Writes behind the gate; false if it was refused.
    async fn write(&mut self, token: u64, value: &str) -> bool;
    async fn read(&mut self) -> String;
    /// Writes without a gate.
    async fn write_unfenced(&mut self, value: &str);
    async fn read_unfenced(&mut self) -> String;
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[derive(Clone, Copy, PartialEq)]
enum SqlForm {
    Column,
    Statement,
    Trigger,
}

struct Sql {
    client: Client,
    form: SqlForm,
    marks: Marks,
}

impl Sql {
    async fn new(form: SqlForm) -> Self {
        let url = Postgres::shared().await.unwrap().create_database("gates").await.unwrap();
        let client = connect(&url).await;
        let marks = Marks::new("fences").unwrap();
        let mut setup = "CREATE TABLE tracks (scene text PRIMARY KEY, value text); \
             CREATE TABLE unfenced (scene text PRIMARY KEY, value text); \
             INSERT INTO tracks VALUES ('lobby', ''); INSERT INTO unfenced VALUES ('lobby', '');"
            .to_owned();
        setup += &marks.schema();
        match form {
            SqlForm::Column => setup += &column("tracks", "fence").unwrap(),
            SqlForm::Trigger => setup += &marks.trigger("tracks", "scene", "scene").unwrap(),
            SqlForm::Statement => {}
        }
        client.batch_execute(&setup).await.unwrap();
        Self { client, form, marks }
    }
}

#[async_trait]
impl Place for Sql {
    fn name(&self) -> &'static str {
        match self.form {
            SqlForm::Column => "PostgreSQL by column",
            SqlForm::Statement => "PostgreSQL by statement",
            SqlForm::Trigger => "PostgreSQL by trigger",
        }
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        let plain = "UPDATE tracks SET value = $1 WHERE scene = 'lobby'";
        if self.form == SqlForm::Column {
            let sql = guarded_update("tracks", "scene", "fence", &["value"]).unwrap();
            return self.client.execute(&sql, &[&"lobby", &(token as i64), &value]).await.unwrap() == 1;
        }
        let transaction = self.client.transaction().await.unwrap();
        let admitted = match self.form {
            SqlForm::Statement => self.marks.admit(&transaction, "scene/lobby", token, None).await.unwrap(),
            _ => self.marks.show(&transaction, token).await.map(|()| Fencing::Admitted).unwrap(),
        };
        if admitted != Fencing::Admitted {
            return false;
        }
        match transaction.execute(plain, &[&value]).await {
            Ok(_) => transaction.commit().await.map(|()| true).unwrap(),
            Err(error) => !is_stale(&error),
        }
    }

    async fn read(&mut self) -> String {
        self.client.query_one("SELECT value FROM tracks", &[]).await.unwrap().get(0)
    }

    async fn write_unfenced(&mut self, value: &str) {
        self.client.execute("UPDATE unfenced SET value = $1", &[&value]).await.unwrap();
    }

    async fn read_unfenced(&mut self) -> String {
        self.client.query_one("SELECT value FROM unfenced", &[]).await.unwrap().get(0)
    }
}

struct InRedis {
    redis: Redis,
    _server: RedisServer,
}

#[async_trait]
impl Place for InRedis {
    fn name(&self) -> &'static str {
        "Redis by a Lua script"
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        self.redis.write_fenced("lobby", token, value).await.unwrap().is_none()
    }

    async fn read(&mut self) -> String {
        text(self.redis.ask(&["GET", "lobby"]).await.unwrap())
    }

    async fn write_unfenced(&mut self, value: &str) {
        self.redis.ask(&["SET", "unfenced", value]).await.unwrap();
    }

    async fn read_unfenced(&mut self) -> String {
        text(self.redis.ask(&["GET", "unfenced"]).await.unwrap())
    }
}

fn text(reply: Reply) -> String {
    let Reply::Text(text) = reply else { panic!("{reply:?} is no text") };
    text
}

struct Files(TempDir);

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[async_trait]
impl Place for Files {
    fn name(&self) -> &'static str {
        "files"
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        write_fenced(&self.path("lobby"), token, value.as_bytes()).unwrap() == Written::InPlace
    }

    async fn read(&mut self) -> String {
        std::fs::read_to_string(self.path("lobby")).unwrap()
    }

    async fn write_unfenced(&mut self, value: &str) {
        std::fs::write(self.path("unfenced"), value).unwrap();
    }

    async fn read_unfenced(&mut self) -> String {
        std::fs::read_to_string(self.path("unfenced")).unwrap()
    }
}

/// A service in this process that asks its gate before it writes.
struct Library {
    gate: Gate,
    values: [String; 2],
}

#[async_trait]
impl Place for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        let scene = self.gate.key("scene", "lobby").unwrap();
        let verdict = self.gate.decide(&scene, Token(token), None).await;
        if verdict == Verdict::Admit {
            self.values[0] = value.to_owned();
        }
        verdict == Verdict::Admit
    }

    async fn read(&mut self) -> String {
        self.values[0].clone()
    }

    async fn write_unfenced(&mut self, value: &str) {
        self.values[1] = value.to_owned();
    }

    async fn read_unfenced(&mut self) -> String {
        self.values[1].clone()
    }
}

/// A real S3 server: objects are files in a folder.
struct Objects {
    bucket: Bucket,
    url: String,
    http: reqwest::Client,
    _folder: TempDir,
}

impl Objects {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::create_dir(folder.path().join("tracks")).unwrap();
        let service =
            s3s::service::S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap()).build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/tracks", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let builder =
                        hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                    let _ = builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
                });
            }
        });
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { bucket: Bucket::open(http.clone(), &url).await.unwrap(), url, http, _folder: folder }
    }

    /// A put whose token is metadata, on condition that the content has this ETag.
    async fn put_with_metadata(&self, token: u64, value: &str, etag: Option<&str>) -> bool {
        let request = self.http.put(format!("{}/by-metadata", self.url)).header("x-amz-meta-token", token);
        let request = match etag {
            Some(etag) => request.header("If-Match", etag),
            None => request,
        };
        request.body(value.to_owned()).send().await.unwrap().status().is_success()
    }
}

#[async_trait]
impl Place for Objects {
    fn name(&self) -> &'static str {
        "object store"
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        self.bucket.write_fenced("lobby", token, value).await.unwrap() == objects::Written::InPlace
    }

    async fn read(&mut self) -> String {
        self.bucket.read("lobby").await.unwrap().unwrap().content
    }

    async fn write_unfenced(&mut self, value: &str) {
        let request = self.http.put(format!("{}/unfenced", self.url)).body(value.to_owned());
        assert!(request.send().await.unwrap().status().is_success());
    }

    async fn read_unfenced(&mut self) -> String {
        let answer = self.http.get(format!("{}/unfenced", self.url)).send().await.unwrap();
        answer.text().await.unwrap()
    }
}

type Values = Arc<Mutex<BTreeMap<String, String>>>;

/// A service that knows nothing of tokens, and the proxy in front of it.
struct Proxied {
    service: String,
    proxy: String,
    http: reqwest::Client,
    _program: Program,
}

impl Proxied {
    async fn new(server: &Solehold) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route(
                "/{name}",
                put(async |State(values): State<Values>, axum::extract::Path(name), body| {
                    values.lock().await.insert(name, body);
                }),
            )
            .route(
                "/{name}",
                get(async |State(values): State<Values>, axum::extract::Path(name)| {
                    let name: String = name;
                    values.lock().await.get(&name).cloned().unwrap_or_default()
                }),
            )
            .with_state(Values::default());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let mut command = Command::new(Solehold::binary().unwrap());
        command.args(["gate", "http", "--kind", "scene", "--listen", "127.0.0.1:0", "--upstream", &service]);
        command.args(["--server", server.url()]);
        let program = Program::start("gate", &command, "solehold gate http listening on ").await.unwrap();
        let proxy = program.said().split(',').next().unwrap().to_owned();
        Self {
            service,
            proxy,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            _program: program,
        }
    }

    async fn get(&self, name: &str) -> String {
        let answer = self.http.get(format!("{}/{name}", self.service)).send().await.unwrap();
        answer.text().await.unwrap()
    }
}

#[async_trait]
impl Place for Proxied {
    fn name(&self) -> &'static str {
        "HTTP proxy"
    }

    async fn write(&mut self, token: u64, value: &str) -> bool {
        let request = self.http.put(format!("{}/lobby", self.proxy)).body(value.to_owned());
        let request = request.header("Solehold-Resource", "scene/lobby").header("Solehold-Token", token);
        let status = request.send().await.unwrap().status().as_u16();
        assert!([200, 412].contains(&status), "{status}");
        status == 200
    }

    async fn read(&mut self) -> String {
        self.get("lobby").await
    }

    async fn write_unfenced(&mut self, value: &str) {
        let request = self.http.put(format!("{}/unfenced", self.service)).body(value.to_owned());
        request.send().await.unwrap();
    }

    async fn read_unfenced(&mut self) -> String {
        self.get("unfenced").await
    }
}

async fn places(server: &Solehold, authority: Arc<Http>) -> Vec<Box<dyn Place>> {
    let redis_server = RedisServer::start().await.unwrap();
    let redis = Redis::connect(&redis_server.address()).await.unwrap();
    let gate = Gate::open(authority, GateOptions::new(["scene"]).unwrap()).unwrap();
    vec![
        Box::new(Sql::new(SqlForm::Column).await),
        Box::new(Sql::new(SqlForm::Statement).await),
        Box::new(Sql::new(SqlForm::Trigger).await),
        Box::new(InRedis { redis, _server: redis_server }),
        Box::new(Files(TempDir::new().unwrap())),
        Box::new(Objects::new().await),
        Box::new(Library { gate, values: Default::default() }),
        Box::new(Proxied::new(server).await),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_writer_is_refused_in_every_form() {
    let is_full = std::env::var("SOLEHOLD_E2E").is_ok_and(|load| load == "full");
    let pauses: u64 = if is_full { 10_000 } else { 50 };
    let server = Solehold::builder().engine("memory:").start().await.unwrap();
    let authority = Arc::new(Http::to(server.url()).unwrap());
    let open = async |name: &str| {
        let config = SessionConfig { ttl: std::time::Duration::from_secs(600), ..SessionConfig::new(name) };
        ClientSession::open(authority.clone(), config).await.unwrap()
    };
    let holders = [open("one").await, open("two").await];
    let mut places = places(&server, authority.clone()).await;
    let mut refused = vec![0u64; places.len()];
    let mut overwritten = vec![0u64; places.len()];

    let mut paused = holders[0].acquire("scene", "lobby").await.unwrap();
    for pause in 0..pauses {
        // The one who holds it is paused with its token in hand; its lease ends without it, and the other one begins.
        let token = paused.token().0;
        paused.release().await.unwrap();
        let present = holders[(pause as usize + 1) % 2].acquire("scene", "lobby").await.unwrap();
        let new = format!("{pause} of the present");
        let old = format!("{pause} of the paused");
        for (at, place) in places.iter_mut().enumerate() {
            assert!(place.write(present.token().0, &new).await, "{}: the present holder", place.name());
            place.write_unfenced(&new).await;
            // It wakes up.
            assert!(!place.write(token, &old).await, "{}: a late write got through", place.name());
            place.write_unfenced(&old).await;
            assert_eq!(place.read().await, new, "{}", place.name());
            refused[at] += 1;
            overwritten[at] += u64::from(place.read_unfenced().await == old);
        }
        paused = present;
    }
    for (place, (refused, overwritten)) in places.iter().zip(refused.iter().zip(&overwritten)) {
        println!(
            "{:<26} {refused} late writes refused; without a gate {overwritten} got through",
            place.name()
        );
        assert_eq!((*refused, *overwritten), (pauses, pauses));
    }
}

#[tokio::test]
async fn a_writer_that_was_paused_before_its_put_is_refused_by_the_store() {
    let store = Objects::new().await;
    let bucket = &store.bucket;
    for token in 1..=50 {
        // Read, paused; the next holder writes the same content twice; woken up with what was read.
        assert_eq!(bucket.write_fenced("lobby", token, "same").await.unwrap(), objects::Written::InPlace);
        let seen = bucket.read("lobby").await.unwrap();
        for content in ["other", "same"] {
            let written = bucket.write_fenced("lobby", token + 1, content).await.unwrap();
            assert_eq!(written, objects::Written::InPlace);
        }
        assert_eq!(bucket.write_over("lobby", seen.as_ref(), token, "late").await.unwrap(), None);
        let written = bucket.write_fenced("lobby", token, "late").await.unwrap();
        assert_eq!(written, objects::Written::Stale(token + 1));
        // Its own write, when the answer was lost.
        let seen = bucket.read("lobby").await.unwrap();
        let again = bucket.write_over("lobby", seen.as_ref(), token + 1, "same").await.unwrap();
        assert_eq!(again, Some(objects::Written::InPlace));
    }
}

#[tokio::test]
async fn a_token_in_the_metadata_lets_a_paused_writer_through() {
    let store = Objects::new().await;
    assert!(store.put_with_metadata(1, "same", None).await);
    let seen = store.http.get(format!("{}/by-metadata", store.url)).send().await.unwrap();
    let etag = seen.headers()["etag"].to_str().unwrap().to_owned();
    for content in ["other", "same"] {
        assert!(store.put_with_metadata(2, content, None).await);
    }
    assert!(store.put_with_metadata(1, "late", Some(&etag)).await, "the recipe's reason would be gone");
}
