//! A private Apache Kafka, with a ZooKeeper of its own.

mod topics;
mod wire;
mod zookeeper;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::{port::Port, program::on_path, server::Server, wait_for};
use zookeeper::ZooKeeper;

/// It takes four seconds where nothing else runs.
const START: Duration = Duration::from_secs(180);
const END: Duration = Duration::from_secs(60);
/// The broker that scripts/install-test-deps installs.
const VERSION: &str = "0.9.0.1";
/// Names a broker to use instead, which may be of any make: `host:port`.
const OTHER: &str = "SOLEHOLD_TEST_KAFKA";
/// Small and soon up, rather than fast for long.
const JAVA: [&str; 6] = [
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
];

/// A running Kafka. Starting one takes seconds: a test process should start no more than it must.
#[derive(Debug)]
pub struct Kafka {
    // None: it is somebody else's.
    servers: Option<Servers>,
    address: String,
    topics: AtomicU32,
}

#[derive(Debug)]
struct Servers {
    // First, so that it ends before what it is registered with.
    broker: Server,
    _zookeeper: Server,
    port: Port,
    zookeeper_port: Port,
    install: Install,
}

/// How a [`Kafka`] is to run.
#[derive(Debug)]
pub struct KafkaBuilder {
    port: Port,
    advertised: Option<SocketAddr>,
    settings: Vec<(String, String)>,
}

impl KafkaBuilder {
    /// Where it will listen: the target of a [`Proxy`](crate::Proxy) in front of it.
    pub fn addr(&self) -> SocketAddr {
        loopback(&self.port)
    }

    /// Tells clients to connect there, as to a proxy: a client uses the first address only to ask for this one.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertised = Some(address);
        self
    }

    /// A line of its `server.properties`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it, and waits until it takes clients.
    pub async fn start(self) -> Result<Kafka> {
        let install = Install::find()?;
        let zookeeper_port = Port::reserve()?;
        let zookeeper = install.start_zookeeper(&zookeeper_port).await?;
        let broker = Server::new("kafka", "KILL")?;
        let advertised = self.advertised.unwrap_or_else(|| self.addr());
        let mut properties = properties(&self.port, advertised, &zookeeper_port, broker.folder());
        for (name, value) in &self.settings {
            properties.push_str(&format!("{name}={value}\n"));
        }
        fs::write(broker.folder().join("server.properties"), properties)?;
        let servers = Servers { broker, _zookeeper: zookeeper, port: self.port, zookeeper_port, install };
        servers.spawn_broker().await?;
        Ok(Kafka { servers: Some(servers), address: advertised.to_string(), topics: AtomicU32::new(0) })
    }
}

impl Kafka {
    /// Starts one with the usual settings.
    pub async fn start() -> Result<Self> {
        Self::builder()?.start().await
    }

    /// One with settings of its own, on a port that is known before it starts.
    pub fn builder() -> Result<KafkaBuilder> {
        Ok(KafkaBuilder { port: Port::reserve()?, advertised: None, settings: Vec::new() })
    }

    /// The one broker of this test process, for tests that need no more than topics and groups of their own; the one
    /// that `SOLEHOLD_TEST_KAFKA` names, if it does.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Kafka> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::named_or_own).await
    }

    async fn named_or_own() -> Result<Self> {
        match std::env::var(OTHER) {
            Ok(address) if !address.is_empty() => {
                Ok(Self { servers: None, address, topics: AtomicU32::new(0) })
            }
            _ => Self::start().await,
        }
    }

    /// Where clients connect first, such as `127.0.0.1:21234`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// What a client must be told, if the broker is too old to be asked: its `broker_version`.
    pub fn broker_version(&self) -> Option<&'static str> {
        self.servers.as_ref().map(|_| VERSION)
    }

    /// Makes a topic under a name that nobody else has, which begins with `prefix`, and waits until it can be used.
    pub async fn create_topic(&self, prefix: &str, partitions: i32) -> Result<String> {
        let number = self.topics.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{prefix}-{}-{number}", std::process::id());
        self.create_topic_named(&name, partitions).await?;
        Ok(name)
    }

    /// Makes a topic under this name, and waits until it can be used.
    pub async fn create_topic_named(&self, name: &str, partitions: i32) -> Result<()> {
        let Some(servers) = &self.servers else {
            return topics::create_by_request(&self.address, name, partitions);
        };
        let zookeeper = loopback(&servers.zookeeper_port);
        topics::order_by_zookeeper(zookeeper, name, partitions)?;
        let what = format!("the partitions of {name} to have leaders");
        wait_for(&what, START, async || topics::is_led(zookeeper, name, partitions).unwrap_or(false)).await
    }

    /// Deletes a topic, and waits until it may be made again.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let Some(servers) = &self.servers else { return topics::delete_by_request(&self.address, name) };
        let zookeeper = loopback(&servers.zookeeper_port);
        topics::order_deletion_by_zookeeper(zookeeper, name)?;
        let what = format!("{name} to be deleted");
        wait_for(&what, START, async || topics::is_deleted(zookeeper, name).unwrap_or(false)).await
    }

    /// Stops the broker as an administrator would; its ZooKeeper stays.
    pub async fn stop(&self) -> Result<()> {
        self.own()?.broker.end_by(Signal::TERM, END).await.map(|_| ())
    }

    /// Ends the broker at once (SIGKILL).
    pub async fn kill9(&self) -> Result<()> {
        self.own()?.broker.kill9().await
    }

    /// Starts the broker after [`stop`](Self::stop) or [`kill9`](Self::kill9): the same data on the same port.
    pub async fn start_again(&self) -> Result<()> {
        self.own()?.spawn_broker().await
    }

    /// Stops the broker in its tracks (SIGSTOP).
    pub async fn pause(&self) -> Result<()> {
        self.own()?.broker.pause().await
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        self.own()?.broker.resume()
    }

    fn own(&self) -> Result<&Servers> {
        self.servers
            .as_ref()
            .with_context(|| format!("{} is not ours to stop: {OTHER} names it", self.address))
    }
}

