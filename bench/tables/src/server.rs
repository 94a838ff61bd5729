//! A private PostgreSQL that writes down the plan of every statement, so that what is judged is what the product runs.

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, Pool, Runtime};
use solehold_testkit::{Postgres, wait_for};
use tokio_postgres::{Client, Config, NoTls};

use crate::plan::Ran;

const LOG: &str = "log/plans.log";
const PATIENCE: Duration = Duration::from_secs(60);

/// The server, and how far its log was read.
#[derive(Debug)]
pub struct Server {
    postgres: Postgres,
    client: Client,
    database: Option<String>,
    read: i64,
    marks: u64,
}

impl Server {
    /// Starts it. It is not durable: nothing here is about writing to a disk.
    pub async fn start() -> Result<Self> {
        let settings = [
            ("shared_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "-1"),
            ("auto_explain.log_analyze", "on"),
            ("auto_explain.log_buffers", "on"),
            ("auto_explain.log_timing", "off"),
            ("auto_explain.log_nested_statements", "on"),
            ("auto_explain.log_format", "json"),
            ("logging_collector", "on"),
            ("log_directory", "log"),
            ("log_filename", "plans.log"),
            ("log_rotation_size", "0"),
            ("log_line_prefix", ""),
            ("fsync", "off"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
            ("max_wal_size", "1GB"),
            ("shared_buffers", "512MB"),
            ("maintenance_work_mem", "256MB"),
            // Only the benchmark's own VACUUM: what a query reads must not depend on when it ran.
            ("autovacuum", "off"),
        ];
        let server = settings
            .into_iter()
            .fold(Postgres::builder(), |server, (name, value)| server.setting(name, value));
        let postgres = server.start().await?;
        let client = postgres.connect().await?;
        Ok(Self { postgres, client, database: None, read: 0, marks: 0 })
    }

    /// A new database, in place of the last one.
    pub async fn database(&mut self, prefix: &str) -> Result<Database> {
        let url = self.postgres.create_database(prefix).await?;
        let config: Config = url.parse()?;
        let name = config.get_dbname().unwrap_or_default().to_owned();
        if let Some(last) = self.database.replace(name) {
            self.client.batch_execute(&format!("DROP DATABASE \"{last}\" WITH (FORCE)")).await?;
        }
        let (quiet, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(Database { url, config, quiet })
    }

    /// The statements that were run since the last call.
    pub async fn plans(&mut self) -> Result<Vec<Ran>> {
        self.marks += 1;
        let mark = format!("everything before mark {} was read", self.marks);
        self.client.batch_execute(&format!("DO $$ BEGIN RAISE LOG '{mark}'; END $$")).await?;
        let mut text = String::new();
        let read = "SELECT pg_read_binary_file($1, $2, 1 << 29)";
        wait_for("the log", PATIENCE, async || {
            let row = self.client.query_one(read, &[&LOG, &self.read]).await.ok()?;
            let log = row.get::<_, Vec<u8>>(0);
            let is_whole =
                log.windows(mark.len()).any(|part| part == mark.as_bytes()) && log.ends_with(b"\n");
            is_whole.then_some(log)
        })
        .await
        .map(|log| {
            self.read += log.len() as i64;
            text = String::from_utf8_lossy(&log).into_owned();
        })?;
        parse(&text)
    }
}

/// A database of the server.
#[derive(Debug)]
pub struct Database {
    url: String,
    config: Config,
    /// A connection whose statements are not written down.
    pub quiet: Client,
}

impl Database {
    /// Its connection string: what is run over connections from now on is written down.
    pub async fn watch_all(&self) -> Result<String> {
        let name = self.config.get_dbname().unwrap_or_default();
        let setting = format!("ALTER DATABASE \"{name}\" SET auto_explain.log_min_duration = 0");
        self.quiet.batch_execute(&setting).await?;
        Ok(self.url.clone())
    }

    /// Connections whose statements are written down, or not.
    pub fn pool(&self, is_watched: bool) -> Result<Pool> {
        let least_ms = if is_watched { 0 } else { -1 };
        let mut config = self.config.clone();
        config.options(format!("-c auto_explain.log_min_duration={least_ms}"));
        Ok(Pool::builder(Manager::new(config, NoTls)).max_size(60).runtime(Runtime::Tokio1).build()?)
    }
}

/// How long a connection's process of PostgreSQL has been on a processor. Other load on the machine does not count.
pub async fn processor_time(client: &Client) -> Result<Duration> {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    let path = format!("/proc/{pid}/schedstat");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let spent = text.split(' ').next().and_then(|spent| spent.parse().ok());
    Ok(Duration::from_nanos(spent.with_context(|| format!("a time in {path}"))?))
}

/// An entry begins with its level; the lines that follow it begin with a tab.
fn parse(log: &str) -> Result<Vec<Ran>> {
    let mut found = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(ms) = line.strip_prefix("LOG:  duration: ").and_then(|rest| rest.strip_suffix(" ms  plan:"))
        else {
            continue;
        };
        let mut plan = String::new();
        while let Some(more) = lines.next_if(|line| line.starts_with('\t')) {
            plan.push_str(more);
        }
        found.push(Ran::parse(ms, &plan)?);
    }
    Ok(found)
}
