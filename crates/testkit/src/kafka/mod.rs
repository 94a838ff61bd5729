//! A private broker of Kafka's protocol: Apache Kafka with a ZooKeeper of its own, or nisshi.

mod apache;
mod nisshi;
mod tls;
mod topics;
mod wire;
mod zookeeper;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::{port::Port, server::Server};
use apache::Apache;
use nisshi::Nisshi;
pub use tls::KafkaTls;

/// Apache Kafka takes four seconds where nothing else runs.
const START: Duration = Duration::from_secs(180);
const END: Duration = Duration::from_secs(60);
/// Names a broker to use instead, which may be of any make: `host:port`.
const OTHER: &str = "SOLEHOLD_TEST_KAFKA";
/// The program of a nisshi to start instead of Apache Kafka.
const NISSHI: &str = "SOLEHOLD_TEST_NISSHI";

/// A running broker. Starting one takes seconds, so a test process should start as few as it can.
#[derive(Debug)]
pub struct Kafka {
    // None: it is somebody else's.
    broker: Option<Broker>,
    address: String,
    topics: AtomicU32,
}

#[derive(Debug)]
enum Broker {
    Apache(Apache),
    Nisshi(Nisshi),
}

impl Broker {
    fn server(&self) -> &Server {
        match self {
            Self::Apache(apache) => &apache.server,
            Self::Nisshi(nisshi) => &nisshi.server,
        }
    }
}

/// How a [`Kafka`] is to run.
#[derive(Debug)]
pub struct KafkaBuilder {
    port: Port,
    advertised: Option<SocketAddr>,
    retention_bytes: Option<u32>,
    tls: Option<KafkaTls>,
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

    /// Keeps about this many bytes of each partition, and deletes older messages. Apache Kafka begins to do so half a
    /// minute after its start, and takes no more than a quarter of this at once.
    pub fn retention_bytes(mut self, bytes: u32) -> Self {
        self.retention_bytes = Some(bytes);
        self
    }

    /// Listens for TLS as well, at [`Kafka::tls_address`]. It is always Apache Kafka then.
    pub fn tls(mut self, tls: KafkaTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Starts it, and waits until it takes clients.
    pub async fn start(self) -> Result<Kafka> {
        let advertised = self.advertised.unwrap_or_else(|| self.addr());
        let tls = self.tls.map(|tls| anyhow::Ok((Port::reserve()?, tls))).transpose()?;
        let broker = match named(NISSHI).filter(|_| tls.is_none()) {
            Some(program) => {
                Broker::Nisshi(Nisshi::start(PathBuf::from(program), self.port, advertised).await?)
            }
            None => Broker::Apache(Apache::start(self.port, advertised, self.retention_bytes, tls).await?),
        };
        Ok(Kafka { broker: Some(broker), address: advertised.to_string(), topics: AtomicU32::new(0) })
    }
}

impl Kafka {
    /// Starts one with the usual settings.
    pub async fn start() -> Result<Self> {
        Self::builder()?.start().await
    }

    /// One on a port that is known before it starts.
    pub fn builder() -> Result<KafkaBuilder> {
        Ok(KafkaBuilder { port: Port::reserve()?, advertised: None, retention_bytes: None, tls: None })
    }

    /// The one broker of this test process, for tests that need no more than topics and groups of their own; the one
    /// that `SOLEHOLD_TEST_KAFKA` names, if it does.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Kafka> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::named_or_own).await
    }

    async fn named_or_own() -> Result<Self> {
        match named(OTHER) {
            Some(address) => Ok(Self::at(address)),
            None => Self::start().await,
        }
    }

    /// A broker that somebody else started.
    pub fn at(address: String) -> Self {
        Self { broker: None, address, topics: AtomicU32::new(0) }
    }

    /// Where clients connect first, such as `127.0.0.1:21234`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where clients connect by TLS, if it was [built](KafkaBuilder::tls) so.
    pub fn tls_address(&self) -> Result<String> {
        match &self.broker {
            Some(Broker::Apache(Apache { tls_port: Some(port), .. })) => Ok(loopback(port).to_string()),
            _ => bail!("this broker has no port for TLS"),
        }
    }

    /// What a client must be told, if the broker is too old to be asked: its `broker_version`.
    pub fn broker_version(&self) -> Option<&'static str> {
        matches!(self.broker, Some(Broker::Apache(_))).then_some(apache::VERSION)
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
        match &self.broker {
            Some(Broker::Apache(apache)) => apache.create_topic(name, partitions).await,
            _ => topics::create_by_request(&self.address, name, partitions),
        }
    }

    /// Deletes a topic, and waits until it may be made again.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        match &self.broker {
            Some(Broker::Apache(apache)) => apache.delete_topic(name).await,
            _ => topics::delete_by_request(&self.address, name),
        }
    }

    /// Stops the broker as an administrator would.
    pub async fn stop(&self) -> Result<()> {
        self.own()?.server().end_by(Signal::TERM, END).await.map(|_| ())
    }

    /// Ends the broker at once (SIGKILL).
    pub async fn kill9(&self) -> Result<()> {
        self.own()?.server().kill9().await
    }

    /// Starts the broker after [`stop`](Self::stop) or [`kill9`](Self::kill9): the same data on the same port.
    pub async fn start_again(&self) -> Result<()> {
        match self.own()? {
            Broker::Apache(apache) => apache.spawn().await,
            Broker::Nisshi(nisshi) => nisshi.spawn().await,
        }
    }

    /// Stops the broker in its tracks (SIGSTOP).
    pub async fn pause(&self) -> Result<()> {
        self.own()?.server().pause().await
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        self.own()?.server().resume()
    }

    fn own(&self) -> Result<&Broker> {
        self.broker
            .as_ref()
            .with_context(|| format!("{} is not ours to stop: {OTHER} names it", self.address))
    }
}

fn named(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

fn loopback(port: &Port) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port.number).into()
}

fn listens(port: &Port) -> bool {
    TcpStream::connect(loopback(port)).is_ok()
}
