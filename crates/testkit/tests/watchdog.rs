//! No server outlives the process that started it, not even when that process is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use solehold_testkit::{Postgres, wait_for};

const ROLE: &str = "TESTKIT_WATCHDOG_ROLE";
const SOON: Duration = Duration::from_secs(30);

/// The other process: this same test, with a role.
#[tokio::test]
async fn owner() -> Result<()> {
    let Ok(role) = std::env::var(ROLE) else { return Ok(()) };
    let owned = Postgres::builder().fake_clock().start().await?;
    let shared = Postgres::shared().await?;
    if role == "pauses" {
        owned.pause().await?;
    }
    for postgres in [&owned, shared] {
        let folder = data_folder(postgres.pid()?)?;
        println!("\nserver {} {folder}", postgres.pid()?);
    }
    println!("\nready");
    match role.as_str() {
        "exits" => Ok(()),
        "panics" => panic!("as asked"),
        _ => std::future::pending().await,
    }
}

/// From the command line, since a paused server cannot be asked.
fn data_folder(pid: u32) -> Result<String> {
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    Ok(command.split('\0').nth(2).context("no data folder on the command line")?.to_owned())
}

/// Gives what the other process wrote to stderr.
async fn leaves_nothing_behind(role: &str) -> Result<String> {
    let mut owner = Command::new(std::env::current_exe()?)
        .args(["--exact", "owner", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(owner.stdout.take().context("no stdout")?).lines().map_while(Result::ok);
    let lines: Vec<String> = output.by_ref().take_while(|line| line != "ready").collect();
    if ["waits", "pauses"].contains(&role) {
        owner.kill()?;
    }
    output.for_each(drop);
    let stderr = String::from_utf8(owner.wait_with_output()?.stderr)?;

    let servers: Vec<_> =
        lines.iter().filter_map(|line| line.strip_prefix("server ")?.split_once(' ')).collect();
    assert_eq!(servers.len(), 2, "{lines:?}");
    for (pid, data) in servers {
        let gone = async || !is_running(pid, data) && !Path::new(data).exists();
        wait_for(&format!("server {pid} in {data} to be gone"), SOON, gone).await?;
        assert!(!Path::new(&format!("/dev/shm/faketime_shm_{pid}")).exists());
    }
    Ok(stderr)
}

/// True when the process is there, is no zombie, and is still that server.
fn is_running(pid: &str, data: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|command| command.contains(data))
}

#[tokio::test]
async fn a_killed_process_leaves_no_server() -> Result<()> {
    leaves_nothing_behind("waits").await.map(drop)
}

#[tokio::test]
async fn a_killed_process_leaves_no_paused_server() -> Result<()> {
    leaves_nothing_behind("pauses").await.map(drop)
}

#[tokio::test]
async fn an_ended_process_leaves_no_server() -> Result<()> {
    leaves_nothing_behind("exits").await.map(drop)
}

#[tokio::test]
async fn a_panic_leaves_no_server_and_shows_its_log() -> Result<()> {
    let stderr = leaves_nothing_behind("panics").await?;
    assert!(stderr.contains("the last output of postgres"), "{stderr}");
    assert!(stderr.contains("ready to accept connections"), "{stderr}");
    Ok(())
}
