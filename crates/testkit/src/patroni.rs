//! A private node of a Patroni cluster: Patroni, and the PostgreSQL that it starts, stops and promotes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal};

use crate::port::Port;
use crate::postgres::install::Install;
use crate::program::on_path;
use crate::server::Server;
use crate::{proc, wait_for};

const START: Duration = Duration::from_secs(60);
/// How long processes may take to obey a signal that they cannot refuse.
const OBEY: Duration = Duration::from_secs(30);
/// How far a standby may lag behind and be promoted all the same: far enough that commits can be lost where replication
/// is asynchronous.
const LAG_BYTES_MAX: u32 = 64 << 20;

/// What all nodes of a cluster are told alike, and each of its own.
#[derive(Clone, Debug)]
pub struct PatroniOptions {
    /// The name of the node.
    pub name: String,
    /// Where etcd answers clients.
    pub etcd: SocketAddr,
    /// Where the other nodes reach this one's PostgreSQL: a proxy, perhaps.
    pub reached_at: SocketAddr,
    /// Whether commits wait for a standby, and only that one is promoted.
    pub is_synchronous: bool,
    /// How long a leader that falls silent stays the leader; Patroni looks six times within that.
    pub ttl_seconds: u32,
    /// As in `postgresql.conf`.
    pub max_connections: u32,
}

/// A node at ports of its own, whether it runs or not. It ends, and its data goes, with this value.
#[derive(Debug)]
pub struct PatroniNode {
    server: Server,
    install: Install,
    program: PathBuf,
    postgres: Port,
    rest: Port,
}

impl PatroniNode {
    /// Whether Patroni is on this machine.
    pub fn is_installed() -> bool {
        program().is_some()
    }

    /// A folder and ports, and no process yet.
    pub fn new() -> Result<Self> {
        let program = program().context("Patroni is not here: install the Debian package `patroni`")?;
        // Patroni first, so that it does not start PostgreSQL again; the watchdog ends that after it.
        let server = Server::new("patroni", "KILL")?;
        let install = Install::find()?;
        Ok(Self { server, install, program, postgres: Port::reserve()?, rest: Port::reserve()? })
    }

