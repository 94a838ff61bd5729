//! What agent and workers tell each other.

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    common::{ask, server},
    world::{Agent, python, script},
};

const ONE: &str = "resources: [job/a]\nmax_resources_per_worker: 1";
const MANY: &str = "resources: [job/a, job/b, job/c]\nmax_workers: 1";

#[tokio::test]
async fn a_worker_is_told_what_to_work_on_and_leaves_its_state() -> Result<()> {
    let server = server().start().await?;
    let worker = python(
        r#"
say(type="ready")
states, revoked = {}, []
while True:
    m = hear()
    if m["type"] == "assign":
        states[m["resource"]] = (m["state"] or {"n": 0})["n"] + 1
        print("works on", m["resource"], m["token"] > 0, states[m["resource"]], flush=True)
        say(type="state", resource=m["resource"], document={"n": states[m["resource"]]})
    if m["type"] == "revoke":
        print("revoked", m["resource"], m["reason"], m["deadline_boottime_ms"] > 0, flush=True)
        revoked.append(m)
        say(type="drained", id="not this one")
    if m["type"] == "error":
        print("told:", m["message"], flush=True)
        m = revoked.pop(0)
        say(type="drained", id=m["id"], state={"n": states[m["resource"]]})
"#,
    );
    let agent = Agent::start(&server, "first", MANY, &worker).await?;
    for resource in ["job/a", "job/b", "job/c"] {
        agent.logs(&format!("works on {resource} True 1")).await?;
    }
    let status = agent.status().await?;
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(1), "{status}");
    assert_eq!(status["workers"][0]["resources"], 3);
    agent.drained().await?;
    agent.logs("revoked job/b this runner is being drained True").await?;
    agent.logs(r#"told: drained: no revoke with the id "not this one" is open"#).await?;
    let next = Agent::start(&server, "next", MANY, &worker).await?;
    next.logs("works on job/c True 2").await?;
    next.drained().await?;
    Ok(())
}

/// A job is no camera: its lease and its worker's files name the worker in words for any kind.
#[tokio::test]
async fn a_job_s_lease_has_no_word_of_cameras() -> Result<()> {
    let server = server().start().await?;
    let worker = script("cat $SOLEHOLD_ASSIGNMENTS_FILE; echo I am $SOLEHOLD_WORKER; sleep 600");
    let agent = Agent::start(&server, "first", ONE, &worker).await?;
    agent.logs("I am first/").await?;
    let leases = reqwest::get(format!("{}/api/v1/leases?kind=job", server.url())).await?;
    let leases: Value = leases.error_for_status()?.json().await?;
    for word in ["camera", "shard", "zone", "runner_id"] {
        assert!(!leases.to_string().contains(word), "{word} in {leases:#}");
    }
    let name = leases["leases"][0]["attributes"]["worker"].as_str().unwrap_or_default().to_owned();
    agent.logs(&format!("I am {name}")).await?;
    agent.logs(&format!(r#""worker":"{name}""#)).await?;
    Ok(())
}

#[tokio::test]
async fn rubbish_is_answered_and_harms_nothing() -> Result<()> {
    let server = server().start().await?;
    let worker = python(
        r#"
print("told:", hear()["type"], flush=True)
agent.sendall(b"hello\n")
print("told:", hear()["message"], flush=True)
agent.sendall(b"x" * 2_000_000 + b"\n")
print("long:", hear()["message"], flush=True)
say(type="redy")
print("typo:", hear()["message"], flush=True)
say(type="prepared", id="nobody asked")
print("late:", hear()["message"], flush=True)
say(type="ready")
while True:
    say(type="heartbeat", stats={"odd": 1})
    time.sleep(0.1)
"#,
    );
    let agent = Agent::start(&server, "first", ONE, &worker).await?;
    agent.logs("told: assign").await?;
    agent.logs(r#"told: "hello" is not a JSON document"#).await?;
    agent.logs("long: a line of more than 524288 bytes was skipped").await?;
    agent.logs("unknown variant `redy`").await?;
    agent.logs(r#"late: prepared: no prepare with the id "nobody asked" is open"#).await?;
    let is_running =
        async || agent.status().await.is_ok_and(|s| s["workers"][0]["stats"] == json!({"odd": 1}));
    solehold_testkit::wait_for("its stats", crate::common::SOON, is_running).await?;
    assert_eq!(agent.status().await?["workers"][0]["phase"], "running");
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn programs_written_for_systemd_report_readiness_unmodified() -> Result<()> {
    let server = server().start().await?;
    let worker = script(
        r#"systemd-notify --status=loading; systemd-notify --ready; systemd-notify WATCHDOG=1; echo "usec $WATCHDOG_USEC"; exec sleep 600"#,
    );
    let agent = Agent::start(
        &server,
        "first",
        ONE,
        &format!("{worker}  protocol: required\n  watchdog_seconds: 2\n"),
    )
    .await?;
    agent.logs("usec 2000000").await?;
    agent.logs("the worker sent no heartbeat for 2s").await?;
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn health_and_metrics_are_served() -> Result<()> {
    let server = server().start().await?;
    let agent = Agent::start(&server, "first", ONE, &script("exec sleep 600")).await?;
    agent.runs("sleep", 1).await?;
    assert_eq!(agent.get("/healthz").await?.0, 200);
    assert_eq!(agent.get("/readyz").await?, (200, "ready\n".to_owned()));
    assert_eq!(
        agent.status().await?["workers"][0]["phase"],
        "running",
        "a plain process is ready when it runs"
    );
    let one = "solehold_agent_worker_processes{worker=\"1\"} 1";
    let is_counted = async || agent.get("/metrics").await.is_ok_and(|(_, text)| text.contains(one));
    solehold_testkit::wait_for("the worker in the metrics", crate::common::SOON, is_counted).await?;
    let (_, metrics) = agent.get("/metrics").await?;
    for line in ["solehold_agent_leases 1", "solehold_agent_ready 1"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let runner = ask(&server, "runner get first --json").await?.json()?;
    assert_eq!(runner["runner"]["capacity"], 4, "{runner}");
    agent.drained().await?;
    Ok(())
}

#[tokio::test]
async fn a_changed_configuration_reaches_the_worker_without_a_restart() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "resource put job/a --attribute rate=1").await?.good()?;
    let worker = python(
        r#"
say(type="ready")
while True:
    m = hear()
    print(m["type"], "rate", m["config"]["rate"], flush=True)
    say(type="heartbeat")
"#,
    );
    let agent = Agent::start(&server, "first", ONE, &worker).await?;
    agent.logs("assign rate 1").await?;
    ask(&server, "resource put job/a --attribute rate=2").await?.good()?;
    agent.logs("config rate 2").await?;
    assert_eq!(agent.logged("starting worker"), 1);
    agent.drained().await?;
    Ok(())
}
