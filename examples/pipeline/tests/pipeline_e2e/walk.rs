//! The steps of the walk. Each checks what it is about, and prints its figures.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::wait_for;

use crate::{
    events::{Change, changes, newest, shards},
    world::{Agent, Held, MODEL, PATIENCE, SITE, TENANT, TTL, World},
};

pub struct Walk {
    world: World,
    agents: Vec<Agent>,
    /// Milliseconds of every planned move, from the old worker's last frame to the new worker's first.
    moves: Vec<f64>,
}

/// Prints a figure.
fn tell(what: &str, figure: impl std::fmt::Display) {
    println!("pipeline: {what}: {figure}");
}

/// The middle, the 99th percentile and the largest of some milliseconds.
fn spread(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all.get(((all.len() as f64 * part).ceil() as usize).saturating_sub(1)).copied();
    let shown = |part| at(part).map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
    format!("p50 {}, p99 {}, max {} of {}", shown(0.5), shown(0.99), shown(1.0), all.len())
}

/// How many cameras each runner holds.
fn loads(held: &BTreeMap<String, Held>) -> BTreeMap<&str, usize> {
    let mut loads = BTreeMap::new();
    for held in held.values() {
        *loads.entry(held.runner.as_str()).or_default() += 1;
    }
    loads
}

impl Walk {
    pub fn new(world: World) -> Self {
        Self { world, agents: Vec::new(), moves: Vec::new() }
    }

    fn cameras(&self) -> usize {
        self.world.size.cameras
    }

    async fn revision(&self) -> Result<u64> {
        Ok(newest(&self.world.history().await?))
    }

    /// What has passed from one runner to another since a revision. All of it by hand-over, if `is_planned`.
    async fn moved_since(&mut self, revision: u64, is_planned: bool) -> Result<Vec<Change>> {
        let changes = changes(&self.world.history().await?, revision)?;
        if is_planned {
            let odd = changes.iter().find(|change| !change.is_planned);
            ensure!(odd.is_none(), "a camera was without a holder: {odd:?}");
        }
        let pauses = self.world.move_pauses(&changes).await?;
        tell("  last frame to first frame", spread(pauses.clone()));
        self.moves.extend(pauses);
        Ok(changes)
    }

    /// Workers can acquire leases for cameras; a manager can handle several workers.
    pub async fn cameras_are_acquired(&mut self) -> Result<()> {
        for number in 1..=3 {
            self.agents.push(self.world.agent(&format!("agent-{number}"), "blue", "1.0").await?);
        }
        let began = self.world.now().await?;
        self.world.declare_cameras().await?;
        let held = self.world.settled("every camera to be acquired", |held| loads(held).len() == 3).await?;
        let mut first = Vec::new();
        for camera in held.keys() {
            first.push(self.world.first_frame_after(camera, 0, began).await?);
        }
        let mut taken = Vec::new();
        for events in self.world.history().await?.values() {
            let at =
                |name: &str| events.iter().find(|event| event.name == name).map(|event| event.at.clone());
            let declared = at("resource_declared");
            let acquired = at("lease_acquired");
            taken.push(self.world.ms_between(&declared, &acquired).await?);
        }
        tell("declared to acquired (asked for: 2 s)", spread(taken));
        tell("first declaration to first frame", spread(first));
        tell("shared out", format!("{:?}", loads(&held)));
        Ok(())
    }

    /// Health endpoints for manager and workers, and metrics of both sides.
    pub async fn health_is_told(&mut self) -> Result<()> {
        for agent in &self.agents {
            let several = wait_for("several workers", PATIENCE, async || {
                agent.workers().await.is_ok_and(|workers| workers.len() > 1)
            });
            several.await?;
            let answers = async |path| agent.get(path).await.is_ok_and(|(status, _)| status == 200);
            let ready = async || answers("/healthz").await && answers("/readyz").await;
            wait_for("the agent to be healthy and ready", PATIENCE, ready).await?;
            let metrics = agent.get("/metrics").await?.1;
            for name in ["solehold_agent_leases", "solehold_agent_worker_restarts", "solehold_agent_workers"]
            {
                ensure!(metrics.contains(name), "{name} is not in {metrics}");
            }
            let run = |status: Value| {
                status["workers"].as_array().is_some_and(|all| all.iter().all(|w| w["phase"] == "running"))
            };
            let all_run = async || agent.status().await.is_ok_and(run);
            wait_for("all workers to run", PATIENCE, all_run).await?;
        }
        let metrics = self.world.metrics().await?;
        for name in
            ["solehold_live_leases", "solehold_operations", "solehold_renewals", "solehold_relay_sent"]
        {
            ensure!(metrics.contains(name), "{name} is not in {metrics}");
        }
        Ok(())
    }

