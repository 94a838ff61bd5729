//! What a tracker does when the server is away, refuses, or takes a scene from it: each line of the table in the guide,
//! for the tracker over the client library and for the one with nothing but HTTP calls.

use anyhow::{Result, ensure};
use solehold_testkit::{Mosquitto, Program, wait_for};

use crate::world::{Kind, PATIENCE, Server, consume, scene, tracker};

const FAST: [&str; 4] = ["--ttl", "3", "--renew-every", "1"];

/// The same arguments, as each program writes times.
fn times(kind: Kind) -> Vec<String> {
    let unit = if kind == Kind::Rust { "s" } else { "" };
    FAST.iter()
        .map(|arg| if arg.starts_with("--") { arg.to_string() } else { format!("{arg}{unit}") })
        .collect()
}

async fn start(
    kind: Kind,
    server: &Server,
    broker: &Mosquitto,
    more: &[&str],
    ready: &str,
) -> Result<Program> {
    let times = times(kind);
    let mut args: Vec<&str> = times.iter().map(String::as_str).collect();
    args.extend(more);
    tracker(kind, server, broker, "t", &args, ready).await
}

async fn says(tracker: &Program, words: &str) -> Result<()> {
    wait_for(words, PATIENCE, async || tracker.logs().contains(words)).await
}

fn held(owners: &std::collections::BTreeMap<String, Option<String>>) -> usize {
    owners.values().flatten().filter(|holder| *holder == "t").count()
}

/// Startup with the server away, then everything until SIGTERM.
async fn lives_as_the_table_says(kind: Kind) -> Result<()> {
    let broker = Mosquitto::start().await?;
    let mut server = Server::away()?;
    let (inbox, _task) = consume(&broker, "consumer", "scenescape/#").await?;

    // Startup: it tries again, and waits longer each time.
    let tracker = start(kind, &server, &broker, &["--capacity", "3"], "no server yet, attempt 1").await?;
    says(&tracker, "no server yet, attempt 3").await?;
    let logs = tracker.logs();
    let pauses: Vec<u64> = logs
        .lines()
        .filter_map(|line| line.strip_prefix("no server yet, attempt ")?.split(' ').nth(3)?.parse().ok())
        .collect();
    ensure!(pauses.len() >= 3 && pauses.windows(2).all(|two| two[0] < two[1]), "{pauses:?}\n{logs}");
    server.come_back().await?;
    server.declare(5).await?;

    // It acquires until it has enough, and publishes with the version of each lease.
    server.owned("three scenes of five", |owners| held(owners) == 3).await?;
    let publishes = async |what: &str, since: usize| {
        wait_for(what, PATIENCE, async || {
            let scenes: std::collections::BTreeSet<_> =
                inbox.all()[since..].iter().map(|seen| seen.scene.clone()).collect();
            scenes.len() == 3
        })
        .await
    };
    publishes("messages of three scenes", 0).await?;
    let owners = server.owners().await?;
    let first = owners.iter().find(|(_, holder)| holder.is_some()).map(|(scene, _)| scene.clone());
    let first = first.expect("three are held");
    let lease = server.lease(&first).await?;
    let seen = inbox.all().into_iter().find(|seen| seen.scene == first).expect("it was published");
    assert_eq!(Some(seen.version), lease["version"].as_u64());

    // 404: that scene stops at once, and the others go on.
    server.revoke(&first).await?;
    says(&tracker, &format!("scene {first} has ended")).await?;
    server.owned("three scenes again", |owners| held(owners) == 3).await?;

    // A renewal that fails: every scene stops, and it is idle until the server is back.
    let before = tracker.logs().matches("has ended").count();
    server.go_away().await?;
    wait_for("everything to stop", PATIENCE, async || {
        tracker.logs().matches("has ended").count() >= before + 3
    })
    .await?;
    let silent_since = inbox.all().len();
    server.come_back().await?;
    server.owned("three scenes by itself", |owners| held(owners) == 3).await?;
    publishes("messages of three scenes again", silent_since).await?;

    // SIGTERM: everything is released.
    tracker.terminate().await?;
    ensure!(tracker.logs().contains("tracker t stopped"), "{}", tracker.logs());
    let owners = server.owners().await?;
    ensure!(owners.values().all(Option::is_none), "{owners:?}");
    Ok(())
}

#[tokio::test]
async fn the_tracker_lives_as_the_table_says() -> Result<()> {
    lives_as_the_table_says(Kind::Rust).await
}

#[tokio::test]
async fn the_tracker_with_plain_http_lives_as_the_table_says() -> Result<()> {
    lives_as_the_table_says(Kind::Python).await
}

/// Without being told otherwise, both renew every 10 s with a ttl of 30 s.
#[tokio::test]
async fn it_renews_every_ten_seconds_with_a_ttl_of_thirty() -> Result<()> {
    let broker = Mosquitto::start().await?;
    let server = Server::with_scenes(2).await?;
    let _rust =
        tracker(Kind::Rust, &server, &broker, "r", &["--capacity", "1"], "tracker r is registered").await?;
    server.owned("one scene", |owners| owners.values().flatten().count() == 1).await?;
    let _python =
        tracker(Kind::Python, &server, &broker, "p", &["--capacity", "1"], "tracker p has 1").await?;
    server.owned("both scenes", |owners| owners.values().flatten().count() == 2).await?;
    for number in 0..2 {
        let left = async || server.lease(&scene(number)).await.ok()?["ttl_ms"].as_u64();
        let what = format!("{} to have less than 24 s left", scene(number));
        wait_for(&what, PATIENCE, async || left().await.is_some_and(|ms| ms < 24_000)).await?;
        let what = format!("{} to be renewed", scene(number));
        let renewed = wait_for(&what, PATIENCE, async || left().await.filter(|ms| *ms > 25_000)).await?;
        ensure!(renewed <= 30_000, "{renewed}");
    }
    Ok(())
}

/// With `deadline` a failed renewal is repeated, and a short outage stops nothing.
#[tokio::test]
async fn with_the_policy_deadline_a_short_outage_stops_nothing() -> Result<()> {
    let broker = Mosquitto::start().await?;
    let mut server = Server::with_scenes(1).await?;
    let more = ["--ttl", "30s", "--renew-every", "1s", "--policy", "deadline"];
    let tracker = tracker(Kind::Rust, &server, &broker, "t", &more, "tracker t is registered").await?;
    server.owned("the scene", |owners| held(owners) == 1).await?;
    let version = server.lease(&scene(0)).await?["version"].clone();
    server.go_away().await?;
    let missed = tracker.logs().len();
    says(&tracker, "the server does not answer").await?;
    server.come_back().await?;
    server.owned("the scene", |owners| held(owners) == 1).await?;
    assert_eq!(server.lease(&scene(0)).await?["version"], version, "the same lease");
    ensure!(!tracker.logs()[missed..].contains("has ended"), "{}", tracker.logs());
    Ok(())
}
