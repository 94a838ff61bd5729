//! The reconciler from end to end: an API and three replicas of the reconciler as processes, over a PostgreSQL that is
//! restarted, while replicas are killed and put to sleep past their leases.
//!
//! `make test` runs it with a few hundred requests; `make e2e EXAMPLE=reconciler` with ten thousand
//! (`SOLEHOLD_E2E=full`).
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use payments::chain::{Chain, Fate, PAID_WITHIN_BLOCKS};
use payments::observer::PaymentObserver;
use payments::{settings::Settings, store};
use serde_json::{Value, json};
use solehold_sql::{Claims, Reconciler};
use solehold_testkit::{Postgres, Program, TempDir, wait_for};
use tokio_postgres::{Client, NoTls};

const REQUESTS: usize = 300;
const REQUESTS_FULL: usize = 10_000;
const BLOCK_MS: u64 = 250;
/// Unpaid requests expire after all others have been paid.
const EXPIRES_SECONDS: f64 = (PAID_WITHIN_BLOCKS + 4) as f64 * BLOCK_MS as f64 / 1000.0;
const LEASE_SECONDS: &str = "2";
const PATIENCE: Duration = Duration::from_secs(600);

/// What must never happen, written down by the database itself: a claim taken over before its time, and a change of
/// status by anyone but the holder of a live claim. And what must happen: claims that ran out in a worker's hands are
/// taken over.
const AUDIT: &str = "CREATE TABLE app.violations (id uuid, what text, at timestamptz DEFAULT clock_timestamp()); \
    CREATE TABLE app.takeovers (id uuid, from_epoch bigint, from_owner text, to_owner text); \
    CREATE FUNCTION app.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      IF NEW.reconcile_lease_epoch IS DISTINCT FROM OLD.reconcile_lease_epoch AND OLD.reconcile_lease_until > clock_timestamp() THEN \
        INSERT INTO app.violations VALUES (OLD.id, OLD.reconcile_lease_owner || ' lost it to ' || NEW.reconcile_lease_owner); END IF; \
      IF NEW.reconcile_lease_epoch IS DISTINCT FROM OLD.reconcile_lease_epoch AND OLD.reconcile_lease_owner IS NOT NULL THEN \
        INSERT INTO app.takeovers VALUES (OLD.id, OLD.reconcile_lease_epoch, OLD.reconcile_lease_owner, NEW.reconcile_lease_owner); END IF; \
      IF NEW.status <> OLD.status AND (OLD.reconcile_lease_owner IS NULL OR OLD.reconcile_lease_until < clock_timestamp() - interval '1 second') THEN \
        INSERT INTO app.violations VALUES (OLD.id, 'status changed without a claim'); END IF; \
      RETURN NEW; END $$; \
    CREATE TRIGGER audit BEFORE UPDATE ON app.payment_requests FOR EACH ROW EXECUTE FUNCTION app.audit()";

