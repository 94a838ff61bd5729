//! On a terminal: the command has it while it runs, and Ctrl-C reaches it once.

use std::process::Stdio;

use anyhow::{Context, Result};
use solehold_testkit::{Solehold, TempDir, wait_for};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    common::{BINARY, SOON, ask, server, write},
    world::Run,
};

/// A shell on a terminal of its own, as `script` of util-linux makes one.
struct Terminal {
    _script: Child,
    keys: ChildStdin,
    screen: Lines<BufReader<ChildStdout>>,
    _folder: TempDir,
}

impl Terminal {
    fn start(server: &Solehold, program: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let prelude = format!(
            "stty -echo\nexport SOLEHOLD_SERVER={}\nrun='{BINARY} run'\nlock='{BINARY} lock'",
            server.url()
        );
        let file = write(folder.path(), "program", &format!("{prelude}\n{program}"))?;
        let shell = format!("bash {file}");
        let mut script = Command::new("script");
        script.args(["-qefc", &shell, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.kill_on_drop(true).spawn().context("`script` of util-linux")?;
        let keys = script.stdin.take().context("stdin")?;
        let screen = BufReader::new(script.stdout.take().context("stdout")?).lines();
        Ok(Self { _script: script, keys, screen, _folder: folder })
    }

    async fn line(&mut self) -> Result<String> {
        let line =
            tokio::time::timeout(SOON, self.screen.next_line()).await.context("nothing is shown")??;
        Ok(line.context("the terminal is gone")?.trim().to_owned())
    }

    /// Keeps the next line, and says whether it begins so.
    async fn shows(&mut self, shown: &mut Vec<String>, begin: &str) -> Result<bool> {
        let line = self.line().await?;
        let is_it = line.starts_with(begin);
        shown.push(line);
        Ok(is_it)
    }

    async fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes()).await?;
        Ok(self.keys.flush().await?)
    }
}

#[tokio::test]
async fn the_command_has_the_terminal_and_gives_it_back() -> Result<()> {
    let server = server().start().await?;
    let program = r#"
        $run --lease job/a -- bash -c 'read -r stat </proc/$$/stat; set -- ${stat##*) }
            [ $3 = $6 ] && echo foreground; read x; echo "got $x"; exit 3'
        echo "code $?"; read y; echo "then $y"
    "#;
    let mut terminal = Terminal::start(&server, program)?;
    assert_eq!(terminal.line().await?, "foreground");
    terminal.press("one\n").await?;
    assert_eq!(terminal.line().await?, "got one");
    assert_eq!(terminal.line().await?, "code 3");
    terminal.press("two\n").await?;
    assert_eq!(terminal.line().await?, "then two");
    Ok(())
}

#[tokio::test]
async fn keys_that_interrupt_reach_the_command_once() -> Result<()> {
    let server = server().start().await?;
    let program = r#"
        trap '' INT QUIT
        $run --lease job/a -- env --default-signal=INT,QUIT bash -c 'trap "echo INT" INT; trap "echo QUIT; exit 5" QUIT
            echo ready; while :; do sleep 0.02; done'
        echo "code $?"
    "#;
    let mut terminal = Terminal::start(&server, program)?;
    assert_eq!(terminal.line().await?, "ready");
    terminal.press("\u{3}").await?;
    assert!(terminal.line().await?.ends_with("INT"));
    terminal.press("\u{1c}").await?;
    let mut shown = Vec::new();
    while !terminal.shows(&mut shown, "code ").await? {}
    // The shell itself tells that QUIT ended its `sleep`; of INT nothing more is heard.
    shown.retain(|line| !line.contains("Quit"));
    assert!(shown[0].ends_with("QUIT"), "{shown:?}");
    assert_eq!(shown[1..], ["code 5"]);
    Ok(())
}

#[tokio::test]
async fn a_command_that_is_stopped_goes_on_when_the_shell_says_so() -> Result<()> {
    let server = server().start().await?;
    let program = r#"
        set -m
        $run --lease job/a -- bash -c 'echo ready; read x; echo "got $x"; exit 6'
        echo "stopped $?"; fg >/dev/null; echo "code $?"
    "#;
    let mut terminal = Terminal::start(&server, program)?;
    assert_eq!(terminal.line().await?, "ready");
    terminal.press("\u{1a}").await?;
    let mut shown = Vec::new();
    while !terminal.shows(&mut shown, "stopped ").await? {}
    assert_eq!(shown.last().map(String::as_str), Some("stopped 148"), "128 and SIGTSTP: {shown:?}");
    terminal.press("three\n").await?;
    while !terminal.shows(&mut shown, "got ").await? {}
    assert_eq!(shown.last().map(String::as_str), Some("got three"), "{shown:?}");
    assert_eq!(terminal.line().await?, "code 6");
    Ok(())
}

#[tokio::test]
async fn the_wait_is_shown_as_it_goes_on() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "lease acquire lock/a --holder the-other --ttl 5m").await?.good()?;
    let _earlier = [0, 1].map(|_| Run::script(&server, "lock a", "sleep 600"));
    let two_wait = async || {
        let lock = ask(&server, "resource get lock/a --json").await.and_then(|got| got.json());
        lock.is_ok_and(|lock| lock["waiting"] == 2)
    };
    wait_for("two to wait", SOON, two_wait).await?;
    let mut terminal = Terminal::start(&server, "$lock a --wait 5s -- true; echo \"code $?\"")?;
    let mut shown = Vec::new();
    while !terminal.shows(&mut shown, "code ").await? {}
    // Each is written over the former, and the last word over them all.
    let over: Vec<&str> = shown[0].split('\r').map(|line| line.trim_start_matches("\u{1b}[K")).collect();
    let is_shown = |line: &&str| line.starts_with("waiting for lock/a, held by the-other; waited ");
    let shown_at = |line: &&str| is_shown(line) && line.ends_with("s, place 3 of 3 in line");
    assert!(over.iter().filter(|line| is_shown(line)).count() > 1, "{over:?}");
    assert!(over.iter().any(shown_at), "{over:?}");
    assert!(over.last().is_some_and(|last| last.starts_with("error: cannot acquire lock/a: ")), "{over:?}");
    assert_eq!(shown[1..], ["code 103"]);
    Ok(())
}
