//! Many trackers: paused, killed, added and restarted, with a gate and without.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use solehold_testkit::{Mosquitto, Program, wait_for};
use tokio::task::JoinSet;

use crate::world::{Inbox, Kind, PATIENCE, Publisher, Server, consume, gate, is_full, scene, tracker};

const SCENES: usize = 12;
const TTL: Duration = Duration::from_secs(3);
/// How often a tracker is paused past its ttl, at most.
const PAUSES: usize = 5;

struct World {
    broker: Mosquitto,
    server: Server,
    _gate: Program,
    /// Behind the gate.
    gated: Inbox,
    /// What everyone would see without it.
    raw: Inbox,
    trackers: BTreeMap<String, Program>,
    _consumers: (JoinSet<()>, JoinSet<()>),
}

impl World {
    async fn new() -> Result<Self> {
        let broker = Mosquitto::start().await?;
        let server = Server::with_scenes(SCENES).await?;
        let gate = gate(&server, &broker).await?;
        let (gated, one) = consume(&broker, "analytics", "gated/scenescape/data/scene/+/+").await?;
        let (raw, other) = consume(&broker, "ungated", "scenescape/data/scene/+/+").await?;
        let trackers = BTreeMap::new();
        Ok(Self { broker, server, _gate: gate, gated, raw, trackers, _consumers: (one, other) })
    }

    async fn start(&mut self, id: &str, policy: &str) -> Result<()> {
        let ttl = format!("{}s", TTL.as_secs());
        let more = ["--ttl", &ttl, "--renew-every", "1s", "--capacity", "12", "--policy", policy];
        let more: Vec<&str> = more.into_iter().chain(["--publish-every", "50ms"]).collect();
        let ready = format!("tracker {id} is registered");
        let program = tracker(Kind::Rust, &self.server, &self.broker, id, &more, &ready).await?;
        self.trackers.insert(id.to_owned(), program);
        Ok(())
    }

    /// Waits until every scene has an owner and each tracker is within one scene of its fair share.
    async fn is_even(&self) -> Result<()> {
        let trackers = self.trackers.len();
        wait_for("the load to be even", PATIENCE, async || {
            let Ok(loads) = self.server.loads().await else { return false };
            loads.values().sum::<usize>() == SCENES
                && loads.len() == trackers
                && loads.values().all(|load| load.abs_diff(SCENES / trackers) <= 1)
        })
        .await?;
        println!("  loads: {:?}", self.server.loads().await?);
        Ok(())
    }

    /// Waits until each scene was published since.
    async fn all_flow(&self, since: usize) -> Result<()> {
        wait_for("all scenes to flow through the gate", PATIENCE, async || {
            let scenes: std::collections::BTreeSet<_> =
                self.gated.all().iter().skip(since).map(|seen| seen.scene.clone()).collect();
            scenes.len() == SCENES
        })
        .await
    }
}

#[tokio::test]
async fn three_trackers_follow_twelve_scenes() -> Result<()> {
    let mut world = World::new().await?;
    for (id, policy) in [("t0", "grace=1m"), ("t1", "immediate"), ("t2", "immediate")] {
        world.start(id, policy).await?;
    }
    world.is_even().await?;
    world.all_flow(0).await?;
    pausing_a_tracker(&mut world).await?;
    killing_a_tracker(&mut world).await?;
    adding_a_tracker(&mut world).await?;
    restarting_all(&mut world).await?;
    let stale = world.gated.stale();
    ensure!(stale.is_empty(), "the gate let pass: {stale:?}");
    println!(
        "analytics got {} messages, none of them stale; without the gate {} of {} were stale",
        world.gated.all().len(),
        world.raw.stale().len(),
        world.raw.all().len()
    );
    Ok(())
}

/// A tracker that is paused past its ttl publishes when it wakes up: the gate refuses it. On a busy machine it may
/// notice first that its leases are over, so not every pause yields a stale message; one of them must.
async fn pausing_a_tracker(world: &mut World) -> Result<()> {
    let at_least = if is_full() { PAUSES } else { 1 };
    let before = world.raw.stale().len();
    for pause in 1..=PAUSES {
        let earlier = world.raw.stale().len();
        world.trackers["t0"].pause().await?;
        world
            .server
            .owned("others to have its scenes", |owners| {
                owners.values().all(|holder| holder.as_deref().is_some_and(|holder| holder != "t0"))
            })
            .await?;
        // The new versions are there, on both sides of the gate.
        let since = world.gated.all().len();
        world.all_flow(since).await?;
        world.trackers["t0"].resume()?;
        // It has its share again: whatever it had to publish of the time before has arrived.
        world.is_even().await?;
        let since = world.gated.all().len();
        world.all_flow(since).await?;
        let stale = world.gated.stale();
        ensure!(stale.is_empty(), "the gate let pass: {stale:?}");
        let unguarded = world.raw.stale().len();
        println!("pause {pause}: {} stale messages without the gate, none behind it", unguarded - earlier);
        if pause >= at_least && unguarded > before {
            return Ok(());
        }
    }
    ensure!(
        world.raw.stale().len() > before,
        "no stale message in {PAUSES} pauses: the gate had nothing to do"
    );
    Ok(())
}

