//! How fast a gate works off what has come while it was away: the figure in `docs/benchmarks.md`.

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use solehold_testkit::{Mosquitto, wait_for};

use crate::world::{Gate, PATIENCE, Publisher, Server};

/// Processor time of a process so far, in seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").context("a stat")?;
    let ticks: Vec<f64> = rest.split(' ').skip(11).take(2).filter_map(|text| text.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

#[tokio::test]
async fn a_backlog_is_worked_off() -> Result<()> {
    let is_full = std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full");
    work_off(if is_full { 200_000 } else { 2_000 }, &[]).await
}

#[tokio::test]
async fn a_backlog_is_worked_off_that_is_larger_than_what_may_be_held() -> Result<()> {
    work_off(5_000, &["--held-max", "20000"]).await
}

async fn work_off(count: usize, more: &[&str]) -> Result<()> {
    let lines = "allow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 1000\n";
    let broker = Mosquitto::configured(|_, port| Ok(format!("listener {port} 127.0.0.1\n{lines}"))).await?;
    let server = Server::start().await?;
    let mut keys = Vec::new();
    for number in 0..12 {
        let key = format!("k-{number}");
        let token = server.acquire(&key).await?;
        keys.push((key, token));
    }
    // Its session stays, and with it what comes for it.
    Gate::flowing(&server, &broker.url(), &[]).await?.program.terminate().await?;
    Publisher::flood(broker.port(), &keys, count).await?;
    let gate = Gate::start(&server, &broker.url(), more).await?;
    gate.measures("messages_passed_total", |passed| passed > 0.0).await?;
    let gate_pid = gate.program.pid()?;
    let broker_pid = broker.pid()?;
    let before = (cpu_seconds(gate_pid)?, cpu_seconds(broker_pid)?);
    let began = Instant::now();
    let first = gate.measured("messages_passed_total").await?;
    let passed =
        async || gate.measured("messages_passed_total").await.ok().filter(|passed| *passed >= count as f64);
    let passed = wait_for("the backlog to be worked off", PATIENCE * 5, passed).await? - first;
    let took = began.elapsed().as_secs_f64();
    let after = (cpu_seconds(gate_pid)?, cpu_seconds(broker_pid)?);
    let each = |seconds: f64| seconds / passed.max(1.0) * 1e6;
    println!(
        "{passed} messages in {took:.2} s: {:.0} per second; processor time per message: gate {:.1} µs, broker {:.1} µs",
        passed / took,
        each(after.0 - before.0),
        each(after.1 - before.1)
    );
    assert_eq!(gate.refused("stale").await? + gate.refused("unknown").await?, 0.0);
    Ok(())
}
