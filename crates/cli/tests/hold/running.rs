//! A command that runs and ends: its code, its environment, its signals, and what is said when it is not run.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::Signal;
use solehold_testkit::{TempDir, wait_for};

use crate::{
    common::{SOON, ask, ask_args, ran, server},
    world::Run,
};

#[tokio::test]
async fn the_commands_code_is_returned_and_the_lease_released_at_once() -> Result<()> {
    let server = server().start().await?;
    let cases: [(&[&str], i32, &str); 6] = [
        (&["true"], 0, ""),
        (&["sh", "-c", "exit 7"], 7, ""),
        (&["sh", "-c", "kill -9 $$"], 137, ""),
        (&["sh", "-c", "kill -TERM $$"], 143, ""),
        (&["no-such-command-anywhere"], 127, "cannot run no-such-command-anywhere: there is no such command"),
        (&["/etc/passwd"], 126, "cannot run /etc/passwd: the file is not executable"),
    ];
    for (command, code, said) in cases {
        // Without waiting: the one before has let go when it ends.
        let args = ["run", "--lease", "job/a", "--no-wait", "--"].iter().chain(command);
        let ended = ask_args(&server, args).await?;
        assert_eq!(ended.code, Some(code), "{command:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{command:?}: {}", ended.stderr);
    }
    assert_eq!(ask(&server, "lease get job/a").await?.code, Some(4), "nobody holds it");
    Ok(())
}

#[tokio::test]
async fn the_command_is_told_what_it_holds() -> Result<()> {
    let server = server().start().await?;
    let script = r#"env | grep ^SOLEHOLD_ | sort; grep SigBlk /proc/self/status; echo file; cat "$SOLEHOLD_LEASE_FILE"
        echo end; read line; echo "$line""#;
    let mut run = Run::script(&server, "run --lease job/nightly/1 --holder w1 --ttl 1m", script)?;
    let mut lines = Vec::new();
    while let Some(line) = run.next_line().await?.filter(|line| line != "end") {
        lines.push(line);
    }
    let lease = ask(&server, "lease get job/nightly/1 --json").await?.json()?;
    let value = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.map(str::to_owned).with_context(|| format!("{name} is not in {lines:?}"))
    };
    assert_eq!(value("SOLEHOLD_TOKEN")?, lease["token"].to_string());
    assert_eq!(Some(value("SOLEHOLD_LEASE_ID")?.as_str()), lease["lease_id"].as_str());
    assert_eq!(value("SOLEHOLD_RESOURCE")?, "job/nightly/1");
    assert_eq!(value("SOLEHOLD_LOCK")?, "job/nightly/1");
    let holder = value("SOLEHOLD_HOLDER")?;
    assert!(holder.starts_with("w1-") && lease["holder"].as_str() == Some(&holder), "{holder} {lease}");
    assert_eq!(value("SOLEHOLD_HELD")?, format!("{} {holder}", lease["token"]));
    let deadline: f64 = value("SOLEHOLD_DEADLINE_BOOTTIME_MS")?.parse()?;
    let uptime = fs::read_to_string("/proc/uptime")?;
    let now: f64 = uptime.split(' ').next().context("a number")?.parse()?;
    assert!(deadline < (now + 60.0) * 1_000.0 && deadline > 0.0, "{deadline} {now}");
    assert!(
        lines.iter().any(|line| line.starts_with("SigBlk:") && line.ends_with("0000000000000000")),
        "{lines:?}"
    );
    let file = lines.iter().skip_while(|line| *line != "file").skip(1);
    let file: Vec<&str> = file.filter_map(|line| line.split('=').next()).collect();
    assert_eq!(file, ["SOLEHOLD_TOKEN", "SOLEHOLD_LEASE_ID", "SOLEHOLD_DEADLINE_BOOTTIME_MS"]);
    let path = value("SOLEHOLD_LEASE_FILE")?;
    assert!(fs::exists(&path)?);
    assert_eq!(run.ended().await?.code, 0);
    assert!(!fs::exists(path)?, "its file goes with the command");
    Ok(())
}

#[tokio::test]
async fn the_deadline_in_the_file_moves_while_the_lease_is_kept() -> Result<()> {
    let server = server().start().await?;
    let script = r#"first=$SOLEHOLD_DEADLINE_BOOTTIME_MS
        until . "$SOLEHOLD_LEASE_FILE"; [ "$SOLEHOLD_DEADLINE_BOOTTIME_MS" -gt "$first" ]; do sleep 0.05; done
        echo moved; exit 5"#;
    let mut run = Run::script(&server, "run --lease job/a --ttl 3s --term-before 10ms", script)?;
    run.line("moved").await?;
    assert_eq!(run.ended().await?.code, 5);
    Ok(())
}

