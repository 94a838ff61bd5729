//! `solehold admin import --cameras` and `--scenes`: files, and the pages of a REST API.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use solehold_testkit::{Program, Solehold, TempDir, package_file};

use crate::common::{Ran, ask, ask_args, command, ran, server, write};

async fn import(server: &Solehold, arguments: &[&str]) -> Result<Ran> {
    ask_args(server, ["admin", "import"].iter().chain(arguments)).await
}

async fn import_with_token(server: &Solehold, token: &str, arguments: &[&str]) -> Result<Ran> {
    let mut command = command(["admin", "import"].iter().chain(arguments));
    command.env("SOLEHOLD_SERVER", server.url()).env("SOLEHOLD_IMPORT_AUTHORIZATION", token);
    ran(command).await
}

/// Which documents a report names, and how many were left as they were.
fn counts(report: &Value) -> (usize, usize, u64) {
    let count = |field: &str| report[field].as_array().map_or(0, Vec::len);
    (count("created"), count("changed"), report["unchanged"].as_u64().unwrap_or(u64::MAX))
}

fn camera(id: &str) -> Value {
    json!({"camera_uuid": id, "rtsp_url": format!("rtsp://{id}.local/stream"), "tenant_id": "acme", "site_id": "north",
        "zones": [{"zone_id": 1, "name": "driveway", "kind": "include", "priority": 100,
            "polygon": [[100, 100], [700, 100], [700, 500]], "allow_labels": ["person"], "min_score": 0.25}],
        "motion_gating": {"enabled": true, "downscale": 0.5}, "min_score": 0.30, "notes": null})
}

fn zone(id: u64) -> Value {
    json!({"zone_id": id, "name": "gate", "polygon": [[0, 0], [1, 0], [1, 1]]})
}

#[tokio::test]
async fn cameras_and_zones_come_from_a_rest_api_page_by_page() -> Result<()> {
    let folder = TempDir::new()?;
    let mut cameras: Vec<Value> = (0..5).map(|number| camera(&format!("cam-{number}"))).collect();
    write(folder.path(), "cameras.json", &json!(cameras).to_string())?;
    write(folder.path(), "zones.json", &json!([zone(8), zone(9)]).to_string())?;
    let mut python = Command::new("python3");
    python.arg("-B").arg(package_file("tests/moving/manager.py")).arg(folder.path());
    let manager = Program::start("manager", &python, "lists at ").await?;
    let base = format!("{}/api/v1/tenants/acme/sites/north", manager.said());
    let of_cameras = format!("{base}/cameras/");
    let of_zones = format!("{base}/zones/");
    let server = server().start().await?;
    let both = ["--cameras", &of_cameras, "--cameras", &of_zones, "--json"];
    let take = async |more: &[&str]| {
        import_with_token(&server, "Token t0ken", &both.iter().chain(more).copied().collect::<Vec<_>>()).await
    };

    assert_eq!(counts(&take(&["--dry-run"]).await?.json()?), (7, 0, 0));
    assert_eq!(ask(&server, "resource ls --tenant acme").await?.code, Some(4), "there is no such tenant yet");
    assert_eq!(counts(&take(&[]).await?.json()?), (7, 0, 0));
    assert_eq!(counts(&take(&[]).await?.json()?), (0, 0, 7), "a second run changes nothing");
    let found = ask(&server, "resource get camera/cam-3 --tenant acme --json").await?.json()?;
    assert_eq!(
        (&found["site"], &found["attributes"]["rtsp_url"]),
        (&json!("north"), &cameras[3]["rtsp_url"])
    );
    assert_eq!(found["attributes"]["zones"], cameras[3]["zones"]);

    cameras[3]["rtsp_url"] = json!("rtsp://elsewhere");
    write(folder.path(), "cameras.json", &json!(cameras).to_string())?;
    let report = take(&[]).await?.json()?;
    assert_eq!((counts(&report), &report["changed"]), ((0, 1, 6), &json!(["camera/cam-3"])));

    // One bad camera on the last page: nothing is imported, not even the others that have changed.
    cameras[0]["rtsp_url"] = json!("rtsp://changed");
    cameras[4]["min_score"] = json!(7);
    write(folder.path(), "cameras.json", &json!(cameras).to_string())?;
    let bad = take(&[]).await?;
    let words = "nothing was imported: page 3[0]: min_score is 7; it must be 0 to 1";
    assert!(bad.code == Some(2) && bad.stderr.contains(words), "{bad:?}");
    let found = ask(&server, "resource get camera/cam-0 --tenant acme --json").await?.json()?;
    assert_eq!(found["attributes"]["rtsp_url"], json!("rtsp://cam-0.local/stream"));

    for (token, url, words) in [
        ("Token wrong", of_cameras.as_str(), "401 Unauthorized; set SOLEHOLD_IMPORT_AUTHORIZATION"),
        (
            "Token t0ken",
            of_cameras.trim_end_matches('/'),
            "it redirects to /api/v1/tenants/acme/sites/north/cameras/",
        ),
        ("Token t0ken", &of_cameras.replace("cameras/", "camera/"), "404 Not Found"),
        ("Token t0ken", "http://u:p4ss@127.0.0.1/", "set SOLEHOLD_IMPORT_AUTHORIZATION instead"),
    ] {
        let refused = import_with_token(&server, token, &["--cameras", url]).await?;
        assert!(refused.code == Some(2) && refused.stderr.contains(words), "{url}: {refused:?}");
        assert!(!refused.stderr.contains("p4ss"), "{refused:?}");
    }
    manager.kill9().await?;
    let away = import_with_token(&server, "Token t0ken", &["--cameras", &of_cameras]).await?;
    assert_eq!(away.code, Some(5), "{away:?}");
    Ok(())
}

