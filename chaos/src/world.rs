//! Two servers over one store, three writers and a sink, each a process, and a proxy on every link between them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use solehold_clock::{AlarmClock as _, BootClock, BootTime};
use solehold_testkit::{Program, Proxy, Solehold, SoleholdBuilder, TempDir, free_port, wait_for};

use crate::{
    broken::Broken,
    certificates::{Certificates, ServerFiles},
    history::History,
    process::Process,
    servers::ServersOptions,
    sink::{self, LastWrite, SinkClient},
    store::{Store, StoreKind},
    watcher::Watcher,
    writer,
};

/// Over PostgreSQL.
pub const SERVERS: usize = 2;
pub const WRITERS: usize = 3;
/// That PostgreSQL allows: few, so that they can be used up.
pub const CONNECTIONS: usize = 80;
const RESOURCES: usize = 6;

/// Of each server in the report of a failure.
const LOG_LINES: usize = 40;
/// Long enough for a busy machine, and far shorter than for ever.
const RECOVERS_WITHIN: Duration = Duration::from_secs(90);

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The `solehold-chaos` binary.
    pub program: PathBuf,
    pub ttl: Duration,
    pub broken: Option<Broken>,
    pub store: StoreKind,
    /// Whether PostgreSQL has a wall clock that can be set.
    pub has_own_clock: bool,
    /// Whether the servers speak TLS.
    pub has_tls: bool,
    /// An older `solehold` binary.
    pub older: Option<PathBuf>,
    /// Whether the servers start as that one.
    pub starts_older: bool,
}

impl Setup {
    /// Nothing special: two servers over one PostgreSQL.
    pub fn new(program: PathBuf, ttl: Duration, broken: Option<Broken>) -> Self {
        Self {
            program,
            ttl,
            broken,
            store: StoreKind::Alone,
            has_own_clock: false,
            has_tls: false,
            older: None,
            starts_older: false,
        }
    }

    /// The longest ttl that the servers grant, and so how long they grant nothing after a failover that may have lost
    /// something.
    fn ttl_max(&self) -> Duration {
        self.ttl * 5 / 3
    }
}

/// A server at an address of its own, or the place of one that was killed.
pub struct Replica {
    pub address: SocketAddr,
    builder: SoleholdBuilder,
    running: Option<Solehold>,
    /// To each PostgreSQL.
    pub database: Vec<Proxy>,
}

/// A program that speaks to all servers, and a link to each.
pub struct Client {
    pub process: Process,
    pub servers: Vec<Proxy>,
}

/// A writer, and its link to the sink.
pub struct WriterPlace {
    pub client: Client,
    pub sink: Proxy,
}

pub struct World {
    pub setup: Setup,
    // Dropped in this order: clients before what they speak to.
    pub writers: Vec<WriterPlace>,
    pub gate: Client,
    watcher: Option<Watcher>,
    pub servers: Vec<Replica>,
    pub store: Store,
    pub(crate) certificates: Option<Certificates>,
    /// How this process reaches the servers: without links.
    pub(crate) direct: ServersOptions,
    sink: SinkClient,
    folder: TempDir,
}

impl World {
    /// Starts everything, and waits until every resource is written.
    pub async fn start(setup: Setup) -> Result<Self> {
        let folder = TempDir::new()?;
        let store = Store::start(&setup).await?;
        let addresses: Vec<SocketAddr> =
            (0..setup.store.servers()).map(|_| free_address()).collect::<Result<_>>()?;
        let certificates = setup.has_tls.then(|| Certificates::create(folder.path(), addresses.len()));
        let certificates = certificates.transpose()?;
        let servers = addresses.iter().enumerate().map(|(number, address)| {
            let files = certificates.as_ref().map(|certificates| certificates.of(number));
            Replica::start(*address, &store, files, &setup)
        });
        let servers = try_join_all(servers).await?;
        let direct = ServersOptions {
            servers: addresses.iter().map(|address| url(&setup, *address)).collect(),
            ca_cert: certificates.as_ref().map(Certificates::trusted),
        };
        let watcher = Watcher::start(direct.config()?, folder.path()).await?;
        let sink_address = free_address()?;
        let mut gate = gate(&setup, folder.path(), &addresses, sink_address).await?;
        gate.process.start().await?;
        let writers =
            (0..WRITERS).map(|number| place(&setup, folder.path(), number, &addresses, sink_address));
        let mut writers = try_join_all(writers).await?;
        try_join_all(writers.iter_mut().map(|writer| writer.client.process.start())).await?;
        let sink = SinkClient::new(&format!("http://{sink_address}"))?;
        let watcher = Some(watcher);
        let world =
            Self { setup, writers, gate, watcher, servers, store, certificates, direct, sink, folder };
        world.is_written().await?;
        Ok(world)
    }