    /// Where its PostgreSQL listens.
    pub fn postgres(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.postgres.number).into()
    }

    /// Where Patroni answers about the node.
    pub fn rest(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.rest.number).into()
    }

    /// Starts Patroni, and waits until it answers; PostgreSQL may take longer. The first node of a cluster makes the
    /// data, and the others copy it.
    pub async fn start(&self, options: &PatroniOptions) -> Result<()> {
        let file = self.server.folder().join("patroni.yml");
        fs::write(&file, self.configuration(options))?;
        if let Some(user) = self.install.user {
            chown(self.server.folder(), Some(user.uid), Some(user.gid))?;
            chown(&file, Some(user.uid), Some(user.gid))?;
        }
        let mut command = Command::new(&self.program);
        command.arg(&file).env("HOME", self.server.folder()).env("LC_ALL", "C.UTF-8");
        self.server.spawn(&command, self.install.user)?;
        self.server.wait_ready(START, || TcpStream::connect(self.rest()).is_ok().then_some(())).await
    }

    /// SIGKILL to all processes of its PostgreSQL; Patroni goes on.
    pub async fn kill_postgres(&self) -> Result<()> {
        let family = self.freeze_postgres().await?;
        ensure!(!family.is_empty(), "the node has no PostgreSQL that runs");
        proc::signal(&family, Signal::KILL);
        has_ended(&family).await
    }

    /// SIGKILL to everything, as when the machine loses power.
    pub async fn kill9(&self) -> Result<()> {
        // Paused, Patroni does not start PostgreSQL again.
        self.server.pause().await?;
        let postgres = self.freeze_postgres().await?;
        proc::signal(&postgres, Signal::KILL);
        self.server.kill9().await?;
        has_ended(&postgres).await
    }

    /// Stops everything in its tracks (SIGSTOP), as a long pause of the machine would.
    pub async fn pause(&self) -> Result<()> {
        self.server.pause().await?;
        let postgres = self.freeze_postgres().await?;
        proc::signal(&postgres, Signal::STOP);
        wait_for("PostgreSQL to stand still", OBEY, async || {
            postgres.iter().all(|pid| proc::stands_still(*pid))
        })
        .await
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        let postgres = self.postmaster().map(proc::family).unwrap_or_default();
        proc::signal(&postgres, Signal::CONT);
        self.server.resume()
    }

    /// The last thousands of lines of Patroni and PostgreSQL.
    pub fn logs(&self) -> String {
        self.server.output().text()
    }

    /// PostgreSQL's main process, which is no child of Patroni, and its children. It is stopped, so that they are all.
    async fn freeze_postgres(&self) -> Result<Vec<Pid>> {
        let Some(postmaster) = self.postmaster() else { return Ok(Vec::new()) };
        proc::signal(&[postmaster], Signal::STOP);
        wait_for("PostgreSQL to stop", OBEY, async || proc::stands_still(postmaster)).await?;
        Ok(proc::family(postmaster))
    }

    /// PostgreSQL's main process, if it runs. Its file may be left over, and the pid be somebody else's.
    fn postmaster(&self) -> Option<Pid> {
        let data = self.data();
        let file = fs::read_to_string(data.join("postmaster.pid")).ok()?;
        let pid = Pid::from_raw(file.lines().next()?.trim().parse().ok()?)?;
        let runs_in = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (runs_in == fs::canonicalize(data).ok()?).then_some(pid)
    }

    fn data(&self) -> PathBuf {
        self.server.folder().join("data")
    }

    fn configuration(&self, options: &PatroniOptions) -> String {
        let PatroniOptions { name, etcd, reached_at, is_synchronous, ttl_seconds, max_connections } = options;
        let rest = self.rest();
        let listen = self.postgres();
        let data = self.data();
        let folder = self.server.folder().display();
        let bin = self.install.program("");
        let every = ttl_seconds / 6;
        let retry = ttl_seconds / 3;
        // Patroni asks for a loop and two retries within the ttl.
        format!(
            "scope: solehold
name: {name}
restapi: {{listen: '{rest}', connect_address: '{rest}'}}
etcd3: {{hosts: ['{etcd}']}}
bootstrap:
  dcs:
    ttl: {ttl_seconds}
    loop_wait: {every}
    retry_timeout: {retry}
    maximum_lag_on_failover: {LAG_BYTES_MAX}
    synchronous_mode: {is_synchronous}
    synchronous_mode_strict: {is_synchronous}
    postgresql:
      use_pg_rewind: true
      remove_data_directory_on_diverged_timelines: true
      parameters: {{max_connections: {max_connections}, wal_log_hints: 'on'}}
  initdb: [{{encoding: UTF8}}, {{locale: C.UTF-8}}, no-sync]
postgresql:
  listen: '{listen}'
  connect_address: '{reached_at}'
  data_dir: '{data}'
  bin_dir: '{bin}'
  pgpass: '{folder}/pgpass'
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: postgres}}
    rewind: {{username: postgres}}
  pg_hba: ['host all all 127.0.0.1/32 trust', 'host replication all 127.0.0.1/32 trust']
  parameters: {{unix_socket_directories: '', dynamic_shared_memory_type: mmap, timezone: UTC}}
watchdog: {{mode: 'off'}}
",
            data = data.display(),
            bin = bin.display(),
        )
    }
}

async fn has_ended(family: &[Pid]) -> Result<()> {
    wait_for("PostgreSQL to end", OBEY, async || family.iter().all(|pid| proc::ended(*pid))).await
}

fn program() -> Option<PathBuf> {
    on_path("patroni", &[])
}
