//! `solehold gate sql`: what it prints is piped into psql, and then an old token is refused, in every form.

mod common;

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use common::{command, run};
use solehold_testkit::{Postgres, package_file, python};
use tokio::{io::AsyncWriteExt, process::Command};
use tokio_postgres::{Client, NoTls};

const TABLES: &str = "CREATE SCHEMA app; \
    CREATE TABLE app.tracks (id int PRIMARY KEY, scene_id text NOT NULL, positions text); \
    INSERT INTO app.tracks VALUES (1, 'lobby', ''), (2, 'hall', '')";

/// A database with a table of tracks, of two scenes.
async fn tracks() -> Result<(String, Client)> {
    let url = Postgres::shared().await?.create_database("gate").await?;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(TABLES).await?;
    Ok((url, client))
}

/// Pipes what the command prints into psql, twice: it may be applied again.
async fn applied(url: &str, arguments: &str) -> Result<String> {
    let sql = run(["gate", "sql"].into_iter().chain(arguments.split_whitespace())).await?.good()?;
    for _ in 0..2 {
        let mut psql = Command::new(Postgres::shared().await?.tool("psql"));
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut psql = psql.kill_on_drop(true).spawn()?;
        psql.stdin.take().context("a pipe")?.write_all(sql.as_bytes()).await?;
        let output = psql.wait_with_output().await?;
        ensure!(output.status.success(), "{}\n{sql}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(sql)
}

/// The statements in one transaction: "done", or the SQLSTATE of the refusal.
async fn transaction(client: &mut Client, statements: &[&str]) -> Result<String> {
    let transaction = client.transaction().await?;
    for sql in statements {
        if let Err(error) = transaction.batch_execute(sql).await {
            return Ok(error.code().context("a refusal of PostgreSQL")?.code().to_owned());
        }
    }
    transaction.commit().await?;
    Ok("done".to_owned())
}

#[tokio::test]
async fn the_trigger_refuses_an_old_token_whatever_is_written() -> Result<()> {
    let (url, mut client) = tracks().await?;
    let sql = applied(&url, "--table app.tracks --kind scene --column scene_id --marks app.fences").await?;
    assert!(sql.starts_with("-- Guards app.tracks"), "{sql}");
    let mut write = async |token: u64, sql: &str| {
        let token = format!("SELECT set_config('solehold.token', '{token}', true)");
        transaction(&mut client, &[&token, sql]).await
    };
    assert_eq!(write(7, "UPDATE app.tracks SET positions = 'first'").await?, "done");
    assert_eq!(write(9, "UPDATE app.tracks SET positions = 'second' WHERE id = 1").await?, "done");
    for late in [
        "UPDATE app.tracks SET positions = 'late'",
        "INSERT INTO app.tracks VALUES (3, 'lobby', 'late')",
        "INSERT INTO app.tracks VALUES (1, 'x', '') ON CONFLICT (id) DO UPDATE SET positions = 'late'",
        "MERGE INTO app.tracks USING (SELECT 1) AS one ON id = 1 WHEN MATCHED THEN DELETE",
        "DELETE FROM app.tracks WHERE id = 1",
        "TRUNCATE app.tracks",
    ] {
        assert_eq!(write(8, late).await?, "SH412", "{late}");
    }
    assert_eq!(write(8, "UPDATE app.tracks SET positions = 'hall' WHERE id = 2").await?, "done");
    let refused = transaction(&mut client, &["TRUNCATE app.tracks"]).await?;
    assert_eq!(refused, "SH428", "without a token");
    let kept: String =
        client.query_one("SELECT string_agg(positions, ' ' ORDER BY id) FROM app.tracks", &[]).await?.get(0);
    assert_eq!(kept, "second hall");
    Ok(())
}

#[tokio::test]
async fn the_function_refuses_an_old_token() -> Result<()> {
    let (url, mut client) = tracks().await?;
    let sql = applied(&url, "--form statement").await?;
    let call = sql.lines().find_map(|line| line.strip_prefix("--   SELECT ")).context("how to call it")?;
    let (call, _) = call.split_once(';').context("a statement")?;
    let mut write = async |token: &str, what: &str| {
        let admit = format!("SELECT {}", call.replace("42", token));
        let update = format!("UPDATE app.tracks SET positions = '{what}' WHERE scene_id = 'lobby'");
        transaction(&mut client, &[&admit, &update]).await
    };
    assert_eq!(write("7", "first").await?, "done");
    assert_eq!(write("9", "second").await?, "done");
    assert_eq!(write("7", "late").await?, "SH412");
    let mine = "9, '00000000-0000-0000-0000-00000000000a'";
    let other = "9, '00000000-0000-0000-0000-00000000000b'";
    assert_eq!(write(mine, "second").await?, "done");
    assert_eq!(write(other, "of another session").await?, "SH412");
    assert_eq!(write("0", "without a token").await?, "22023");
    let kept: String = client.query_one("SELECT positions FROM app.tracks WHERE id = 1", &[]).await?.get(0);
    assert_eq!(kept, "second");
    Ok(())
}

#[tokio::test]
async fn the_column_refuses_an_old_token() -> Result<()> {
    let (url, client) = tracks().await?;
    let sql = applied(&url, "--form column --table app.tracks --column scene_id --set positions").await?;
    let update = sql.lines().find_map(|line| line.strip_prefix("--   ")).context("the update")?;
    let write = async |token: i64, what: &str| client.execute(update, &[&"lobby", &token, &what]).await;
    assert_eq!(write(7, "first").await?, 1);
    assert_eq!(write(9, "second").await?, 1);
    assert_eq!(write(7, "late").await?, 0);
    let kept: String = client.query_one("SELECT positions FROM app.tracks WHERE id = 1", &[]).await?.get(0);
    assert_eq!(kept, "second");
    Ok(())
}

/// The program of the guide, in Python. Those in Go and Java need more than the tests install; the guide says how they
/// are run.
#[tokio::test]
async fn the_recipe_in_python_is_refused_under_an_old_token() -> Result<()> {
    let (url, client) = tracks().await?;
    applied(&url, "--table app.tracks --kind scene --column scene_id").await?;
    let python = python("recipes")?;
    let recipe = package_file("../../examples/gates/recipes/fenced.py");
    let write = async |token: &str, positions: &str| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(&python);
        command.arg(&recipe).args([&url, "lobby", token, positions]).kill_on_drop(true);
        let output = command.output().await?;
        ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok((output.status.code(), String::from_utf8(output.stdout)?))
    };
    assert_eq!(write("7", "first").await?, (Some(0), "written\n".into()));
    assert_eq!(write("9", "second").await?, (Some(0), "written\n".into()));
    let stale = "stale: token 7 of scene/lobby is stale, the newest is 9\n";
    assert_eq!(write("7", "late").await?, (Some(3), stale.into()));
    let kept: String = client.query_one("SELECT positions FROM app.tracks WHERE id = 1", &[]).await?.get(0);
    assert_eq!(kept, "second");
    Ok(())
}

/// What the guide shows of a recipe is part of the file that was run.
#[test]
fn the_guide_shows_the_recipes_as_they_are() -> Result<()> {
    const GUIDE: &str = include_str!("../../../docs/guides/gates.md");
    let (_, section) = GUIDE.split_once("## PostgreSQL\n").context("the section")?;
    for (language, recipe) in [
        ("python", include_str!("../../../examples/gates/recipes/fenced.py")),
        ("go", include_str!("../../../examples/gates/recipes/fenced.go")),
        ("java", include_str!("../../../examples/gates/recipes/Fenced.java")),
    ] {
        let (_, shown) = section.split_once(&format!("```{language}\n")).context(language)?;
        let (shown, _) = shown.split_once("\n```").context(language)?;
        let lines = |text: &str| text.lines().map(|line| line.trim().to_owned() + "\n").collect::<String>();
        assert!(
            lines(recipe).contains(&lines(shown)),
            "docs/guides/gates.md shows another recipe in {language}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn wrong_arguments_are_named() -> Result<()> {
    for (arguments, named) in [
        (&["--kind", "scene", "--column", "scene_id"][..], "--table"),
        (&["--table", "tracks", "--column", "scene_id"], "--kind"),
        (&["--table", "tracks", "--kind", "scene"], "--column"),
        (
            &["--table", "a;DROP TABLE b", "--kind", "scene", "--column", "c"],
            "invalid table \"a;DROP TABLE b\": use a",
        ),
        (&["--table", "a.b.c", "--kind", "scene", "--column", "c"], "schema.table"),
        (&["--table", "t", "--kind", "scene", "--column", "scene id"], "invalid column \"scene id\""),
        (&["--table", "t", "--kind", "", "--column", "c"], "invalid kind \"\""),
        (
            &["--table", "t", "--kind", "k", "--column", "c", "--marks", "my marks"],
            "--marks: invalid table \"my marks\"",
        ),
        (
            &["--form", "statement", "--table", "t"],
            "--table is for --form trigger and --form column, not for --form statement",
        ),
        (&["--table", "t", "--kind", "k", "--column", "c", "--set", "x"], "--set is for --form column"),
        (&["--form", "column", "--table", "t", "--column", "c", "--set", "a\"b"], "invalid column"),
        (&["--form", "rule", "--table", "t"], "trigger, statement, column"),
    ] {
        let refused = run(["gate", "sql"].iter().chain(arguments)).await?;
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(named), "{arguments:?} should name {named}: {refused:?}");
        assert_eq!(refused.stdout, "", "{arguments:?}");
    }
    let mut quoted = command(["gate", "sql", "--table", "t", "--kind", "it's", "--column", "c", "--json"]);
    let output = quoted.output().await?;
    let document: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(document["form"], "trigger");
    assert!(document["sql"].as_str().is_some_and(|sql| sql.contains("('it''s', 'c')")), "{document}");
    Ok(())
}