    /// Every lease has the shard that works under it, the versions of the configuration that it knew, and what the
    /// worker says. The worker knows its shard and its cameras by the configuration that it was given.
    pub async fn leases_tell_of_the_work(&mut self) -> Result<()> {
        let look = async || {
            let leases = self.world.leases().await.ok()?;
            let is_whole = |lease: &Value| {
                let stats = &lease["processing_stats"];
                stats["frames"].as_u64().is_some_and(|frames| frames > 0) && stats["is_configured"] == true
            };
            (leases.len() == self.cameras() && leases.iter().all(is_whole)).then_some(leases)
        };
        let told = wait_for("every lease to have the stats of its worker", PATIENCE, look).await;
        let leases = match told {
            Ok(leases) => leases,
            Err(error) => return Err(error.context(format!("{:?}", self.world.leases().await))),
        };
        for lease in &leases {
            let text = |field: &str| lease[field].as_str().map(str::to_owned);
            let stats = &lease["processing_stats"];
            ensure!(text("shard_id").is_some_and(|shard| shard.starts_with("shard-")), "{lease}");
            ensure!(stats["shard_id"] == lease["shard_id"], "another shard works under it: {lease}");
            ensure!(stats["model"] == MODEL, "the template is not in its configuration: {lease}");
            let camera = text("camera_uuid").context("a camera")?;
            let versions = (text("config_version"), text("zone_version"));
            ensure!(versions == self.world.versions(&camera).await?, "other versions: {lease}");
        }
        Ok(())
    }

    /// Leases are renewed before they expire.
    pub async fn leases_are_renewed(&mut self) -> Result<()> {
        let before = self.world.held().await?;
        let began = self.world.now().await?;
        let enough = (2.0 * TTL.as_secs_f64() / self.world.size.frame.as_secs_f64() / 2.0) as i64;
        self.frames(began, enough).await?;
        ensure!(self.world.held().await? == before, "a lease has changed hands by itself");
        Ok(())
    }

    /// Waits until every camera has written that many frames since a time.
    async fn frames(&self, since: f64, enough: i64) -> Result<()> {
        let have = async || {
            let frames = self.world.frames_since(since).await.unwrap_or_default();
            frames.len() == self.cameras() && frames.values().all(|count| *count >= enough)
        };
        wait_for("frames of every camera", PATIENCE.max(self.world.size.outage * 4), have).await
    }

    /// Changes of cameras and zones reach the workers without a restart, and versions say which.
    pub async fn configuration_is_applied(&mut self) -> Result<()> {
        let camera = self.world.size.camera(0);
        let before = self.world.held().await?;
        let (config, zones) = self.world.versions(&camera).await?;
        let began = self.world.now().await?;
        let body = json!({"camera_uuid": camera, "rtsp_url": "rtsp://moved.local/stream", "min_score": 0.5});
        let path = format!("/tenants/{TENANT}/sites/{SITE}/cameras/{camera}");
        self.world.send(Method::PUT, &path, &body).await?;
        let zone = json!({"zone_id": 1, "name": "driveway", "polygon": [[0, 0], [10, 0], [10, 10]]});
        self.world.send(Method::POST, &format!("/tenants/{TENANT}/sites/{SITE}/zones"), &zone).await?;
        let is_applied = async || match self.world.versions(&camera).await {
            Ok((now, zones_now)) => now != config && zones_now != zones,
            Err(_) => false,
        };
        wait_for("the new configuration to be applied", PATIENCE, is_applied).await?;
        let took = self.world.now().await? - began;
        ensure!(self.world.held().await? == before, "a configuration changes no owner");
        tell("a changed camera and zone are applied after", format!("{took:.1} s"));
        Ok(())
    }

    /// Failed workers are restarted, with the leases that they had.
    pub async fn failed_workers_are_restarted(&mut self) -> Result<()> {
        let before = self.world.held().await?;
        let began = self.world.now().await?;
        let pid = self.agents[0].kill_worker().await?;
        let killed_at = self.world.now().await?;
        let is_back =
            async || self.agents[0].workers().await.is_ok_and(|now| now.len() > 1 && !now.contains(&pid));
        wait_for("another worker", PATIENCE, is_back).await?;
        self.frames(self.world.now().await?, 2).await?;
        let pauses = self.world.pauses_since(began).await?;
        ensure!(self.world.held().await? == before, "a worker that fails costs no lease");
        let longest = pauses.values().copied().fold(0.0, f64::max);
        let took = longest.min((self.world.now().await? - killed_at) * 1_000.0);
        tell("a killed worker's cameras went on after (asked for: 1 s)", format!("{took:.0} ms"));
        Ok(())
    }

