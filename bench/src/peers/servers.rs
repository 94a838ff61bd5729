//! The servers, each a private process on loopback with a folder of its own. They end with this process, however it
//! ends.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use redis::IntoConnectionInfo as _;
use solehold_client::{Http, LockConfig, Locks, SessionId};
use solehold_testkit::{Postgres, Program, Solehold, free_port, wait_for};
use tokio::{net::TcpStream, sync::OnceCell};

use super::{
    etcd::{EtcdClient, LeaseNumber},
    system::System,
};
use crate::{
    cpu::Meter,
    cycles::hand_written::{self, HandWritten},
};

const START: Duration = Duration::from_secs(60);
/// Connections that PostgreSQL allows beside one per task.
const CONNECTIONS_MORE: usize = 100;
/// Requests that wait in the client of Redis before they are sent.
const REDIS_QUEUE: usize = 1_024;
/// What the process of the hand-written SQL prints, before its address.
const LISTENING: &str = "hand-written SQL on ";

/// Those that were asked for and are installed.
pub struct Servers {
    embedded: Option<Ours>,
    on_postgres: Option<Ours>,
    sql: Option<String>,
    sql_http: Option<SqlHttpServer>,
    redis: Option<RedisServer>,
    etcd: Option<EtcdServer>,
    /// After what uses it, since fields are dropped in order.
    postgres: Option<Postgres>,
    pub versions: Vec<String>,
}

/// Our server, and a client of it.
pub struct Ours {
    pub server: Solehold,
    pub address: SocketAddr,
    pub authority: Arc<Http>,
    /// What all tasks share.
    pub locks: Locks,
    /// Sessions with leases, which are kept alive.
    pub sessions: OnceCell<Vec<SessionId>>,
    /// The session of batches, once their resources are declared.
    pub batches: OnceCell<SessionId>,
}

pub struct RedisServer {
    server: Program,
    pub connection: redis::aio::MultiplexedConnection,
}

pub struct EtcdServer {
    server: Program,
    address: SocketAddr,
    pub client: EtcdClient,
    /// Leases that are kept alive, those of each client.
    pub leases: OnceCell<Vec<Vec<LeaseNumber>>>,
    /// The leases of those who wait in line.
    pub waiters: OnceCell<Vec<LeaseNumber>>,
}

impl EtcdServer {
    /// A connection that no other task shares.
    pub async fn connect(&self) -> Result<EtcdClient> {
        EtcdClient::connect(self.address).await
    }
}

struct SqlHttpServer {
    server: Program,
    address: SocketAddr,
}

/// What to start.
pub struct Wanted<'a> {
    pub systems: Vec<System>,
    /// The `solehold` binary.
    pub server: &'a Path,
    pub tasks_max: usize,
    /// The rows of the hand-written SQL.
    pub scenes: &'a [String],
}

impl Servers {
    /// Starts what is wanted and returns the systems that can be measured. For a peer that is not installed it prints a
    /// line instead.
    pub async fn start(wanted: Wanted<'_>) -> Result<(Self, Vec<System>)> {
        let present = present(&wanted.systems);
        let is = |system| present.contains(&system);
        let mut versions = Vec::new();
        let solehold = is(System::Embedded) || is(System::EmbeddedHttp);
        let embedded = if solehold { Some(Ours::start(wanted.server, None).await?) } else { None };
        let mut postgres = None;
        let mut on_postgres = None;
        let mut sql = None;
        let mut sql_http = None;
        if present.iter().any(|system| system.is_on_postgres()) {
            let connections = (wanted.tasks_max + CONNECTIONS_MORE).to_string();
            let database = Postgres::builder().setting("max_connections", connections).start().await?;
            versions.push(first_line(Command::new(database.tool("postgres")).arg("--version")));
            if is(System::Postgres) || is(System::PostgresHttp) {
                let url = database.create_database("solehold").await?;
                on_postgres = Some(Ours::start(wanted.server, Some(&url)).await?);
            }
            if is(System::Sql) {
                let url = database.create_database("hand_written").await?;
                hand_written::create_table(&connect(&url).await?, wanted.scenes).await?;
                sql = Some(url);
            }
            if is(System::SqlHttp) {
                let url = database.create_database("hand_written_http").await?;
                sql_http = Some(SqlHttpServer::start(&url, wanted.tasks_max).await?);
            }
            postgres = Some(database);
        }
        let redis = if is(System::Redis) { Some(RedisServer::start(&mut versions).await?) } else { None };
        let etcd = is(System::Etcd) || is(System::EtcdSession);
        let etcd = if etcd { Some(EtcdServer::start(&mut versions).await?) } else { None };
        Ok((Self { embedded, on_postgres, sql, sql_http, redis, etcd, postgres, versions }, present))
    }

    /// Our server behind a system.
    pub fn ours(&self, system: System) -> Result<&Ours> {
        let ours = if system.is_on_postgres() { &self.on_postgres } else { &self.embedded };
        ours.as_ref().context("our server was not started")
    }

    pub fn redis(&self) -> Result<&RedisServer> {
        self.redis.as_ref().context("Redis was not started")
    }

    pub fn etcd(&self) -> Result<&EtcdServer> {
        self.etcd.as_ref().context("etcd was not started")
    }

    /// A connection to the table of the hand-written SQL.
    pub async fn sql(&self) -> Result<tokio_postgres::Client> {
        connect(self.sql.as_ref().context("PostgreSQL was not started")?).await
    }

    /// Where the hand-written SQL is served.
    pub fn sql_http(&self) -> Result<SocketAddr> {
        Ok(self.sql_http_server()?.address)
    }

    fn sql_http_server(&self) -> Result<&SqlHttpServer> {
        self.sql_http.as_ref().context("the hand-written SQL was not started")
    }

