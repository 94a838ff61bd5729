//! A control plane, a sink, a broker and agents, all private to the test.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use solehold_testkit::{
    Postgres, Program, Proxy, RabbitMq, Solehold, SoleholdBuilder, TempDir, free_port, package_file, wait_for,
};
use tokio::sync::Mutex;

use crate::events::{Event, Inbox};

/// Long enough for anything that a busy machine does.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const TTL: Duration = Duration::from_secs(5);
pub const TENANT: &str = "acme";
pub const SITE: &str = "north";
/// A field of the template of the workers' configuration.
pub const MODEL: &str = "small";

/// How much of everything.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub cameras: usize,
    pub frame: Duration,
    /// How long the control plane is away.
    pub outage: Duration,
    pub is_full: bool,
}

impl Size {
    pub fn from_env() -> Self {
        let is = |name: &str, wanted: &str| std::env::var(name).is_ok_and(|value| value == wanted);
        let is_full = is("SOLEHOLD_E2E", "full");
        let outage = match (is("SOLEHOLD_E2E_LONG", "1"), is_full) {
            (true, _) => Duration::from_secs(300),
            (false, true) => Duration::from_secs(60),
            (false, false) => TTL,
        };
        let (cameras, frame) = if is_full { (48, 500) } else { (12, 200) };
        Self { cameras, frame: Duration::from_millis(frame), outage, is_full }
    }

    pub fn camera(self, number: usize) -> String {
        format!("cam-{number:02}")
    }

    pub fn names(self) -> Vec<String> {
        (0..self.cameras).map(|number| self.camera(number)).collect()
    }
}

/// Who holds a camera, and under which token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub runner: String,
    pub token: i64,
}

pub struct World {
    pub size: Size,
    pub database: tokio_postgres::Client,
    pub inbox: Inbox,
    /// Between the agents and the control plane.
    pub network: Proxy,
    http: Client,
    admin_key: String,
    /// Of the agents, by name: what a key took belongs to it, also after a crash.
    keys: Mutex<BTreeMap<String, String>>,
    server: Solehold,
    how: SoleholdBuilder,
    sink: String,
    _servers: (Postgres, RabbitMq, Program, TempDir),
}

impl World {
    pub async fn start(size: Size) -> Result<Self> {
        // The sink's disk is not what is measured, and it is the control plane's, too.
        let database = Postgres::builder().setting("synchronous_commit", "off");
        let (postgres, broker) = tokio::try_join!(database.start(), RabbitMq::start())?;
        let inbox = Inbox::of(&broker.url()).await?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_pipeline-sink"));
        command.args(["--listen", "127.0.0.1:0", "--database", &postgres.url()]);
        let sink = Program::start("sink", &command, "pipeline sink listening on ").await?;
        let folder = TempDir::new()?;
        let config = folder.path().join("solehold.yaml");
        let relay = format!(
            "relays:\n  - name: pipeline\n    start_at: oldest\n    rabbitmq: {{ url: {:?} }}\n",
            broker.url()
        );
        fs::write(&config, relay)?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let how = Solehold::builder().listen(address).data_dir(folder.path().join("data"));
        let how = how.arg("--config").arg(config);
        let server = how.start().await?;
        let mut world = Self {
            size,
            database: postgres.connect().await?,
            inbox,
            network: Proxy::start(address).await?,
            http: Client::builder().timeout(PATIENCE).build()?,
            admin_key: String::new(),
            keys: Mutex::default(),
            server,
            how,
            sink: sink.said().to_owned(),
            _servers: (postgres, broker, sink, folder),
        };
        world.admin_key = world.key("operator", "admin", None).await?;
        Ok(world)
    }

    /// Makes a key. From the first one on nobody gets in without.
    async fn key(&self, name: &str, role: &str, tenant: Option<&str>) -> Result<String> {
        let body = json!({"name": name, "role": role, "tenant": tenant});
        let made = self.send(Method::POST, "/admin/keys", &body).await?;
        Ok(made["key"].as_str().context("a key")?.to_owned())
    }

