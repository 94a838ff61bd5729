//! Apache Kafka as scripts/install-test-deps installs it, with a ZooKeeper of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{KafkaTls, START, listens, loopback, tls, topics, zookeeper::ZooKeeper};
use crate::{port::Port, program::on_path, server::Server, wait_for};

/// The one that scripts/kafka-for-tests fetches.
pub(super) const VERSION: &str = "0.9.0.1";
/// Small and soon up, rather than fast for long.
const JAVA: [&str; 6] = [
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
];

#[derive(Debug)]
pub(super) struct Apache {
    // First, so that it ends before what it is registered with.
    pub server: Server,
    _zookeeper: Server,
    port: Port,
    pub tls_port: Option<Port>,
    zookeeper_port: Port,
    install: Install,
}

impl Apache {
    pub async fn start(
        port: Port,
        advertised: SocketAddr,
        retention_bytes: Option<u32>,
        tls: Option<(Port, KafkaTls)>,
    ) -> Result<Self> {
        let install = Install::find()?;
        let zookeeper_port = Port::reserve()?;
        let zookeeper = install.start_zookeeper(&zookeeper_port).await?;
        let server = Server::new("kafka", "KILL")?;
        let mut listeners = format!("PLAINTEXT://{}", loopback(&port));
        let mut advertised = format!("PLAINTEXT://{advertised}");
        let mut keys = String::new();
        if let Some((port, tls)) = &tls {
            let address = format!(",SSL://{}", loopback(port));
            listeners += &address;
            advertised += &address;
            keys = tls::properties(server.folder(), tls)?;
        }
        let mut properties = properties(&listeners, &advertised, &zookeeper_port, server.folder()) + &keys;
        if let Some(bytes) = retention_bytes {
            properties += &format!(
                "log.retention.bytes={bytes}\nlog.segment.bytes={}\nlog.retention.check.interval.ms=200\n\
                 log.segment.delete.delay.ms=100\n",
                (bytes / 4).max(100)
            );
        }
        fs::write(server.folder().join("server.properties"), properties)?;
        let tls_port = tls.map(|(port, _)| port);
        let apache = Self { server, _zookeeper: zookeeper, port, tls_port, zookeeper_port, install };
        apache.spawn().await?;
        Ok(apache)
    }

    pub async fn create_topic(&self, name: &str, partitions: i32) -> Result<()> {
        let zookeeper = loopback(&self.zookeeper_port);
        topics::order_by_zookeeper(zookeeper, name, partitions)?;
        let what = format!("the partitions of {name} to have leaders");
        wait_for(&what, START, async || topics::is_led(zookeeper, name, partitions).unwrap_or(false)).await
    }

    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        let zookeeper = loopback(&self.zookeeper_port);
        topics::order_deletion_by_zookeeper(zookeeper, name)?;
        let what = format!("{name} to be deleted");
        wait_for(&what, START, async || topics::is_deleted(zookeeper, name).unwrap_or(false)).await
    }

    pub async fn spawn(&self) -> Result<()> {
        let zookeeper = loopback(&self.zookeeper_port);
        let is_registered =
            || ZooKeeper::connect(zookeeper).and_then(|mut zookeeper| zookeeper.exists("/brokers/ids/0"));
        // The registration of a broker that was killed outlives it for the time of its session, and a second one is
        // refused.
        wait_for("the former broker to be forgotten", START, async || !is_registered().unwrap_or(true))
            .await?;
        let mut command = self.install.java("kafka.Kafka");
        command.arg(self.server.folder().join("server.properties"));
        self.server.spawn(&command, None)?;
        let is_ready = || (listens(&self.port) && is_registered().unwrap_or(false)).then_some(());
        self.server.wait_ready(START, is_ready).await
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

fn properties(listeners: &str, advertised: &str, zookeeper: &Port, folder: &Path) -> String {
    format!(
        "broker.id=0\nlisteners={listeners}\nadvertised.listeners={advertised}\n\
         zookeeper.connect=127.0.0.1:{}\nzookeeper.session.timeout.ms=3000\nlog.dirs={}\n\
         auto.create.topics.enable=false\ndelete.topic.enable=true\n\
         offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\nlog.cleaner.enable=false\n\
         group.min.session.timeout.ms=1000\ngroup.max.session.timeout.ms=300000\n\
         num.network.threads=2\nnum.io.threads=4\ncontrolled.shutdown.enable=false\n",
        zookeeper.number,
        folder.join("logs").display()
    )
}
