//! A storm: two servers over one PostgreSQL, four agents and 26 resources, with everything killed, paused, drained and
//! moved, and each kind of request delayed on its own. No write of an older token comes after the first write of a
//! newer one, and when the storm is over everything is worked on again.
//!
//! `SOLEHOLD_E2E=full` (`make storm`) runs five minutes at a ttl of 6 s; a plain `cargo test` runs a short
//! form. `SOLEHOLD_STORM_SEED=N` repeats the choices of a run, though not its timing. `SOLEHOLD_STORM_LOGS=1` keeps the
//! logs of the agents and all writes of a run that passes; those of one that fails are kept always.

#[path = "../common/mod.rs"]
mod common;

mod chance;
mod ledger;
mod network;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chance::Chance;
use futures_util::future::join_all;
use network::Weather;
use solehold_testkit::wait_for;
use world::{AGENTS, RESOURCES, Replica, SERVERS, World, check, resource};

/// How hard it blows.
struct Size {
    lasts: Duration,
    ttl: Duration,
    /// Writes between two faults, and how long to wait for them.
    pause: (u64, Duration),
}

impl Size {
    fn get() -> Self {
        let ttl = Duration::from_secs(6);
        if std::env::var("SOLEHOLD_E2E").is_ok_and(|size| size == "full") {
            return Self { lasts: Duration::from_secs(300), ttl, pause: (600, Duration::from_secs(3)) };
        }
        Self { lasts: Duration::from_secs(30), ttl, pause: (300, Duration::from_millis(1_500)) }
    }
}

/// How soon everything is worked on again when the storm is over: long enough for a busy machine, and far shorter than
/// forever.
const RECOVERS_WITHIN: Duration = Duration::from_secs(90);

/// How long an agent tries to release a lease.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// What an agent logs that has tried to release a lease for a while.
const GIVES_UP: &str = "; it expires after its ttl";

#[derive(Debug, Clone, Copy)]
enum Fault {
    OneServerKilled,
    BothServersKilled,
    AgentKilled,
    AgentPaused,
    AgentDrained,
    /// An operator moves resources.
    HandOvers,
    /// The same, and the former holders' releases are so late that they give up, while heartbeats are not late.
    LateReleases,
    /// The same, and both servers are killed while the former holders release: they give up, and the client goes on.
    ReleasesCutShort,
}

const FAULTS: [Fault; 8] = [
    Fault::LateReleases,
    Fault::ReleasesCutShort,
    Fault::HandOvers,
    Fault::AgentDrained,
    Fault::BothServersKilled,
    Fault::AgentPaused,
    Fault::AgentKilled,
    Fault::OneServerKilled,
];

/// What the network does to each kind of request, until it changes.
fn weather(chance: &mut Chance, ttl: Duration) -> Weather {
    let mut late = |percent: usize, most: Duration| {
        if chance.percent(percent) { most } else { Duration::ZERO }
    };
    let release = late(60, ttl * 3 / 2);
    let cancel = late(50, ttl * 3 / 2);
    let hand_over = late(50, ttl);
    let acquire = late(30, ttl / 4);
    let heartbeat = late(20, ttl / 40);
    let news = late(70, ttl * 2);
    let lost_acquires = if chance.percent(30) { 50 } else { 0 };
    Weather { release, cancel, hand_over, acquire, heartbeat, news, lost_acquires }
}

/// Releases are late, heartbeats are not, and agents learn of changes by heartbeats alone.
fn late_releases(release: Duration) -> Weather {
    Weather { release, news: RELEASE_MAX * 3, ..Weather::default() }
}

struct Storm {
    world: World,
    chance: Chance,
    size: Size,
}

impl Storm {
    async fn pause(&mut self) {
        let (writes, most) = self.size.pause;
        self.world.writes_more(writes / 2 + self.chance.below(writes as usize) as u64, most).await;
    }

    async fn strike(&mut self, fault: Fault) -> Result<()> {
        let server = self.chance.below(SERVERS);
        let agent = self.chance.below(AGENTS);
        match fault {
            Fault::OneServerKilled => self.world.servers[server].kill().await?,
            Fault::BothServersKilled => self.kill_servers().await?,
            Fault::AgentKilled => self.world.agents[agent].kill().await?,
            Fault::AgentPaused => {
                self.world.agents[agent].pause()?;
                self.pause().await;
                self.pause().await;
                self.world.agents[agent].resume()?;
            }
            Fault::AgentDrained => self.world.agents[agent].drain().await?,
            Fault::HandOvers => self.hand_over(3).await?,
            Fault::LateReleases => self.delay_releases().await?,
            Fault::ReleasesCutShort => self.cut_releases_short().await?,
        }
        self.pause().await;
        self.start_servers().await?;
        for agent in &mut self.world.agents {
            agent.start().await?;
        }
        Ok(())
    }

