//! Nothing is left of a command, grandchildren in sessions of their own included, however it ends.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use anyhow::{Context, Result};
use rustix::process::{Signal, kill_process};
use solehold_clock::BootTime;
use solehold_testkit::{TempDir, wait_for};
use uuid::Uuid;

use crate::{
    common::{SOON, ask, ask_args, server},
    world::Run,
};

/// Nothing of the family ends by SIGTERM.
const STUBBORN: &str = "trap '' TERM";
/// All ways below end with the deadline, which is not far.
const SHORT: &str = "run --lease job/a --ttl 3s";

/// Whether the resource is free now.
async fn is_free(server: &solehold_testkit::Solehold) -> Result<bool> {
    Ok(ask_args(server, ["run", "--lease", "job/a", "--no-wait", "--", "true"]).await?.code == Some(0))
}

#[tokio::test]
async fn a_command_that_ends_leaves_nothing_behind() -> Result<()> {
    let server = server().start().await?;
    for prelude in ["", STUBBORN] {
        let script = format!(
            "{prelude}\nsleep 600 & setsid sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &)\nexit 9"
        );
        let run = Run::script(&server, "run --lease job/a", &script)?;
        assert_eq!(run.ended().await?.code, 9);
        assert!(is_free(&server).await?, "released once nothing is left");
    }
    Ok(())
}

#[tokio::test]
async fn what_still_writes_may_finish() -> Result<()> {
    let server = server().start().await?;
    let script = "(sleep 0.2; echo late) & exit 4";
    let mut run = Run::script(&server, "run --lease job/a", script)?;
    run.line("late").await?;
    assert_eq!(run.ended().await?.code, 4);
    Ok(())
}

#[tokio::test]
async fn something_that_forks_all_the_time_is_caught() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let chain = folder.path().join("chain");
    fs::write(&chain, "#!/bin/sh\ntrap '' TERM\n\"$0\" &\n")?;
    fs::set_permissions(&chain, fs::Permissions::from_mode(0o755))?;
    let args = ["run", "--lease", "job/a", "--", chain.to_str().context("UTF-8")?];
    let run = Run::start(&server, args.map(Into::into))?;
    assert_eq!(run.ended().await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn when_lost_it_is_asked_to_end() -> Result<()> {
    let server = server().start().await?;
    let mut run = Run::family(&server, SHORT, "trap 'echo asked; exit 0' TERM").await?;
    ask(&server, "lease revoke job/a --reason enough").await?.good()?;
    run.line("asked").await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    assert!(ended.stderr.contains("job/a: the lease is lost"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the command ended with 0"), "{}", ended.stderr);
    Ok(())
}

/// The next heartbeat would come after more than a minute: whatever is heard of sooner was told.
#[tokio::test]
async fn a_loss_is_heard_of_at_once_however_long_the_ttl() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, "run --lease job/a --ttl 5m", "trap 'exit 0' TERM").await?;
    let began = BootTime::now();
    ask(&server, "lease revoke job/a").await?.good()?;
    assert_eq!(run.ended().await?.code, 107);
    let took = BootTime::now().since(began);
    println!("ended {took:?} after it was revoked");
    assert!(took < Duration::from_secs(60), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_command_that_is_asked_for_by_the_next_holder_ends_and_hands_over() -> Result<()> {
    let server = server().start().await?;
    let mut next = Run::script(&server, "run --lease job/b --ttl 5m", "echo ready; sleep 600")?;
    next.line("ready").await?;
    let holder = async |job: &str| -> Result<String> {
        let seen = ask(&server, &format!("resource get {job} --json")).await?.json()?;
        Ok(seen["lease"]["holder"].as_str().context("a holder")?.to_owned())
    };
    let to = holder("job/b").await?;
    let mut run =
        Run::family(&server, "run --lease job/a --ttl 5m", "trap 'echo asked; exit 7' TERM").await?;
    let offered = ask(&server, &format!("resource hand-over job/a --to {to} --within 1h")).await?.good()?;
    assert!(offered.contains(&format!("to {to} when it is released")), "{offered}");
    run.line("asked").await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 7, "its own: {}", ended.stderr);
    assert!(ended.stderr.contains(&format!("{to} asks for job/a")), "{}", ended.stderr);
    assert_eq!(holder("job/a").await?, to);
    Ok(())
}

/// Nothing of it is left, and its holder says so: nobody waits for the old deadline.
#[tokio::test]
async fn when_lost_and_ended_it_holds_nothing_back() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, "run --lease job/a --ttl 60s --on-lost-grace 100ms", "trap 'exit 0' TERM")
        .await?;
    ask(&server, "lease revoke job/a").await?.good()?;
    assert_eq!(run.ended().await?.code, 107);
    ask(&server, "lease acquire job/a --holder next").await?.good()?;
    Ok(())
}

