//! Either side of a hand-over is killed at every step of it. Whatever was held is held again, its state is there, and
//! no two held it at the same time.

use std::fs;

use anyhow::{Context, Result, ensure};
use solehold_testkit::{Solehold, TempDir, wait_for};

use crate::{
    common::{SOON, ask, server},
    world::{Agent, held_by, holder, python},
};

/// A step of a hand-over, as a worker sees it: it halts there until the test has killed somebody.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The next worker is told to prepare.
    Prepare,
    /// It has said that it is prepared.
    Prepared,
    /// The present worker is told to finish.
    Revoke,
    /// It has said that it has finished.
    Drained,
    /// The next worker is told to begin.
    Assign,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Prepared => "prepared",
            Self::Revoke => "revoke",
            Self::Drained => "drained",
            Self::Assign => "assign",
        }
    }

    /// Whose worker gets there.
    fn is_of_next(self) -> bool {
        !matches!(self, Self::Revoke | Self::Drained)
    }
}

/// A worker that leaves frame 42 when it begins, and 43 when it is asked to finish, and halts at a step.
fn worker(gate: &str, step: &str) -> String {
    python(&format!(
        r#"
def at(step):
    if step != "{step}":
        return
    print("at", step, flush=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while not os.path.exists("{gate}"):
        time.sleep(0.005)

say(type="ready")
while True:
    m = hear()
    if m["type"] == "prepare":
        at("prepare")
        say(type="prepared", id=m["id"])
        at("prepared")
    if m["type"] == "assign":
        at("assign")
        print("works after", (m["state"] or {{}}).get("frame", 0), "with", m["token"], flush=True)
        say(type="state", resource=m["resource"], document={{"frame": 42}})
    if m["type"] == "revoke":
        at("revoke")
        # With nothing left to work on it is ended at once: not before it has printed where it is.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        say(type="drained", id=m["id"], state={{"frame": 43}})
        at("drained")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
"#
    ))
}

const TOP: &str = "placement: assigned\nmax_resources_per_worker: 1\nlease_ttl_seconds: 3\nheartbeat_interval_seconds: 1\n\
                   lease_retry_interval_seconds: 1";
/// These workers halt: they must not be taken for stuck.
const PATIENT: &str = "  protocol: required\n  stop_timeout_seconds: 30\n";

async fn start(server: &Solehold, name: &str, gate: &str, step: &str) -> Result<Agent> {
    Agent::start(server, name, TOP, &(worker(gate, step) + PATIENT)).await
}

/// Checks by the events that nobody was granted what another one held.
async fn check_events(server: &Solehold) -> Result<()> {
    let history = ask(server, "lease history job/a --json").await?.json()?;
    let mut held = None;
    for event in history["events"].as_array().context("events")? {
        match event["event_type"].as_str() {
            Some("lease_acquired") => {
                ensure!(held.is_none(), "two holders: {history:#}");
                held = event["token"].as_u64();
            }
            Some("lease_released" | "lease_expired" | "lease_revoked") if event["token"].as_u64() == held => {
                held = None
            }
            _ => {}
        }
    }
    Ok(())
}

async fn crash(step: Step, kills_next: bool) -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let gate = folder.path().join("go");
    let gate_text = gate.to_string_lossy();
    let here = |is_next: bool| if step.is_of_next() == is_next { step.name() } else { "nowhere" };
    ask(&server, "resource put job/a").await?.good()?;
    let first = start(&server, "first", &gate_text, here(false)).await?;
    held_by(&server, "job/a", "first").await?;
    first.logs("works after 0").await?;
    let written = async || ask(&server, "resource get job/a --json").await?.json();
    wait_for("the state", SOON, async || written().await.is_ok_and(|seen| !seen["state"].is_null())).await?;

    let next = start(&server, "next", &gate_text, here(true)).await?;
    ask(&server, "runner drain first").await?.good()?;
    let halted = if step.is_of_next() { &next } else { &first };
    halted.logs(&format!("at {}", step.name())).await?;
    let victim = if kills_next { &next } else { &first };
    victim.program().kill9().await?;
    fs::write(&gate, "")?;

    // Another one comes, as where pods are replaced.
    let third = start(&server, "third", &gate_text, "nowhere").await?;
    let others = if kills_next { vec![("third", &third)] } else { vec![("next", &next), ("third", &third)] };
    let names: Vec<&str> = others.iter().map(|(name, _)| *name).collect();
    let is_owned =
        async || holder(&server, "job/a").await.is_ok_and(|h| h.is_some_and(|h| names.contains(&h.as_str())));
    wait_for("an owner", SOON, is_owned)
        .await
        .with_context(|| format!("{step:?}: {}", victim.program().logs()))?;
    let works = async || others.iter().any(|(_, agent)| agent.logged("works after 4") > 0);
    wait_for("work from where it was left", SOON, works).await.with_context(|| third.program().logs())?;
    victim.nothing_left().await?;
    check_events(&server).await
}

#[tokio::test]
async fn either_side_may_crash_while_the_next_worker_prepares() -> Result<()> {
    crash(Step::Prepare, false).await?;
    crash(Step::Prepare, true).await
}

#[tokio::test]
async fn either_side_may_crash_when_the_next_worker_is_prepared() -> Result<()> {
    crash(Step::Prepared, false).await?;
    crash(Step::Prepared, true).await
}

#[tokio::test]
async fn either_side_may_crash_while_the_present_worker_finishes() -> Result<()> {
    crash(Step::Revoke, false).await?;
    crash(Step::Revoke, true).await
}

#[tokio::test]
async fn either_side_may_crash_when_the_present_worker_has_finished() -> Result<()> {
    crash(Step::Drained, false).await?;
    crash(Step::Drained, true).await
}

#[tokio::test]
async fn either_side_may_crash_while_the_next_worker_begins() -> Result<()> {
    crash(Step::Assign, false).await?;
    crash(Step::Assign, true).await
}
