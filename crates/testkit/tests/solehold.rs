//! The process handle, with a script in the place of the server.

use std::time::Duration;

use anyhow::Result;
use solehold_testkit::{FakeClock, Solehold, SoleholdBuilder, TempDir, free_port, package_file, wait_for};

const SOON: Duration = Duration::from_secs(30);

fn fake() -> SoleholdBuilder {
    Solehold::builder().binary(package_file("tests/fake_solehold.sh"))
}

async fn wait_for_log(server: &Solehold, words: &str) -> Result<()> {
    wait_for(&format!("{words:?} in the log"), SOON, async || server.logs().contains(words)).await
}

#[tokio::test]
async fn reads_the_address_and_ends_on_sigterm() -> Result<()> {
    let server = fake().start().await?;
    assert_eq!(server.url(), "http://127.0.0.1:4711");
    assert!(server.pid()? > 1);
    assert_eq!(server.terminate().await?.code(), Some(7));
    assert!(server.logs().contains("goodbye"), "{}", server.logs());
    assert!(server.pid().is_err());
    assert!(server.terminate().await.is_err());
    Ok(())
}

/// A test that reads the log of a program that has ended must find its last line, however late that is read.
#[tokio::test]
async fn an_ended_program_has_all_its_output_in_the_log() -> Result<()> {
    let server = fake().env("FAKE_LAST_WORDS", "after the end").start().await?;
    assert_eq!(server.terminate().await?.code(), Some(7));
    assert!(server.logs().contains("after the end"), "{}", server.logs());
    Ok(())
}

#[tokio::test]
async fn passes_what_it_was_told() -> Result<()> {
    let folder = TempDir::new()?;
    let server = fake().data_dir(folder.path()).arg("--check").start().await?;
    let arguments = format!("serve --listen 127.0.0.1:0 --data-dir {} --check", folder.path().display());
    wait_for_log(&server, &arguments).await?;

    let address = ([127, 0, 0, 1], free_port()?).into();
    let server = fake().engine("postgres://x/y").listen(address).start().await?;
    wait_for_log(&server, &format!("serve --listen {address} --engine postgres://x/y")).await?;

    let clock = FakeClock::new()?;
    clock.set_offset_seconds(-100_000_000_000)?;
    let server = fake().fake_clock(&clock).env("SOLEHOLD_TESTKIT_INHERITED", "a value").start().await?;
    wait_for_log(&server, "inherited: a value, day: ").await?;
    assert!(!server.logs().contains("day: 20"), "{}", server.logs());
    Ok(())
}

#[tokio::test]
async fn a_start_that_fails_shows_the_last_words() {
    let error = fake().env("FAKE_FAILS", "the moon is full").start().await.expect_err("it started");
    let error = format!("{error:#}");
    assert!(error.contains("the moon is full") && error.contains("exit status: 3"), "{error}");
    let error = Solehold::builder().binary("/no/such/program").start().await.expect_err("it started");
    assert!(format!("{error:#}").contains("/no/such/program"), "{error:#}");
}

#[tokio::test]
async fn can_be_paused_killed_and_dropped() -> Result<()> {
    let server = fake().start().await?;
    server.pause().await?;
    server.resume()?;
    server.pause().await?;
    server.kill9().await?;
    assert!(server.pid().is_err());

    let server = fake().start().await?;
    let pid = server.pid()?;
    server.pause().await?;
    drop(server);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}