#[tokio::test]
async fn when_lost_what_ignores_that_is_killed_at_the_deadline() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, SHORT, STUBBORN).await?;
    ask(&server, "lease revoke job/a").await?.good()?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    assert!(ended.stderr.contains("the command ended with 137"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn when_lost_the_time_to_end_may_be_shorter() -> Result<()> {
    let server = server().start().await?;
    // By its own end alone it would be an hour.
    let args = "run --lease job/a --ttl 4s --policy grace=1h --on-lost-grace 100ms";
    let run = Run::family(&server, args, STUBBORN).await?;
    ask(&server, "lease revoke job/a").await?.good()?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    assert!(ended.stderr.contains("the command ended with 137"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_killed_holder_leaves_nothing_behind() -> Result<()> {
    let server = server().start().await?;
    for prelude in ["", STUBBORN] {
        let run = Run::family(&server, "run --lease job/a --ttl 3s", prelude).await?;
        run.signal(Signal::KILL)?;
        run.nobody_left().await?;
    }
    Ok(())
}

/// The keeper knows that nothing is left, and ends the session: nobody waits for five minutes.
#[tokio::test]
async fn a_killed_holder_holds_nothing_back() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, "run --lease job/a --ttl 5m", "").await?;
    run.signal(Signal::KILL)?;
    run.nobody_left().await?;
    wait_for("the next holder to get it", SOON, async || is_free(&server).await.unwrap_or(false)).await?;
    Ok(())
}

#[tokio::test]
async fn a_holder_killed_while_it_starts_leaves_nothing_behind() -> Result<()> {
    let server = server().start().await?;
    for attempt in 0..8 {
        let args = format!("run --lease job/{attempt}");
        let run = Run::script(&server, &args, crate::world::FAMILY)?;
        run.has_keeper().await?;
        run.signal(Signal::KILL)?;
        run.nobody_left().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_keeper_leaves_nothing_behind() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, "run --lease job/a", STUBBORN).await?;
    kill_process(run.keeper()?, Signal::KILL)?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 101, "{}", ended.stderr);
    assert!(ended.stderr.contains("the keeper was killed"), "{}", ended.stderr);
    assert!(is_free(&server).await?);
    Ok(())
}

#[tokio::test]
async fn a_stopped_holder_does_not_keep_the_command_past_the_deadline() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, SHORT, STUBBORN).await?;
    run.signal(Signal::STOP)?;
    run.nothing_left().await?;
    run.signal(Signal::CONT)?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_stopped_keeper_does_not_keep_the_command_past_the_deadline() -> Result<()> {
    let server = server().start().await?;
    let run = Run::family(&server, SHORT, STUBBORN).await?;
    kill_process(run.keeper()?, Signal::STOP)?;
    server.kill9().await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn a_dead_server_ends_the_command_by_the_deadline() -> Result<()> {
    let server = server().start().await?;
    let mut run = Run::family(&server, SHORT, "trap 'echo asked' TERM").await?;
    server.kill9().await?;
    // Before the deadline it is asked to end; it does not, and is killed.
    run.line("asked").await?;
    let ended = run.ended().await?;
    assert_eq!(ended.code, 107, "{}", ended.stderr);
    assert!(ended.stderr.contains("the command ended with 137"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn the_next_begins_when_nothing_of_the_former_is_left() -> Result<()> {
    let server = server().start().await?;
    // A number that only these sleepers have.
    let seconds = 1_000_000 + Uuid::new_v4().as_u128() % 1_000_000_000;
    let stubborn = format!("{STUBBORN}; setsid sleep {seconds} & echo ready; sleep {seconds}");
    let count = format!(
        "n=0; for f in /proc/[0-9]*/cmdline; do case \"$(tr '\\0' ' ' <$f 2>/dev/null)\" in 'sleep {seconds} ') n=$((n+1));; esac; done; echo $n left"
    );
    for cut in [Signal::STOP, Signal::KILL] {
        let mut first = Run::script(&server, SHORT, &stubborn)?;
        first.line("ready").await?;
        first.signal(cut)?;
        let mut second = Run::script(&server, SHORT, &count)?;
        assert_eq!(second.next_line().await?.as_deref(), Some("0 left"), "after {cut:?}");
        assert_eq!(second.ended().await?.code, 0);
    }
    Ok(())
}
