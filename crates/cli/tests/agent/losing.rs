//! Leases that are lost, deleted, or asked for by someone who has stopped waiting.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_client::{ClientSession, Http, SessionConfig};
use solehold_testkit::{Proxy, Solehold, TempDir, wait_for};

use crate::{
    common::{SOON, ask, server},
    world::{Agent, held_by, holder, python, script},
};

async fn send(server: &Solehold, method: Method, path: &str, body: &Value) -> Result<Value> {
    let url = format!("{}/api/v1{path}", server.url());
    let answer = reqwest::Client::new().request(method, url).json(body).send().await?;
    let status = answer.status();
    let text = answer.text().await?;
    ensure!(status.is_success(), "{path}: {text}");
    Ok(serde_json::from_str(&text).unwrap_or_default())
}

/// Between the grant and the worker's start lies the reading of the configuration. It is held up here, and the lease is
/// revoked meanwhile.
#[tokio::test]
async fn a_lease_lost_while_its_configuration_is_read_is_not_worked_on() -> Result<()> {
    let server = server().start().await?;
    let network = Proxy::start(server.url().trim_start_matches("http://").parse()?).await?;
    network.hold_requests("GET /api/v1/resources/job/");
    let top = "resources: [job/a]\nmax_resources_per_worker: 1\nlease_retry_interval_seconds: 0.1";
    let worker = script("echo works under $SOLEHOLD_TOKEN.; exec sleep 600");
    let agent = Agent::start_at(&format!("http://{}", network.addr()), "first", top, &worker).await?;
    let mut revoked = Vec::new();
    // On a busy machine the lease may be taken up before it is revoked. Then that grant shows nothing.
    for _ in 0..20 {
        let held = async || send(&server, Method::GET, "/leases", &Value::Null).await.ok();
        let token = async || held().await?["leases"][0]["token"].as_u64().filter(|t| !revoked.contains(t));
        let token = wait_for("a grant", SOON, token).await?;
        let path = "/resources/job/a/lease/revoke";
        send(&server, Method::POST, path, &json!({"token": token, "fenced": true})).await?;
        let is_in_time = !agent.program().logs().contains(&format!("token={token}"));
        if is_in_time {
            agent.logs(&format!("token={token}")).await?;
            revoked.push(token);
        }
        if revoked.len() == 3 {
            break;
        }
    }
    ensure!(!revoked.is_empty(), "no lease was revoked before it was taken up: {}", agent.program().logs());
    network.restore().await?;
    agent.logs("works under ").await?;
    for token in revoked {
        assert_eq!(agent.logged(&format!("works under {token}.")), 0, "{}", agent.program().logs());
    }
    agent.drained().await?;
    Ok(())
}

/// The plan that lacks it may arrive before or after the news that the lease is lost.
#[tokio::test]
async fn a_resource_that_was_deleted_by_force_is_not_taken_up_again() -> Result<()> {
    const JOBS: usize = 8;
    let server = server().start().await?;
    for job in 0..JOBS {
        ask(&server, &format!("resource put job/{job}")).await?.good()?;
    }
    let top = "placement: assigned\nlease_ttl_seconds: 5\nheartbeat_interval_seconds: 1\nmax_workers: 1";
    let worker = python(
        r#"
say(type="ready")
while True:
    m = hear()
    if m["type"] == "assign":
        print("works on", m["resource"], flush=True)
    if m["type"] == "revoke":
        say(type="drained", id=m["id"])
    say(type="heartbeat")
"#,
    );
    let agent = Agent::start(&server, "first", top, &worker).await?;
    for job in 0..JOBS {
        agent.logs(&format!("works on job/{job}")).await?;
    }
    for job in 1..JOBS {
        ask(&server, &format!("resource rm job/{job} --force")).await?.good()?;
    }
    let count = async || {
        let leases = ask(&server, "lease ls --json").await.ok()?.json().ok()?;
        Some(leases["leases"].as_array()?.len())
    };
    let waited = wait_for("the leases to end", SOON, async || count().await == Some(1)).await;
    waited.with_context(|| agent.program().logs())?;
    // For longer than any pause before an attempt.
    let is_taken_up = async || count().await.is_some_and(|count| count > 1);
    let taken_up = wait_for("another lease", Duration::from_secs(4), is_taken_up).await;
    ensure!(taken_up.is_err(), "taken up again: {}", agent.program().logs());
    assert_eq!(holder(&server, "job/0").await?.as_deref(), Some("first"));
    // What is declared again is worked on again.
    ask(&server, "resource put job/1").await?.good()?;
    wait_for("the work", SOON, async || agent.logged("works on job/1") == 2).await?;
    agent.drained().await?;
    Ok(())
}

