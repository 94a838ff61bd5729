//! From static partitions to leases, scene by scene while messages flow, and back: as `docs/guides/moving-scenes.md`
//! has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use solehold_testkit::{Mosquitto, Program, Solehold, TempDir, package_file, wait_for};

use crate::world::{Inbox, Kind, PATIENCE, Server, consume, scene, tracker};

const SCENES: usize = 6;
/// The version that the static trackers publish.
const STATIC_VERSION: u64 = 1_000;
const FAST: [&str; 6] = ["--ttl", "3s", "--renew-every", "1s", "--publish-every", "50ms"];

/// Two static trackers, and the file of each.
struct Partitions {
    folder: TempDir,
    broker: String,
    lists: [BTreeMap<String, u64>; 2],
    running: [Option<Program>; 2],
}

impl Partitions {
    async fn start(broker: &Mosquitto) -> Result<Self> {
        let broker = format!("127.0.0.1:{}", broker.port());
        let mut partitions =
            Self { folder: TempDir::new()?, broker, lists: Default::default(), running: [None, None] };
        for number in 0..SCENES {
            partitions.lists[number % 2].insert(scene(number), STATIC_VERSION);
        }
        for number in 0..2 {
            partitions.restart(number).await?;
        }
        Ok(partitions)
    }

    /// Stops a tracker, which has published all that it has begun with, and starts it with its present list.
    async fn restart(&mut self, number: usize) -> Result<()> {
        if let Some(running) = self.running[number].take() {
            ensure!(running.terminate().await?.success(), "it ended badly: {}", running.logs());
        }
        let path = self.folder.path().join(format!("static-{number}.json"));
        std::fs::write(&path, json!({ "scenes": self.lists[number] }).to_string())?;
        let script = package_file("tests/tracker_e2e/static_tracker.py");
        let mut python = Command::new("python3");
        python.arg("-B").arg(script).args([&self.broker, &format!("static-{number}")]).arg(path);
        self.running[number] = Some(Program::start("static tracker", &python, "static-").await?);
        Ok(())
    }

    async fn remove(&mut self, number: usize) -> Result<()> {
        self.lists[number % 2].remove(&scene(number)).context("it was there")?;
        self.restart(number % 2).await
    }
}

/// Runs a command of the binary against the server.
async fn solehold(server: &Server, arguments: &str) -> Result<(bool, String)> {
    let mut command = tokio::process::Command::new(Solehold::binary()?);
    command.args(arguments.split_whitespace()).env("SOLEHOLD_SERVER", server.url()).kill_on_drop(true);
    let output = command.output().await?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

async fn done(server: &Server, arguments: &str) -> Result<String> {
    let (good, text) = solehold(server, arguments).await?;
    ensure!(good, "{arguments}: {text}");
    Ok(text)
}

async fn seen(inbox: &Inbox, what: &str, is_it: impl Fn(&str, u64, &str) -> bool) -> Result<()> {
    let all = async || inbox.all().iter().any(|seen| is_it(&seen.scene, seen.version, &seen.tracker));
    wait_for(what, PATIENCE, all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scenes_move_from_static_lists_to_leases_and_back() -> Result<()> {
    let broker = Mosquitto::start().await?;
    let server = Server::with_scenes(0).await?;
    let (inbox, _consumer) = consume(&broker, "consumer", "scenescape/data/scene/+/+").await?;
    let folder = TempDir::new()?;
    let list: Vec<Value> = (0..SCENES).map(|number| json!({"uid": scene(number), "name": "Hall"})).collect();
    let list = json!({"count": SCENES, "next": null, "previous": null, "results": list});
    let scenes = folder.path().join("scenes.json");
    std::fs::write(&scenes, list.to_string())?;
    let scenes = scenes.display();
    let mut partitions = Partitions::start(&broker).await?;
    for number in 0..SCENES {
        seen(&inbox, "a static tracker", |of, _, _| of == scene(number)).await?;
    }

    // Tokens begin above the highest version that was published. Trackers with leases wait for scenes.
    let highest = inbox.all().iter().map(|seen| seen.version).max().context("a version")?;
    done(&server, &format!("admin raise-token --above {highest}")).await?;
    let lease_tracker = async |id: &str| tracker(Kind::Rust, &server, &broker, id, &FAST, "tracker ").await;
    let killed = lease_tracker("tracker-0").await?;
    let _other = lease_tracker("tracker-1").await?;
    let mut _again = None;
    for number in 0..SCENES {
        partitions.remove(number).await?;
        done(&server, &format!("admin import --scenes {scenes} --only {}", scene(number))).await?;
        seen(&inbox, "a tracker with a lease", |of, version, _| of == scene(number) && version > highest)
            .await?;
        if number == SCENES / 2 {
            killed.kill9().await?;
            let all = |owners: &BTreeMap<String, Option<String>>| {
                owners.values().all(|owner| owner.as_deref() == Some("tracker-1"))
            };
            server.owned("tracker-1 to take over", all).await?;
            _again = Some(lease_tracker("tracker-0").await?);
        }
    }
    let published = inbox.all();
    ensure!(published.iter().any(|seen| seen.tracker == "tracker-0"), "both trackers have worked");

    // And back: a scene is taken from its tracker, and published by the static one when nobody can hold it any more.
    for part in [0..1, 1..SCENES] {
        for number in part.clone() {
            done(&server, &format!("resource rm scene/{} --force", scene(number))).await?;
        }
        for number in part.clone() {
            let get = format!("resource get scene/{}", scene(number));
            let is_gone =
                async || solehold(&server, &get).await.is_ok_and(|(_, text)| text.contains("does not exist"));
            wait_for("the hold-back to end", PATIENCE, is_gone).await?;
        }
        let above: Value = serde_json::from_str(&done(&server, "admin raise-token --above 0 --json").await?)?;
        let version = above["above"].as_u64().context("a token")? + 1;
        for number in part.clone() {
            partitions.lists[number % 2].insert(scene(number), version);
        }
        for number in 0..2 {
            partitions.restart(number).await?;
        }
        for number in part {
            let is_back = |of: &str, its: u64, by: &str| {
                of == scene(number) && its == version && by.starts_with("static")
            };
            seen(&inbox, "the static tracker again", is_back).await?;
        }
    }
    check(&inbox)
}

/// No version went back, no tracker came back after another had the scene under the same version, and no message of
/// a tracker is missing.
fn check(inbox: &Inbox) -> Result<()> {
    let stale = inbox.stale();
    ensure!(stale.is_empty(), "{} messages of an older version, as {:?}", stale.len(), stale.first());
    let mut tenures: BTreeMap<(String, u64), BTreeMap<String, BTreeSet<u64>>> = BTreeMap::new();
    for seen in inbox.all() {
        let of = tenures.entry((seen.scene, seen.version)).or_default();
        of.entry(seen.tracker).or_default().insert(seen.sequence);
    }
    for ((scene, version), trackers) in &tenures {
        let names: BTreeSet<&str> = trackers.keys().filter_map(|name| name.split('/').next()).collect();
        ensure!(names.len() == 1, "{scene} had several trackers under version {version}: {names:?}");
        for (tracker, sequences) in trackers {
            let whole: BTreeSet<u64> = (1..=sequences.last().copied().unwrap_or(0)).collect();
            ensure!(*sequences == whole, "{scene} lacks messages of {tracker} under version {version}");
        }
    }
    println!("{} messages, {} tenures", inbox.all().len(), tenures.len());
    Ok(())
}
