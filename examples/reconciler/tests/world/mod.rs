//! What the end-to-end tests share: the programs, the requests, and what the database itself writes down.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use payments::chain::{Fate, PAID_WITHIN_BLOCKS};
use serde_json::{Value, json};
use solehold_testkit::{Program, package_file, python, wait_for};
use tokio_postgres::{Client, NoTls, error::SqlState};

pub const BLOCK_MS: u64 = 250;
/// Unpaid requests expire after all others have been paid.
pub const EXPIRES_SECONDS: f64 = (PAID_WITHIN_BLOCKS + 4) as f64 * BLOCK_MS as f64 / 1000.0;
pub const LEASE_SECONDS: &str = "2";
pub const PATIENCE: Duration = Duration::from_secs(600);

/// What must never happen, written down by the database itself: a claim taken over before its time, and a change of
/// status by anyone but the holder of a live claim. And what must happen: claims that ran out in a worker's hands are
/// taken over. By its name it fires after the guard, and only for what that lets through.
pub const AUDIT: &str = "CREATE TABLE app.violations (id uuid, what text, at timestamptz DEFAULT clock_timestamp()); \
    CREATE TABLE app.takeovers (id uuid, from_epoch bigint, from_owner text, to_owner text); \
    CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      IF NEW.reconcile_lease_epoch IS DISTINCT FROM OLD.reconcile_lease_epoch AND OLD.reconcile_lease_until > clock_timestamp() THEN \
        INSERT INTO app.violations VALUES (OLD.id, OLD.reconcile_lease_owner || ' lost it to ' || NEW.reconcile_lease_owner); END IF; \
      IF NEW.reconcile_lease_epoch IS DISTINCT FROM OLD.reconcile_lease_epoch AND OLD.reconcile_lease_owner IS NOT NULL THEN \
        INSERT INTO app.takeovers VALUES (OLD.id, OLD.reconcile_lease_epoch, OLD.reconcile_lease_owner, NEW.reconcile_lease_owner); END IF; \
      IF NEW.status <> OLD.status AND (OLD.reconcile_lease_owner IS NULL OR OLD.reconcile_lease_until < clock_timestamp() - interval '1 second') THEN \
        INSERT INTO app.violations VALUES (OLD.id, 'status changed without a claim'); END IF; \
      RETURN NEW; END $$; \
    CREATE TRIGGER zz_audit BEFORE UPDATE ON app.payment_requests FOR EACH ROW EXECUTE FUNCTION app.audit()";

pub fn program(url: &str, role: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reconciler"));
    command.args(["--role", role, "--database-url", url]);
    command.args(["--chain-block-ms", &BLOCK_MS.to_string(), "--chain-latency-ms", "5"]);
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PAYMENT_REQUEST_"))
    {
        command.env_remove(name);
    }
    command
}

/// Who claims the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker {
    /// The reconciler in Rust, over the crate.
    Rust,
    /// The reconciler in Python, over the SQL functions.
    Python,
    /// A worker in Python with SQL of its own, as it was before.
    Old,
}

