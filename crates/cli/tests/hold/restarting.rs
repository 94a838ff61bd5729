//! A command that is started again while its lease is held: under one token, and not once that is over.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use solehold_testkit::{TempDir, wait_for};

use crate::{
    common::{SOON, ask, json_of, server},
    world::Run,
};

/// A script that says its token, counts its runs in a file, and ends with `code` until it has run `runs` times.
fn counting(folder: &TempDir, runs: u32, code: u8) -> String {
    let file = folder.path().join("runs").display().to_string();
    format!(
        "echo run >> {file}; echo token $SOLEHOLD_TOKEN; [ $(wc -l < {file}) -lt {runs} ] && exit {code}; exit 0"
    )
}

async fn tokens(run: &mut Run) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    while let Some(line) = run.next_line().await? {
        tokens.push(line.strip_prefix("token ").context(line.clone())?.to_owned());
    }
    Ok(tokens)
}

#[tokio::test]
async fn a_command_that_fails_is_started_again_under_the_same_token() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let mut run = Run::script(&server, "run --lease job/a --restart", &counting(&folder, 3, 7))?;
    let tokens = tokens(&mut run).await?;
    assert_eq!(tokens.len(), 3, "{tokens:?}");
    assert!(tokens.iter().all(|token| *token == tokens[0]), "one grant: {tokens:?}");
    let ended = run.ended().await?;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(
        ended.stderr.matches("the command ended with 7; starting it again in").count(),
        2,
        "{}",
        ended.stderr
    );
    assert_eq!(ask(&server, "lease get job/a").await?.code, Some(4), "nobody holds it");
    Ok(())
}

#[tokio::test]
async fn without_restart_or_after_success_it_is_not_started_again() -> Result<()> {
    let server = server().start().await?;
    for (args, code, expected) in [
        ("run --lease job/a", 7, 7),
        ("run --lease job/a --restart=on-failure", 0, 0),
        ("lock a --restart", 0, 0),
    ] {
        let folder = TempDir::new()?;
        let mut run = Run::script(&server, args, &counting(&folder, 9, code))?;
        assert_eq!(tokens(&mut run).await?.len(), 1, "{args}");
        assert_eq!(run.ended().await?.code, expected, "{args}");
    }
    Ok(())
}

#[tokio::test]
async fn a_signal_ends_a_command_that_is_always_started_again() -> Result<()> {
    let server = server().start().await?;
    // While it runs.
    let mut run = Run::script(&server, "run --lease job/a --restart=always", "echo ready; sleep 600")?;
    run.line("ready").await?;
    run.signal(Signal::TERM)?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    // While it pauses: the lease is held meanwhile, and released at the end.
    let run = Run::script(&server, "run --lease job/a --restart=always", "exit 0")?;
    let pauses = async || run.said().contains("starting it again");
    wait_for("a pause", SOON, pauses).await?;
    ensure!(json_of(&server, "lease get job/a").await?["status"] == "active", "it is kept");
    run.signal(Signal::TERM)?;
    assert_eq!(run.ended().await?.code, 143);
    assert_eq!(ask(&server, "lease get job/a").await?.code, Some(4), "nobody holds it");
    Ok(())
}

#[tokio::test]
async fn when_the_lease_is_lost_it_is_not_started_again() -> Result<()> {
    let server = server().start().await?;
    let mut run =
        Run::script(&server, "run --lease job/a --ttl 3s --restart=always", "echo ready; sleep 600")?;
    run.line("ready").await?;
    ask(&server, "lease revoke job/a").await?.good()?;
    assert_eq!(run.ended().await?.code, 107);
    // During a pause, too.
    let run = Run::script(&server, "run --lease job/b --ttl 3s --restart", "exit 5")?;
    wait_for("a pause", SOON, async || run.said().matches("starting it again").count() >= 3).await?;
    ask(&server, "lease revoke job/b").await?.good()?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    Ok(())
}