/// The worker takes longer than the next holder waits. Releasing then would leave the resource to nobody.
#[tokio::test]
async fn a_hand_over_that_has_lapsed_leaves_the_work_where_it_is() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let gate = folder.path().join("go");
    let worker = python(&format!(
        r#"
say(type="ready")
while True:
    m = hear()
    if m["type"] == "assign":
        print("works after", (m["state"] or {{}}).get("frame", 0), flush=True)
    if m["type"] == "revoke":
        print("finishes", flush=True)
        while not os.path.exists("{}"):
            say(type="heartbeat")
            time.sleep(0.01)
        say(type="drained", id=m["id"], state={{"frame": 42}})
"#,
        gate.display()
    ));
    let top = "resources: [job/a]\nmax_resources_per_worker: 1\nlease_ttl_seconds: 6\nheartbeat_interval_seconds: 1\ndrain_budget_seconds: 120";
    let agent =
        Agent::start(&server, "first", top, &format!("{worker}  stop_timeout_seconds: 100\n")).await?;
    agent.logs("works after 0").await?;
    let next = ClientSession::open(Arc::new(Http::to(server.url())?), SessionConfig::new("next")).await?;
    let taken = next.take_over("job", "a", Duration::from_secs(2)).await?;
    ensure!(taken.is_none(), "it was handed over");
    agent.logs("finishes").await?;
    fs::write(&gate, "")?;
    agent.logs("works after 42").await?;
    held_by(&server, "job/a", "first").await?;
    let events = ask(&server, "lease history job/a --json").await?.good()?;
    assert!(!events.contains("lease_released"), "{events}");
    // The next time it is in time.
    let guard = next.take_over("job", "a", SOON).await?.context("it is handed over")?;
    assert_eq!(guard.state(), Some(json!({"frame": 42})));
    guard.release().await?;
    agent.drained().await?;
    Ok(())
}

/// Workers are ended shortly before the deadline. To start them again then is not their failure.
#[tokio::test]
async fn an_outage_of_a_ttl_is_no_failure_of_the_workers() -> Result<()> {
    let server = server().start().await?;
    let network = Proxy::start(server.url().trim_start_matches("http://").parse()?).await?;
    let top = "resources: [job/a, job/b]\nmax_resources_per_worker: 1\nlease_ttl_seconds: 6\n\
               heartbeat_interval_seconds: 1\nlease_retry_interval_seconds: 0.2";
    let restart = "  restart: {first_seconds: 0.1, cap_seconds: 0.2, burst: 3, penalty_seconds: 600}\n";
    let worker = format!("{}{restart}", script("exec sleep 600"));
    let agent = Agent::start_at(&format!("http://{}", network.addr()), "first", top, &worker).await?;
    agent.runs("sleep", 2).await?;
    network.cut().await;
    agent.logs("the lease is lost").await?;
    network.restore().await?;
    agent.runs("sleep", 2).await?;
    assert_eq!((agent.logged(" failed: "), agent.logged("giving up")), (0, 0), "{}", agent.program().logs());
    agent.drained().await?;
    Ok(())
}

/// With default settings a worker has many resources. Those that come while a plain process may still connect are given
/// to it when it has not.
#[tokio::test]
async fn a_plain_process_gets_what_was_granted_while_it_started() -> Result<()> {
    let server = server().start().await?;
    let worker = script("cat $SOLEHOLD_ASSIGNMENTS_FILE; exec sleep 600");
    let worker = format!("{worker}  startup_timeout_seconds: 8\n");
    let agent = Agent::start(&server, "first", "resources: [job/a]\nmax_workers: 1", &worker).await?;
    agent.logs("\"assignments\"").await?;
    agent.configure(&agent.configuration()?.replace("[job/a]", "[job/a, job/b, job/c]"))?;
    let has_all = |line: &str| ["job/a", "job/b", "job/c"].iter().all(|job| line.contains(job));
    let is_given = async || {
        let logs = agent.program().logs();
        logs.lines().any(|line| line.contains("assignments") && has_all(line))
    };
    wait_for("a run with all of them", SOON, is_given).await.with_context(|| agent.program().logs())?;
    agent.drained().await?;
    Ok(())
}
