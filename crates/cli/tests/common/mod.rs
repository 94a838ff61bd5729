//! The binary as its users run it.
#![allow(dead_code)]

pub mod terminal;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use solehold_testkit::{Solehold, SoleholdBuilder};
use tokio::process::Command;

pub const SOON: Duration = Duration::from_secs(60);
pub const BINARY: &str = env!("CARGO_BIN_EXE_solehold");

/// A server of this build.
pub fn server() -> SoleholdBuilder {
    Solehold::builder().binary(BINARY)
}

/// The binary, with nothing of ours in its environment.
pub fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(BINARY);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SOLEHOLD_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// What it printed, of a command that went well.
    pub fn good(self) -> Result<String> {
        ensure!(self.code == Some(0), "it ended with {:?}: {}{}", self.code, self.stdout, self.stderr);
        Ok(self.stdout)
    }

    /// The JSON that it printed, of a command that went well.
    pub fn json(self) -> Result<Value> {
        let text = self.good()?;
        ensure!(text.trim_end().lines().count() == 1, "more than a line: {text}");
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
}

/// Runs the binary to its end.
pub async fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Result<Ran> {
    ran(command(args)).await
}

/// Runs a command to its end.
pub async fn ran(mut command: Command) -> Result<Ran> {
    let output = tokio::time::timeout(SOON, command.output()).await.context("it does not end")??;
    let text = |bytes| String::from_utf8(bytes).context("not UTF-8");
    Ok(Ran { code: output.status.code(), stdout: text(output.stdout)?, stderr: text(output.stderr)? })
}

/// Runs `arguments`, separated by spaces, against a server.
pub async fn ask(server: &Solehold, arguments: &str) -> Result<Ran> {
    ask_args(server, arguments.split_whitespace()).await
}

/// Runs arguments against a server.
pub async fn ask_args<A: AsRef<OsStr>>(server: &Solehold, args: impl IntoIterator<Item = A>) -> Result<Ran> {
    let mut command = command(args);
    command.env("SOLEHOLD_SERVER", server.url());
    ran(command).await
}

/// What a command prints for people, of one that went well.
pub async fn seen(server: &Solehold, arguments: &str) -> Result<String> {
    Ok(normalised(&ask(server, arguments).await?.good()?))
}

/// What it prints for programs.
pub async fn json_of(server: &Solehold, arguments: &str) -> Result<Value> {
    ask(server, &format!("{arguments} --json")).await?.json().context(arguments.to_owned())
}

/// How a command was refused: its code, the one line it said, and the code of the problem document.
pub async fn refused(server: &Solehold, arguments: &str) -> Result<(i32, String, String)> {
    let Ran { code, stdout, stderr } = ask(server, arguments).await?;
    assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "{arguments}: {stderr}");
    let by_json = ask(server, &format!("{arguments} --json")).await?;
    assert_eq!((by_json.code, by_json.stdout.as_str()), (code, ""), "{arguments}");
    let problem: Value = serde_json::from_str(&by_json.stderr).context(by_json.stderr)?;
    assert!(problem["detail"].is_string() && problem["type"].is_string(), "{problem}");
    let problem = problem["code"].as_str().context("a code")?.to_owned();
    Ok((code.context("a code")?, normalised(stderr.strip_prefix("error: ").context("an error")?), problem))
}

/// Text with ids, times and durations replaced by words, and blanks by one.
pub fn normalised(text: &str) -> String {
    let line = |line: &str| {
        line.split_whitespace().map(word).collect::<Vec<_>>().join(" ").replace("TTL TTL", "TTL")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn word(word: &str) -> String {
    let bare = word.trim_matches(['(', ')', ',', '+', ';', ':']);
    let unit = bare.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_duration = unit.len() < bare.len() && ["ms", "s", "m", "h", "d"].contains(&unit);
    let is_time = bare.len() == 24 && bare.starts_with("20") && bare.ends_with('Z');
    let name = match bare {
        _ if bare.parse::<uuid::Uuid>().is_ok() => "ID",
        _ if is_time => "TIME",
        _ if is_duration => "TTL",
        _ => return word.to_owned(),
    };
    word.replace(bare, name)
}

/// Writes a file and gives its path.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// The names of the commands below `path`.
pub async fn below(path: &[&str]) -> Result<Vec<String>> {
    let help = run(path.iter().chain(&["-h"])).await?.good()?;
    let Some((_, rest)) = help.split_once("Commands:\n") else { return Ok(Vec::new()) };
    let names = rest.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        Some(name).filter(|name| !name.is_empty() && *name != "help").map(str::to_owned)
    });
    Ok(names.collect())
}
