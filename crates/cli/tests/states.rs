//! Every read command and every read route, against every state that a lease can be in: each gives an answer that says
//! what is so, and none is surprised.

mod common;

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context, Result, ensure};
use common::{Ran, below, command, ran};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use solehold_core::{
    command::{Command, HandOver},
    key::{LeaseId, Name, ResourceKey, SessionId},
};
use solehold_engine::{clock::ManualClock, resident};
use solehold_server::{Running, Server, ServerConfig, openapi_json};
use uuid::Uuid;

const KIND: &str = "camera";
/// Commands that change something, that do not ask a server, or that tell of placement rather than of leases.
const NOT_READS: &[&str] = &[
    "serve",
    "agent",
    "demo",
    "doctor",
    "elect",
    "explain",
    "gate",
    "orchestrator",
    "job",
    "deploy status",
    "deploy shift",
    "deploy promote",
    "deploy rollback",
    "resource hand-over",
    "resource quarantine",
    "resource clear",
    "run",
    "lock",
    "completions",
    "health",
    "man",
    "admin",
    "lease acquire",
    "lease keep",
    "lease renew",
    "lease release",
    "lease revoke",
    "resource put",
    "resource rm",
    "runner drain",
    "runner rm",
    "placement show",
    "placement set",
    "rows buried",
    "rows revive",
    "sql",
    "session close",
    "top",
];

/// A lease, and what reads must say about it.
struct State {
    name: &'static str,
    lease: Uuid,
    /// How it ended, if it did: in words, and as a status.
    ended: Option<(&'static str, &'static str)>,
    is_known: bool,
}

struct World {
    server: Running,
    http: Client,
    ticks: Arc<ManualClock>,
    session: Uuid,
    states: Vec<State>,
}

