//! What happens to the pods, and what must be true afterwards.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use solehold_sql::partitions::{Partition, Partitions, Standing, Tenure};
use solehold_testkit::wait_for;

use crate::{
    broker::{PATIENCE, client},
    takeover::Events,
    world::{GROUP, Mode, PARTITIONS, Pod, TOPIC, World},
};

/// How long a fault may stop a partition on a machine that is busy with other things. What is promised is printed.
const ALLOWED: Duration = Duration::from_secs(30);
const STAGES: u64 = 4;
/// Late writes of a pod that was succeeded.
const LATE_WRITES: u32 = 1_000;

pub struct Faults {
    world: World,
    began: Instant,
}

impl Faults {
    pub fn new(world: World) -> Self {
        println!("== {:?}: {} pods, session or ttl {:?}", world.mode, world.pods.len(), world.session);
        Self { world, began: Instant::now() }
    }

    fn any_pod(&self) -> Result<String> {
        self.world.pods.keys().next().cloned().context("a pod")
    }

    fn take(&mut self, name: &str) -> Result<Pod> {
        self.world.pods.remove(name).context("a pod")
    }

    pub async fn jobs_flow(&mut self) -> Result<()> {
        let began = Instant::now();
        let jobs = self.world.size.jobs;
        self.world.create_jobs(jobs).await?;
        self.world.succeeded(self.world.created()).await?;
        let took = began.elapsed();
        println!(
            "{jobs} jobs of {STAGES} stages in {took:.1?}: {:.0} jobs per second",
            jobs as f64 / took.as_secs_f64()
        );
        Ok(())
    }

    pub async fn a_killed_pod_is_replaced(&mut self) -> Result<()> {
        let name = self.any_pod()?;
        self.world.create_jobs(self.world.size.jobs).await?;
        let partitions: Vec<i32> = self.world.partitions_of(&name).await?.into_keys().collect();
        let pod = self.take(&name)?;
        let events = Events::follow(&self.world).await?;
        let began = Instant::now();
        let killed = SystemTime::now();
        pod.program.kill9().await?;
        self.world.probe(&partitions).await?;
        let took = began.elapsed();
        println!("SIGKILL: its {} partitions go on after {took:.1?}", partitions.len());
        // With leases it is known when the next owner begins; by the probe alone it counts when it has caught up.
        let (took, more) = match events {
            Some(events) => (events.print(&self.world, killed, &partitions).await?, 1),
            None => (took, 5),
        };
        let promised = self.world.session + Duration::from_secs(more);
        println!("  the slowest took {took:.1?} (on a quiet machine: {promised:.0?})");
        ensure!(took < ALLOWED, "{took:?}, allowed are {ALLOWED:?}");
        self.world.add_pod().await?;
        self.world.all_owned().await
    }

    pub async fn a_terminated_pod_hands_over(&mut self) -> Result<()> {
        let name = self.any_pod()?;
        self.world.create_jobs(self.world.size.jobs).await?;
        let partitions: Vec<i32> = self.world.partitions_of(&name).await?.into_keys().collect();
        let pod = self.take(&name)?;
        let began = Instant::now();
        let (status, ended) = {
            let status = pod.program.terminate().await?;
            (status, began.elapsed())
        };
        self.world.probe(&partitions).await?;
        let took = began.elapsed();
        println!(
            "SIGTERM: it ended after {ended:.2?}, its partitions go on after {took:.1?} (with a timeout: {:.0?})",
            self.world.session
        );
        ensure!(status.success(), "{status}: {}", pod.program.logs());
        ensure!(took < ALLOWED, "{took:?}, allowed are {ALLOWED:?}");
        self.world.add_pod().await?;
        self.world.all_owned().await
    }