/// The scenes of a tracker that is killed have another one soon, and their track ids stay.
async fn killing_a_tracker(world: &mut World) -> Result<()> {
    let ids = world.gated.ids();
    let killed = world.trackers.remove("t1").expect("it runs");
    let lost: Vec<String> = world
        .server
        .owners()
        .await?
        .into_iter()
        .filter(|(_, holder)| holder.as_deref() == Some("t1"))
        .map(|(scene, _)| scene)
        .collect();
    let began = Instant::now();
    killed.kill9().await?;
    world
        .server
        .owned("all scenes to be owned again", |owners| {
            owners.values().all(|holder| holder.as_deref().is_some_and(|holder| holder != "t1"))
        })
        .await?;
    let took = began.elapsed();
    println!("kill -9: all {} scenes of it owned again after {took:?}, with a ttl of {TTL:?}", lost.len());
    ensure!(took < TTL + Duration::from_secs(10), "{took:?}");
    let since = world.gated.all().len();
    world.all_flow(since).await?;
    let after = world.gated.ids();
    for scene in lost {
        ensure!(
            ids[&scene] == after[&scene],
            "{scene} has new track ids: {:?}, {:?}",
            ids[&scene],
            after[&scene]
        );
    }
    Ok(())
}

/// A tracker that is added gets its share, by hand-overs alone.
async fn adding_a_tracker(world: &mut World) -> Result<()> {
    world.is_even().await?;
    let from = world.server.last_revision().await? + 1;
    let ids = world.gated.ids();
    let began = Instant::now();
    world.start("t3", "immediate").await?;
    world.is_even().await?;
    let (gaps, hand_overs) = world.server.gaps(from).await?;
    println!("a tracker more: {hand_overs} hand-overs in {:?}, {gaps} gaps", began.elapsed());
    ensure!(gaps == 0 && hand_overs >= 3, "{gaps} gaps, {hand_overs} hand-overs");
    let since = world.gated.all().len();
    world.all_flow(since).await?;
    ensure!(ids == world.gated.ids(), "track ids have changed");
    Ok(())
}

/// Every tracker is ended and started again, one after the other: no scene is ever without one.
async fn restarting_all(world: &mut World) -> Result<()> {
    let from = world.server.last_revision().await? + 1;
    let ids = world.gated.ids();
    let names: Vec<String> = world.trackers.keys().cloned().collect();
    let began = Instant::now();
    for id in &names {
        let program = world.trackers.remove(id).expect("it runs");
        program.terminate().await?;
        world.start(id, "immediate").await?;
        world.is_even().await?;
    }
    let (gaps, hand_overs) = world.server.gaps(from).await?;
    println!(
        "rolling restart of {}: {hand_overs} hand-overs in {:?}, {gaps} gaps",
        names.len(),
        began.elapsed()
    );
    ensure!(gaps == 0, "{gaps} gaps");
    let since = world.gated.all().len();
    world.all_flow(since).await?;
    ensure!(ids == world.gated.ids(), "track ids have changed");
    Ok(())
}

/// A broker that restarts, and a server that is away, lose nothing that bears the newest token.
#[tokio::test]
async fn outages_lose_nothing_that_bears_the_newest_token() -> Result<()> {
    let mut world = World::new().await?;
    let first = scene(0);
    let publisher = Publisher::new(&world.broker);
    let version = world.server.acquire(&first).await?;
    world.start("t0", "immediate").await?;
    let mut sent = 0;
    let mut send = async |count: u64| {
        for _ in 0..count {
            publisher.send(&first, version, sent).await?;
            sent += 1;
        }
        anyhow::Ok(sent)
    };
    let all_came = async |count: u64| {
        let has_all = async || world.gated.sequences(&first, version).len() as u64 == count;
        wait_for("everything that the broker had acknowledged", PATIENCE, has_all).await
    };
    all_came(send(200).await?).await?;

    let count = send(200).await?;
    world.broker.stop().await?;
    world.broker.restart().await?;
    all_came(count).await?;
    println!("the broker was restarted: all of {count} acknowledged messages came");

    let away = Duration::from_secs(if is_full() { 60 } else { 6 });
    world.server.go_away().await?;
    let began = Instant::now();
    let mut count = count;
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    while began.elapsed() < away {
        ticks.tick().await;
        count = send(2).await?;
    }
    world.server.come_back().await?;
    all_came(count).await?;
    println!("the server was away for {:?}: all of {count} messages came", began.elapsed());
    world
        .server
        .owned("the tracker to come back by itself", |owners| owners.values().all(Option::is_some))
        .await
}