    /// Asks the control plane as an operator.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let url = format!("{}/api/v1{path}", self.server.url());
        let mut asked = self.http.request(method, &url);
        if !self.admin_key.is_empty() {
            asked = asked.bearer_auth(&self.admin_key);
        }
        if !body.is_null() {
            asked = asked.json(body);
        }
        let answer = asked.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{url}: {status} {text}");
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, &Value::Null).await
    }

    /// The control plane's metrics.
    pub async fn metrics(&self) -> Result<String> {
        let asked = self.http.get(format!("{}/metrics", self.server.url())).bearer_auth(&self.admin_key);
        Ok(asked.send().await?.error_for_status()?.text().await?)
    }

    /// Runs `solehold` as an operator would.
    pub async fn solehold(&self, words: &str) -> Result<String> {
        let mut command = tokio::process::Command::from(clean(Command::new(Solehold::binary()?)));
        command.args(words.split_whitespace());
        command.env("SOLEHOLD_SERVER", self.server.url()).env("SOLEHOLD_API_KEY", &self.admin_key);
        let Output { status, stdout, stderr } = command.env("SOLEHOLD_TENANT", TENANT).output().await?;
        ensure!(status.success(), "solehold {words}: {}", String::from_utf8_lossy(&stderr));
        Ok(String::from_utf8(stdout)?)
    }

    /// Kills the control plane, and starts it again on what it has on disk.
    pub async fn crash_server(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.server.kill9().await?;
        self.server = self.how.start().await?;
        Ok(began.elapsed())
    }

    pub async fn declare_cameras(&self) -> Result<()> {
        let path = format!("/tenants/{TENANT}/sites/{SITE}/cameras");
        for camera in self.size.names() {
            let body = json!({"camera_uuid": camera, "rtsp_url": format!("rtsp://{camera}.local/stream")});
            self.send(Method::POST, &path, &body).await?;
        }
        Ok(())
    }

    /// Starts an agent with a key of its own.
    pub async fn agent(&self, name: &str, group: &str, version: &str) -> Result<Agent> {
        let known = self.keys.lock().await.get(name).cloned();
        let key = match known {
            Some(key) => key,
            None => self.key(name, "runner", Some(TENANT)).await?,
        };
        self.keys.lock().await.insert(name.to_owned(), key.clone());
        let folder = TempDir::new()?;
        let metrics_port = free_port()?;
        let worker = package_file("worker.py");
        let template = folder.path().join("shard.yaml");
        fs::write(&template, format!("model: {MODEL}\nrunner_id: not this one\n"))?;
        let text = format!(
            "runner_id: {name}\ncontrol_plane_url: http://{}\napi_key: {key}\ntenant: {TENANT}\nsite: {SITE}\n\
             deployment_group: {group}\ndeployment_version: {version:?}\nmetrics_port: {metrics_port}\n\
             max_workers: 3\nmax_cameras_per_worker: 32\nlease_ttl_seconds: {}\nheartbeat_interval_seconds: 1\n\
             lease_retry_interval_seconds: 1\ngrace_seconds: {}\ndrain_budget_seconds: 25\nworker:\n\
             \x20 command: [python3, {worker:?}, --config, \"{{config}}\"]\n  config_template: {template:?}\n\
             \x20 protocol: required\n  stop_timeout_seconds: 10\n\
             \x20 env: {{SINK_URL: {:?}, FRAME_SECONDS: '{}', CHECKPOINT_SECONDS: '5'}}\n",
            self.network.addr(),
            TTL.as_secs(),
            self.size.outage.as_secs() * 2 + 60,
            self.sink,
            self.size.frame.as_secs_f64(),
        );
        let file = folder.path().join("agent.yaml");
        fs::write(&file, text)?;
        let mut command = clean(Command::new(Solehold::binary()?));
        command.args(["agent", "--config"]).arg(&file);
        let program = Program::start("agent", &command, "solehold agent ").await?;
        Ok(Agent { name: name.to_owned(), program, metrics_port, _folder: folder })
    }

    /// The leases on cameras.
    pub async fn leases(&self) -> Result<Vec<Value>> {
        let answer = self.get(&format!("/leases?tenant={TENANT}&limit=1000")).await?;
        let leases = answer["leases"].as_array().context("leases")?.iter();
        Ok(leases.filter(|lease| lease["status"] == "active").cloned().collect())
    }

    /// Which cameras are held.
    pub async fn held(&self) -> Result<BTreeMap<String, Held>> {
        let leases = self.leases().await?;
        let of = |lease: &Value| {
            let token = lease["token"].as_i64()?;
            let runner = lease["runner_id"].as_str()?.to_owned();
            Some((lease["camera_uuid"].as_str()?.to_owned(), Held { runner, token }))
        };
        Ok(leases.iter().filter_map(of).collect())
    }

    /// Waits until every camera is held, its frames come under the token of its lease, no move is left to be made, and
    /// `is_so` of who holds what.
    pub async fn settled(
        &self,
        what: &str,
        is_so: impl Fn(&BTreeMap<String, Held>) -> bool,
    ) -> Result<BTreeMap<String, Held>> {
        let look = async || {
            let held =
                self.held().await.ok().filter(|held| held.len() == self.size.cameras && is_so(held))?;
            let marks = self.marks().await.ok()?;
            let flows = held.iter().all(|(camera, held)| marks.get(camera) == Some(&held.token));
            let deployments = self.get(&format!("/deployments?tenant={TENANT}")).await.ok()?;
            (flows && deployments["moves_left"] == 0).then_some(held)
        };
        let settled = wait_for(what, PATIENCE, look).await;
        match settled {
            Ok(held) => Ok(held),
            Err(error) => Err(error.context(format!("{:?}", self.held().await))),
        }
    }

    /// The token of each camera's last frame.
    async fn marks(&self) -> Result<BTreeMap<String, i64>> {
        let sql = "SELECT camera, f.token FROM pipeline.marks m JOIN pipeline.frames f USING (camera, frame)";
        let rows = self.database.query(sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Seconds since 1970, by the sink's clock.
    pub async fn now(&self) -> Result<f64> {
        let sql = "SELECT extract(epoch FROM clock_timestamp())::float8";
        Ok(self.database.query_one(sql, &[]).await?.get(0))
    }

    /// Everything that happened to the cameras, by camera, in order.
    pub async fn history(&self) -> Result<BTreeMap<String, Vec<Event>>> {
        let mut all = BTreeMap::new();
        for camera in self.size.names() {
            let path = format!("/resources/camera/{camera}/history?tenant={TENANT}&limit=1000");
            let mut events = Vec::new();
            let mut cursor = String::new();
            loop {
                let page = self.get(&format!("{path}{cursor}")).await?;
                let told = page["events"].as_array().context("events")?;
                events.extend(told.iter().filter_map(Event::of));
                match page["next"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            events.sort_by_key(|event| event.revision);
            all.insert(camera, events);
        }
        Ok(all)
    }
}

/// Nothing of the test's own settings reaches a program.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_")) {
        command.env_remove(name);
    }
    command
}

pub struct Agent {
    pub name: String,
    pub program: Program,
    metrics_port: u16,
    _folder: TempDir,
}

impl Agent {
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let answer = reqwest::get(format!("http://127.0.0.1:{}{path}", self.metrics_port)).await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    pub async fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.get("/status").await?.1)?)
    }

    /// The pids of its workers, as those say themselves.
    pub async fn workers(&self) -> Result<Vec<i32>> {
        let status = self.status().await?;
        let workers = status["workers"].as_array().context("workers")?.iter();
        Ok(workers.filter_map(|worker| worker["stats"]["pid"].as_i64()?.try_into().ok()).collect())
    }

    /// Kills one of its workers.
    pub async fn kill_worker(&self) -> Result<i32> {
        let workers = wait_for("its workers", PATIENCE, async || {
            self.workers().await.ok().filter(|workers| !workers.is_empty())
        });
        let pid = workers.await?[0];
        kill_process(Pid::from_raw(pid).context("a pid")?, Signal::KILL)?;
        Ok(pid)
    }

    /// Asks it to end, and says how long that took.
    pub async fn drain(self) -> Result<Duration> {
        let began = Instant::now();
        let status = self.program.terminate().await?;
        ensure!(status.success(), "{} ended with {status}: {}", self.name, self.program.logs());
        Ok(began.elapsed())
    }
}
