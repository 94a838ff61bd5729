//! What the binary says to people who typed something almost right.

mod common;

use anyhow::{Context, Result};
use common::{ask, command, ran, run, server};
use serde_json::json;

#[tokio::test]
async fn a_command_without_its_dashes_is_shown_with_them() -> Result<()> {
    for (typed, meant) in [
        ("lock x true", "solehold lock x -- true"),
        ("lock x --ttl 5s make all", "solehold lock x --ttl 5s -- make all"),
        ("run camera/x -- true", "solehold run --lease camera/x -- true"),
        ("run camera/x true", "solehold run --lease camera/x -- true"),
        ("run --lease camera/x true", "solehold run --lease camera/x -- true"),
    ] {
        let ran = run(typed.split(' ')).await?;
        assert_eq!(ran.code, Some(102), "{typed}: {ran:?}");
        assert!(ran.stderr.contains(&format!("write it as in `{meant}`")), "{typed}: {}", ran.stderr);
    }
    let odd = run(["lock", "x", "--tttl", "5s", "--", "true"]).await?;
    assert!(odd.code == Some(102) && odd.stderr.contains("--ttl"), "{odd:?}");
    Ok(())
}

#[tokio::test]
async fn a_key_is_rotated_and_revoked_by_its_name() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let create = "admin key create --role admin --json --name";
    let first = ask(&server, &format!("{create} first")).await?.json()?;
    let admin = first["key"].as_str().context("a key")?.to_owned();
    let as_admin = async |arguments: &str| {
        let mut command = command(arguments.split(' '));
        command.env("SOLEHOLD_SERVER", server.url()).env("SOLEHOLD_API_KEY", &admin);
        ran(command).await
    };
    let ci = as_admin(&format!("{create} ci")).await?.json()?;
    let rotated = as_admin("admin key rotate ci --json").await?.json()?;
    assert_eq!(rotated["id"], ci["id"], "{rotated}");
    assert_ne!(rotated["key"], ci["key"], "{rotated}");

    let twin = as_admin(&format!("{create} ci")).await?.json()?;
    let both = as_admin("admin key revoke ci").await?;
    assert_eq!(both.code, Some(2), "{both:?}");
    for id in [&ci["id"], &twin["id"]] {
        assert!(both.stderr.contains(id.as_str().context("an id")?), "{both:?}");
    }
    let id = twin["id"].as_str().context("an id")?;
    assert_eq!(as_admin(&format!("admin key revoke {id} --json")).await?.json()?["id"], twin["id"]);
    assert_eq!(as_admin("admin key revoke ci --json").await?.json()?["id"], ci["id"]);
    let gone = as_admin("admin key revoke ci").await?;
    assert_eq!(gone.code, Some(4), "{gone:?}");
    Ok(())
}

#[tokio::test]
async fn a_misspelt_variable_is_warned_about_by_every_command() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    for arguments in ["lease ls", "lock x -- true"] {
        let mut command = command(arguments.split(' '));
        command.env("SOLEHOLD_SERVER", server.url());
        command.env("SOLEHOLD_API_KEYS", "x").env("SOLEHOLD_OF_ANOTHER_PROGRAM", "y");
        let ran = ran(command).await?;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let warnings: Vec<&str> =
            ran.stderr.lines().filter(|line| line.contains("nothing reads it")).collect();
        let expected = "warning: SOLEHOLD_API_KEYS is set, and nothing reads it; is SOLEHOLD_API_KEY meant?";
        assert_eq!(warnings, [expected], "{arguments}");
    }
    Ok(())
}

#[tokio::test]
async fn the_short_help_is_about_the_command_and_the_long_one_has_the_rest() -> Result<()> {
    let short = run(["lease", "renew", "-h"]).await?.good()?;
    let long = run(["lease", "renew", "--help"]).await?.good()?;
    for option in ["--token", "--ttl"] {
        assert!(short.contains(option) && long.contains(option), "{option}");
    }
    for option in ["--json", "--log-level", "--log-format", "--server", "--api-key", "--ca-cert", "--timeout"]
    {
        assert!(!short.contains(option), "{option} is in\n{short}");
        assert!(long.contains(option), "{option} is not in\n{long}");
    }
    assert!(short.lines().count() < 20, "{short}");
    let short = run(["-h"]).await?.good()?;
    let long = run(["--help"]).await?.good()?;
    assert!(!short.contains("Exit codes") && long.contains("Exit codes"), "{short}");
    Ok(())
}

#[tokio::test]
async fn the_replicas_that_are_asked_are_listed_with_how_they_are_doing() -> Result<()> {
    let server = server().engine("memory:").start().await?;
    let nobody = format!("http://127.0.0.1:{}", solehold_testkit::free_port()?);
    let servers = format!("{},{nobody}", server.url());
    let listed = run(["node", "ls", "--replicas", "--json", "--server", &servers]).await?.json()?;
    let [first, second] = &listed["replicas"].as_array().context("replicas")?[..] else {
        anyhow::bail!("{listed}");
    };
    assert_eq!((&first["server"], &first["engine"]), (&json!(server.url()), &json!("memory")), "{first}");
    assert!(first["ready"] == true && first["node_id"].is_string() && first["reason"].is_null(), "{first}");
    assert_eq!((&second["server"], &second["ready"]), (&json!(nobody), &json!(false)), "{second}");
    assert!(second["reason"].as_str().is_some_and(|why| why.contains("no server at")), "{second}");
    let table = run(["node", "ls", "--replicas", "--server", &servers]).await?.good()?;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 3 && lines[1].ends_with("ready") && lines[2].contains("no server at"), "{table}");
    Ok(())
}
