//! A lease that is held for a script: until its stdin is closed, a time is over, a process has ended, or a signal.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use solehold_testkit::{Proxy, Solehold, wait_for};
use tokio::process::Command;

use crate::{
    common::{BINARY, SOON, ask, json_of, ran, run, server},
    world::Run,
};

fn keep(server: &Solehold, args: &str) -> Result<Run> {
    Run::start(server, format!("lease keep {args}").split_whitespace().map(Into::into))
}

/// Its token, once it holds the lease.
async fn token(run: &mut Run) -> Result<u64> {
    Ok(run.next_line().await?.context("a line")?.parse()?)
}

async fn is_free(server: &Solehold) -> Result<bool> {
    Ok(ask(server, "lease get job/a").await?.code == Some(4))
}

#[tokio::test]
async fn it_prints_the_token_and_releases_when_stdin_is_closed() -> Result<()> {
    let server = server().start().await?;
    let mut first = keep(&server, "job/a --ttl 3s")?;
    let token = token(&mut first).await?;
    let lease = json_of(&server, "lease get job/a").await?;
    ensure!(lease["token"] == token, "{lease}");
    let refused = ask(&server, "lease keep job/a --no-wait").await?;
    ensure!(refused.code == Some(103) && refused.stdout.is_empty(), "{refused:?}");
    // It is renewed for as long as that takes.
    let renewed = async || {
        let lease = json_of(&server, "lease get job/a").await.ok()?;
        lease["renewed_at"].is_string().then_some(lease["token"].clone())
    };
    ensure!(wait_for("a renewal", SOON, renewed).await? == token, "the same grant");
    let ended = first.ended().await?;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ensure!(is_free(&server).await?, "released");
    Ok(())
}

#[tokio::test]
async fn a_time_a_process_and_a_signal_end_it_as_well() -> Result<()> {
    let server = server().start().await?;
    let mut timed = keep(&server, "job/a --for 1ms --json")?;
    let line: Value = serde_json::from_str(&timed.next_line().await?.context("a line")?)?;
    ensure!(line["kind"] == "job" && line["key"] == "a" && line["token"].is_u64(), "{line}");
    ensure!(timed.next_line().await?.is_none(), "one line");
    assert_eq!(timed.ended().await?.code, 0);
    ensure!(is_free(&server).await?, "released");

    let mut other = Command::new("sleep").arg("600").kill_on_drop(true).spawn()?;
    let mut bound = keep(&server, &format!("job/a --pid {}", other.id().context("a pid")?))?;
    token(&mut bound).await?;
    other.kill().await?;
    ensure!(bound.next_line().await?.is_none(), "it has ended");
    assert_eq!(bound.ended().await?.code, 0);
    ensure!(is_free(&server).await?, "released");

    let mut signalled = keep(&server, "job/a")?;
    token(&mut signalled).await?;
    signalled.signal(Signal::TERM)?;
    ensure!(signalled.next_line().await?.is_none(), "it has ended, and not because stdin was closed");
    assert_eq!(signalled.ended().await?.code, 143);
    ensure!(is_free(&server).await?, "released");
    let nobody = ask(&server, "lease keep job/a --pid 4194305").await?;
    ensure!(nobody.code == Some(102) && nobody.stderr.contains("--pid 4194305"), "{nobody:?}");
    Ok(())
}

/// Shells give /dev/null to background jobs: that it has an end says nothing.
#[tokio::test]
async fn a_stdin_that_no_process_can_close_does_not_end_it() -> Result<()> {
    let server = server().start().await?;
    let mut command = crate::common::command(["lease", "keep", "job/a", "--for", "2s"]);
    command.env("SOLEHOLD_SERVER", server.url()).stdin(Stdio::null());
    let began = std::time::Instant::now();
    let ended = ran(command).await?;
    ensure!(ended.code == Some(0) && began.elapsed().as_secs() >= 2, "{ended:?} {:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn when_the_lease_is_lost_it_says_so_by_its_code() -> Result<()> {
    let server = server().start().await?;
    let mut revoked = keep(&server, "job/a --ttl 3s")?;
    token(&mut revoked).await?;
    ask(&server, "lease revoke job/a --fenced").await?.good()?;
    ensure!(revoked.next_line().await?.is_none(), "it has ended");
    let ended = revoked.ended().await?;
    ensure!(ended.code == 107 && ended.stderr.contains("must stop"), "{}: {}", ended.code, ended.stderr);

    // Without an answer, at the local deadline.
    let proxy = Proxy::start(server.url().trim_start_matches("http://").parse()?).await?;
    let args = format!("lease keep job/a --ttl 2s --server {}", proxy.addr());
    let mut cut_off = Run::alone(args.split_whitespace().map(Into::into))?;
    token(&mut cut_off).await?;
    proxy.cut().await;
    ensure!(cut_off.next_line().await?.is_none(), "it has ended");
    let ended = cut_off.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    Ok(())
}

/// The example of the help, as it would be pasted.
#[tokio::test]
async fn the_script_of_the_help_works() -> Result<()> {
    let server = server().start().await?;
    let help = run(["lease", "keep", "--help"]).await?.good()?;
    let (_, script) = help.split_once("in bash:\n").context("a script in the help")?;
    let script: String = script.lines().map(|line| format!("{}\n", line.trim())).collect();
    let folder = std::path::Path::new(BINARY).parent().context("a folder")?;
    let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
    let mut bash = Command::new("bash");
    bash.args(["-euc", &script]).env("PATH", path).env("SOLEHOLD_SERVER", server.url()).kill_on_drop(true);
    let ended = ran(bash).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let history = json_of(&server, "lease history job/nightly").await?;
    let names: Vec<&str> = history["events"]
        .as_array()
        .context("events")?
        .iter()
        .filter_map(|e| e["event_type"].as_str())
        .collect();
    ensure!(names.ends_with(&["lease_acquired", "lease_released"]), "{history}");
    let token = history["events"][names.len() - 1]["token"].as_u64().context("a token")?;
    ensure!(ended.stdout == format!("working under token {token}\n"), "{ended:?}");
    Ok(())
}