    /// Workers handle the loss of a lease: their work ends, and goes on elsewhere or anew under another token.
    pub async fn a_lost_lease_is_handled(&mut self) -> Result<()> {
        let camera = self.world.size.camera(1);
        let before = self.world.held().await?[&camera].clone();
        let began = self.world.now().await?;
        self.world.solehold(&format!("lease revoke camera/{camera}")).await?;
        self.world.settled("another lease", |held| held[&camera].token > before.token).await?;
        let took = self.world.first_frame_after(&camera, before.token, began).await?;
        tell("a revoked camera goes on after", format!("{took:.0} ms (ttl {} s)", TTL.as_secs()));
        Ok(())
    }

    /// A runner that joins gets its share by hand-over, and one that drains gives everything away.
    pub async fn work_is_balanced_and_drained(&mut self) -> Result<()> {
        let revision = self.revision().await?;
        let refused = self.world.refused().await?;
        let joined = self.world.agent("agent-4", "blue", "1.0").await?;
        let share = self.cameras() / 4;
        let has_share =
            |held: &BTreeMap<String, Held>| loads(held).get("agent-4").is_some_and(|n| n + 1 >= share);
        self.world.settled("a fair share for the fourth", has_share).await?;
        let moved = self.moved_since(revision, true).await?;
        tell("moves when a fourth agent joins", moved.len());
        let revision = self.revision().await?;
        let took = joined.drain().await?;
        self.world.settled("the work of the fourth to be shared out", |held| loads(held).len() == 3).await?;
        let moved = self.moved_since(revision, true).await?;
        ensure!(moved.iter().all(|change| change.from == "agent-4"), "{moved:?}");
        tell(
            "an agent drains, all handed over",
            format!("{} cameras in {:.1} s", moved.len(), took.as_secs_f64()),
        );
        ensure!(
            self.world.refused().await? == refused,
            "a planned move fences nobody off and repeats nothing"
        );
        Ok(())
    }

    /// The control plane is away for longer than the ttl, and later crashes. With `grace` the work goes on.
    pub async fn an_outage_is_outlived(&mut self) -> Result<()> {
        let before = self.world.held().await?;
        self.world.network.cut().await;
        let began = self.world.now().await?;
        let is_over = async || self.world.held().await.is_ok_and(|held| held.is_empty());
        wait_for("the leases to run out", PATIENCE, is_over).await?;
        let run_out = self.world.now().await?;
        let frame = self.world.size.frame.as_secs_f64();
        let outage = self.world.size.outage.as_secs_f64().max(run_out - began);
        let enough = (outage / frame / 2.0) as i64;
        self.frames(began, enough).await?;
        let left = Duration::from_secs_f64((began + outage - self.world.now().await?).max(0.0));
        let has_passed = async || self.world.now().await.is_ok_and(|now| now >= began + outage);
        wait_for("the end of the outage", left + PATIENCE, has_passed).await?;
        self.world.network.restore().await?;
        let healed = self.world.now().await?;
        let after = self.world.settled("everything to be held again", |_| true).await?;
        let same = after.iter().filter(|(camera, held)| before[*camera].runner == held.runner).count();
        let all = self.cameras();
        let took = self.world.now().await? - healed;
        let shown = format!(
            "{:.0} s; all held again after {took:.1} s, {same} of {all} by the same agent",
            healed - began
        );
        tell("control plane away, every camera goes on", shown);
        let took = self.world.crash_server().await?;
        let held = self.world.settled("everything to be held after the crash", |_| true).await?;
        let kept = held.iter().filter(|(camera, held)| after[*camera] == **held).count();
        let shown = format!("{:.1} s; {kept} of {all} leases are the same", took.as_secs_f64());
        tell("control plane killed and back after", shown);
        Ok(())
    }

    /// An agent that is killed is replaced by the others within ttl + 1 s.
    pub async fn a_crashed_agent_is_replaced(&mut self) -> Result<()> {
        let before = self.world.held().await?;
        let lost = self.agents.remove(0);
        let began = self.world.now().await?;
        lost.program.kill9().await?;
        let is_replaced = |held: &BTreeMap<String, Held>| held.values().all(|held| held.runner != lost.name);
        self.world.settled("the others to take over", is_replaced).await?;
        let mut took = Vec::new();
        for (camera, held) in before.iter().filter(|(_, held)| held.runner == lost.name) {
            took.push(self.world.first_frame_after(camera, held.token, began).await?);
        }
        let bound = (TTL.as_secs() + 1) * 1_000;
        let shown = spread(took);
        tell(&format!("agent killed to next worker's first frame (bound: {bound} ms)"), shown);
        self.agents.insert(0, self.world.agent("agent-1", "blue", "1.0").await?);
        self.world.settled("it to be back", |_| true).await?;
        Ok(())
    }