impl Servers {
    async fn spawn_broker(&self) -> Result<()> {
        let zookeeper = loopback(&self.zookeeper_port);
        let is_registered =
            || ZooKeeper::connect(zookeeper).and_then(|mut zookeeper| zookeeper.exists("/brokers/ids/0"));
        // The registration of a broker that was killed outlives it for the time of its session, and a second one is
        // refused.
        wait_for("the former broker to be forgotten", START, async || !is_registered().unwrap_or(true))
            .await?;
        let mut command = self.install.java("kafka.Kafka");
        command.arg(self.broker.folder().join("server.properties"));
        self.broker.spawn(&command, None)?;
        let is_ready = || (listens(&self.port) && is_registered().unwrap_or(false)).then_some(());
        self.broker.wait_ready(START, is_ready).await
    }
}

/// Where Kafka and Java are.
#[derive(Debug)]
struct Install {
    java: PathBuf,
    folder: PathBuf,
}

impl Install {
    fn find() -> Result<Self> {
        let java = on_path("java", &["/usr/bin"]);
        let java = java.context("Java is not here: run scripts/install-test-deps")?;
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || set("HOME").unwrap_or_else(|| PathBuf::from("/tmp"));
        let cache = set("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache"));
        let folder = cache.join("solehold-tests").join(format!("kafka-{VERSION}"));
        let is_complete = folder.join("complete").is_file();
        ensure!(is_complete, "Kafka is not in {}: run scripts/install-test-deps", folder.display());
        Ok(Self { java, folder })
    }

    fn java(&self, class: &str) -> Command {
        let mut command = Command::new(&self.java);
        let logging = self.folder.join("package/src/log4j-stdout.properties");
        command.args(JAVA).arg(format!("-Dlog4j.configuration=file:{}", logging.display()));
        command.arg("-cp").arg(self.folder.join("package/kafka/libs/*")).arg(class);
        command
    }

    async fn start_zookeeper(&self, port: &Port) -> Result<Server> {
        let server = Server::new("zookeeper", "KILL")?;
        let folder = server.folder();
        let lines = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\ntickTime=500\nmaxClientCnxns=0\nforceSync=no\n",
            folder.join("data").display(),
            port.number
        );
        fs::write(folder.join("zoo.cfg"), lines)?;
        let mut command = self.java("org.apache.zookeeper.server.quorum.QuorumPeerMain");
        command.arg(folder.join("zoo.cfg"));
        server.spawn(&command, None)?;
        server.wait_ready(START, || ZooKeeper::connect(loopback(port)).ok().map(drop)).await?;
        Ok(server)
    }
}

fn properties(port: &Port, advertised: SocketAddr, zookeeper: &Port, folder: &Path) -> String {
    format!(
        "broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{}\nadvertised.listeners=PLAINTEXT://{advertised}\n\
         zookeeper.connect=127.0.0.1:{}\nzookeeper.session.timeout.ms=3000\nlog.dirs={}\n\
         auto.create.topics.enable=false\ndelete.topic.enable=true\n\
         offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\nlog.cleaner.enable=false\n\
         group.min.session.timeout.ms=1000\ngroup.max.session.timeout.ms=300000\n\
         num.network.threads=2\nnum.io.threads=4\ncontrolled.shutdown.enable=false\n",
        port.number,
        zookeeper.number,
        folder.join("logs").display()
    )
}

fn loopback(port: &Port) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port.number).into()
}

fn listens(port: &Port) -> bool {
    TcpStream::connect(loopback(port)).is_ok()
}