impl World {
    async fn start() -> Result<Self> {
        let ticks = Arc::new(ManualClock::default());
        let listen = "127.0.0.1:0".parse()?;
        let server = ServerConfig { listen, ..ServerConfig::default() };
        let server = Server::start(server, resident::memory(ticks.clone())?).await?;
        let http = Client::new();
        let session = Uuid::nil();
        let mut world = Self { server, http, ticks, session, states: Vec::new() };
        let opened =
            world.call(Method::POST, "sessions", json!({"holder": "bob", "ttl_seconds": 3_600})).await?;
        world.session = id(&opened["session_id"])?;
        Ok(world)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Result<(u16, Value)> {
        let url = format!("{}/api/v1/{path}", self.server.url());
        let response = self.http.request(method, url).body(body.to_string()).send().await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).context(text)? };
        Ok((status, body))
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let (status, answer) = self.send(method, path, body).await?;
        ensure!(status < 300, "{path}: {status} {answer}");
        Ok(answer)
    }

    async fn declare(&self, name: &str, lock_delay_ms: u64) -> Result<()> {
        let declared = json!({"site": "site-1", "lock_delay_ms": lock_delay_ms});
        self.call(Method::PUT, &path(name, ""), declared).await.map(drop)
    }

    async fn acquire(&self, name: &str, holder: &str, ttl_seconds: u64) -> Result<Value> {
        let ask = json!({"holder": holder, "ttl_seconds": ttl_seconds});
        self.call(Method::POST, &path(name, "/lease"), ask).await
    }

    /// Offers it to the session of the next holder.
    async fn hand_over(&self, name: &str) -> Result<Uuid> {
        let of = |text: &str| Name::new(text).expect("a name");
        let key = ResourceKey::new(of("default"), of(KIND), of(name));
        let lease = LeaseId::new(&key, Uuid::new_v4());
        let offer = Command::HandOver(HandOver::new(key, lease, SessionId(self.session), 3_000_000));
        let offered = self.server.engine().submit(offer).await?;
        ensure!(offered.is_ok(), "{offered:?}");
        Ok(lease.0)
    }

    fn live(&mut self, name: &'static str, lease: Uuid) {
        self.states.push(State { name, lease, ended: None, is_known: true });
    }

    fn over(&mut self, name: &'static str, lease: Uuid, words: &'static str, status: &'static str) {
        self.states.push(State { name, lease, ended: Some((words, status)), is_known: true });
    }

    /// Leases whose time runs out: they come first, since the clock stands still afterwards.
    async fn make_expired(&mut self) -> Result<()> {
        let mut stolen = Uuid::nil();
        for attempt in 0.. {
            ensure!(attempt < 100, "the sweeper is always first");
            stolen = id(&self.acquire("stolen", "ann", 1).await?["lease_id"])?;
            self.ticks.advance_ms(1_000);
            let taken = self.acquire("stolen", "cat", 1).await?;
            let history = self.call(Method::GET, &format!("leases/{stolen}/history"), json!({})).await?;
            if history["events"]
                .as_array()
                .context("events")?
                .iter()
                .any(|e| e["event_type"] == "lease_stolen")
            {
                break;
            }
            let proof = json!({"token": taken["token"]});
            self.call(Method::DELETE, &path("stolen", "/lease"), proof).await?;
        }
        self.over("stolen", stolen, "expired at", "expired");
        // What is pending waits for the lock-delay, and so does the end of what ran out.
        self.declare("unswept", 60_000).await?;
        self.declare("held-back", 60_000).await?;
        let unswept = id(&self.acquire("unswept", "ann", 1).await?["lease_id"])?;
        self.hand_over("unswept").await?;
        let expired = id(&self.acquire("expired", "ann", 1).await?["lease_id"])?;
        let held_back = id(&self.acquire("held-back", "ann", 1).await?["lease_id"])?;
        self.ticks.advance_ms(1_000);
        self.over("unswept", unswept, "expired at", "expired");
        self.over("expired", expired, "expired at", "expired");
        self.over("held-back", held_back, "expired at", "expired");
        Ok(())
    }

    async fn make_others(&mut self) -> Result<()> {
        let active = id(&self.acquire("active", "ann", 3_000).await?["lease_id"])?;
        self.live("active", active);
        self.acquire("pending", "ann", 3_000).await?;
        let pending = self.hand_over("pending").await?;
        self.live("pending", pending);
        let released = self.acquire("released", "ann", 3_000).await?;
        let proof = json!({"token": released["token"]});
        self.call(Method::DELETE, &path("released", "/lease"), proof).await?;
        self.over("released", id(&released["lease_id"])?, "was released at", "released");
        for (name, fenced) in [("revoked", true), ("revoked-held-back", false)] {
            let lease = id(&self.acquire(name, "ann", 3_000).await?["lease_id"])?;
            let body = json!({"fenced": fenced, "reason": "maintenance"});
            self.call(Method::POST, &path(name, "/lease/revoke"), body).await?;
            self.over(name, lease, "was revoked at", "revoked");
        }
        self.declare("deleted", 0).await?;
        let deleted = id(&self.acquire("deleted", "ann", 3_000).await?["lease_id"])?;
        self.call(Method::DELETE, &format!("{}?force=true&fenced=true", path("deleted", "")), json!({}))
            .await?;
        self.over("deleted", deleted, "was revoked at", "revoked");
        let unconfirmed = self.make_unconfirmed().await?;
        self.live("unconfirmed", unconfirmed);
        let never = State { name: "never", lease: Uuid::new_v4(), ended: None, is_known: false };
        self.states.push(never);
        Ok(())
    }

    /// Granted from the line, and not confirmed yet.
    async fn make_unconfirmed(&self) -> Result<Uuid> {
        let first = self.acquire("unconfirmed", "ann", 3_000).await?;
        let url = format!("{}/api/v1/{}", self.server.url(), path("unconfirmed", "/lease"));
        let ask = json!({"holder": "cat", "ttl_seconds": 3_000, "wait_ms": 30_000});
        let waiting = tokio::spawn(self.http.post(url).body(ask.to_string()).send());
        let is_waited_for = async || {
            let seen = self.call(Method::GET, &path("unconfirmed", ""), json!({})).await;
            seen.is_ok_and(|seen| seen["waiting"] == 1)
        };
        solehold_testkit::wait_for("a waiter", common::SOON, is_waited_for).await?;
        let proof = json!({"token": first["token"]});
        self.call(Method::DELETE, &path("unconfirmed", "/lease"), proof).await?;
        let granted: Value = serde_json::from_str(&waiting.await??.text().await?)?;
        ensure!(granted["confirm_within_ms"] == 2_000, "{granted}");
        id(&granted["lease_id"])
    }

    async fn ask(&self, arguments: &str) -> Result<Ran> {
        let mut command = command(arguments.split(' '));
        command.env("SOLEHOLD_SERVER", self.server.url());
        ran(command).await
    }
}