    /// All agents are replaced by a newer version, one after the other, without losing a frame.
    pub async fn a_rolling_restart_moves_everything_once(&mut self) -> Result<()> {
        let revision = self.revision().await?;
        let refused = self.world.refused().await?;
        for (number, old) in std::mem::take(&mut self.agents).into_iter().enumerate() {
            self.agents.push(self.world.agent(&format!("agent-{}b", number + 1), "blue", "2.0").await?);
            old.drain().await?;
        }
        self.world
            .settled("the new version to hold everything", |held| {
                held.values().all(|held| held.runner.ends_with('b'))
            })
            .await?;
        let moved = self.moved_since(revision, true).await?;
        let mut each: BTreeMap<&str, usize> = BTreeMap::new();
        moved.iter().for_each(|change| *each.entry(&change.camera).or_default() += 1);
        let most = each.values().max().copied().unwrap_or_default();
        tell("rolling restart", format!("{} moves, at most {most} per camera", moved.len()));
        ensure!(most <= 1, "a camera moved {most} times: {moved:?}");
        ensure!(
            self.world.refused().await? == refused,
            "a rolling restart fences nobody off and repeats nothing"
        );
        Ok(())
    }

    /// Work is shifted to another deployment group, promoted, and rolled back, with no gap and no overlap.
    pub async fn work_is_shifted_between_groups(&mut self) -> Result<()> {
        let refused = self.world.refused().await?;
        self.world.solehold("deploy shift --to green --percent 0").await?;
        for number in 1..=2 {
            self.agents.push(self.world.agent(&format!("green-{number}"), "green", "3.0").await?);
        }
        let all = self.cameras();
        let is_green =
            |held: &BTreeMap<String, Held>| held.values().filter(|h| h.runner.starts_with("green")).count();
        for (command, least, most) in [
            ("deploy shift --to green --percent 25", 1, all / 2),
            ("deploy promote", all, all),
            ("deploy rollback", 0, 0),
        ] {
            let revision = self.revision().await?;
            self.world.solehold(command).await?;
            let is_so = |held: &BTreeMap<String, Held>| (least..=most).contains(&is_green(held));
            let held = self.world.settled(command, is_so).await?;
            let moved = self.moved_since(revision, true).await?;
            tell(command, format!("{} moves, then green holds {} of {all}", moved.len(), is_green(&held)));
        }
        ensure!(self.world.refused().await? == refused, "a shift fences nobody off and repeats nothing");
        Ok(())
    }

    /// Only one worker processed each camera at a time, no frame is lost or doubled past the sink, and RabbitMQ got
    /// every event.
    pub async fn everything_adds_up(&mut self) -> Result<()> {
        for agent in std::mem::take(&mut self.agents) {
            agent.drain().await?;
        }
        let history = self.world.history().await?;
        changes(&history, 0)?;
        tell("events of leases, each with its shard", shards(&history)?);
        let events = self.world.inbox.has_all(&history).await?;
        let frames = self.world.check_frames().await?;
        let refused = self.world.refused().await?;
        let shown = format!(
            "{frames} frames, none lost or doubled; refused: {} fenced, {} repeated",
            refused.fenced, refused.repeated
        );
        tell("past the sink", shown);
        tell("events that came out of RabbitMQ, in order", events);
        let moves = std::mem::take(&mut self.moves);
        ensure!(!self.world.size.is_full || moves.len() >= 100, "only {} moves", moves.len());
        tell(
            "planned move, the old worker's last frame to the new worker's first (asked for: p99 250 ms)",
            spread(moves),
        );
        Ok(())
    }
}

impl World {
    /// Milliseconds between two times as the control plane writes them.
    async fn ms_between(&self, from: &Option<String>, to: &Option<String>) -> Result<f64> {
        let from = from.as_ref().context("no first time")?;
        let to = to.as_ref().context("no second time")?;
        let sql = "SELECT (extract(epoch FROM $2::text::timestamptz - $1::text::timestamptz) * 1000)::float8";
        Ok(self.database.query_one(sql, &[from, to]).await?.get(0))
    }
}