    /// Waits until every resource is written by somebody, from now on.
    pub async fn is_written(&self) -> Result<()> {
        let since = BootTime::now().as_nanos();
        let written = async || {
            let last = self.sink.last().await.unwrap_or_default();
            last.values().filter(|write| write.at > since).count() == RESOURCES
        };
        wait_for("every resource to be written", RECOVERS_WITHIN, written).await.with_context(|| self.logs())
    }

    /// Waits until this many resources are written under newer tokens than now.
    pub async fn is_granted_anew(&self, resources: usize) -> Result<()> {
        let before = self.sink.last().await?;
        let granted = async || {
            let last = self.sink.last().await.unwrap_or_default();
            let is_newer = |name: &String, write: &LastWrite| {
                before.get(name).is_none_or(|before| before.token < write.token)
            };
            last.iter().filter(|(name, write)| is_newer(name, write)).count() >= resources
        };
        wait_for("new grants", RECOVERS_WITHIN, granted).await.with_context(|| self.logs())
    }

    /// The number of the writer that wrote most resources last, and so holds them.
    pub async fn busiest_writer(&self) -> Result<usize> {
        let last = self.sink.last().await?;
        let held = |writer: &usize| last.values().filter(|write| is_by(*writer, write)).count();
        (0..WRITERS).max_by_key(held).context("no writers")
    }

    /// Waits until this writer has lost every lease that it held. With another fault at the same time nobody may
    /// be able to take it over, so that is no failure.
    pub async fn is_taken_over(&self, writer: usize) {
        let is_gone = async || {
            self.sink.last().await.is_ok_and(|last| !last.values().any(|write| is_by(writer, write)))
        };
        let _ = wait_for("a takeover", self.setup.ttl * 5, is_gone).await;
    }

    /// How many lines with this in them the servers have printed, each since it was started.
    pub fn printed(&self, text: &str) -> usize {
        self.servers.iter().map(|server| server.printed(text)).sum()
    }

    /// Waits until there are this many of them.
    pub async fn prints(&self, text: &str, lines: usize) -> Result<()> {
        let printed = async || self.printed(text) >= lines;
        wait_for(&format!("\"{text}\" in the log"), RECOVERS_WITHIN, printed)
            .await
            .with_context(|| self.logs())
    }

    pub(crate) fn watcher(&self) -> Result<&Watcher> {
        self.watcher.as_ref().context("the watcher has finished")
    }

    /// Lets this much time pass.
    pub async fn lasts(&self, time: Duration) {
        BootClock.wait_until(BootTime::now().plus(time)).await;
    }

    /// Ends everything in order, so that nothing is under way any more, and reads what happened.
    pub async fn finish(mut self) -> Result<History> {
        let ended = join_all(self.writers.iter_mut().map(|writer| writer.client.process.terminate())).await;
        ended.into_iter().collect::<Result<Vec<()>>>()?;
        let watcher = self.watcher.take().context("a watcher")?;
        watcher.finish().await.with_context(|| self.logs())?;
        self.gate.process.kill().await?;
        History::read(self.folder.path())
    }

    /// What the servers have printed last, to look for the cause of a failure.
    fn logs(&self) -> String {
        let running = self.servers.iter().filter_map(|server| server.running.as_ref());
        let logs = running.map(|server| {
            let logs = server.logs();
            // Requests that were refused by the hundred would leave no room for the cause.
            let lines: Vec<&str> = logs.lines().filter(|line| !line.contains("http::around")).collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        });
        logs.chain(self.store.logs()).collect::<Vec<_>>().join("\n---\n")
    }
}

impl Replica {
    async fn start(
        address: SocketAddr,
        store: &Store,
        files: Option<ServerFiles>,
        setup: &Setup,
    ) -> Result<Self> {
        let database = try_join_all(store.hosts().into_iter().map(Proxy::start)).await?;
        let hosts: Vec<String> = database.iter().map(|link| link.addr().to_string()).collect();
        let url = format!("postgres://postgres@{}/postgres?target_session_attrs=read-write", hosts.join(","));
        let is_lossless = setup.store.is_lossless() || setup.broken == Some(Broken::Lossless);
        let builder = match store {
            Store::Embedded(disk) => Solehold::builder().data_dir(disk.path().join("data")),
            Store::Postgres { .. } | Store::Patroni(_) => Solehold::builder().engine(&url),
        };
        let builder = builder
            .listen(address)
            .env("SOLEHOLD_FAILOVER", if is_lossless { "lossless" } else { "lossy" })
            .env("SOLEHOLD_TTL_MAX", format!("{}ms", setup.ttl_max().as_millis()))
            .env("SOLEHOLD_LIMITS_REQUESTS_PER_SECOND", "0");
        let builder = match files {
            Some(ServerFiles { certificate, key }) => {
                builder.env("SOLEHOLD_TLS_CERT", certificate).env("SOLEHOLD_TLS_KEY", key)
            }
            None => builder,
        };
        let builder = match &setup.older {
            Some(older) if setup.starts_older => builder.binary(older),
            _ => builder,
        };
        let running = Some(builder.start().await?);
        Ok(Self { address, builder, running, database })
    }

