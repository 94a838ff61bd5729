//! What people are told while a command waits or runs, and what is not done to them.

use std::ffi::OsString;

use anyhow::{Context, Result};
use solehold_testkit::{Solehold, TempDir, free_port, wait_for};

use crate::{
    common::{BINARY, SOON, ask, ask_args, server},
    world::{Ended, Run},
};

/// A server that can be started again at the same place.
struct Place {
    folder: TempDir,
    port: u16,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self { folder: TempDir::new()?, port: free_port()? })
    }

    async fn serve(&self) -> Result<Solehold> {
        server().data_dir(self.folder.path()).listen(([127, 0, 0, 1], self.port).into()).start().await
    }
}

/// Waits until it has said so.
async fn said(run: &Run, words: &str) -> Result<()> {
    let heard = wait_for(words, SOON, async || run.said().contains(words)).await;
    heard.with_context(|| run.said())
}

/// Checks that stderr has exactly these lines, in this order, and names no module.
fn lines(ended: &Ended, wanted: &[&str]) {
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), wanted.len(), "{}", ended.stderr);
    for (line, words) in lines.iter().zip(wanted) {
        assert!(line.contains(words), "{words:?} is not in {line:?}");
    }
    assert!(!ended.stderr.contains("solehold_") && !ended.stderr.contains('\r'), "{}", ended.stderr);
}

#[tokio::test]
async fn a_server_that_goes_away_and_comes_back_is_told_in_two_lines() -> Result<()> {
    let place = Place::new()?;
    let first = place.serve().await?;
    let mut run = Run::script(&first, "run --lease job/a --ttl 20s", "echo ready; read line; exit 3")?;
    run.line("ready").await?;
    first.kill9().await?;
    said(&run, "SIGKILL in ").await?;
    let _second = place.serve().await?;
    said(&run, "job/a is renewed again, after ").await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    // "no server at ..." or, where a heartbeat was under way, "the connection to ... was lost".
    lines(&ended, &["solehold: job/a cannot be renewed: ", "solehold: job/a is renewed again, after "]);
    let words = "; trying again; without an answer the command gets SIGTERM in ";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_loss_is_told_once() -> Result<()> {
    let server = server().start().await?;
    let mut run = Run::script(&server, "run --lease job/a --ttl 3s", "echo ready; sleep 600")?;
    run.line("ready").await?;
    let mut logging =
        Run::script(&server, "run --lease job/b --ttl 3s --log-level warn", "echo ready; sleep 600")?;
    logging.line("ready").await?;
    server.kill9().await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    lines(
        &ended,
        &[
            "solehold: job/a cannot be renewed: ",
            "error: job/a: the lease is lost: it was not renewed by its deadline",
        ],
    );
    let logged = logging.ended().await?;
    assert!(logged.stderr.contains("WARN solehold_client::"), "{}", logged.stderr);
    Ok(())
}

#[tokio::test]
async fn a_lock_inside_itself_is_refused() -> Result<()> {
    let server = server().start().await?;
    let other = crate::common::server().start().await?;
    let nested = async |locks: &[&str], last: &[&str]| {
        let inner = |name: &&str| [BINARY, "lock", name, "--"].map(str::to_owned);
        let mut args: Vec<String> = locks.iter().flat_map(inner).skip(1).collect();
        args.extend(last.iter().map(|arg| (*arg).to_owned()));
        ask_args(&server, args).await
    };
    let refused = nested(&["a"], &[BINARY, "lock", "a", "--", "true"]).await?;
    assert_eq!(refused.code, Some(103), "{}", refused.stderr);
    let words = "error: cannot acquire lock/a: the command that this one runs under holds it already, as ";
    assert!(refused.stderr.starts_with(words), "{}", refused.stderr);
    assert!(refused.stderr.contains("it would wait for itself"), "{}", refused.stderr);
    for option in ["--no-wait", "--wait=1m"] {
        let refused = nested(&["a", "b", "c"], &[BINARY, "lock", "a", option, "--", "true"]).await?;
        assert_eq!(refused.code, Some(103), "{}", refused.stderr);
        assert!(refused.stderr.starts_with(words), "{}", refused.stderr);
    }
    assert_eq!(nested(&["a", "b"], &["true"]).await?.code, Some(0));
    // The lock of that name elsewhere is another one.
    let elsewhere = nested(&["a"], &[BINARY, "lock", "a", "--server", other.url(), "--", "true"]).await?;
    assert_eq!(elsewhere.code, Some(0), "{}", elsewhere.stderr);
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() -> Result<()> {
    let place = Place::new()?;
    let url = format!("127.0.0.1:{}", place.port);
    let start = |args: &str, url: &str| {
        let args = format!("lock a --server {url} {args} -- echo mine");
        Run::alone(args.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    };
    let mut waiting = start("--wait-server 10m", &url)?;
    said(&waiting, "waiting up to 10m for a server: no server at http://127.0.0.1:").await?;
    let soon = start("--wait-server 300ms", &url)?.ended().await?;
    assert_eq!(soon.code, 105, "{}", soon.stderr);
    assert!(soon.stderr.contains("is `solehold serve` running there?"), "{}", soon.stderr);
    let server = place.serve().await?;
    waiting.line("mine").await?;
    assert_eq!(waiting.ended().await?.code, 0);
    // What is there and speaks otherwise is not waited for.
    let odd = start("--wait-server 10m", &server.url().replace("http:", "https:"))?.ended().await?;
    assert_eq!(odd.code, 105, "{}", odd.stderr);
    lines(&odd, &["this port speaks plain HTTP"]);
    Ok(())
}

#[tokio::test]
async fn two_commands_under_one_holder_do_not_end_each_other() -> Result<()> {
    let server = server().start().await?;
    let script = r#"echo ready; read line; . "$SOLEHOLD_LEASE_FILE"; first=$SOLEHOLD_DEADLINE_BOOTTIME_MS
        until . "$SOLEHOLD_LEASE_FILE"; [ "$SOLEHOLD_DEADLINE_BOOTTIME_MS" -gt "$first" ]; do sleep 0.05; done"#;
    let mut first = Run::script(&server, "lock a --holder w --ttl 4s", script)?;
    first.line("ready").await?;
    let mut second = Run::script(&server, "lock b --holder w --ttl 4s", script)?;
    second.line("ready").await?;
    let leases = ask(&server, "lease ls --json").await?.json()?;
    let holders = leases["leases"].as_array().context("leases")?.iter().map(|lease| lease["holder"].as_str());
    for holder in holders {
        assert!(holder.is_some_and(|holder| holder.starts_with("w-")), "{leases}");
    }
    for run in [first, second] {
        let ended = run.ended().await?;
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_goes_away_during_the_wait_is_told() -> Result<()> {
    let place = Place::new()?;
    let first = place.serve().await?;
    ask(&first, "lease acquire lock/a --holder the-other --ttl 2s").await?.good()?;
    let mut waiting = Run::script(&first, "lock a --ttl 3s", "echo mine")?;
    said(&waiting, "waiting for lock/a, held by the-other").await?;
    first.kill9().await?;
    said(&waiting, "no answer while waiting for lock/a: no server at ").await?;
    let _second = place.serve().await?;
    waiting.line("mine").await?;
    assert_eq!(waiting.ended().await?.code, 0);
    Ok(())
}