fn program(url: &str, role: &str) -> Command {
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

async fn replica(url: &str, worker: &str) -> Program {
    let mut command = program(url, "reconciler");
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

async fn api(url: &str) -> Program {
    let mut command = program(url, "api");
    command.args(["--listen", "127.0.0.1:0"]);
    Program::start("payments", &command, "payments listening on ").await.unwrap()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn count(client: &Client, sql: &str) -> i64 {
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

async fn create_all(url: String, numbers: std::ops::Range<usize>) -> Vec<(usize, Value)> {
    let http = reqwest::Client::new();
    let http = &http;
    let url = &url;
    stream::iter(numbers).map(|number| create(http, url, number)).buffer_unordered(32).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_replicas_bring_every_payment_to_its_end_exactly_once() {
    let is_full = std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full");
    let requests = if is_full { REQUESTS_FULL } else { REQUESTS };
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("payments").await.unwrap();
    let began = Instant::now();
    let api = api(&url).await;
    connect(&url).await.batch_execute(AUDIT).await.unwrap();
    let (one, two, three) = tokio::join!(replica(&url, "one"), replica(&url, "two"), replica(&url, "three"));
    let first = tokio::spawn(create_all(api.said().to_owned(), 0..requests / 2));

    // One is killed in the middle of its work; a new one takes its place, under the same name.
    let client = connect(&url).await;
    let left_by_one = pause_with_claims(&client, &one, "one").await;
    one.kill9().await.unwrap();
    let one = replica(&url, "one").await;
    let second = tokio::spawn(create_all(api.said().to_owned(), requests / 2..requests));
    // One sleeps past its lease with claims in its hands, and wakes up to find them gone.
    let left_by_two = pause_with_claims(&client, &two, "two").await;
    // Both left something behind, and somebody took over all of it, after its time: what was taken earlier is a
    // violation.
    taken_over(&client, "one", &left_by_one).await;
    taken_over(&client, "two", &left_by_two).await;
    // PostgreSQL goes and comes.
    postgres.stop().await.unwrap();
    postgres.start_again().await.unwrap();
    two.resume().unwrap();

    let created: HashMap<usize, Value> =
        first.await.unwrap().into_iter().chain(second.await.unwrap()).collect();
    let created_after = began.elapsed();
    let client = connect(&url).await;
    let open = "SELECT count(*) FROM app.payment_requests WHERE status NOT IN ('confirmed', 'expired')";
    wait_for("every payment to end", PATIENCE, async || count(&client, open).await == 0).await.unwrap();
    let took = began.elapsed();
    assert_eq!(created.len(), requests);
    verify(&client, &created).await;
    println!(
        "reconciler: {requests} requests made in {created_after:.1?}, all at their end after {took:.1?}; three replicas, one killed, one asleep past its lease, PostgreSQL restarted"
    );
    for program in [&one, &two, &three] {
        assert!(program.terminate().await.unwrap().success(), "SIGTERM is a clean end");
        assert!(program.logs().contains("reconciler stopped"));
    }
    let held = "SELECT count(*) FROM app.payment_requests WHERE reconcile_lease_owner IS NOT NULL";
    assert_eq!(count(&client, held).await, 0, "a stop leaves no claims behind");
    api.terminate().await.unwrap();
    batch_of_100(&client, &url).await;
}

/// Pauses a replica while it has live claims, and returns them: the id and the epoch of each.
async fn pause_with_claims(client: &Client, replica: &Program, worker: &str) -> Vec<(String, i64)> {
    let sql = "SELECT id::text, reconcile_lease_epoch FROM app.payment_requests \
        WHERE reconcile_lease_owner = $1 AND reconcile_lease_until > clock_timestamp() FOR UPDATE";
    let held = async || {
        let rows = client.query(sql, &[&worker]).await.unwrap();
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
async fn taken_over(client: &Client, worker: &str, left: &[(String, i64)]) {
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
async fn verify(client: &Client, created: &HashMap<usize, Value>) {
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
            assert!(*from == state && *epoch > last_epoch, "{id}: {changes:?}");
            state.clone_from(to);
            last_epoch = *epoch;
        }
        assert_eq!(state, ends, "{id}: {changes:?}");
        takeovers += last_epoch;
    }
    let changes: usize = by_id.values().map(Vec::len).sum();
    println!(
        "reconciler: {changes} changes in the outbox, each exactly once; {takeovers} claims; no violation"
    );
}

/// 100 requests claimed, observed and transitioned, as one cycle of a reconciler in this process.
async fn batch_of_100(client: &Client, url: &str) {
    let settings = Settings::read(|name| name.ends_with("WORKER_ID").then(|| "batch".to_owned())).unwrap();
    let chain = Chain {
        block: Duration::from_millis(1),
        faults_percent: 0,
        latency: Duration::ZERO,
        away_file: None,
    };
    let claims = Arc::new(Claims::new(store::table().unwrap()));
    let pool = store::pool(url).unwrap();
    let reconciler = Reconciler::new(pool, claims, PaymentObserver { chain }, settings.reconciler).unwrap();
    let mut times = Vec::new();
    for _ in 0..10 {
        let insert = "INSERT INTO app.payment_requests (id, chain, address, amount, created_at, expires_at) \
            SELECT gen_random_uuid(), 'simulated', 'batch-' || gen_random_uuid(), 1, now() - interval '1 hour', now() FROM generate_series(1, 100)";
        client.batch_execute(insert).await.unwrap();
        let began = Instant::now();
        let summary = reconciler.run_once().await.unwrap();
        times.push(began.elapsed());
        let moved: u64 = summary.moved.values().sum();
        assert_eq!((summary.claimed, moved), (100, 100), "{summary}");
    }
    times.sort();
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    println!(
        "reconciler: a batch of 100 claimed, observed and transitioned in {:.1?} (median of 10; best {:.1?}; {profile} build)",
        times[5], times[0]
    );
}

#[tokio::test]
async fn the_api_works_with_the_reconciler_disabled_and_refuses_what_is_wrong() {
    let url = Postgres::shared().await.unwrap().create_database("api").await.unwrap();
    let mut command = program(&url, "all");
    command.args(["--listen", "127.0.0.1:0"]);
    let program = Program::start("payments", &command, "payments listening on ").await.unwrap();
    let base = format!("{}/payment-requests", program.said());
    let http = reqwest::Client::new();
    let post = async |key: Option<&str>, body: Value| {
        let request = http.post(&base).body(body.to_string());
        let request = if let Some(key) = key { request.header("Idempotency-Key", key) } else { request };
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    let get = async |path: &str| {
        let answer = http.get(format!("{base}{path}")).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap_or_default())
    };
    let (status, first) = post(Some("k1"), json!({"amount": 5})).await;
    assert_eq!((status, &first["status"], &first["amount"]), (201, &json!("pending"), &json!(5)));
    assert_eq!(post(Some("k1"), json!({"amount": 5})).await, (201, first.clone()));
    assert_eq!(post(Some("k1"), json!({"amount": 6})).await.1["code"], "idempotency_key_reused");
    assert_eq!(post(None, json!({"amount": 5})).await.1["code"], "idempotency_key_missing");
    for (key, body) in [
        ("b1", json!({"amount": 0})),
        ("b2", json!({"amount": 1, "expires_in_seconds": -1})),
        ("b3", json!({"amount": 1, "unknown": 1})),
        ("b4", json!({"amount": 1, "chain": ""})),
    ] {
        let (status, problem) = post(Some(key), body).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{problem}");
    }
    let id = first["id"].as_str().unwrap();
    assert_eq!(get(&format!("/{id}")).await, (200, first.clone()));
    assert_eq!(get("/00000000-0000-0000-0000-000000000000").await.0, 404);
    post(Some("k2"), json!({"amount": 7})).await;
    let (_, page) = get("?limit=1&status=pending").await;
    assert_eq!((&page["payment_requests"][0], &page["next"]), (&first, &first["id"]));
    let (_, rest) = get(&format!("?limit=5&after={id}")).await;
    assert_eq!((&rest["payment_requests"][0]["amount"], &rest["next"]), (&json!(7), &Value::Null));
    assert_eq!(get("?limit=0").await.0, 400);
    let metrics = http.get(format!("{}/metrics", program.said())).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("solehold_reconciler_cycle_failures_total 0"), "{metrics}");
    assert!(program.terminate().await.unwrap().success());
    assert!(!program.logs().contains("reconciler started"));
}

#[tokio::test]
async fn embedded_it_reconciles_too_and_buries_what_it_cannot_know() {
    let url = Postgres::shared().await.unwrap().create_database("embedded").await.unwrap();
    let mut command = program(&url, "all");
    command.args(["--listen", "127.0.0.1:0", "--wake"]).env("PAYMENT_REQUEST_RECONCILER_ENABLED", "true");
    // Only a wake-up can make it in time.
    command.env("PAYMENT_REQUEST_RECONCILER_POLL_INTERVAL_SECONDS", "3600");
    let program = Program::start("payments", &command, "payments listening on ").await.unwrap();
    let http = reqwest::Client::new();
    let request = http.post(format!("{}/payment-requests", program.said())).header("Idempotency-Key", "k");
    let answer = request.body(json!({"amount": 1, "chain": "other"}).to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 201);
    let client = connect(&url).await;
    let buried =
        "SELECT count(*) FROM app.payment_requests WHERE reconcile_dead_reason LIKE 'there is no chain%'";
    wait_for("the request to be buried", PATIENCE, async || count(&client, buried).await == 1).await.unwrap();
    assert!(program.terminate().await.unwrap().success());
    for said in [
        "reconciler started",
        "poll_interval_ms=3600000",
        "lease_ms=30000",
        "claimed=1",
        "reconciler stopped",
    ] {
        assert!(program.logs().contains(said), "{said} is not in\n{}", program.logs());
    }
}

/// The node is away for longer than any row has attempts.
#[tokio::test]
async fn a_node_that_is_away_buries_no_payment() {
    const PAYMENTS: u64 = 4;
    const ATTEMPTS_MAX: u64 = 20;
    let url = Postgres::shared().await.unwrap().create_database("outage").await.unwrap();
    let folder = TempDir::new().unwrap();
    let away = folder.path().join("away");
    std::fs::write(&away, "").unwrap();
    let mut command = program(&url, "all");
    command.args(["--listen", "127.0.0.1:0", "--chain-faults-percent", "0", "--chain-away-file"]).arg(&away);
    for (name, value) in
        [("ENABLED", "true"), ("POLL_INTERVAL_SECONDS", "0.02"), ("UNREACHABLE_BACKOFF_MAX_SECONDS", "0.02")]
    {
        command.env(format!("PAYMENT_REQUEST_RECONCILER_{name}"), value);
    }
    let program = Program::start("payments", &command, "payments listening on ").await.unwrap();
    create_all(program.said().to_owned(), 1..1 + PAYMENTS as usize).await;
    let metrics = format!("{}/metrics", program.said());
    let metric = async |name: &str| {
        let page = reqwest::get(&metrics).await.unwrap().text().await.unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        value.unwrap_or_default()
    };
    let unreachable = "solehold_reconciler_rows_total{result=\"unreachable\"}";
    wait_for("more failures than a row has attempts", PATIENCE, async || {
        metric(unreachable).await >= PAYMENTS * ATTEMPTS_MAX * 2
    })
    .await
    .unwrap();
    let client = connect(&url).await;
    let dead = "SELECT count(*) FROM app.payment_requests WHERE reconcile_dead_at IS NOT NULL";
    assert_eq!(count(&client, dead).await, 0);
    assert_eq!(metric("solehold_reconciler_observer_unreachable").await, 1);
    std::fs::remove_file(&away).unwrap();
    let open = "SELECT count(*) FROM app.payment_requests WHERE status NOT IN ('confirmed', 'expired')";
    wait_for("every payment to end", PATIENCE, async || count(&client, open).await == 0).await.unwrap();
    assert_eq!(count(&client, dead).await, 0);
    assert!(program.terminate().await.unwrap().success());
    let logs = program.logs();
    let lines = |words: &str| logs.lines().filter(|line| line.contains(words)).collect::<Vec<_>>();
    let warned = lines("observer unreachable");
    assert_eq!(warned.len(), 1, "once, not with each cycle:\n{logs}");
    assert!(warned[0].contains("WARN") && warned[0].contains("the node is away"), "{warned:?}");
    let back = lines("observer reachable again");
    assert!(back.len() == 1 && back[0].contains("INFO"), "{back:?}\n{logs}");
}

#[test]
fn a_bad_variable_stops_the_start_with_its_name() {
    let run = |name: &str, value: &str| {
        let mut command = program("postgres://127.0.0.1:1/none", "reconciler");
        let output = command.env(name, value).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    for (name, value) in [("LEASE_SECONDS", "long"), ("BATCH_SIZE", "0"), ("ENABLED", "maybe")] {
        let name = format!("PAYMENT_REQUEST_RECONCILER_{name}");
        let said = run(&name, value);
        assert!(said.contains(&name) && said.contains(value), "{said}");
    }
    let said = run("PAYMENT_REQUEST_RECONCILER_ENABLED", "false");
    assert!(said.contains("PAYMENT_REQUEST_RECONCILER_ENABLED is false"), "{said}");
}