    /// The server that runs.
    pub fn program(&self) -> Result<&Program> {
        self.running.as_deref().context("the server does not run")
    }

    /// How many lines it has printed, since it was started, that have this in them.
    pub fn printed(&self, text: &str) -> usize {
        self.running
            .iter()
            .map(|server| server.logs().lines().filter(|line| line.contains(text)).count())
            .sum()
    }

    /// SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        match self.running.take() {
            Some(server) => server.kill9().await,
            None => Ok(()),
        }
    }

    /// Starts it at its address, unless it runs.
    pub async fn start_again(&mut self) -> Result<()> {
        if self.running.is_none() {
            self.running = Some(self.builder.start().await?);
        }
        Ok(())
    }

    /// SIGTERM, and starts this program at its address.
    pub async fn replace_by(&mut self, program: &Path) -> Result<()> {
        self.builder = self.builder.clone().binary(program);
        self.restart().await
    }

    /// SIGTERM, and starts it again.
    pub async fn restart(&mut self) -> Result<()> {
        if let Some(server) = self.running.take() {
            server.terminate().await?;
        }
        self.start_again().await
    }
}

async fn links(setup: &Setup, addresses: &[SocketAddr]) -> Result<(Vec<Proxy>, String)> {
    let links = try_join_all(addresses.iter().map(|address| Proxy::start(*address))).await?;
    let urls: Vec<String> = links.iter().map(|link| url(setup, link.addr())).collect();
    Ok((links, urls.join(",")))
}

async fn gate(setup: &Setup, folder: &Path, servers: &[SocketAddr], listen: SocketAddr) -> Result<Client> {
    let (links, urls) = links(setup, servers).await?;
    let memory = folder.join("marks");
    let mut arguments: Vec<String> =
        ["sink", "--listen", &listen.to_string(), "--servers", &urls].map(str::to_owned).into();
    arguments.extend(["--memory".to_owned(), memory.display().to_string()]);
    arguments.extend(common(setup, folder));
    Ok(Client { process: Process::new("sink", &setup.program, arguments, sink::READY), servers: links })
}

async fn place(
    setup: &Setup,
    folder: &Path,
    number: usize,
    servers: &[SocketAddr],
    sink: SocketAddr,
) -> Result<WriterPlace> {
    let (links, urls) = links(setup, servers).await?;
    let sink = Proxy::start(sink).await?;
    let resources: Vec<String> = (1..=RESOURCES).map(|number| format!("job-{number}")).collect();
    let name = writer_name(number);
    let sink_url = format!("http://{}", sink.addr());
    let ttl_ms = setup.ttl.as_millis().to_string();
    let mut arguments: Vec<String> =
        ["writer", "--name", &name, "--servers", &urls, "--sink", &sink_url, "--ttl-ms", &ttl_ms]
            .map(str::to_owned)
            .into();
    arguments.extend(["--resources".to_owned(), resources.join(",")]);
    arguments.extend(common(setup, folder));
    let process = Process::new("writer", &setup.program, arguments, writer::READY);
    Ok(WriterPlace { client: Client { process, servers: links }, sink })
}

/// What the sink and the writers are told alike.
fn common(setup: &Setup, folder: &Path) -> Vec<String> {
    let mut arguments = vec!["--history".to_owned(), folder.display().to_string()];
    if setup.has_tls {
        arguments.extend(["--ca-cert".to_owned(), Certificates::trusted_in(folder).display().to_string()]);
    }
    if let Some(broken) = setup.broken {
        arguments.extend(["--break".to_owned(), broken.as_str().to_owned()]);
    }
    arguments
}

/// Where a server is reached.
fn url(setup: &Setup, address: SocketAddr) -> String {
    let scheme = if setup.has_tls { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Whether a write is by the writer of this number.
fn is_by(writer: usize, write: &LastWrite) -> bool {
    write.id.split('/').next() == Some(writer_name(writer).as_str())
}

fn writer_name(number: usize) -> String {
    format!("writer-{number}")
}

fn free_address() -> Result<SocketAddr> {
    Ok(([127, 0, 0, 1], free_port()?).into())
}
