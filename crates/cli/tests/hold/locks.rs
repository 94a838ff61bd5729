//! Locks: one at a time, and whoever waits in line gets its turn.

use anyhow::{Context, Result};
use rustix::process::Signal;
use solehold_testkit::TempDir;

use crate::{
    common::{ask, server},
    world::Run,
};

#[tokio::test]
async fn one_at_a_time() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let inside = folder.path().join("inside");
    let inside = inside.to_str().context("UTF-8")?;
    let script = format!(
        "mkdir {inside} || exit 9; echo $SOLEHOLD_LOCK $SOLEHOLD_RESOURCE $SOLEHOLD_TOKEN; rmdir {inside}"
    );
    let runs: Vec<Run> =
        (0..5).map(|_| Run::script(&server, "lock nightly", &script)).collect::<Result<_>>()?;
    let mut tokens = Vec::new();
    for mut run in runs {
        let line = run.next_line().await?.context("a line")?;
        let (names, token) = line.rsplit_once(' ').context("words")?;
        assert_eq!(names, "nightly lock/nightly");
        tokens.push(token.parse::<u64>()?);
        let ended = run.ended().await?;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 5, "each has a token of its own");
    Ok(())
}

#[tokio::test]
async fn whoever_leaves_the_line_is_not_waited_for() -> Result<()> {
    let server = server().start().await?;
    let mut first = Run::script(&server, "lock a --holder w1", "echo ready; read line; exit 0")?;
    first.line("ready").await?;
    let leaving = Run::script(&server, "lock a", "echo never; sleep 600")?;
    leaving.signal(Signal::INT)?;
    assert_eq!(leaving.ended().await?.code, 130);
    let mut next = Run::script(&server, "lock a", "echo mine")?;
    assert_eq!(first.ended().await?.code, 0);
    next.line("mine").await?;
    assert_eq!(next.ended().await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn a_revoked_lock_ends_its_command() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, "lock a --ttl 3s", "trap '' TERM").await?;
    ask(&server, "lease revoke lock/a").await?.good()?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    Ok(())
}
