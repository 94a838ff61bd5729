//! The reconciler from end to end: an API and three replicas of the reconciler as processes, over a PostgreSQL that is
//! restarted, while replicas are killed and put to sleep past their leases.
//!
//! `make test` runs it with a few hundred requests; `make e2e EXAMPLE=reconciler` with ten thousand
//! (`SOLEHOLD_E2E=full`).
#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

mod world;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use payments::chain::Chain;
use payments::observer::PaymentObserver;
use payments::{settings::Settings, store};
use serde_json::{Value, json};
use solehold_sql::functions::Functions;
use solehold_sql::{Claims, Reconciler};
use solehold_testkit::{Postgres, Program, TempDir, wait_for};
use tokio_postgres::Client;
use world::{
    AUDIT, PATIENCE, Worker, api, connect, count, create_all, pause_with_claims, program, replica,
    taken_over, verify,
};

const REQUESTS: usize = 300;
const REQUESTS_FULL: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_replicas_bring_every_payment_to_its_end_exactly_once() {
    three_replicas(Worker::Rust).await;
}

/// The same, by 150 lines of Python over the SQL functions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_replicas_in_python_bring_every_payment_to_its_end_exactly_once() {
    three_replicas(Worker::Python).await;
}

async fn three_replicas(kind: Worker) {
    let is_full = std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full");
    let requests = if is_full { REQUESTS_FULL } else { REQUESTS };
    let postgres = Postgres::start().await.unwrap();
    let url = postgres.create_database("payments").await.unwrap();
    let began = Instant::now();
    let api = api(&url).await;
    let client = connect(&url).await;
    client.batch_execute(AUDIT).await.unwrap();
    let functions = Functions::describe(&client, &store::table().unwrap(), None).await.unwrap();
    functions.apply(&client).await.unwrap();
    let start = async |worker: &str| replica(kind, &url, &api, worker).await;
    let (one, two, three) = tokio::join!(start("one"), start("two"), start("three"));
    let first = tokio::spawn(create_all(api.said().to_owned(), 0..requests / 2));

    // One is killed in the middle of its work; a new one takes its place, under the same name.
    let left_by_one = pause_with_claims(&client, &one, "one").await;
    one.kill9().await.unwrap();
    let one = start("one").await;
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
        "{kind:?} reconciler: {requests} requests made in {created_after:.1?}, all at their end after {took:.1?}; three replicas, one killed, one asleep past its lease, PostgreSQL restarted"
    );
    for program in [&one, &two, &three] {
        assert!(program.terminate().await.unwrap().success(), "SIGTERM is a clean end");
        assert!(program.logs().contains("reconciler stopped"));
    }
    let held = "SELECT count(*) FROM app.payment_requests WHERE reconcile_lease_owner IS NOT NULL";
    assert_eq!(count(&client, held).await, 0, "a stop leaves no claims behind");
    api.terminate().await.unwrap();
    if kind == Worker::Rust {
        batch_of_100(&client, &url).await;
    }
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
