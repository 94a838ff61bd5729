//! `docs/cli.md` says what the binary does: the same commands, options, variables and exit codes.

mod common;

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use common::{below, command, run};

const DOCS: &str = include_str!("../../../docs/cli.md");

#[tokio::test]
async fn exit_codes_are_those_of_the_help() -> Result<()> {
    let help = run(["--help"]).await?.good()?;
    let (_, table) = help.split_once("Exit codes:\n").context("a table in the help")?;
    let rows: Vec<(&str, &str)> = table.lines().filter_map(|line| line.trim().split_once("  ")).collect();
    assert!(rows.len() >= 8, "{table}");
    for (code, meaning) in &rows {
        assert!(
            DOCS.contains(&format!("| {code} | {meaning} |")),
            "docs/cli.md lacks: | {code} | {meaning} |"
        );
    }
    let documented = DOCS.lines().filter(|line| {
        line.strip_prefix("| ")
            .and_then(|rest| rest.split(' ').next())
            .is_some_and(|code| code.parse::<u8>().is_ok())
    });
    assert_eq!(documented.count(), rows.len());
    Ok(())
}

#[tokio::test]
async fn every_command_option_and_variable_is_documented() -> Result<()> {
    let mut paths: Vec<Vec<String>> = below(&[]).await?.into_iter().map(|name| vec![name]).collect();
    let mut lacking = BTreeSet::new();
    while let Some(path) = paths.pop() {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let inner = below(&parts).await?;
        if inner.is_empty() {
            let name = format!("solehold {}", path.join(" "));
            let help = run(parts.iter().chain(&["--help"])).await?.good()?;
            let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
            let words = words.filter(|w| (w.starts_with("--") && w.len() > 2) || w.starts_with("SOLEHOLD_"));
            let wanted = words.map(str::to_owned).chain([name]);
            lacking.extend(wanted.filter(|word| !DOCS.contains(word.as_str())));
        }
        paths.extend(inner.into_iter().map(|name| path.iter().cloned().chain([name]).collect()));
    }
    assert!(lacking.is_empty(), "docs/cli.md lacks {lacking:?}");
    Ok(())
}

#[tokio::test]
async fn every_variable_that_is_documented_is_known() -> Result<()> {
    let words = DOCS.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let variables: BTreeSet<&str> =
        words.filter(|word| word.starts_with("SOLEHOLD_") && word.len() > 9).collect();
    assert!(variables.len() > 20, "{variables:?}");
    let mut check = command(["serve", "--check"]);
    let mut unknown = String::new();
    for variable in variables {
        // Empty says nothing, but an unknown name is told all the same when it says something.
        check.env(variable, "");
        let mut one = command(["serve", "--check"]);
        one.env(variable, "x");
        unknown += &String::from_utf8_lossy(&one.output().await?.stderr)
            .lines()
            .filter(|l| l.contains("nothing reads it"))
            .collect::<String>();
    }
    assert_eq!(unknown, "");
    assert!(check.output().await?.status.success());
    Ok(())
}