#[tokio::test]
async fn signals_reach_the_command_once() -> Result<()> {
    let server = server().start().await?;
    let script =
        "for s in TERM HUP USR1 USR2 INT QUIT ALRM WINCH 40; do trap \"echo got $s\" $s; done; echo ready
        while :; do sleep 0.02; done";
    let args = ["run", "--lease", "job/a", "--", "bash", "-c", script].map(Into::into);
    let mut run = Run::start(&server, args)?;
    run.line("ready").await?;
    use Signal as S;
    for (signal, name) in [
        (S::TERM, "TERM"),
        (S::HUP, "HUP"),
        (S::USR1, "USR1"),
        (S::USR2, "USR2"),
        (S::INT, "INT"),
        (S::QUIT, "QUIT"),
        (S::ALARM, "ALRM"),
        (S::WINCH, "WINCH"),
    ] {
        run.signal(signal)?;
        // The next line and no other: none came twice.
        assert_eq!(run.next_line().await?, Some(format!("got {name}")));
    }
    let kill = ["-40".to_owned(), run.holder()?.to_string()];
    assert!(tokio::process::Command::new("kill").args(kill).status().await?.success());
    assert_eq!(run.next_line().await?.as_deref(), Some("got 40"));
    run.signal(S::KILL)?;
    run.nobody_left().await
}

#[tokio::test]
async fn a_signal_ends_a_command_that_does_not_catch_it() -> Result<()> {
    let server = server().start().await?;
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let run = Run::family(&server, "run --lease job/a --no-wait", "").await?;
        run.signal(signal)?;
        assert_eq!(run.ended().await?.code, code);
    }
    Ok(())
}

#[tokio::test]
async fn without_the_lease_nothing_is_run() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let file = folder.path().join("was-run");
    let file = file.to_str().context("UTF-8")?;
    ask(&server, "lease acquire job/a --holder the-other --ttl 5m").await?.good()?;
    ask(&server, "lease acquire lock/a --holder the-other --ttl 5m").await?.good()?;
    let url = server.url().to_owned();
    let cases = [
        ("run --lease job/a --no-wait", url.as_str(), 103, "held by the-other"),
        ("run --lease job/a --wait 200ms", &url, 103, "held by the-other"),
        ("lock a --no-wait", &url, 103, "held by the-other"),
        ("lock a --wait 200ms", &url, 103, "held by the-other"),
        ("run --lease job/b", "http://127.0.0.1:1", 105, "127.0.0.1:1"),
        ("run --lease job/b --ttl 1ms", &url, 102, "--ttl must be 1s to 24h"),
        ("run --lease job/b --ttl 0", &url, 102, "--ttl must be 1s to 24h"),
        ("run --lease job/b --ttl 10h", &url, 102, "--ttl must be 1s to 5m"),
        ("run --lease job/b --policy forever", &url, 102, "grace=5m"),
        ("run --lease job/b --ttl 3s --term-before 2s", &url, 102, "must be less than half of the ttl, 3s"),
        ("run --lease nightly", &url, 102, "KIND/KEY"),
        ("run --lease job/b --wait 1s --no-wait", &url, 102, "cannot be used with"),
        ("run", &url, 102, "--lease"),
        ("lock ..", &url, 102, "no URL"),
    ];
    for (args, url, code, said) in cases {
        let args = args.split_whitespace().chain(["--", "touch", file]);
        let mut command = crate::common::command(args.clone());
        command.env("SOLEHOLD_SERVER", url);
        let ended = ran(command).await?;
        let args: Vec<&str> = args.collect();
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
        assert!(!fs::exists(file)?, "{args:?}");
    }
    assert_eq!(ask(&server, "run --lease job/b").await?.code, Some(102), "no command");
    Ok(())
}

#[tokio::test]
async fn input_and_output_go_through() -> Result<()> {
    let server = server().start().await?;
    let script = format!(
        "printf 'one\\ntwo\\n' | {} run --lease job/a --server {} -- sh -c 'cat; echo three >&2' 2>&1 | cat",
        crate::common::BINARY,
        server.url()
    );
    let output = tokio::process::Command::new("sh").args(["-c", &script]).output().await?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\nthree\n");
    Ok(())
}

#[tokio::test]
async fn whoever_waits_gets_it_or_goes() -> Result<()> {
    let server = server().start().await?;
    let mut first = Run::script(&server, "run --lease job/a --holder w1", "echo ready; read line; exit 0")?;
    first.line("ready").await?;
    let waiting = Run::script(&server, "run --lease job/a", "echo ready")?;
    waiting.signal(Signal::TERM)?;
    let gone = waiting.ended().await?;
    assert_eq!(gone.code, 143, "{}", gone.stderr);
    let mut second = Run::script(&server, "run --lease job/a --wait 1m", "echo ready")?;
    assert_eq!(first.ended().await?.code, 0);
    second.line("ready").await?;
    assert_eq!(second.ended().await?.code, 0);
    wait_for("nobody to hold it", SOON, async || {
        ask(&server, "lease get job/a").await.is_ok_and(|got| got.code == Some(4))
    })
    .await
}