fn id(value: &Value) -> Result<Uuid> {
    value.as_str().context("an id")?.parse().context("an id")
}

fn path(name: &str, more: &str) -> String {
    format!("resources/{KIND}/{name}{more}")
}

/// The paths of all reads, as the server describes them, filled in for a state.
fn reads(state: &State, session: Uuid) -> Result<Vec<String>> {
    let document: Value = serde_json::from_str(openapi_json())?;
    let mut paths = Vec::new();
    for (path, operations) in document["paths"].as_object().context("paths")? {
        // An export and a watch are streams, which have tests of their own.
        if operations.get("get").is_none() || path.ends_with("/watch") || path.ends_with("/export") {
            continue;
        }
        let lease = state.lease.to_string();
        let session = session.to_string();
        let id = match path.as_str() {
            path if path.contains("/runners/") => "ann",
            path if path.contains("/sessions/") => &session,
            _ => state.name,
        };
        let filled = [
            ("{lease_id}", lease.as_str()),
            ("{kind}", KIND),
            ("{key}", state.name),
            ("{id}", id),
            ("{camera_uuid}", state.name),
            ("{runner_id}", "ann"),
            ("{name}", state.name),
            ("{tenant}", "default"),
            ("{site}", "site-1"),
            ("{zone_id}", "1"),
        ];
        let filled =
            filled.iter().fold(path.clone(), |path, (parameter, value)| path.replace(parameter, value));
        ensure!(!filled.contains('{'), "nothing is known of {filled}");
        paths.push(filled);
    }
    ensure!(paths.len() > 20, "{paths:?}");
    Ok(paths)
}

#[tokio::test]
async fn every_read_has_an_answer_for_every_state_of_a_lease() -> Result<()> {
    let mut world = World::start().await?;
    world.make_expired().await?;
    world.make_others().await?;
    for state in &world.states {
        routes(&world, state).await.with_context(|| format!("a lease that is {}", state.name))?;
        too_late(&world, state).await.with_context(|| format!("a lease that is {}", state.name))?;
        commands(&world, state).await.with_context(|| format!("a lease that is {}", state.name))?;
    }
    every_command_is_accounted_for().await?;
    world.server.shutdown().await;
    Ok(())
}

async fn routes(world: &World, state: &State) -> Result<()> {
    for path in reads(state, world.session)? {
        let url = format!("{}{path}", world.server.url());
        let response = world.http.get(&url).send().await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        ensure!(status == 200 || status == 404, "{path}: {status} {text}");
        if status == 404 {
            let problem: Value = serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))?;
            let code = problem["code"].as_str().unwrap_or_default();
            ensure!(matches!(code, "not_found" | "lost" | "no_session"), "{path}: {text}");
            ensure!(!problem["detail"].as_str().unwrap_or_default().is_empty(), "{path}: {text}");
        }
    }
    let (status, seen) = world.send(Method::GET, &format!("leases/{}", state.lease), json!({})).await?;
    match state.ended {
        None if state.is_known => ensure!(status == 200 && seen["success"] == true, "{status} {seen}"),
        None => ensure!(status == 404 && seen["code"] == "not_found", "{status} {seen}"),
        Some((words, how)) => {
            ensure!(status == 200 && seen["success"] == false, "{status} {seen}");
            is_told(&seen, how)?;
            ensure!(seen["error"].as_str().is_some_and(|error| error.contains(words)), "{seen}");
        }
    }
    Ok(())
}

/// When, how, whose and with which token.
fn is_told(ended: &Value, how: &str) -> Result<()> {
    ensure!(ended["status"] == how && ended["code"] == "lost", "{ended}");
    ensure!(ended["ended_at"].is_string() && ended["token"].is_u64() && ended["holder"] == "ann", "{ended}");
    Ok(())
}

