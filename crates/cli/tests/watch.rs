//! The watch: no gap and no double, whatever becomes of the server.

mod common;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use common::{SOON, ask, command, normalised, run, server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use solehold_testkit::{Solehold, TempDir, free_port};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

/// A watch that runs, and what it prints line by line.
fn watch(url: &str, args: &[&str]) -> Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut child = command(["watch", "--server", url].iter().chain(args)).spawn()?;
    let stdout = child.stdout.take().context("a stdout")?;
    Ok((child, BufReader::new(stdout).lines()))
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<Value> {
    let line = tokio::time::timeout(SOON, lines.next_line()).await.context("no event comes")??;
    Ok(serde_json::from_str(&line.context("it has ended")?)?)
}

async fn acquire(server: &Solehold, names: std::ops::Range<u32>) -> Result<()> {
    for number in names {
        ask(server, &format!("lease acquire job/{number} --holder w --ttl 5m")).await?.good()?;
    }
    Ok(())
}

#[tokio::test]
async fn it_goes_on_across_restarts_without_gap_or_double() -> Result<()> {
    let folder = TempDir::new()?;
    let address = ([127, 0, 0, 1], free_port()?).into();
    let serve = async || server().data_dir(folder.path()).listen(address).start().await;
    let first = serve().await?;
    acquire(&first, 0..2).await?;
    let (mut child, mut lines) = watch(first.url(), &["--json", "--snapshot", "--limit", "15"])?;
    let snapshot = next(&mut lines).await?;
    assert_eq!(snapshot["snapshot"]["resources"].as_array().map(Vec::len), Some(2), "{snapshot}");

    acquire(&first, 10..15).await?;
    let mut events = vec![next(&mut lines).await?];
    first.terminate().await?;
    let second = serve().await?;
    acquire(&second, 15..20).await?;
    for _ in 0..6 {
        events.push(next(&mut lines).await?);
    }
    second.kill9().await?;
    let third = serve().await?;
    acquire(&third, 20..25).await?;
    while events.len() < 15 {
        events.push(next(&mut lines).await?);
    }
    assert_eq!(lines.next_line().await?, None, "--limit ends it");
    assert_eq!(child.wait().await?.code(), Some(0));
    let revisions: Vec<u64> = events.iter().filter_map(|event| event["revision"].as_u64()).collect();
    assert!(revisions.len() == 15 && revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    let keys: BTreeSet<String> = events.iter().filter_map(|e| e["key"].as_str().map(str::to_owned)).collect();
    assert_eq!(keys, (10..25).map(|number| number.to_string()).collect());

    // From the cursor of any event the rest comes again, and only that.
    let from = events[9]["cursor"].as_str().context("a cursor")?;
    let (_child, mut lines) = watch(third.url(), &["--json", "--from", from, "--limit", "5"])?;
    for event in &events[10..] {
        assert_eq!(next(&mut lines).await?, *event);
    }
    Ok(())
}

#[tokio::test]
async fn people_see_a_line_a_change() -> Result<()> {
    let server = server().start().await?;
    acquire(&server, 1..2).await?;
    ask(&server, "lease release job/1 --holder w").await?.good()?;
    ask(&server, "resource put job/2 --site berlin --label a=b").await?.good()?;
    ask(&server, "lease acquire job/2 --holder w --ttl 5m").await?.good()?;
    ask(&server, "lease revoke job/2 --fenced --reason maintenance").await?.good()?;
    ask(&server, "resource rm job/2").await?.good()?;
    let seen = ask(&server, "watch --from 1.0 --limit 6").await?;
    assert!(
        seen.stderr.ends_with("solehold watch: ended at 1.6; --from 1.6 goes on there\n"),
        "{}",
        seen.stderr
    );
    let seen = seen.good()?;
    assert_eq!(
        normalised(&seen),
        "TIME lease_acquired job/1 token 1 w ttl TTL\n\
         TIME lease_released job/1 token 1 w\n\
         TIME resource_declared job/2 site berlin, a=b\n\
         TIME lease_acquired job/2 token 4 w ttl TTL\n\
         TIME lease_revoked job/2 token 4 w maintenance\n\
         TIME resource_deleted job/2"
    );
    Ok(())
}

#[tokio::test]
async fn it_says_where_it_ended() -> Result<()> {
    let server = server().start().await?;
    acquire(&server, 1..2).await?;
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 3)] {
        let (child, mut lines) = watch(server.url(), &["--json", "--snapshot"])?;
        next(&mut lines).await?;
        acquire(&server, number..number + 1).await?;
        next(&mut lines).await?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("it runs")?;
        kill_process(pid, signal)?;
        let ended = tokio::time::timeout(SOON, child.wait_with_output()).await??;
        assert_eq!(ended.status.code(), Some(130));
        let said = String::from_utf8(ended.stderr)?;
        let words = format!("solehold watch: ended at 1.{number}; --from 1.{number} goes on there\n");
        assert_eq!(said, words);
    }
    Ok(())
}

#[tokio::test]
async fn it_can_be_narrowed() -> Result<()> {
    let server = server().start().await?;
    for (name, holder) in [("job/a", "w1"), ("camera/cam-1", "w1"), ("job/b", "w2")] {
        ask(&server, &format!("lease acquire {name} --holder {holder} --ttl 5m")).await?.good()?;
    }
    let keys = async |arguments: &str| -> Result<Vec<Value>> {
        let seen = ask(&server, &format!("watch --json --from 1.0 {arguments}")).await?.good()?;
        seen.lines().map(|line| Ok(serde_json::from_str::<Value>(line)?["key"].clone())).collect()
    };
    assert_eq!(keys("--kind job --limit 2").await?, ["a", "b"]);
    assert_eq!(keys("--holder w1 --limit 2").await?, ["a", "cam-1"]);

    let (_child, mut lines) = watch(server.url(), &["--json", "--snapshot", "--renewals", "--limit", "1"])?;
    let snapshot = next(&mut lines).await?;
    assert!(snapshot["snapshot"]["cursor"].is_string(), "{snapshot}");
    ask(&server, "lease renew job/a --holder w1").await?.good()?;
    let renewed = next(&mut lines).await?;
    assert_eq!((&renewed["event_type"], &renewed["key"]), (&json!("lease_renewed"), &json!("a")));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_watched_is_told() -> Result<()> {
    let nobody = run(["watch", "--server", "http://127.0.0.1:1"]).await?;
    assert_eq!(nobody.code, Some(5), "{}", nobody.stderr);
    assert_eq!(run(["watch", "--from", "yesterday"]).await?.code, Some(2));
    let server = server().start().await?;
    let ahead = ask(&server, "watch --from 1.99").await?;
    assert_eq!(ahead.code, Some(2), "{}", ahead.stderr);
    assert!(ahead.stderr.contains("1.99"), "{}", ahead.stderr);
    Ok(())
}