    async fn kill_servers(&mut self) -> Result<()> {
        for server in &mut self.world.servers {
            server.kill().await?;
        }
        Ok(())
    }

    async fn start_servers(&mut self) -> Result<()> {
        let started = join_all(self.world.servers.iter_mut().map(Replica::start)).await;
        started.into_iter().collect()
    }

    /// An agent that gives a release up must not take the lease up again, because the release is still on its way.
    async fn delay_releases(&mut self) -> Result<()> {
        self.world.network.set(late_releases(RELEASE_MAX * 3));
        let before = self.world.ledger()?.takeovers();
        self.hand_over(8).await?;
        let has_arrived = async || self.world.ledger().is_ok_and(|ledger| ledger.takeovers() >= before + 2);
        // All of them may be where they were to go.
        let _ = wait_for("late releases to arrive", RELEASE_MAX * 3, has_arrived).await;
        Ok(())
    }

    /// Releases are on their way when both servers are killed, further attempts fail at once, and those that meet the
    /// servers again are late, though heartbeats are not.
    async fn cut_releases_short(&mut self) -> Result<()> {
        let world = &self.world;
        let ttl = self.size.ttl;
        world.network.set(late_releases(ttl / 6));
        let before = world.network.releases();
        self.hand_over(8).await?;
        let world = &self.world;
        let is_releasing = async || world.network.releases() >= before + 2;
        // Some of them may not move: whoever has a resource already, or is full, is refused.
        let _ = wait_for("releases", ttl, is_releasing).await;
        let given_up = world.logged(GIVES_UP);
        self.kill_servers().await?;
        self.world.network.set(Weather::default());
        let world = &self.world;
        let _ = wait_for("an agent to give up", ttl, async || world.logged(GIVES_UP) > given_up).await;
        self.world.network.set(late_releases(ttl));
        self.start_servers().await
    }

    /// Begins to move some resources. Who is away, or moves already, is refused, and that is fine.
    async fn hand_over(&mut self, count: usize) -> Result<()> {
        let mut moves = Vec::new();
        for _ in 0..count {
            let number = self.chance.below(RESOURCES);
            let to = self.chance.below(AGENTS);
            let resource = resource(number);
            let to = self.world.agents[to].name();
            moves.push(format!("resource hand-over {resource} --to {to} --within 30s"));
        }
        let server = self.world.server()?;
        let moved = join_all(moves.iter().map(|moves| common::ask(server, moves))).await;
        moved.into_iter().try_for_each(|ran| ran.map(drop))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_an_older_token_follows_one_of_a_newer_token() -> Result<()> {
    let size = Size::get();
    let seed = match std::env::var("SOLEHOLD_STORM_SEED") {
        Ok(seed) => seed.parse().context("SOLEHOLD_STORM_SEED is a number")?,
        Err(_) => uuid::Uuid::new_v4().as_u64_pair().0,
    };
    println!("storm: SOLEHOLD_STORM_SEED={seed}");
    let world = World::start(size.ttl, seed).await?;
    world.is_worked_on(RECOVERS_WITHIN).await?;
    let lasts = size.lasts;
    let began = Instant::now();
    let mut storm = Storm { world, chance: Chance(seed), size };
    let mut struck = 0;
    while began.elapsed() < lasts {
        let ttl = storm.size.ttl;
        storm.world.network.set(weather(&mut storm.chance, ttl));
        // Each once, in order, and then as it comes.
        let fault = FAULTS.get(struck).copied().unwrap_or_else(|| FAULTS[storm.chance.below(FAULTS.len())]);
        println!("storm: {:.1} s {fault:?}", began.elapsed().as_secs_f64());
        storm.strike(fault).await.with_context(|| format!("{fault:?}"))?;
        storm.pause().await;
        struck += 1;
    }
    storm.world.network.set(Weather::default());
    let healed = Instant::now();
    let recovered = storm.world.is_worked_on(RECOVERS_WITHIN).await;
    let ledger = storm.world.ledger()?;
    let overlaps = ledger.overlaps();
    println!(
        "storm: {struck} faults in {:.0} s, {} writes, {} takeovers, {} hand-overs, {} releases given up, {} overlaps \
         (the longest {:?}), all worked on after {:.1} s",
        (healed - began).as_secs_f64(),
        ledger.writes(),
        ledger.takeovers(),
        storm.world.hand_overs().await?,
        storm.world.logged(GIVES_UP),
        overlaps.len(),
        overlaps.iter().map(|overlap| overlap.lasted).max().unwrap_or_default(),
        healed.elapsed().as_secs_f64(),
    );
    if std::env::var_os("SOLEHOLD_STORM_LOGS").is_some() {
        println!("storm: logs in {:?}", storm.world.keep_logs());
    }
    check(&storm.world)?;
    recovered?;
    ensure!(ledger.takeovers() > 0, "nothing has moved: the storm shows nothing");
    Ok(())
}