    /// A pod sleeps past its session and wakes up in the middle of its work. Beside what it does itself, a thousand
    /// late writes are tried under its epochs.
    pub async fn a_paused_pod_is_refused(&mut self) -> Result<()> {
        let name = self.any_pod()?;
        self.world.create_jobs(self.world.size.jobs).await?;
        let epochs = self.world.partitions_of(&name).await?;
        let events = Events::follow(&self.world).await?;
        let began = Instant::now();
        let paused = SystemTime::now();
        self.world.pods[&name].program.pause().await?;
        let partitions: Vec<i32> = epochs.keys().copied().collect();
        self.world.probe(&partitions).await?;
        println!("SIGSTOP: its {} partitions go on after {:.1?}", epochs.len(), began.elapsed());
        if let Some(events) = events {
            events.print(&self.world, paused, &partitions).await?;
        }
        self.late_writes(&epochs).await?;
        self.world.create_jobs(self.world.size.jobs / 4).await?;
        self.world.pods[&name].program.resume()?;
        self.world.succeeded(self.world.created()).await?;
        self.exactly_once().await
    }

    async fn late_writes(&mut self, epochs: &BTreeMap<i32, i64>) -> Result<()> {
        let partitions = Partitions::new("orchestrator.partitions")?;
        let mut refused = 0;
        for (number, epoch) in epochs.iter().cycle().take(LATE_WRITES as usize) {
            let partition = Partition { group: GROUP.to_owned(), topic: TOPIC.to_owned(), number: *number };
            let tenure = Tenure { partition, epoch: *epoch, next_offset: 0 };
            let transaction = self.world.sql.transaction().await?;
            match partitions.check(&transaction, &tenure).await? {
                Standing::Fenced => refused += 1,
                Standing::Ours => {
                    let late = "UPDATE orchestrator.stages SET state = 'succeeded' WHERE partition = $1";
                    transaction.execute(late, &[number]).await?;
                    transaction.commit().await?;
                }
            }
        }
        println!("late writes: {refused} of {LATE_WRITES} refused");
        ensure!(refused == LATE_WRITES, "only {refused} late writes were refused");
        Ok(())
    }

    pub async fn a_pod_is_cut_from_the_broker(&mut self) -> Result<()> {
        let name = self.any_pod()?;
        self.world.create_jobs(self.world.size.jobs).await?;
        let partitions: Vec<i32> = self.world.partitions_of(&name).await?.into_keys().collect();
        let began = Instant::now();
        self.world.line.cut(self.world.pods[&name].program.pid()?);
        if self.world.mode == Mode::Group {
            self.world.probe(&partitions).await?;
            println!("cut from the broker: its partitions go on after {:.1?}", began.elapsed());
        } else {
            // Its leases are fine, and so it keeps its partitions: what reaches the others goes on.
            println!("cut from the broker: its leases go on");
        }
        self.world.line.restore();
        self.world.succeeded(self.world.created()).await?;
        self.exactly_once().await
    }

    pub async fn a_pod_is_cut_from_the_database(&mut self) -> Result<()> {
        let name = self.any_pod()?;
        let pod = &self.world.pods[&name];
        pod.database.cut().await;
        self.world.create_jobs(self.world.size.jobs).await?;
        pod.database.restore().await?;
        self.world.succeeded(self.world.created()).await?;
        println!("cut from the database: all jobs came to their end");
        self.exactly_once().await
    }

    /// Every pod is replaced, one after the other, while jobs arrive: no partition stops for a session's time.
    pub async fn a_rolling_restart_stops_nothing(&mut self) -> Result<()> {
        while self.world.pods.len() < 6 {
            self.world.add_pod().await?;
        }
        self.world.all_owned().await?;
        let names: Vec<String> = self.world.pods.keys().cloned().collect();
        let began = Instant::now();
        let mut longest = Duration::ZERO;
        for name in names {
            self.world.create_jobs(self.world.size.jobs / 6).await?;
            let partitions: Vec<i32> = self.world.partitions_of(&name).await?.into_keys().collect();
            let pod = self.take(&name)?;
            let stopped = Instant::now();
            pod.program.terminate().await?;
            self.world.probe(&partitions).await?;
            longest = longest.max(stopped.elapsed());
            self.world.add_pod().await?;
            self.world.all_owned().await?;
        }
        println!(
            "rolling restart of 6 pods in {:.1?}; no partition stopped for more than {longest:.1?}",
            began.elapsed()
        );
        self.world.succeeded(self.world.created()).await?;
        self.exactly_once().await?;
        while self.world.pods.len() > 3 {
            let name = self.any_pod()?;
            self.take(&name)?.program.terminate().await?;
        }
        self.world.all_owned().await
    }

