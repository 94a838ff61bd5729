//! Where the time goes between a kill and the next owner's work, by the events of the server and the rows of the
//! database.

use std::{
    collections::BTreeMap,
    fmt,
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use solehold_api::time::Timestamp;
use solehold_core::time::StoreTime;
use solehold_testkit::{Program, Solehold, wait_for};

use crate::world::World;

/// Follows the server's events from now on.
pub struct Events(Program);

impl Events {
    /// None where no leases are in use.
    pub async fn follow(world: &World) -> Result<Option<Self>> {
        let Some(server) = &world.server else { return Ok(None) };
        let mut command = Command::new(Solehold::binary()?);
        command.args(["watch", "--snapshot", "--json", "--server", server.url()]);
        Ok(Some(Self(Program::start("watch", &command, "{\"snapshot\"").await?)))
    }

    /// Prints where the time went between the end of an owner at `ended` and the next one's work, and returns the
    /// longest of these times.
    pub async fn print(&self, world: &World, ended: SystemTime, partitions: &[i32]) -> Result<Duration> {
        let takeovers = self.takeovers(world, ended, partitions).await?;
        takeovers.iter().for_each(|takeover| println!("  {takeover}"));
        let slowest = takeovers.iter().map(Takeover::after_the_lease).max().unwrap_or_default();
        println!("  the slowest goes on {slowest:.0?} after its lease is over (on a quiet machine: 500 ms)");
        Ok(takeovers.iter().map(Takeover::took).max().unwrap_or_default())
    }

    /// What became of partitions whose owner ended.
    async fn takeovers(&self, world: &World, ended: SystemTime, partitions: &[i32]) -> Result<Vec<Takeover>> {
        // A partition that was just being handed over has no lease that runs out, and is left out.
        let times = || (self.first_after(ended, "lease_expired"), self.first_after(ended, "lease_acquired"));
        let has_all = async || {
            let (over, granted) = times();
            partitions.iter().all(|number| over.contains_key(number) && granted.contains_key(number))
        };
        let _ = wait_for("the events of all partitions", Duration::from_secs(10), has_all).await;
        let (over, granted) = times();
        let known = |number: &&i32| over.contains_key(*number) && granted.contains_key(*number);
        let partitions: Vec<i32> = partitions.iter().filter(known).copied().collect();
        ensure!(!partitions.is_empty(), "no lease ran out and was granted again");
        let sql = "SELECT partition, raised_at, min(at), min(at) FILTER (WHERE is_message) \
            FROM orchestrator.partitions JOIN writes USING (partition) \
            WHERE partition = ANY($1) AND at > raised_at GROUP BY 1, 2 ORDER BY 1";
        let rows = world.sql.query(sql, &[&partitions]).await?;
        let takeover = |row: &tokio_postgres::Row| {
            let partition: i32 = row.get(0);
            let worked = row.get::<_, Option<SystemTime>>(3).context("a message that took effect")?;
            let over = over[&partition];
            let granted = granted[&partition];
            Ok(Takeover { partition, ended, over, granted, raised: row.get(1), written: row.get(2), worked })
        };
        rows.iter().map(takeover).collect()
    }

    /// When the first event of this type after a time came to pass, for each partition.
    fn first_after(&self, after: SystemTime, event_type: &str) -> BTreeMap<i32, SystemTime> {
        let mut first = BTreeMap::new();
        let logs = self.0.logs();
        for event in logs.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let number = event["key"].as_str().and_then(|key| key.rsplit('/').next()?.parse().ok());
            let at = event["timestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
            if let (Some(number), Some(at)) = (number, at) {
                let at = SystemTime::UNIX_EPOCH + Duration::from_millis(StoreTime::from(at).0);
                if event["event_type"] == event_type && at > after {
                    first.entry(number).or_insert(at);
                }
            }
        }
        first
    }
}

/// The way of one partition from a killed owner to the next one.
struct Takeover {
    partition: i32,
    ended: SystemTime,
    over: SystemTime,
    granted: SystemTime,
    raised: SystemTime,
    written: SystemTime,
    worked: SystemTime,
}

impl Takeover {
    /// From the end of the former owner to the first work of the next one, be it mail or messages.
    fn took(&self) -> Duration {
        since(self.ended, self.written)
    }

    /// The same from the end of the lease.
    fn after_the_lease(&self) -> Duration {
        since(self.over, self.written)
    }
}

fn since(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "partition {:>2}: {:.2?} = {:.2?} until the lease is over, {:.0?} until it is granted, {:.0?} until the epoch \
             is raised, {:.0?} until its first transaction; that of its first message {:.0?} later",
            self.partition,
            self.took(),
            since(self.ended, self.over),
            since(self.over, self.granted),
            since(self.granted, self.raised),
            since(self.raised, self.written),
            since(self.written, self.worked),
        )
    }
}
