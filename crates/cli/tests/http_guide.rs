//! `docs/guides/http.md`, followed as it is written: its commands print what it says, and its program is a client that
//! keeps the rules while servers are killed, paused and cut off.

mod common;

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use common::{SOON, json_of, seen, server};
use solehold_api::problem::ErrorCode;
use solehold_testkit::{Fate, RequestProxy, Solehold, TempDir, wait_for};
use tokio::process::Child;

const GUIDE: &str = include_str!("../../../docs/guides/http.md");

/// The blocks of code in their order: the language and the text.
fn blocks() -> Vec<(&'static str, String)> {
    let mut blocks = Vec::new();
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((language, text.join("\n") + "\n"));
    }
    blocks
}

fn write_program(folder: &Path) -> Result<()> {
    let blocks = blocks();
    let (_, program) = blocks.iter().find(|(language, _)| *language == "perl").context("a program")?;
    ensure!(program.lines().count() <= 150, "the guide says 150 lines");
    std::fs::write(folder.join("lease.pl"), program)?;
    Ok(())
}

/// A command in a folder, in which nothing leads requests elsewhere.
fn in_folder(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "API_KEY", "SERVERS", "HOLDER"] {
        command.env_remove(variable);
    }
    command
}

#[tokio::test]
async fn the_commands_print_what_the_guide_says() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    write_program(folder.path())?;
    const END: &str = "--- end of a block ---";
    let blocks = blocks();
    let mut script = String::from("set -eu\n");
    let mut expected = Vec::new();
    for (at, (language, text)) in blocks.iter().enumerate() {
        if *language != "sh" {
            continue;
        }
        script += &format!("{text}echo '{END}'\n");
        let output = blocks.get(at + 1).filter(|(language, _)| *language == "text");
        expected.push(output.map_or("", |(_, text)| text));
    }
    assert!(expected.len() > 12, "{} blocks", expected.len());
    let script = script.replace("http://localhost:7070", server.url());
    let mut command = in_folder(folder.path(), "sh");
    command.args(["-c", &script]);
    let ran = common::ran(command.into()).await?;
    let printed: Vec<_> = ran.stdout.split(&format!("{END}\n")).collect();
    for (printed, expected) in printed.iter().zip(&expected) {
        ensure!(printed == expected, "printed:\n{printed}\nin the guide:\n{expected}\n{}", ran.stderr);
    }
    ensure!(ran.code == Some(0) && printed.len() == expected.len() + 1, "{}{}", ran.stdout, ran.stderr);
    Ok(())
}

#[test]
fn every_code_has_its_status_and_what_to_do() {
    for code in ErrorCode::ALL {
        let row = format!("| `{code}` | {} | ", code.status());
        assert!(GUIDE.contains(&row), "the guide has no row {row}");
    }
}

/// The guide's program with a command that works until it is ended, and a file by which that is seen.
struct Lease {
    folder: TempDir,
    program: Child,
}

impl Lease {
    async fn start(servers: &str, ttl_ms: u32) -> Result<Self> {
        let folder = TempDir::new()?;
        write_program(folder.path())?;
        let mut command = in_folder(folder.path(), "perl");
        let work = "echo $SOLEHOLD_TOKEN > token.new; mv token.new token; echo $$ > pid; exec sleep 600";
        command.args(["lease.pl", "job/guided", "sh", "-c", work]);
        command.env("SERVERS", servers).env("TTL_MS", ttl_ms.to_string()).env("HOLDER", "guided");
        // Of its own, so that a signal to it ends nothing of the test.
        command.process_group(0);
        let program = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
        let lease = Self { folder, program };
        wait_for("the command to begin", SOON, async || lease.folder.path().join("pid").exists()).await?;
        Ok(lease)
    }

    fn token(&self) -> Result<u64> {
        Ok(std::fs::read_to_string(self.folder.path().join("token"))?.trim().parse()?)
    }

    /// Whether the command still runs.
    fn works(&self) -> bool {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap_or_default();
        Path::new("/proc").join(pid.trim()).join("cmdline").exists()
    }

    /// How the program ends by itself.
    async fn ends(mut self) -> Result<(Option<i32>, String)> {
        let output = tokio::time::timeout(SOON, self.program.wait()).await.context("it goes on")??;
        ensure!(!self.works(), "its command goes on");
        let mut said = String::new();
        if let Some(stderr) = &mut self.program.stderr {
            tokio::io::AsyncReadExt::read_to_string(stderr, &mut said).await?;
        }
        Ok((output.code(), said))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap_or_default();
        if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
            // It has ended already, or the test has failed.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

/// The token of the lease at the server, if it is held.
async fn held(server: &Solehold) -> Option<u64> {
    json_of(server, "lease get job/guided").await.ok()?["token"].as_u64()
}

#[tokio::test]
async fn the_program_goes_on_with_its_token_when_its_server_is_killed_and_started_again() -> Result<()> {
    let folder = TempDir::new()?;
    let builder = server().data_dir(folder.path());
    let first = builder.start().await?;
    let address: SocketAddr = first.url().trim_start_matches("http://").parse()?;
    let lease = Lease::start(first.url(), 10_000).await?;
    first.kill9().await?;
    let second = builder.listen(address).start().await?;
    let state = async || json_of(&second, "lease get job/guided").await.ok();
    let before = wait_for("the lease at the second server", SOON, &state).await?;
    let renewed = async || state().await.filter(|now| now["renewed_at"] != before["renewed_at"]);
    let token = wait_for("a renewal", SOON, renewed).await?["token"].clone();
    ensure!(token == lease.token()? && lease.works(), "{token}");
    seen(&second, "lease revoke job/guided").await?;
    let (code, said) = lease.ends().await?;
    ensure!(code == Some(107) && said.contains("the session no longer has the lease"), "{code:?} {said}");
    Ok(())
}

#[tokio::test]
async fn the_program_ends_its_work_while_its_server_is_paused() -> Result<()> {
    let server = server().start().await?;
    let lease = Lease::start(server.url(), 3_000).await?;
    server.pause().await?;
    // No answer and no refused connection: its own clock alone tells it.
    wait_for("the command to end", SOON, async || !lease.works()).await?;
    server.resume()?;
    let (code, said) = lease.ends().await?;
    ensure!(code == Some(107), "{code:?} {said}");
    Ok(())
}

/// Every first answer is lost. The requests took effect, and their repeats find that.
#[tokio::test]
async fn the_program_holds_one_lease_when_answers_are_lost() -> Result<()> {
    let server = server().start().await?;
    let target = server.url().trim_start_matches("http://").parse()?;
    let asked = Arc::new(AtomicUsize::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let fate = {
        let asked = asked.clone();
        let is_over = is_over.clone();
        move |_: &str| {
            let is_first = asked.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            Fate { is_answer_lost: is_first && !is_over.load(Ordering::SeqCst), ..Fate::default() }
        }
    };
    let proxy = RequestProxy::start(target, fate).await?;
    let lease = Lease::start(&proxy.url(), 30_000).await?;
    ensure!(asked.load(Ordering::SeqCst) >= 4, "opened and acquired, twice each");
    is_over.store(true, Ordering::SeqCst);
    ensure!(held(&server).await == Some(lease.token()?), "{:?}", held(&server).await);
    let history = seen(&server, "lease history job/guided").await?;
    ensure!(history.matches("lease_acquired").count() == 1, "{history}");
    Ok(())
}
