//! `solehold demo`: the tour shows what it says, the terminal form obeys its keys, and both leave nothing behind.

mod common;

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context, Result, ensure};
use common::{BINARY, SOON, command, terminal::Terminal};
use rustix::process::{Pid, Signal, kill_process};
use solehold_testkit::{TempDir, wait_for};
use tokio::io::{AsyncBufReadExt, BufReader};
use uuid::Uuid;

/// The variable by which the processes of a demo are found.
const MARK: &str = "DEMO_TEST_MARK";

/// A folder for temporary files, and a mark of its own.
struct Place {
    folder: TempDir,
    mark: String,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self { folder: TempDir::new()?, mark: Uuid::new_v4().to_string() })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn processes(&self) -> usize {
        let mark = format!("{MARK}={}", self.mark);
        let is_ours = |path: &Path| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        fs::read_dir("/proc").into_iter().flatten().flatten().filter(|entry| is_ours(&entry.path())).count()
    }

    /// Waits until no process is left, and checks that no file is.
    async fn is_left_clean(&self) -> Result<()> {
        wait_for("all processes to end", SOON, async || self.processes() == 0).await?;
        let left: Vec<_> = fs::read_dir(self.path())?.flatten().map(|entry| entry.path()).collect();
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}

#[tokio::test]
async fn the_tour_shows_every_step_and_leaves_nothing() -> Result<()> {
    let place = Place::new()?;
    let mut tour = command(["demo", "--tour"]);
    tour.env("TMPDIR", place.path()).env(MARK, &place.mark);
    // It has a bound of its own, which is longer than that of other commands.
    let output = tokio::time::timeout(SOON * 6, tour.output()).await.context("it does not end")??;
    let text = String::from_utf8(output.stdout)?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    let shown = |needle: &str| text.lines().any(|line| line.contains(needle));
    for needle in [
        "24 of 24 counters have one owner each: runner-1 has ",
        "dashboard: http://127.0.0.1:",
        " is killed: SIGKILL",
        " taken over within ",
        " handed over to runner-4; ",
        " is paused: SIGSTOP",
        " comes back, and writes on",
        "refused: a write to counter/",
        " None took effect.",
        "the owners of all 24 counters go on writing",
        "The server was away for ",
        " is drained (SIGTERM)",
        "not one write took effect after a newer owner's",
    ] {
        ensure!(shown(needle), "{needle:?} is missing in\n{text}");
    }
    place.is_left_clean().await
}

#[tokio::test]
async fn a_tour_that_is_interrupted_leaves_nothing() -> Result<()> {
    let place = Place::new()?;
    let mut tour = command(["demo"]);
    let mut tour = tour.env("TMPDIR", place.path()).env(MARK, &place.mark).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(tour.stdout.take().context("stdout")?).lines();
    let has_begun = async {
        while !lines.next_line().await?.context("it ended")?.contains("one owner each") {}
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, has_begun).await.context("nothing is shown")??;
    // A server, three agents, and for each at least one keeper with its worker.
    ensure!(place.processes() > 10, "only {} processes", place.processes());
    let pid = tour.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).context("it runs")?;
    kill_process(pid, Signal::INT)?;
    let status = tokio::time::timeout(SOON, tour.wait()).await.context("it does not end")??;
    assert_eq!(status.code(), Some(130));
    place.is_left_clean().await
}

/// What no cleaning up can follow: the kernel ends the parts, and their keepers end the workers. Only files are left.
#[tokio::test]
async fn a_demo_that_is_killed_leaves_no_process() -> Result<()> {
    let place = Place::new()?;
    let mut tour = command(["demo"]);
    let mut tour = tour.env("TMPDIR", place.path()).env(MARK, &place.mark).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(tour.stdout.take().context("stdout")?).lines();
    let has_begun = async {
        while !lines.next_line().await?.context("it ended")?.contains("one owner each") {}
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, has_begun).await.context("nothing is shown")??;
    tour.kill().await?;
    wait_for("all processes to end", SOON, async || place.processes() == 0).await
}

#[tokio::test]
async fn keys_do_what_they_say() -> Result<()> {
    let place = Place::new()?;
    let folder = place.path().to_str().context("a path in UTF-8")?;
    let mut terminal =
        Terminal::start(&format!("{BINARY} demo"), &[("TMPDIR", folder), (MARK, &place.mark)])?;
    let says = |needle: &'static str| move |screen: &str| screen.contains(needle);
    terminal.shows("an owner for everything", says("24 of 24 counters have an owner")).await?;
    terminal.shows("where the dashboard is", says("dashboard http://127.0.0.1:")).await?;
    // Its worker has written: only then has it something to come back to.
    let written = |screen: &str| {
        let (_, rest) = screen.split_once("writes: ")?;
        rest.split_whitespace().next()?.replace(',', "").parse::<u32>().ok()
    };
    terminal.shows("writes", |screen| written(screen).is_some_and(|count| count >= 200)).await?;
    terminal.press("p").await?;
    terminal.shows("a pause", says("runner-1 paused: all of its processes stand still")).await?;
    terminal
        .shows("a takeover", |screen| {
            screen.contains("runner-1 paused: ") && screen.contains("after the lease ran out")
        })
        .await?;
    terminal.press("b").await?;
    terminal.shows("a refusal", says("the gate refused runner-1")).await?;
    terminal.press("c").await?;
    terminal.shows("an outage", says("control plane cut for ")).await?;
    terminal.press("c").await?;
    terminal.shows("the end of the outage", says("control plane up")).await?;
    terminal.press("a").await?;
    terminal.shows("a new runner", says("runner-4   working")).await?;
    // The second runner.
    terminal.press("\u{1b}[B").await?;
    terminal.shows("the choice", says("> runner-2")).await?;
    terminal.press("k").await?;
    terminal.shows("a kill", says("runner-2   killed")).await?;
    terminal.press("\u{1b}[B").await?;
    terminal.shows("the choice", says("> runner-3")).await?;
    terminal.press("d").await?;
    terminal.shows("a drain", says("runner-3   ended")).await?;
    terminal.press("q").await?;
    assert_eq!(terminal.ended().await?, Some(0));
    place.is_left_clean().await
}