    pub async fn the_broker_is_restarted(&mut self) -> Result<()> {
        self.world.create_jobs(self.world.size.jobs).await?;
        self.world.kafka.stop().await?;
        self.world.kafka.start_again().await?;
        let began = Instant::now();
        self.world.succeeded(self.world.created()).await?;
        println!("the broker was restarted: all jobs came to their end {:.1?} later", began.elapsed());
        self.exactly_once().await
    }

    pub async fn the_database_is_restarted(&mut self) -> Result<()> {
        self.world.create_jobs(self.world.size.jobs).await?;
        self.world.postgres.kill9().await?;
        self.world.postgres.start_again().await?;
        let began = Instant::now();
        self.world.reconnect().await?;
        self.world.succeeded(self.world.created()).await?;
        println!("the database was restarted: all jobs came to their end {:.1?} later", began.elapsed());
        self.exactly_once().await
    }

    /// By the count that the database itself has kept.
    async fn exactly_once(&self) -> Result<()> {
        let twice = "SELECT what, job_id, stage, count(*) FROM effects WHERE what = 'succeeded' GROUP BY 1, 2, 3 \
             HAVING count(*) > 1 UNION ALL SELECT what, job_id, stage || ':' || attempt, count(*) FROM effects \
             WHERE what = 'ordered' GROUP BY 1, 2, 3 HAVING count(*) > 1 LIMIT 10";
        let rows = self.world.sql.query(twice, &[]).await?;
        let told = |row: &tokio_postgres::Row| {
            let what: &str = row.get(0);
            let job: &str = row.get(1);
            let stage: &str = row.get(2);
            format!("{job} {stage} {what} {} times", row.get::<_, i64>(3))
        };
        ensure!(rows.is_empty(), "twice: {:?}", rows.iter().map(told).collect::<Vec<_>>());
        Ok(())
    }

    pub async fn everything_adds_up(&mut self) -> Result<()> {
        let jobs = self.world.created();
        self.world.succeeded(jobs).await?;
        self.exactly_once().await?;
        let count = "SELECT count(*), count(DISTINCT (job_id, stage)) FROM effects WHERE what = 'succeeded'";
        let row = self.world.sql.query_one(count, &[]).await?;
        let effects: i64 = row.get(0);
        let stages: i64 = row.get(1);
        ensure!(
            (effects as u64, stages as u64) == (jobs * STAGES, jobs * STAGES),
            "{effects} effects of {stages} stages"
        );
        let states = self.world.sql.query_one("SELECT count(*) FROM orchestrator.jobs", &[]).await?;
        ensure!(states.get::<_, i64>(0) as u64 == jobs);
        let retried = "SELECT count(*) FROM orchestrator.stages WHERE attempt > 1";
        let retried: i64 = self.world.sql.query_one(retried, &[]).await?.get(0);
        self.offsets_are_at_the_end().await?;
        println!(
            "{:?}: {jobs} jobs, {effects} effects of stages, each once ({retried} attempts were repeated), offsets at the \
             end, after {:.1?}",
            self.world.mode,
            self.began.elapsed()
        );
        Ok(())
    }

    async fn offsets_are_at_the_end(&self) -> Result<()> {
        let ends = self.world.ends()?;
        let read = "SELECT partition, next_offset FROM orchestrator.partitions ORDER BY 1";
        let rows = self.world.sql.query(read, &[]).await?;
        let kept: BTreeMap<i32, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        ensure!(kept == ends, "in the database: {kept:?}, at the broker: {ends:?}");
        let displayed = wait_for("the offsets at the broker, which are for display", PATIENCE, async || {
            self.committed().is_ok_and(|committed| committed == ends)
        });
        displayed.await.with_context(|| format!("at the end: {ends:?}, displayed: {:?}", self.committed()))
    }

    fn committed(&self) -> Result<BTreeMap<i32, i64>> {
        let asking: BaseConsumer = client(&self.world.kafka).set("group.id", GROUP).create()?;
        let mut list = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            list.add_partition(TOPIC, partition);
        }
        let committed = asking.committed_offsets(list, Duration::from_secs(10))?;
        let offset = |offset| if let Offset::Offset(at) = offset { at } else { 0 };
        Ok(committed
            .elements()
            .iter()
            .map(|element| (element.partition(), offset(element.offset())))
            .collect())
    }
}
