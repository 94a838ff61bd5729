//! `solehold admin import --from-table`: what is taken over, and what is refused.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Solehold};
use tokio_postgres::Client;

use crate::{
    common::{Ran, ask, ask_args, run, server},
    planes::{TABLES, connect},
};

async fn database(rows: &str) -> Result<(String, Client)> {
    let url = Postgres::shared().await?.create_database("moving_tables").await?;
    let client = connect(&url).await?;
    client.batch_execute(TABLES).await?;
    client.batch_execute(rows).await?;
    Ok((url, client))
}

async fn import(server: &Solehold, url: &str, arguments: &str) -> Result<Ran> {
    let words = arguments.split_whitespace();
    ask_args(server, ["admin", "import", "--from-table", url].into_iter().chain(words)).await
}

async fn held_back_ms(server: &Solehold, resource: &str) -> Result<u64> {
    let found = ask(server, &format!("resource get {resource} --json")).await?.json()?;
    found["held_back_ms"].as_u64().context("a time")
}

const SCENES: &str = "INSERT INTO scene_leases VALUES \
    ('live', 'tracker-0', NOW() + INTERVAL '1 minute', 41), ('free', NULL, NULL, 7), \
    ('dead', 'tracker-1', NOW() - INTERVAL '1 minute', 900)";