#[tokio::test]
async fn cameras_come_from_a_fixture_or_a_csv_file() -> Result<()> {
    let folder = TempDir::new()?;
    let server = server().start().await?;
    let fixture = json!([
        {"model": "sites.tenant", "pk": 1, "fields": {"tenant_id": "acme"}},
        {"model": "sites.site", "pk": 3, "fields": {"site_id": "north", "tenant": 1}},
        {"model": "cameras.camera", "pk": 7, "fields": {"camera_uuid": "cam-7", "site": 3, "tenant": 1,
            "rtsp_url": "rtsp://seven", "deleted_at": null}},
        {"model": "cameras.zone", "pk": 1, "fields": {"camera": 7, "polygon": [[0, 0], [1, 0], [1, 1]]}},
        {"model": "auth.user", "pk": 1, "fields": {"username": "root"}},
    ]);
    let file = write(folder.path(), "dump.json", &fixture.to_string())?;
    let done = import(&server, &["--cameras", &file]).await?;
    assert!(
        done.stderr
            .contains("left out what is neither a camera nor a zone: 1 of site, 1 of tenant, 1 of user")
    );
    assert_eq!(done.good()?, "created camera/cam-7\n1 created, 0 changed, 0 unchanged\n");
    let shown = ask(&server, "resource get camera/cam-7 --tenant acme --json").await?.json()?;
    let expected = json!({"camera_uuid": "cam-7", "tenant_id": "acme", "site_id": "north", "rtsp_url": "rtsp://seven",
        "zones": [{"zone_id": 1, "polygon": [[0, 0], [1, 0], [1, 1]]}]});
    assert_eq!(shown["attributes"], expected);

    let rows = "camera_uuid,site_id,tenant_id,rtsp_url,min_score\n\
        cam-7,north,acme,rtsp://seven,\ncam-8,south,acme,rtsp://eight,0.4\n";
    let file = write(folder.path(), "cameras.csv", rows)?;
    let report = import(&server, &["--cameras", &file, "--site", "south", "--json"]).await?.json()?;
    assert_eq!(report["created"], json!(["camera/cam-8"]), "{report}");
    let odd = write(folder.path(), "odd.csv", &rows.replace("0.4", "4"))?;
    let odd = import(&server, &["--cameras", &odd]).await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("odd.csv line 3: min_score is 4"), "{odd:?}");
    for (name, text, words) in [
        ("a.json", "{", "not JSON"),
        ("b.json", "7", "neither a list nor a page"),
        ("c.json", r#"{"next": "http://x/?page=2", "results": []}"#, "one page of several"),
    ] {
        let refused = import(&server, &["--cameras", &write(folder.path(), name, text)?]).await?;
        assert!(refused.code == Some(2) && refused.stderr.contains(words), "{refused:?}");
    }
    let direct = import(&server, &["--cameras", &file, "--engine", "memory:"]).await?;
    assert!(direct.code == Some(2) && direct.stderr.contains("works through a server"), "{direct:?}");
    Ok(())
}

#[tokio::test]
async fn scenes_are_synchronized_from_the_managers_list() -> Result<()> {
    let folder = TempDir::new()?;
    let server = server().start().await?;
    let list = |names: &[(&str, &str)]| {
        let scene =
            |(id, name): &(&str, &str)| json!({"uid": id, "name": name, "use_tracker": true, "cameras": []});
        let results: Vec<Value> = names.iter().map(scene).collect();
        json!({"count": results.len(), "next": null, "previous": null, "results": results}).to_string()
    };
    let file = write(folder.path(), "scenes.json", &list(&[("a", "Hall"), ("b", "Yard"), ("c", "Gate")]))?;
    let sync = async |more: &[&str]| {
        let arguments: Vec<&str> =
            ["--scenes", &file, "--json"].into_iter().chain(more.iter().copied()).collect();
        import(&server, &arguments).await?.json()
    };
    assert_eq!(sync(&["--only", "b"]).await?["created"], json!(["scene/b"]), "scene by scene");
    assert_eq!(counts(&sync(&[]).await?), (2, 0, 1));
    assert_eq!(counts(&sync(&[]).await?), (0, 0, 3));
    // What the list does not know stays as it is: labels, the lock-delay, and who holds the scene.
    ask(&server, "resource put scene/a --label floor=1 --lock-delay 2s --attribute name=Hall")
        .await?
        .good()?;
    let token = ask(&server, "lease acquire scene/a --holder t --json").await?.json()?["token"].clone();
    write(folder.path(), "scenes.json", &list(&[("a", "Great Hall"), ("b", "Yard")]))?;
    let report = sync(&[]).await?;
    assert_eq!((counts(&report), &report["not_listed"]), ((0, 1, 1), &json!(["scene/c"])));
    let found = ask(&server, "resource get scene/a --json").await?.json()?;
    assert_eq!(
        (&found["attributes"]["name"], &found["labels"]),
        (&json!("Great Hall"), &json!({"floor": "1"}))
    );
    assert_eq!((&found["lock_delay_ms"], &found["lease"]["token"]), (&json!(2_000), &token));
    ask(&server, "resource get scene/c").await?.good().context("it is kept")?;
    Ok(())
}