impl Worker {
    fn command(self, url: &str, api: &str) -> Command {
        let script = match self {
            Self::Rust => return program(url, "reconciler"),
            Self::Python => "reconciler.py",
            Self::Old => "old_worker.py",
        };
        let mut command = Command::new(python("recipes").unwrap());
        command.arg(package_file("python").join(script));
        command.args(["--database-url", url, "--node-url", &format!("{api}/node")]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// `api` is where the API listens, which is also the simulated node's.
pub async fn replica(kind: Worker, url: &str, api: &Program, worker: &str) -> Program {
    let mut command = kind.command(url, api.said());
    for (name, value) in [
        ("ENABLED", "true"),
        ("POLL_INTERVAL_SECONDS", "0.2"),
        ("LEASE_SECONDS", LEASE_SECONDS),
        ("WORKER_ID", worker),
    ] {
        command.env(format!("PAYMENT_REQUEST_RECONCILER_{name}"), value);
    }
    Program::start("reconciler", &command, "reconciler running as ").await.unwrap()
}

pub async fn api(url: &str) -> Program {
    let mut command = program(url, "api");
    command.args(["--listen", "127.0.0.1:0"]);
    Program::start("payments", &command, "payments listening on ").await.unwrap()
}

pub async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// One request under its key, sent until it is answered; each tenth is sent twice. The server may be away at any
/// moment.
async fn create(http: &reqwest::Client, url: &str, number: usize) -> (usize, Value) {
    let body = json!({"amount": number + 1, "expires_in_seconds": EXPIRES_SECONDS});
    let send = async || {
        let request = http
            .post(format!("{url}/payment-requests"))
            .header("Idempotency-Key", format!("request-{number}"));
        let answer = request.json(&body).send().await.ok()?;
        let is_created = answer.status() == 201;
        let text = answer.text().await.ok()?;
        is_created.then(|| serde_json::from_str::<Value>(&text).unwrap())
    };
    let first = wait_for("a request to be made", PATIENCE, send).await.unwrap();
    if number.is_multiple_of(10) {
        let second = wait_for("the same request", PATIENCE, send).await.unwrap();
        assert_eq!(first, second, "the same key, the same answer");
    }
    (number, first)
}

pub async fn create_all(url: String, numbers: std::ops::Range<usize>) -> Vec<(usize, Value)> {
    let http = reqwest::Client::new();
    let http = &http;
    let url = &url;
    stream::iter(numbers).map(|number| create(http, url, number)).buffer_unordered(32).collect().await
}

/// Pauses a replica while it has live claims, and returns them: the id and the epoch of each. What an old worker
/// claimed before there was a guard has no epoch, and is left out.
pub async fn pause_with_claims(client: &Client, replica: &Program, worker: &str) -> Vec<(String, i64)> {
    let sql = "SELECT id::text, reconcile_lease_epoch FROM app.payment_requests \
        WHERE reconcile_lease_owner = $1 AND reconcile_lease_until > clock_timestamp() AND reconcile_lease_epoch > 0 FOR UPDATE";
    let held = async || {
        // The rows are locked in another order than the replica's own, which can deadlock: then it looks again.
        let rows = match client.query(sql, &[&worker]).await {
            Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => Vec::new(),
            rows => rows.unwrap(),
        };
        rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(String, i64)>>()
    };
    let paused = async || {
        if held().await.is_empty() {
            return None;
        }
        replica.pause().await.unwrap();
        // What it had on its way to the database has come through by now, or waits behind our locks no longer.
        let left = held().await;
        if left.is_empty() {
            replica.resume().unwrap();
        }
        Some(left).filter(|left| !left.is_empty())
    };
    wait_for(&format!("{worker} to be paused with claims"), PATIENCE, paused).await.unwrap()
}

/// Waits until every claim that a worker left behind has been taken over by another worker, or its work is done.
pub async fn taken_over(client: &Client, worker: &str, left: &[(String, i64)]) {
    let sql = "SELECT count(*) FROM app.takeovers WHERE id = $1::text::uuid AND from_epoch = $2 AND from_owner = $3";
    for (id, epoch) in left {
        let is_taken =
            async || client.query_one(sql, &[id, epoch, &worker]).await.unwrap().get::<_, i64>(0) > 0;
        wait_for(&format!("{id} to be taken over from {worker}"), PATIENCE, is_taken).await.unwrap();
    }
    println!("reconciler: {} claims of {worker} were taken over", left.len());
}

/// Every payment once, in the right state, by a chain of changes without a gap or a fork; no claim was taken that was
/// not free.
pub async fn verify(client: &Client, created: &HashMap<usize, Value>) {
    let violations = client.query("SELECT what, count(*) FROM app.violations GROUP BY 1", &[]).await.unwrap();
    let violations: Vec<(String, i64)> = violations.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(violations, []);
    assert_eq!(count(client, "SELECT count(*) FROM app.payment_requests").await, created.len() as i64);
    let mut by_id: HashMap<String, Vec<(String, String, i64)>> = HashMap::new();
    let sql =
        "SELECT payment_request_id::text, from_status, to_status, epoch FROM app.payment_outbox ORDER BY id";
    for row in client.query(sql, &[]).await.unwrap() {
        by_id.entry(row.get(0)).or_default().push((row.get(1), row.get(2), row.get(3)));
    }
    let mut takeovers = 0;
    for row in client.query("SELECT id::text, address, status FROM app.payment_requests", &[]).await.unwrap()
    {
        let id: String = row.get(0);
        let address: String = row.get(1);
        let status: String = row.get(2);
        let ends = Fate::of(&address).ends();
        assert_eq!(status, ends, "{id}");
        let changes = &by_id[&id];
        let mut state = "pending".to_owned();
        let mut last_epoch = 0;
        for (from, to, epoch) in changes {
            // Old workers have no epochs.
            assert!(*from == state && (*epoch == 0 || *epoch > last_epoch), "{id}: {changes:?}");
            state.clone_from(to);
            last_epoch = last_epoch.max(*epoch);
        }
        assert_eq!(state, ends, "{id}: {changes:?}");
        takeovers += last_epoch;
    }
    let changes: usize = by_id.values().map(Vec::len).sum();
    println!(
        "reconciler: {changes} changes in the outbox, each exactly once; {takeovers} claims; no violation"
    );
}
