//! Agents to which the server assigns what they work on: together they hand everything over, and lose nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{Solehold, package_file, wait_for};

use crate::{
    common::{SOON, server},
    world::{Agent, script},
};

const TOP: &str = "lease_ttl_seconds: 60\nmax_workers: 2\nmax_resources_per_worker: 8\ntenant: acme";

/// A worker that counts, and says under which token.
fn counting() -> String {
    let worker = package_file("../../examples/workers/worker.py");
    let worker = worker.display();
    format!("  command: [python3, {worker}]\n  protocol: required\n  env: {{WORK_EVERY_SECONDS: '0.1'}}\n")
}

/// A server with keys, and its operator.
struct Operator {
    server: Solehold,
    key: String,
}

impl Operator {
    async fn start(jobs: usize) -> Result<Self> {
        let mut operator = Self { server: server().start().await?, key: String::new() };
        operator.key = operator.new_key("admin").await?;
        for job in 0..jobs {
            operator.send(Method::PUT, &format!("/resources/job/{job}"), json!({})).await?;
        }
        Ok(operator)
    }

    async fn new_key(&self, role: &str) -> Result<String> {
        let tenant = (role != "admin").then_some("acme");
        let body = json!({"name": role, "role": role, "tenant": tenant});
        let made = self.send(Method::POST, "/admin/keys", body).await?;
        Ok(made["key"].as_str().context("a key")?.to_owned())
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let url = format!("{}/api/v1{path}?tenant=acme", self.server.url());
        let mut asked = reqwest::Client::new().request(method, url);
        if !self.key.is_empty() {
            asked = asked.bearer_auth(&self.key);
        }
        if !body.is_null() {
            asked = asked.json(&body);
        }
        let answer = asked.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{path}: {text}");
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Starts an agent that works with a key of its own.
    async fn agent(&self, name: &str, more: &str) -> Result<Agent> {
        let key = self.new_key("runner").await?;
        Agent::start(&self.server, name, &format!("{TOP}\napi_key: {key}\n{more}"), &counting()).await
    }

    /// Waits until each of these holds that many, and nobody holds anything else.
    async fn hold(&self, wanted: &[(&str, usize)]) -> Result<()> {
        let look = async || {
            let listed = self.send(Method::GET, "/leases", Value::Null).await.ok()?;
            let leases = listed["leases"].as_array()?;
            let count = |name: &str| leases.iter().filter(|lease| lease["holder"] == name).count();
            let is_so = wanted.iter().all(|(name, load)| count(name) == *load);
            let total: usize = wanted.iter().map(|(_, load)| load).sum();
            (is_so && leases.len() == total).then_some(())
        };
        let waited = wait_for(&format!("{wanted:?}"), SOON, look).await;
        waited.with_context(|| self.server.logs())
    }

    /// The events of a job, without those of its state: their names, holders and times.
    async fn told(&self, job: usize) -> Result<Vec<(String, String, String)>> {
        let path = format!("/resources/job/{job}/history");
        let history = self.send(Method::GET, &path, Value::Null).await?;
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let mut events: Vec<&Value> = history["events"].as_array().context("events")?.iter().collect();
        events.sort_by_key(|event| event["revision"].as_u64());
        let of =
            |event: &&Value| (text(event, "event_type"), text(event, "holder"), text(event, "timestamp"));
        Ok(events.iter().map(of).filter(|(name, ..)| name.starts_with("lease_")).collect())
    }
}

/// A second agent, with another key, gets its share by hand-over, as far as the band asks for it; when the first
/// drains, it gets the rest so, too. The last one has nobody to hand over to, and does not wait for anybody.
#[tokio::test]
async fn agents_hand_over_to_each_other_and_the_last_one_waits_for_nobody() -> Result<()> {
    let operator = Operator::start(4).await?;
    let first = operator.agent("first", "").await?;
    operator.hold(&[("first", 4)]).await?;
    let second = operator.agent("second", "").await?;
    operator.hold(&[("first", 3), ("second", 1)]).await?;
    first.drained().await?;
    operator.hold(&[("second", 4)]).await?;
    for job in 0..4 {
        let told = operator.told(job).await?;
        // An offer that was not taken up in time, on a busy machine, is followed by another.
        let by = |name: &str| told.iter().filter(move |event| event.0 == name).collect::<Vec<_>>();
        let acquired = by("lease_acquired");
        let holders: Vec<&str> = acquired.iter().map(|(_, holder, _)| holder.as_str()).collect();
        assert_eq!(holders, ["first", "second"], "job {job} moved once: {told:?}");
        let released = by("lease_released").into_iter().find(|(_, holder, _)| holder == "first");
        let times = (released.map(|(.., time)| time), Some(&acquired[1].2));
        assert_eq!(times.0, times.1, "job {job} moved with no gap: {told:?}");
    }
    let took = second.drained().await?;
    assert!(took < Duration::from_secs(15), "nobody takes over, so nothing is waited for: {took:?}");
    operator.hold(&[]).await
}

/// Its session would last for a minute; its keepers say that it drains, and release.
#[tokio::test]
async fn a_killed_agent_s_work_is_assigned_to_another_at_once() -> Result<()> {
    let operator = Operator::start(3).await?;
    let first = operator.agent("first", "").await?;
    operator.hold(&[("first", 3)]).await?;
    for job in 0..3 {
        first.logs(&format!("job/{job} token ")).await?;
    }
    let began = Instant::now();
    first.program().kill9().await?;
    let second = operator.agent("second", "").await?;
    operator.hold(&[("second", 3)]).await?;
    assert!(began.elapsed() < Duration::from_secs(55), "nobody waited for the ttl: {:?}", began.elapsed());
    second.drained().await?;
    Ok(())
}

/// A failure is reported by the lease that failed, and the agent releases it while it reports.
#[tokio::test]
async fn what_an_agent_reports_of_its_failures_counts() -> Result<()> {
    let operator = Operator::start(1).await?;
    let key = operator.new_key("runner").await?;
    let worker =
        format!("{}  restart: {{first_seconds: 0.05, cap_seconds: 0.1, burst: 3}}\n", script("exit 9"));
    let agent = Agent::start(&operator.server, "broken", &format!("{TOP}\napi_key: {key}"), &worker).await?;
    let reported = async || {
        let explained = operator.send(Method::GET, "/resources/job/0/explain", Value::Null).await.ok()?;
        explained["failures"].as_u64().filter(|count| *count > 0)
    };
    wait_for("a report", SOON, reported).await.with_context(|| agent.program().logs())?;
    agent.drained().await?;
    Ok(())
}

/// An operator hands a resource over to an agent that has not asked for it.
#[tokio::test]
async fn what_an_operator_hands_over_is_worked_on_or_released() -> Result<()> {
    let operator = Operator::start(1).await?;
    let placed = json!({"attributes": {"placement": {"placed": false}}});
    operator.send(Method::PUT, "/resources/job/0", placed).await?;
    let chosen = operator.agent("chosen", "").await?;
    let session = operator.send(Method::POST, "/sessions", json!({"holder": "someone"})).await?;
    let lease =
        async |body: Value, method: Method| operator.send(method, "/resources/job/0/lease", body).await;
    let proof = json!({"session_id": session["session_id"]});
    let ask = json!({"holder": "someone", "session_id": session["session_id"]});
    lease(ask.clone(), Method::POST).await?;
    operator.send(Method::POST, "/resources/job/0/handover", json!({"to": "chosen"})).await?;
    lease(proof.clone(), Method::DELETE).await?;
    chosen.logs("adopting a lease that was handed over to this runner").await?;
    chosen.logs("job/0 token ").await?;
    operator.hold(&[("chosen", 1)]).await?;
    chosen.drained().await?;

    // One whose file says what to work on gives it back.
    let key = operator.new_key("runner").await?;
    let top = format!("{TOP}\napi_key: {key}\nresources: [job/own]");
    let fixed = Agent::start(&operator.server, "fixed", &top, &script("exec sleep 600")).await?;
    fixed.runs("sleep", 1).await?;
    lease(ask, Method::POST).await?;
    operator.send(Method::POST, "/resources/job/0/handover", json!({"to": "fixed"})).await?;
    lease(proof, Method::DELETE).await?;
    fixed.logs("releasing lease").await?;
    operator.hold(&[("fixed", 1)]).await?;
    fixed.drained().await?;
    Ok(())
}

/// The server cannot be reached for longer than the ttl. The work goes on, and is told the token of the new lease.
#[tokio::test]
async fn with_grace_the_work_goes_on_under_the_token_that_it_is_won_back_with() -> Result<()> {
    let operator = Operator::start(1).await?;
    let network =
        solehold_testkit::Proxy::start(operator.server.url().trim_start_matches("http://").parse()?).await?;
    let key = operator.new_key("runner").await?;
    let top = format!(
        "{}\napi_key: {key}\nheartbeat_interval_seconds: 0.5\ngrace_seconds: 600",
        TOP.replace("60", "2")
    );
    let agent = Agent::start(&operator.server, "first", &top, &counting()).await?;
    agent.logs("job/0 token ").await?;
    let before = agent.status().await?["resources"][0]["token"].clone();
    let through =
        agent.configuration()?.replace(operator.server.url(), &format!("http://{}", network.addr()));
    agent.configure(&through)?;
    agent.logs("configuration reloaded").await?;
    network.cut().await;
    operator.hold(&[]).await?;
    network.restore().await?;
    agent.logs("reclaimed an expired lease").await?;
    operator.hold(&[("first", 1)]).await?;
    let after = agent.status().await?["resources"][0]["token"].clone();
    assert!(after.as_u64() > before.as_u64(), "{before} {after}");
    agent.logs(&format!("job/0 token {after} ")).await?;
    assert_eq!(agent.logged("starting worker"), 1, "the worker was not restarted");
    agent.drained().await?;
    Ok(())
}

/// The file could not say it, so job agents took a scene that was declared beside the jobs and ran their worker on it.
#[tokio::test]
async fn an_agent_takes_only_the_kinds_that_its_file_names() -> Result<()> {
    let operator = Operator::start(2).await?;
    operator.send(Method::PUT, "/resources/scene/tour", json!({})).await?;
    let agent = operator.agent("first", "kinds: [job]").await?;
    operator.hold(&[("first", 2)]).await?;
    let explained = operator.send(Method::GET, "/resources/scene/tour/explain", Value::Null).await?;
    assert_eq!(explained["reason"], "no_runner_for_kind", "{explained}");
    agent.drained().await?;
    Ok(())
}
