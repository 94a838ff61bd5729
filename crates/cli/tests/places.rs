//! The wrong folder, the wrong database, the wrong tenant: told, and nothing made there.

mod common;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use common::{Ran, ask, command, ran, run, server, write};
use solehold_testkit::{Postgres, TempDir, free_port};

/// What works on a store that must be there.
const READERS: [&[&str]; 6] = [
    &["key", "ls"],
    &["key", "rotate", "x"],
    &["key", "revoke", "x"],
    &["raise-token", "--above", "5"],
    &["restored"],
    &["export"],
];

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("UTF-8")
}

async fn admin(args: &[&str], place: &[&str]) -> Result<Ran> {
    run(["admin"].iter().chain(args).chain(place)).await
}

/// What `serve --check=connect` says of a place.
async fn check(place: &[&str]) -> Result<Ran> {
    run(["serve", "--check=connect"].iter().chain(place)).await
}

#[tokio::test]
async fn a_mistyped_folder_does_not_become_a_store() -> Result<()> {
    let folder = TempDir::new()?;
    let typo = folder.path().join("a/tpyo");
    let real = folder.path().join("real");
    let place = ["--data-dir", text(&typo)?];
    for args in READERS {
        let refused = admin(args, &place).await?;
        assert_eq!(refused.code, Some(2), "{args:?}: {}", refused.stderr);
        let words = format!("error: there is no store in {}: check --data-dir\n", typo.display());
        assert_eq!(refused.stderr, words, "{args:?}");
    }
    assert!(check(&place).await?.good()?.ends_with("; the store does not exist yet and would be created\n"));
    assert!(!folder.path().join("a").exists(), "nothing was made");

    let place = ["--data-dir", text(&real)?];
    admin(&["key", "create", "--name", "first", "--role", "admin"], &place).await?.good()?;
    admin(&["key", "ls"], &place).await?.good()?;
    assert!(check(&place).await?.good()?.ends_with("; the store exists\n"));
    let _running = server().data_dir(&real).start().await?;
    let in_use = check(&place).await?;
    assert_eq!(in_use.code, Some(5), "{}", in_use.stderr);
    assert!(in_use.stderr.contains("is in use by process"), "{}", in_use.stderr);
    Ok(())
}