#[tokio::test]
async fn live_rows_are_held_back_and_tokens_go_on_above_all_rows() -> Result<()> {
    let (url, old) = database(SCENES).await?;
    let server = server().start().await?;
    let dry = import(&server, &url, "scene_leases --dry-run --json").await?.json()?;
    assert_eq!((&dry["rows"], &dry["live"], &dry["held_back"]), (&json!(3), &json!(1), &json!(1)));
    assert_eq!((&dry["declared"], &dry["tokens_above"]), (&json!(3), &json!(900)));
    assert_eq!(
        ask(&server, "resource ls --json").await?.json()?,
        json!({"resources": []}),
        "nothing was done"
    );

    let done = import(&server, &url, "scene_leases").await?;
    assert!(done.stderr.contains("scene_leases was not changed: workers that still renew"), "{done:?}");
    let said = done.good()?;
    assert!(
        said.starts_with("scene_leases: 3 rows, of which 1 live\ntokens go on from above 900\n"),
        "{said}"
    );
    assert!(said.contains("held back 1 resource, the last for "), "{said}");
    let refused = ask(&server, "lease acquire scene/live --holder new").await?;
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let left = held_back_ms(&server, "scene/live").await?;
    assert!((30_000..=60_000).contains(&left), "{left}");
    for scene in ["free", "dead"] {
        let lease = ask(&server, &format!("lease acquire scene/{scene} --holder new --ttl 5m --json"))
            .await?
            .json()?;
        assert!(lease["token"].as_u64() > Some(900), "{lease}");
    }
    let history = ask(&server, "lease history scene/live").await?.good()?;
    assert!(history.contains("tracker-0") && history.contains("taken over from scene_leases"), "{history}");

    // A second run finds everything as it should be; a worker that goes on in the old table is told.
    let again = import(&server, &url, "scene_leases --json").await?.json()?;
    let same =
        ["held_back", "already_held_back", "declared", "already_declared"].map(|field| again[field].clone());
    assert_eq!(same, [json!(0), json!(1), json!(0), json!(3)], "{again}");
    old.batch_execute(
        "UPDATE scene_leases SET expires_at = NOW() + INTERVAL '4 minutes' WHERE scene_id = 'live'",
    )
    .await?;
    let renewed = import(&server, &url, "scene_leases").await?;
    assert!(renewed.code == Some(3) && renewed.stderr.contains("tracker-0 has renewed it"), "{renewed:?}");
    old.batch_execute(
        "UPDATE scene_leases SET holder_id = 'tracker-9', expires_at = NOW() + INTERVAL '1 minute' \
        WHERE scene_id = 'free'",
    )
    .await?;
    let both = import(&server, &url, "scene_leases --only free").await?;
    let words = "scene/free is held by new with token 9";
    assert!(
        both.code == Some(3) && both.stderr.contains(words) && both.stderr.contains("by tracker-9"),
        "{both:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_refused_in_words() -> Result<()> {
    let (url, old) = database("ALTER TABLE scene_leases RENAME holder_id TO owner").await?;
    let server = server().start().await?;
    let told = async |arguments: &str, code: i32, words: &[&str]| -> Result<()> {
        let ran = import(&server, &url, arguments).await?;
        assert_eq!(ran.code, Some(code), "{arguments}: {ran:?}");
        for words in words {
            assert!(ran.stderr.contains(words), "{arguments}: {}", ran.stderr);
        }
        Ok(())
    };
    let has = "it has expires_at, owner, scene_id, version";
    told("scene_leases", 2, &["scene_leases has no column holder_id", has, "--map holder_id=COLUMN"]).await?;
    told("scene_leases --map holder=owner", 2, &["its columns are scene_id, holder_id"]).await?;
    told("jobs", 2, &["jobs is none of the tables scene_leases, leases, session_locks"]).await?;
    told("leases=nowhere", 2, &["there is no such table"]).await?;
    told("session_locks --retire", 2, &["--retire does not work for session_locks"]).await?;
    let mapped = "scene_leases --map holder_id=owner";
    told(&format!("{mapped} --site north"), 2, &["--site: the rows of scene_leases name no site"]).await?;
    told(&format!("{mapped} --only nobody"), 2, &["--only nobody: there is no such row"]).await?;
    told(&format!("{mapped} --cameras x.json"), 2, &["cannot be used with"]).await?;
    for (row, words) in [
        ("('s', 't', NULL, 1)", "row \"s\" is held by t and never expires"),
        ("('s', 't', 'infinity', 1)", "never expires"),
        ("('s', NULL, NULL, -4)", "the tokens of scene_leases are -4 to -4"),
        ("(E'a\\nb', NULL, NULL, 1)", "control character"),
        ("('s', 't', NOW() + INTERVAL '2 days', 1)", "is longer than any lease may last"),
    ] {
        old.batch_execute(&format!("TRUNCATE scene_leases; INSERT INTO scene_leases VALUES {row}")).await?;
        told(mapped, 2, &[words]).await?;
    }
    assert_eq!(
        ask(&server, "resource ls --json").await?.json()?,
        json!({"resources": []}),
        "nothing was done"
    );
    Ok(())
}

#[tokio::test]
async fn tokens_as_large_as_times_and_times_of_another_zone_are_taken_over() -> Result<()> {
    let rows = "INSERT INTO scene_leases VALUES \
        ('s', 't', (NOW() AT TIME ZONE 'Asia/Tokyo') + INTERVAL '30 seconds', 1800000000000)";
    let (url, _old) = database(rows).await?;
    let server = server().start().await?;
    let hours_away = import(&server, &url, "scene_leases").await?;
    assert!(hours_away.code == Some(2) && hours_away.stderr.contains("check --time-zone"), "{hours_away:?}");
    let report = import(&server, &url, "scene_leases --time-zone Asia/Tokyo --json").await?.json()?;
    assert_eq!((&report["live"], &report["held_back"]), (&json!(1), &json!(1)), "{report}");
    let lease = ask(&server, "lease acquire scene/other --json").await?.json()?;
    assert!(lease["token"].as_u64() > Some(1_800_000_000_000), "{lease}");
    let odd = import(&server, &url, "scene_leases --time-zone Mars/Base").await?;
    assert!(odd.code != Some(0) && odd.stderr.contains("--time-zone Mars/Base"), "{odd:?}");
    Ok(())
}

#[tokio::test]
async fn locks_are_taken_over_straight_in_the_gateways_database() -> Result<()> {
    let rows = "INSERT INTO session_locks VALUES ('chat-1', 'gw-a', NOW(), NOW() + INTERVAL '2 minutes'), \
        ('chat-2', 'gw-b', NOW(), NOW() - INTERVAL '2 minutes')";
    let (url, _old) = database(rows).await?;
    let import = ["admin", "import", "--json", "--from-table", &url, "session_locks", "--engine", &url];
    let report = run(import).await?.json()?;
    assert_eq!((&report["held_back"], &report["declared"]), (&json!(1), &json!(0)), "{report}");
    let report = run(import).await?.json()?;
    assert_eq!((&report["held_back"], &report["already_held_back"]), (&json!(0), &json!(1)), "{report}");
    let server = server().engine(&url).start().await?;
    assert_eq!(ask(&server, "lease acquire lock/chat-1").await?.code, Some(3), "gw-a may still work on it");
    ask(&server, "lease acquire lock/chat-2").await?.good()?;
    Ok(())
}

#[tokio::test]
async fn a_retired_camera_cannot_be_renewed_or_acquired_in_the_old_table() -> Result<()> {
    let lease = |camera: &str, runner: &str, status: &str, seconds: i32| {
        format!(
            "INSERT INTO leases (camera_uuid, runner_id, shard_id, tenant_id, site_id, expires_at, status, \
             config_version, zone_version) VALUES ('{camera}', '{runner}', 's', 'acme', 'north', \
             NOW() + INTERVAL '{seconds} seconds', '{status}', 'c', 'z');"
        )
    };
    let rows = [
        lease("cam-1", "r0", "released", -60),
        lease("cam-1", "r1", "active", 60),
        lease("cam-2", "r1", "expired", -60),
    ];
    let (url, old) = database(&rows.concat()).await?;
    let server = server().start().await?;
    for expected in [[json!(1), json!(0), json!(2)], [json!(0), json!(0), json!(0)]] {
        let report = import(&server, &url, "leases --retire --json").await?.json()?;
        assert_eq!(
            ["held_back", "declared", "retired"].map(|field| report[field].clone()),
            expected,
            "{report}"
        );
    }
    let sql = "SELECT camera_uuid || ' ' || runner_id || ' ' || status FROM leases ORDER BY camera_uuid, expires_at";
    let rows: Vec<String> = old.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect();
    let expected = [
        "cam-1 r0 released",
        "cam-1 r1 revoked",
        "cam-1 solehold active",
        "cam-2 r1 expired",
        "cam-2 solehold active",
    ];
    assert_eq!(rows, expected);
    let taken = old.batch_execute(&lease("cam-2", "r9", "active", 60)).await;
    assert!(taken.is_err(), "the old table itself keeps it");
    let found = ask(&server, "resource get camera/cam-1 --tenant acme --json").await?.json()?;
    assert_eq!(found["declared"], Value::Bool(false), "its document comes with --cameras");
    assert!(found["held_back_ms"].as_u64() > Some(30_000), "{found}");
    Ok(())
}
