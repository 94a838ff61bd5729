//! Workers of the old and the new side at work while resources are moved one by one, forwards and back.
//!
//! Each piece of work is a row: the next number of its resource, and the lease that it was done under. Two workers on
//! one resource at once would be seen as a lease that works again after another one has.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use solehold_testkit::{Postgres, Solehold, TempDir, wait_for};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::{
    common::{ask, ask_args, server, write},
    planes::{Plane, TABLES, TTL_MS, connect},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// A worker stops this long before its lease ends.
const MARGIN_SECONDS: f64 = 0.5;
/// It renews when this much or less is left before it would stop.
const RENEW_BEFORE_SECONDS: f64 = 0.5;

struct World {
    url: String,
    database: Client,
    server: Solehold,
    http: reqwest::Client,
}

impl World {
    async fn new(name: &str) -> Result<Self> {
        let url = Postgres::shared().await?.create_database(name).await?;
        let database = connect(&url).await?;
        database.batch_execute(TABLES).await?;
        let http = reqwest::Client::builder().timeout(Duration::from_secs(20)).build()?;
        Ok(Self { url, database, server: server().start().await?, http })
    }

    /// Starts a worker, which takes what it can get. Dropped, it is gone at once, and its leases run out.
    async fn worker(&self, name: &str, plane: Plane, resources: &[String]) -> Result<JoinSet<()>> {
        let database = connect(&self.url).await?;
        let mut task = JoinSet::new();
        let name = name.to_owned();
        let resources = resources.to_vec();
        task.spawn(async move {
            let ended = work(name.clone(), plane, resources, database).await;
            println!("{name} has ended: {ended:?}");
        });
        Ok(task)
    }

    async fn old_plane(&self, is_scenes: bool) -> Result<Plane> {
        let client = connect(&self.url).await?;
        Ok(if is_scenes { Plane::SceneTable(client) } else { Plane::CameraTable(client) })
    }

    fn new_plane(&self, is_scenes: bool) -> Plane {
        let http = self.http.clone();
        let url = self.server.url().to_owned();
        if is_scenes { Plane::Scenes(http, url) } else { Plane::Cameras(http, url) }
    }

    /// Waits until workers whose names begin like this work on a resource, now and not only before.
    async fn worked_on(&self, resource: &str, by: &str) -> Result<()> {
        let sql = "SELECT count(*) FROM work WHERE resource = $1 AND worker LIKE $2 || '%'";
        let count = async || {
            let row = self.database.query_one(sql, &[&resource, &by]).await;
            row.map_or(0, |row| row.get::<_, i64>(0))
        };
        let before = count().await;
        let what = format!("{by} to work on {resource}");
        wait_for(&what, PATIENCE, async || count().await >= before + 3).await
    }

    /// Takes resources away from their workers of the new side, and waits until no worker can have one any more.
    async fn give_up(&self, kind: &str, keys: &[String], tenant: &str) -> Result<()> {
        for key in keys {
            ask(&self.server, &format!("resource rm {kind}/{key} --force --tenant {tenant}"))
                .await?
                .good()?;
        }
        for key in keys {
            let get = format!("resource get {kind}/{key} --tenant {tenant}");
            wait_for(&format!("{key} to be free of its last worker"), PATIENCE, async || {
                ask(&self.server, &get).await.is_ok_and(|ran| ran.code == Some(4))
            })
            .await?;
        }
        Ok(())
    }

    /// The largest token that was given.
    async fn last_token(&self) -> Result<i64> {
        let raised = ask(&self.server, "admin raise-token --above 0 --json").await?.json()?;
        raised["above"].as_i64().context("a token")
    }

    /// Checks that no resource went back to a lease that another one had followed. Returns how many leases there were.
    async fn check(&self, grows: bool) -> Result<usize> {
        let rows = self.database.query("SELECT resource, tenure FROM work ORDER BY resource, n", &[]).await?;
        let mut tenures: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in &rows {
            let list = tenures.entry(row.get(0)).or_default();
            let tenure: String = row.get(1);
            if list.last() != Some(&tenure) {
                list.push(tenure);
            }
        }
        for (resource, list) in &tenures {
            let distinct: BTreeSet<&String> = list.iter().collect();
            ensure!(
                distinct.len() == list.len(),
                "{resource} was worked on under two leases at once: {list:?}"
            );
            let tokens: Vec<u64> = list.iter().filter_map(|tenure| tenure.parse().ok()).collect();
            ensure!(!grows || tokens.is_sorted() && tokens.len() == list.len(), "{resource}: {list:?}");
        }
        let leases = tenures.values().map(Vec::len).sum();
        println!("{} pieces of work on {} resources under {leases} leases", rows.len(), tenures.len());
        Ok(leases)
    }
}

/// A worker of either side: renews what it has, tries to get what it has not, and works on what is safely its own. Its
/// clock is the database's, and is read again in the statement that does the work, so that no pause counts.
async fn work(name: String, plane: Plane, resources: Vec<String>, database: Client) -> Result<()> {
    let sql = "INSERT INTO work SELECT $1, coalesce(max(n), 0) + 1, $2, $3 FROM work WHERE resource = $1 \
        HAVING extract(epoch FROM clock_timestamp())::float8 < $4";
    let clock = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let mut held: BTreeMap<String, (String, f64)> = BTreeMap::new();
    loop {
        for resource in &resources {
            // A holder counts from before it asked.
            let asked: f64 = database.query_one(clock, &[]).await?.get(0);
            let until = asked + TTL_MS as f64 / 1_000.0 - MARGIN_SECONDS;
            match held.get(resource).cloned() {
                // Between renewals it does not look, as workers do: it learns late that its lease was taken from it.
                Some((_, until)) if asked + RENEW_BEFORE_SECONDS < until => {}
                Some((tenure, _)) if plane.renew(resource, &name, &tenure).await? => {
                    held.insert(resource.clone(), (tenure, until));
                }
                Some(_) => drop(held.remove(resource)),
                None => {
                    let tenure = plane.acquire(resource, &name).await?;
                    held.extend(tenure.map(|tenure| (resource.clone(), (tenure, until))));
                }
            }
            if let Some((tenure, until)) = held.get(resource) {
                database.execute(sql, &[resource, tenure, &name, until]).await?;
            }
        }
        pace.tick().await;
    }
}

