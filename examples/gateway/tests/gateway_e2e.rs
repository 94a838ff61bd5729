//! The gateway from end to end: three gateways over one PostgreSQL, many sessions, nodes killed and paused in the
//! middle. What happened is read from the log that the nodes write under their tokens, and whether the locks alone kept
//! them apart from the visits, which no fence keeps anyone from writing down.
//!
//! The nodes are of this example, with the engine in their processes, or of `examples/gateway-go`, over two Solehold
//! servers on the same database.
//!
//! `make e2e EXAMPLE=gateway` runs it in full; a plain `cargo test` runs a short form.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rand::RngExt;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Program, Solehold, package_file, wait_for};
use tokio::task::JoinSet;

const SESSIONS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(240);
const TTL_MS: u64 = 3_000;

/// How many messages each session gets at least; clients go on until all faults are over.
fn messages_a_session() -> usize {
    if std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full") { 30 } else { 6 }
}

fn config(node_id: &str) -> String {
    format!(
        "cluster:
  enabled: true
  node_id: \"{node_id}\"
  allow_multiple_gateways: true
  session_locks:
    enabled: true
    ttl: {TTL_MS}ms
    refresh_interval: 1s
    acquire_timeout: 10s
    poll_interval: 200ms
"
    )
}

/// The program that nodes run, and what it needs besides its configuration.
struct Fleet {
    program: PathBuf,
    args: Vec<String>,
    servers: Vec<Solehold>,
}

impl Fleet {
    fn new(program: PathBuf, database: &str) -> Self {
        let args = ["--listen", "127.0.0.1:0", "--database", database, "--work", "20ms"];
        Self { program, args: args.map(str::to_owned).to_vec(), servers: Vec::new() }
    }

    fn in_rust(database: &str) -> Self {
        Self::new(env!("CARGO_BIN_EXE_gateway").into(), database)
    }

    /// Built first, as `examples/gateway-go/build` does it.
    async fn in_go(database: &str) -> Self {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gateway-go");
        let build = package_file("../gateway-go/build");
        let built = Command::new(build).arg(&program).output().expect("the script runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let mut fleet = Self::new(program, database);
        for _ in 0..2 {
            let server = Solehold::builder().engine(database).start().await;
            fleet.servers.push(server.expect("a Solehold server"));
        }
        let urls: Vec<_> = fleet.servers.iter().map(|server| server.url().to_owned()).collect();
        fleet.args.extend(["--servers".to_owned(), urls.join(",")]);
        fleet
    }

    async fn node(&self, node_id: &str) -> Program {
        let folder = solehold_testkit::TempDir::new().expect("a folder").keep();
        let file = folder.join("gateway.yaml");
        std::fs::write(&file, config(node_id)).expect("a file");
        let mut command = Command::new(&self.program);
        command.args(&self.args).arg("--config").arg(&file);
        let program = Program::start("gateway", &command, "gateway listening on ").await.expect("a gateway");
        std::fs::remove_dir_all(folder).expect("it has been read");
        program
    }
}

/// Where each node is, for clients that do not care which one they talk to.
#[derive(Clone)]
struct Nodes(Arc<std::sync::Mutex<Vec<String>>>);

impl Nodes {
    fn any(&self) -> String {
        let nodes = self.0.lock().expect("no panic");
        nodes[rand::rng().random_range(0..nodes.len())].clone()
    }

