//! `--slots`: several holders at once, and several resources in one step.

mod common;

use anyhow::{Context, Result, ensure};
use common::{SOON, ask, command, json_of, server};
use solehold_testkit::{Solehold, TempDir, wait_for};
use tokio::process::Child;

/// A command that says its slot and token, and holds its lock until the file `go` is there.
fn holds(server: &Solehold, folder: &std::path::Path, who: &str, options: &[&str]) -> Result<Child> {
    let script = format!(
        "echo \"$SOLEHOLD_SLOT $SOLEHOLD_TOKEN\" > {who}.tmp && mv {who}.tmp {who}; \
         until [ -e go-{who} ]; do sleep 0.05; done"
    );
    let mut holder = command(["lock", "gpu", "--holder", who]);
    holder.args(options).args(["--", "sh", "-c", &script]);
    Ok(holder.env("SOLEHOLD_SERVER", server.url()).current_dir(folder).kill_on_drop(true).spawn()?)
}

async fn said(folder: &std::path::Path, who: &str) -> Result<(String, u64)> {
    let text = wait_for(who, SOON, async || std::fs::read_to_string(folder.join(who)).ok()).await?;
    let (slot, token) = text.trim_end().rsplit_once(' ').context("a slot and a token")?;
    Ok((slot.to_owned(), token.parse()?))
}

#[tokio::test]
async fn two_hold_a_lock_of_two_slots_and_the_third_waits() -> Result<()> {
    let server = server().start().await?;
    let folder = TempDir::new()?;
    let folder = folder.path();
    let mut ann = holds(&server, folder, "ann", &["--slots", "2"])?;
    let (slot, first) = said(folder, "ann").await?;
    ensure!(slot == "1", "{slot}");
    let _bob = holds(&server, folder, "bob", &["--slots", "2"])?;
    let (slot, second) = said(folder, "bob").await?;
    ensure!(slot == "2" && second > first, "{slot} {second}");

    let mut alone = holds(&server, folder, "alone", &[])?;
    let waits = async |count: u64| {
        let is_there = async || {
            let locks = json_of(&server, "lock ls").await.ok()?["locks"].clone();
            locks.as_array()?.iter().any(|lock| lock["waiting"] == count).then_some(locks)
        };
        wait_for("a waiter", SOON, is_there).await
    };
    let locks = waits(1).await?;
    let shared = locks[0]["shared"].as_array().context("those who share it")?;
    ensure!(shared.len() == 2 && shared[1]["slot"] == 2 && locks[0]["lease"].is_null(), "{locks}");
    let people = ask(&server, "lock ls").await?.good()?;
    ensure!(people.contains("(slot 1 of 2)") && people.contains("alone"), "{people}");
    let mut cat = holds(&server, folder, "cat", &["--slots", "2"])?;
    waits(2).await?;

    // A slot is free, and the one who wants it alone is ahead.
    std::fs::write(folder.join("go-ann"), "")?;
    ensure!(ann.wait().await?.success());
    ensure!(!folder.join("cat").exists() && !folder.join("alone").exists(), "nobody overtakes");
    std::fs::write(folder.join("go-bob"), "")?;
    let (slot, third) = said(folder, "alone").await?;
    ensure!(slot.is_empty() && third > second, "{slot} {third}");
    ensure!(!folder.join("cat").exists(), "it is held alone");
    std::fs::write(folder.join("go-alone"), "")?;
    ensure!(alone.wait().await?.success());
    ensure!(said(folder, "cat").await?.0 == "1");
    std::fs::write(folder.join("go-cat"), "")?;
    ensure!(cat.wait().await?.success());
    Ok(())
}

#[tokio::test]
async fn several_leases_are_acquired_in_one_step_or_none() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "lease acquire account/42 --holder ann").await?.good()?;
    let ran = ask(&server, "lease acquire account/17 account/42 --holder bob").await?;
    ensure!(ran.code == Some(3), "{ran:?}");
    let said = &ran.stderr;
    ensure!(
        said.contains("none was acquired") && said.contains("account/42") && said.contains("ann"),
        "{said}"
    );
    ensure!(ask(&server, "lease get account/17").await?.code == Some(4), "nothing was acquired");
    ask(&server, "lease release account/42 --holder ann").await?.good()?;
    let grants = json_of(&server, "lease acquire account/17 account/42 --holder bob").await?;
    let keys: Vec<_> =
        grants.as_array().context("grants")?.iter().map(|grant| grant["key"].clone()).collect();
    ensure!(keys == ["17", "42"], "{grants}");
    let shared = json_of(&server, "lease acquire gpu/pool --slots 4 --holder bob").await?;
    ensure!(shared["slot"] == 1 && shared["slots"] == 4, "{shared}");
    let bad = ask(&server, "lease acquire gpu/pool --slots 0 --holder bob").await?;
    ensure!(bad.code == Some(2) && bad.stderr.contains("1..=1000"), "{bad:?}");
    Ok(())
}