#[tokio::test]
async fn scenes_move_one_by_one_under_load_and_back() -> Result<()> {
    let world = World::new("moving_scenes").await?;
    let scenes: Vec<String> = (0..6).map(|number| format!("scene-{number:02}")).collect();
    for scene in &scenes {
        world.database.execute("INSERT INTO scene_leases VALUES ($1, NULL, NULL, 1000)", &[scene]).await?;
    }
    let killed = world.worker("old-0", world.old_plane(true).await?, &scenes).await?;
    let _old = world.worker("old-1", world.old_plane(true).await?, &scenes).await?;
    for scene in &scenes {
        world.worked_on(scene, "old").await?;
    }
    let _new = world.worker("new-0", world.new_plane(true), &scenes).await?;
    let killed_later = world.worker("new-1", world.new_plane(true), &scenes).await?;

    let take_over = async |more: &[&str]| {
        let args = ["admin", "import", "--json", "--retire", "--from-table", &world.url, "scene_leases"];
        ask_args(&world.server, args.iter().chain(more)).await?.json()
    };
    for scene in &scenes[..2] {
        let report = take_over(&["--only", scene]).await?;
        ensure!(report["retired"] == 1 && report["declared"] == 1, "{report}");
        world.worked_on(scene, "new").await?;
    }
    drop(killed);
    for scene in &scenes[2..] {
        world.worked_on(scene, "old").await?;
    }
    let report = take_over(&[]).await?;
    ensure!(report["retired"] == 4 && report["already_declared"] == 2, "{report}");
    drop(killed_later);
    for scene in &scenes {
        world.worked_on(scene, "new-0").await?;
    }
    // Nothing is left to do, and a second run does nothing.
    let report = take_over(&[]).await?;
    ensure!(report["retired"] == 0 && report["declared"] == 0 && report["held_back"] == 0, "{report}");

    for part in [&scenes[..1], &scenes[1..]] {
        world.give_up("scene", part, "default").await?;
        let token = world.last_token().await?;
        let sql = "UPDATE scene_leases SET holder_id = NULL, expires_at = NULL, version = $2 WHERE scene_id = ANY($1)";
        world.database.execute(sql, &[&part, &token]).await?;
        for scene in part {
            world.worked_on(scene, "old-1").await?;
        }
    }
    let leases = world.check(true).await?;
    ensure!(leases >= 3 * scenes.len(), "each scene went over and came back: {leases} leases");
    Ok(())
}

#[tokio::test]
async fn cameras_move_site_by_site_under_load_and_back() -> Result<()> {
    let world = World::new("moving_cameras").await?;
    let folder = TempDir::new()?;
    let at = |site: &str| (0..3).map(|number| format!("{site}-{number}")).collect::<Vec<_>>();
    let sites = ["north", "south"];
    let all: Vec<String> = sites.iter().flat_map(|site| at(site)).collect();
    let document = |camera: &String| {
        let site = crate::planes::site(camera);
        json!({"camera_uuid": camera, "tenant_id": "acme", "site_id": site, "rtsp_url": "rtsp://camera"})
    };
    let list: Vec<_> = all.iter().map(document).collect();
    let list = write(folder.path(), "cameras.json", &serde_json::to_string(&list)?)?;

    let mut runners = Vec::new();
    for site in sites {
        runners.push(world.worker(&format!("old-{site}"), world.old_plane(false).await?, &at(site)).await?);
        let name = format!("new-{site}");
        runners.push(world.worker(&name, world.new_plane(false), &at(site)).await?);
    }
    let killed = world.worker("old-north-2", world.old_plane(false).await?, &at("north")).await?;
    for camera in &all {
        world.worked_on(camera, "old").await?;
    }
    drop(killed);
    for site in sites {
        let table =
            ["admin", "import", "--json", "--retire", "--site", site, "--from-table", &world.url, "leases"];
        let report = ask_args(&world.server, table).await?.json()?;
        ensure!(report["retired"] == 3, "{report}");
        let cameras = ["admin", "import", "--json", "--site", site, "--cameras", &list];
        let report = ask_args(&world.server, cameras).await?.json()?;
        ensure!(report["created"].as_array().is_some_and(|created| created.len() == 3), "{report}");
        for camera in at(site) {
            world.worked_on(&camera, "new").await?;
        }
    }
    for site in sites {
        world.give_up("camera", &at(site), "acme").await?;
        let sql = "UPDATE leases SET status = 'released' \
            WHERE camera_uuid = ANY($1) AND runner_id = 'solehold' AND status = 'active'";
        ensure!(world.database.execute(sql, &[&at(site)]).await? == 3, "the rows of {site}");
        for camera in at(site) {
            world.worked_on(&camera, "old").await?;
        }
    }
    world.check(false).await?;
    Ok(())
}