/// What a holder that comes too late is told by everything that names a lease.
async fn too_late(world: &World, state: &State) -> Result<()> {
    let Some((_, how)) = state.ended else { return Ok(()) };
    let id = state.lease;
    // A lease that has expired is gone; one that someone ended is not there.
    let expected = if how == "expired" { 410 } else { 404 };
    for (method, call) in [(Method::PUT, "renew"), (Method::POST, "heartbeat"), (Method::POST, "revoke")] {
        let (status, lost) = world.send(method, &format!("leases/{id}/{call}"), json!({})).await?;
        ensure!(status == expected && lost["code"] == "lost", "{call}: {status} {lost}");
        is_told(&lost["ended"], how).context(call)?;
    }
    let write = json!({"lease_id": id, "sequence": 1, "document": {}});
    let renew = json!({"lease_id": id});
    for (method, call, body) in [(Method::POST, "/lease/renew", renew), (Method::PUT, "/state", write)] {
        let (status, lost) = world.send(method, &path(state.name, call), body).await?;
        ensure!(status == 409 && lost["code"] == "lost", "{call}: {status} {lost}");
        is_told(&lost["ended"], how).context(call)?;
    }
    Ok(())
}

async fn commands(world: &World, state: &State) -> Result<()> {
    let id = state.lease;
    let on = format!("{KIND}/{}", state.name);
    let session = world.session;
    let reads = [
        format!("lease get {on}"),
        format!("lease history {id}"),
        format!("lease history {on} --limit 1"),
        "lease ls".to_owned(),
        format!("resource get {on}"),
        "resource ls".to_owned(),
        "runner ls".to_owned(),
        "runner get ann".to_owned(),
        "session ls".to_owned(),
        format!("session get {session}"),
        "node ls".to_owned(),
        "lock ls".to_owned(),
        "watch --snapshot --limit 0".to_owned(),
    ];
    for arguments in reads.iter().map(String::as_str) {
        for json in [false, true] {
            let ran = world.ask(&format!("{arguments}{}", if json { " --json" } else { "" })).await?;
            let is_expected = matches!(ran.code, Some(0 | 3 | 4)) && !ran.stderr.contains("unexpected");
            ensure!(is_expected, "{arguments}: {ran:?}");
            let printed = if ran.code == Some(0) { &ran.stdout } else { &ran.stderr };
            ensure!(
                !json || printed.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()),
                "{ran:?}"
            );
        }
    }
    let got = world.ask(&format!("lease get {id}")).await?;
    match state.ended {
        None if state.is_known => ensure!(got.code == Some(0), "{got:?}"),
        None => ensure!(got.code == Some(4) && got.stderr.contains("there is no lease"), "{got:?}"),
        Some((words, how)) => {
            ensure!(got.code == Some(3) && got.stderr.contains(words), "{got:?}");
            ensure!(got.stderr.contains("ann had held it with token"), "{got:?}");
            let problem = world.ask(&format!("lease get {id} --json")).await?.stderr;
            let problem: Value = serde_json::from_str(&problem)?;
            ensure!(problem["code"] == "lost", "{problem}");
            is_told(&problem["ended"], how)?;
            let renewed = world.ask(&format!("lease renew {id}")).await?;
            ensure!(renewed.code == Some(3) && renewed.stderr.contains(words), "{renewed:?}");
        }
    }
    Ok(())
}

/// A new command is a read, and then it is above, or it is not.
async fn every_command_is_accounted_for() -> Result<()> {
    let reads = [
        "lease get",
        "lease history",
        "lease ls",
        "resource get",
        "resource ls",
        "runner ls",
        "runner get",
        "session ls",
        "session get",
        "node ls",
        "watch",
    ];
    let known: BTreeSet<&str> = reads.iter().chain(NOT_READS).copied().collect();
    for name in below(&[]).await? {
        let inner = if known.contains(name.as_str()) { Vec::new() } else { below(&[&name]).await? };
        let leaves = if inner.is_empty() {
            vec![name.clone()]
        } else {
            inner.iter().map(|i| format!("{name} {i}")).collect()
        };
        for leaf in leaves {
            ensure!(known.contains(leaf.as_str()), "is `solehold {leaf}` a read?");
        }
    }
    Ok(())
}