    /// The processes that work for a system.
    pub fn meter(&self, system: System) -> Result<Meter> {
        let mut pids = Vec::new();
        match system {
            System::Redis => pids.push(self.redis()?.server.pid()?),
            System::Etcd | System::EtcdSession => pids.push(self.etcd()?.server.pid()?),
            System::SqlHttp => pids.push(self.sql_http_server()?.server.pid()?),
            System::Sql => {}
            _ => pids.push(self.ours(system)?.server.pid()?),
        }
        if system.is_on_postgres() {
            pids.push(self.postgres.as_ref().context("PostgreSQL was not started")?.pid()?);
        }
        Ok(Meter(pids))
    }
}

/// Those of the systems that are installed.
fn present(wanted: &[System]) -> Vec<System> {
    let mut present = wanted.to_vec();
    let mut leave_out = |name: &str, package: &str, uses: &dyn Fn(&System) -> bool| {
        if present.iter().any(uses) {
            println!("{name} is not installed and left out: Debian has it in the package {package}");
            present.retain(|system| !uses(system));
        }
    };
    if on_path("redis-server").is_none() {
        leave_out("Redis", "redis-server", &|system| *system == System::Redis);
    }
    if on_path("etcd").is_none() {
        leave_out("etcd", "etcd-server", &|system| matches!(system, System::Etcd | System::EtcdSession));
    }
    if !has_postgres() {
        leave_out("PostgreSQL", "postgresql", &|system| system.is_on_postgres());
    }
    present
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Debian has its programs in a folder for each version.
fn has_postgres() -> bool {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.into_iter().any(|version| version.path().join("bin/postgres").is_file())
        || on_path("postgres").is_some()
        || on_path("pg_config").is_some()
}

/// The first line that a program prints.
fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().to_owned()
}

async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Starts a server that prints something when it starts, and waits until it takes connections.
async fn start(name: &'static str, command: &Command, address: SocketAddr) -> Result<Program> {
    let program = Program::start(name, command, "").await?;
    let listens = wait_for(name, START, async || TcpStream::connect(address).await.is_ok()).await;
    listens.with_context(|| format!("the last output of {name}:\n{}", program.logs()))?;
    Ok(program)
}

fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}

impl Ours {
    /// Starts one over this database, or with the embedded engine.
    async fn start(binary: &Path, database: Option<&str>) -> Result<Self> {
        let mut builder = Solehold::builder()
            .binary(binary)
            .env("SOLEHOLD_LOG_LEVEL", "warn")
            .env("SOLEHOLD_LIMITS_REQUESTS_PER_SECOND", "0")
            // Each watcher has a connection, and so does each who waits in line.
            .env("SOLEHOLD_LIMITS_WATCHES_MAX", "2000")
            .env("SOLEHOLD_LIMITS_QUOTAS_WATCHES", "2000")
            .env("SOLEHOLD_LIMITS_CONNECTIONS_MAX", "10000")
            // Some sessions are renewed only while they are measured.
            .env("SOLEHOLD_TTL_MAX", "1day");
        if let Some(database) = database {
            builder = builder.engine(database);
        }
        let server = builder.start().await?;
        let address = server.url().trim_start_matches("http://").parse().context("our server's address")?;
        let authority = Arc::new(Http::to(server.url())?);
        let locks = Locks::open(authority.clone(), "bench", LockConfig::default()).await?;
        let sessions = OnceCell::new();
        let batches = OnceCell::new();
        Ok(Self { server, address, authority, locks, sessions, batches })
    }
}

impl RedisServer {
    /// One that syncs its append-only file before it answers.
    async fn start(versions: &mut Vec<String>) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new("redis-server");
        versions.push(first_line(Command::new("redis-server").arg("--version")));
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        let server = start("redis-server", &command, address).await?;
        let url = format!("redis://{address}/");
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let client = redis::Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        // By default at most 50 tasks queue, and each request sets a timer.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let config = config.set_pipeline_buffer_size(REDIS_QUEUE);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { server, connection })
    }
}

impl EtcdServer {
    async fn start(versions: &mut Vec<String>) -> Result<Self> {
        let address = free_address()?;
        versions.push(first_line(Command::new("etcd").arg("--version")));
        let clients = format!("http://{address}");
        let peers = format!("http://{}", free_address()?);
        let mut command = Command::new("etcd");
        command.args(["--name", "bench", "--data-dir", "data", "--log-outputs", "stderr"]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("bench={peers}")]);
        let server = start("etcd", &command, address).await?;
        let ready = wait_for("etcd to elect itself", START, async || {
            let mut client = EtcdClient::connect(address).await.ok()?;
            client.grant(START).await.ok()?;
            Some(client)
        });
        let client = ready.await?;
        Ok(Self { server, address, client, leases: OnceCell::new(), waiters: OnceCell::new() })
    }
}

impl SqlHttpServer {
    /// A process of this binary, which runs [`serve_hand_written`].
    async fn start(url: &str, tasks_max: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["peers-hand-written", url, &tasks_max.to_string()]);
        let server = Program::start("hand-written", &command, LISTENING).await?;
        let address = server.said().parse().context("the address of the hand-written SQL")?;
        Ok(Self { server, address })
    }
}

/// One process of `peers`
#[derive(Debug, clap::Args)]
pub struct HandWrittenOptions {
    url: String,
    tasks: usize,
}

/// Serves the hand-written SQL until this process is ended.
pub async fn serve_hand_written(options: HandWrittenOptions) -> Result<()> {
    let server = HandWritten::start(&options.url, &super::scenes(options.tasks)).await?;
    println!("{LISTENING}{}", server.address());
    std::future::pending().await
}