#[tokio::test]
async fn a_folder_is_shown_with_its_whole_path() -> Result<()> {
    let folder = TempDir::new()?;
    let mut check = command(["serve", "--check", "--data-dir", "./here"]);
    let said = ran(std::mem::replace(check.current_dir(folder.path()), command([""]))).await?.good()?;
    let here = fs::canonicalize(folder.path())?.join("here");
    assert!(said.ends_with(&format!("(engine embedded, data {})\n", here.display())), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_database_without_a_store_is_left_as_it_is() -> Result<()> {
    let url = Postgres::shared().await?.create_database("places").await?;
    let place = ["--engine", url.as_str()];
    for args in READERS {
        let refused = admin(args, &place).await?;
        assert_eq!(refused.code, Some(2), "{args:?}: {}", refused.stderr);
        assert!(
            refused.stderr.contains(": there is no store in this database\n"),
            "{args:?}: {}",
            refused.stderr
        );
        assert!(refused.stderr.starts_with("error: PostgreSQL at "), "{args:?}: {}", refused.stderr);
    }
    assert!(check(&place).await?.good()?.ends_with("; the store does not exist yet and would be created\n"));
    admin(&["key", "create", "--name", "first", "--role", "admin"], &place).await?.good()?;
    assert!(check(&place).await?.good()?.ends_with("; the store exists\n"));
    admin(&["key", "ls"], &place).await?.good()?;

    let nobody = format!("postgres://u:hunter2@127.0.0.1:{}/orders", free_port()?);
    let gone = check(&["--engine", &nobody]).await?;
    assert_eq!((gone.code, gone.stdout.as_str()), (Some(5), ""), "{}", gone.stderr);
    assert!(
        gone.stderr.contains(", database orders: ") && !gone.stderr.contains("hunter2"),
        "{}",
        gone.stderr
    );
    run(["serve", "--check", "--engine", &nobody]).await?.good()?;
    Ok(())
}

#[tokio::test]
async fn a_failed_import_leaves_nothing_behind() -> Result<()> {
    let source = server().start().await?;
    ask(&source, "lease acquire job/a --ttl 5m").await?.good()?;
    let export = ask(&source, "admin export").await?.good()?;
    let half = export.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    let folder = TempDir::new()?;
    let there = folder.path().join("there");
    fs::create_dir(&there)?;
    fs::write(there.join("notes.txt"), "mine")?;
    let url = Postgres::shared().await?.create_database("imports").await?;
    let deep = folder.path().join("a/b/c");
    for (name, wrong) in [("half", half.as_str()), ("empty", ""), ("odd", "nonsense\n")] {
        let file = write(folder.path(), name, wrong)?;
        for place in [["--data-dir", text(&deep)?], ["--data-dir", text(&there)?], ["--engine", &url]] {
            let failed = admin(&["import", &file], &place).await?;
            assert_eq!(failed.code, Some(2), "{name} {place:?}: {}", failed.stderr);
            assert!(
                check(&place)
                    .await?
                    .good()?
                    .ends_with("; the store does not exist yet and would be created\n"),
                "{name} {place:?}"
            );
        }
    }
    assert_eq!(admin(&["import", "/no/such/file"], &["--data-dir", text(&deep)?]).await?.code, Some(2));
    assert!(!folder.path().join("a").exists());
    let left: Vec<_> = fs::read_dir(&there)?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["notes.txt"]);

    // A folder in which the store cannot be made: what was made on the way there goes.
    let file = write(folder.path(), "whole", &export)?;
    let blocked = folder.path().join("blocked");
    fs::create_dir_all(blocked.join("solehold.db"))?;
    let failed = admin(&["import", &file], &["--data-dir", text(&blocked)?]).await?;
    assert_ne!(failed.code, Some(0), "{}", failed.stdout);
    let left: Vec<_> = fs::read_dir(&blocked)?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["solehold.db"]);

    // A store that is there stays as it was.
    let place = ["--data-dir", text(&there)?];
    admin(&["import", &file], &place).await?.good()?;
    assert_eq!(admin(&["import", &file], &place).await?.code, Some(3), "it is not empty");
    assert!(check(&place).await?.good()?.ends_with("; the store exists\n"));
    Ok(())
}

#[tokio::test]
async fn a_mistyped_tenant_is_told() -> Result<()> {
    let server = server().start().await?;
    ask(&server, "resource put job/a --tenant acme").await?.good()?;
    for list in ["lease ls", "resource ls", "runner ls", "lease ls --json"] {
        let told = ask(&server, &format!("{list} --tenant amce")).await?;
        assert_eq!((told.code, told.stdout.as_str()), (Some(4), ""), "{list}: {}", told.stderr);
        assert!(told.stderr.contains("tenant amce does not exist"), "{list}: {}", told.stderr);
        for known in ["--tenant acme", "--tenant default", ""] {
            ask(&server, &format!("{list} {known}")).await?.good()?;
        }
    }
    let keyed = common::server().start().await?;
    let key = async |args: &str| {
        Ok::<_, anyhow::Error>(
            ask(&keyed, &format!("admin key create {args}")).await?.good()?.trim().to_owned(),
        )
    };
    let all = key("--name all --role admin").await?;
    let of_team = format!("--name team --role runner --tenant team --api-key {all}");
    let of_team = key(&of_team).await?;
    let reader = key(&format!("--name reader --role reader --api-key {all}")).await?;
    let ls = async |key: &str, tenant: &str| {
        ask(&keyed, &format!("lease ls --api-key {key} --tenant {tenant}")).await
    };
    ls(&all, "team").await?.good()?;
    ls(&of_team, "team").await?.good()?;
    assert_eq!(ls(&all, "taem").await?.code, Some(4));
    assert_eq!(ls(&of_team, "taem").await?.code, Some(4));
    // One who may read, and not administer, cannot tell.
    ls(&reader, "taem").await?.good()?;
    Ok(())
}