    fn put(&self, index: usize, url: &str) {
        self.0.lock().expect("no panic")[index] = url.to_owned();
    }
}

fn url(program: &Program) -> String {
    program.said().split(' ').next().expect("an address").to_owned()
}

/// Sends a message until it is answered, each time to any node, as the same message.
async fn send(http: &Client, nodes: &Nodes, session: &str, id: &str) -> usize {
    let mut tries = 0;
    let what = format!("a reply to {id}");
    let sent = wait_for(&what, PATIENCE, || {
        tries += 1;
        let ask = http
            .post(format!("{}/sessions/{session}/messages", nodes.any()))
            .json(&json!({"id": id, "text": format!("hello from {id}")}));
        async move {
            let answer = ask.send().await.ok()?;
            if answer.status() != StatusCode::OK {
                return None;
            }
            let message: Value = answer.json().await.ok()?;
            message["reply"].as_str().map(str::to_owned)
        }
    });
    let reply = sent.await.expect("every message is answered");
    assert_eq!(reply, format!("you said: hello from {id}"));
    tries
}

/// Pauses a node while it has a message in hand, one that it has begun and not answered, and returns since when.
async fn pause_in_the_middle(program: &Program, node: &str, log: &tokio_postgres::Client) -> Instant {
    let begun = "SELECT b.session_id FROM gateway.log b
                 WHERE b.node_id = $1 AND b.step = 'begun' AND ($2::text IS NULL OR b.session_id = $2)
                   AND b.entry = (SELECT max(entry) FROM gateway.log l WHERE l.session_id = b.session_id)";
    let in_hand = async |session: Option<&str>| log.query(begun, &[&node, &session]).await.expect("rows");
    let entries = async || -> i64 {
        let sql = "SELECT count(*) FROM gateway.log WHERE node_id = $1";
        log.query_one(sql, &[&node]).await.expect("a row").get(0)
    };
    for _ in 0..1_000 {
        let paused_at = Instant::now();
        program.pause().await.expect("SIGSTOP");
        for row in in_hand(None).await {
            // A node that writes for a session has locked its row: wait for what was on its way when the node was
            // paused.
            let session: &str = row.get(0);
            let wait = "SELECT id FROM gateway.sessions WHERE id = $1 FOR UPDATE";
            log.query(wait, &[&session]).await.expect("a row");
            if !in_hand(Some(session)).await.is_empty() {
                return paused_at;
            }
        }
        let before = entries().await;
        program.resume().expect("SIGCONT");
        // It has to get on before it is paused again; if nothing comes for it, it is soon enough.
        let _ = wait_for("another entry", Duration::from_millis(50), async || entries().await > before).await;
    }
    panic!("{node} never had a message in hand");
}

struct Entry {
    position: i64,
    token: i64,
    node_id: String,
    step: String,
}

/// What the log must show of one session: one owner at a time, in order, everything once.
fn check_session(session: &str, entries: &[Entry]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut answered = Vec::new();
    // Which node has begun, under which token, and not yet answered.
    let mut busy: Option<(i64, &str, i64)> = None;
    let mut owners: BTreeMap<i64, &str> = BTreeMap::new();
    let mut last_token = 0;
    for entry in entries {
        let Entry { position, token, node_id, step } = entry;
        if *token < last_token {
            wrong.push(format!("{session}: token {token} wrote after {last_token}"));
        }
        last_token = *token;
        if *owners.entry(*token).or_insert(node_id) != node_id {
            wrong.push(format!("{session}: two nodes bore token {token}"));
        }
        match step.as_str() {
            "begun" => {
                // A node that died or was fenced off leaves a message begun; only a larger token may begin it again.
                if let Some((before, by, _)) = busy
                    && before == *token
                {
                    wrong
                        .push(format!("{session}: {node_id} began while {by} was busy under the same token"));
                }
                busy = Some((*token, node_id, *position));
            }
            _ => {
                if busy != Some((*token, node_id.as_str(), *position)) {
                    wrong.push(format!(
                        "{session}: {node_id} answered {position}, which it had not begun last"
                    ));
                }
                busy = None;
                answered.push(*position);
            }
        }
    }
    if !answered.is_sorted_by(|a, b| a < b) {
        wrong.push(format!("{session}: answered twice or out of order: {answered:?}"));
    }
    wrong
}

/// All visits, by session, in order.
async fn visits(log: &tokio_postgres::Client) -> BTreeMap<String, Vec<Visit>> {
    let sql = "SELECT session_id, entry, token, node_id, step FROM gateway.visits ORDER BY entry";
    let mut visits: BTreeMap<String, Vec<Visit>> = BTreeMap::new();
    for row in log.query(sql, &[]).await.expect("the visits") {
        let visit = Visit { entry: row.get(1), token: row.get(2), node_id: row.get(3), step: row.get(4) };
        visits.entry(row.get(0)).or_default().push(visit);
    }
    visits
}

/// One entry of the visits.
struct Visit {
    entry: i64,
    token: i64,
    node_id: String,
    step: String,
}

/// Nodes that were paused, and the last visit that had been written down by when each was resumed or killed.
type Hurt = Vec<(&'static str, i64)>;

/// What the visits must show of one session: a node comes in only after the one before has gone, unless that one was
/// hurt while it was in, or says itself that its time was over. And tokens grow from visit to visit, whatever happened.
fn check_visits(session: &str, visits: &[Visit], hurt: &Hurt) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut inside: BTreeMap<i64, &Visit> = BTreeMap::new();
    let overdue: Vec<i64> = visits.iter().filter(|v| v.step == "overdue").map(|v| v.token).collect();
    let mut last_token = 0;
    for visit in visits {
        let Visit { token, node_id, step, .. } = visit;
        if step != "entered" {
            inside.remove(token);
            continue;
        }
        if *token <= last_token {
            wrong.push(format!("{session}: {node_id} came in under token {token} after {last_token}"));
        }
        last_token = *token;
        let may_be_inside = |other: &Visit| {
            let was_hurt = |(node, until): &(&str, i64)| other.node_id == *node && other.entry <= *until;
            overdue.contains(&other.token) || hurt.iter().any(was_hurt)
        };
        for other in inside.values().filter(|other| !may_be_inside(other)) {
            let before = other.token;
            let by = &other.node_id;
            wrong
                .push(format!("{session}: {node_id} came in under {token} while {by} was in under {before}"));
        }
        inside.insert(*token, visit);
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_is_answered_by_one_node_at_a_time() {
    let postgres = slow_postgres().await;
    check_fleet(&postgres, &Fleet::in_rust(&postgres.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_is_answered_by_one_node_in_go_at_a_time() {
    let postgres = slow_postgres().await;
    check_fleet(&postgres, &Fleet::in_go(&postgres.url()).await).await;
}

/// Each commit takes two milliseconds even on a fast disk, so that a node can be caught with a message in hand.
async fn slow_postgres() -> Postgres {
    let slow = Postgres::builder().setting("commit_delay", "2000").setting("commit_siblings", "0");
    slow.start().await.expect("PostgreSQL")
}

async fn check_fleet(postgres: &Postgres, fleet: &Fleet) {
    let per_session = messages_a_session();
    let mut programs = Vec::new();
    for index in 0..3 {
        programs.push(fleet.node(&format!("node-{index}")).await);
    }
    let nodes = Nodes(Arc::new(std::sync::Mutex::new(programs.iter().map(url).collect())));
    let http = Client::builder().timeout(Duration::from_secs(15)).build().expect("a client");

    let began = Instant::now();
    let answered = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for session in 0..SESSIONS {
        // Two clients of one session talk at the same time.
        for half in 0..2 {
            let http = http.clone();
            let nodes = nodes.clone();
            let answered = answered.clone();
            let is_over = is_over.clone();
            clients.spawn(async move {
                let mut tries = 0;
                for index in (half..).step_by(2) {
                    if index >= per_session && is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let session = format!("chat/{session}");
                    let id = format!("{session}#{index}");
                    tries += send(&http, &nodes, &session.replace('/', "%2F"), &id).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                tries
            });
        }
    }
    let one_each_more = async || {
        let goal = answered.load(Ordering::Relaxed) + SESSIONS;
        wait_for(&format!("{goal} replies"), PATIENCE, || {
            std::future::ready(answered.load(Ordering::Relaxed) >= goal)
        })
        .await
        .expect("it goes on");
    };
    let client = postgres.connect().await.expect("a connection");
    // Sessions that this node had begun to answer and that went on elsewhere.
    let taken_over = async |node: &str| -> i64 {
        let sql = "SELECT count(DISTINCT b.session_id) FROM gateway.log b JOIN gateway.log n
                   ON n.session_id = b.session_id AND n.position = b.position AND n.token > b.token
                   WHERE b.node_id = $1 AND b.step = 'begun' AND n.node_id <> $1";
        client.query_one(sql, &[&node]).await.expect("a row").get(0)
    };

    let mut hurt = Hurt::new();
    let last_visit = async || -> i64 {
        let sql = "SELECT coalesce(max(entry), 0) FROM gateway.visits";
        client.query_one(sql, &[]).await.expect("a row").get(0)
    };

    one_each_more().await;
    let killed_at = pause_in_the_middle(&programs[1], "node-1", &client).await;
    programs[1].kill9().await.expect("SIGKILL");
    wait_for("the killed node's sessions to go on elsewhere", PATIENCE, || async {
        taken_over("node-1").await > 0
    })
    .await
    .expect("a takeover");
    let killed_took = killed_at.elapsed();
    // Not before: what it had sent may still have been committed after it was killed.
    hurt.push(("node-1", last_visit().await));
    programs[1] = fleet.node("node-1").await;
    nodes.put(1, &url(&programs[1]));

    one_each_more().await;
    let paused_at = pause_in_the_middle(&programs[2], "node-2", &client).await;
    wait_for("the paused node's sessions to go on elsewhere", PATIENCE, || async {
        taken_over("node-2").await > 0
    })
    .await
    .expect("a takeover");
    let paused_took = paused_at.elapsed();
    hurt.push(("node-2", last_visit().await));
    programs[2].resume().expect("SIGCONT");
    one_each_more().await;
    is_over.store(true, Ordering::Relaxed);

    let mut tries = 0;
    while let Some(done) = clients.join_next().await {
        tries += done.expect("a client");
    }
    let took = began.elapsed();
    let all = answered.load(Ordering::Relaxed);

    let rows = client
        .query("SELECT session_id, position, token, node_id, step FROM gateway.log ORDER BY entry", &[])
        .await
        .expect("the log");
    let mut by_session: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for row in &rows {
        let entry = Entry { position: row.get(1), token: row.get(2), node_id: row.get(3), step: row.get(4) };
        if entry.step == "answered" {
            *by_node.entry(entry.node_id.clone()).or_default() += 1;
        }
        by_session.entry(row.get(0)).or_default().push(entry);
    }
    let mut wrong: Vec<String> =
        by_session.iter().flat_map(|(session, entries)| check_session(session, entries)).collect();
    let visits = visits(&client).await;
    assert_eq!(visits.len(), SESSIONS, "every session was visited");
    wrong.extend(visits.iter().flat_map(|(session, visits)| check_visits(session, visits, &hurt)));
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(by_session.len(), SESSIONS);
    let left: i64 = client
        .query_one("SELECT count(*) FROM gateway.messages WHERE reply IS NULL", &[])
        .await
        .expect("a row")
        .get(0);
    assert_eq!(left, 0, "nothing was lost");
    assert_eq!(by_node.values().sum::<usize>(), all, "everything was answered, and once");
    assert!(by_node.len() >= 3, "every node took part: {by_node:?}");

    println!(
        "gateway: {SESSIONS} sessions, {all} messages, 3 nodes, one killed and one paused past its ttl\n\
         answered once each, in order, by one node at a time: {all} in {:.1} s ({:.0} a second), {tries} requests\n\
         by node: {by_node:?}\n\
         a session of the killed node went on after {:.1} s, of the paused one after {:.1} s (ttl {:.1} s)",
        took.as_secs_f64(),
        all as f64 / took.as_secs_f64(),
        killed_took.as_secs_f64(),
        paused_took.as_secs_f64(),
        TTL_MS as f64 / 1_000.0,
    );
}
