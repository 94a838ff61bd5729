//! Connections to RabbitMQ: over TCP, or over TLS by the rustls that the rest of the program uses. lapin's own TLS
//! would bring dozens of crates for certificate formats that are not used here.

use std::{
    fmt,
    io::{self, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use futures_util::{AsyncRead, AsyncWrite, Stream};
use lapin::{
    Connection, ConnectionProperties,
    uri::{AMQPScheme, AMQPUri},
};
use rustls::{ClientConfig, crypto::aws_lc_rs, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use crate::tls::{self, TrustError};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is not one of RabbitMQ.
    #[error("the URL: {0}")]
    Url(String),
    /// The host's name cannot be in a certificate.
    #[error("TLS: {0} is not the name of a host")]
    HostName(String),
    /// The authorities cannot be trusted.
    #[error("TLS: {0}")]
    Trust(#[from] TrustError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The broker, or the network.
    #[error(transparent)]
    Lapin(#[from] lapin::Error),
}

/// Connects to `amqp://` or `amqps://` under a name that the broker shows. Over TLS the authorities in `ca_cert` (PEM)
/// are trusted, or without it those of the system.
pub async fn connect(url: &str, name: &str, ca_cert: Option<&[u8]>) -> Result<Connection, Error> {
    let mut uri: AMQPUri = url.parse().map_err(Error::Url)?;
    let tls = match uri.scheme {
        AMQPScheme::AMQP => None,
        AMQPScheme::AMQPS => Some(tls(&uri.authority.host, ca_cert)?),
    };
    // lapin sees a plain connection: what is under it is ours.
    uri.scheme = AMQPScheme::AMQP;
    let tokio = Tokio::current();
    let transport = Transport { tokio: tokio.clone(), tls };
    let runtime = Runtime::new(RuntimeParts::new(tokio, transport));
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    Ok(Connection::connect_uri_with_runtime(uri, properties, runtime).await?)
}

/// Connects, with TLS if the URL says so.
#[derive(Clone)]
struct Transport {
    tokio: Tokio,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("tls", &self.tls.is_some()).finish()
    }
}

/// A connection, whatever it goes over.
trait Wire: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<W: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Wire for W {}

fn tls(host: &str, ca_cert: Option<&[u8]>) -> Result<(TlsConnector, ServerName<'static>), Error> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::HostName(host.to_owned()))?;
    let roots = ca_cert.map_or_else(|| tls::system_roots([]), tls::bundle)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(config)), name))
}

impl Reactor for Transport {
    type TcpStream = Compat<Box<dyn Wire>>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let tls = self.tls.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            // Small frames are sent at once; a socket that cannot do that still works.
            let _ = stream.set_nodelay(true);
            let wire: Box<dyn Wire> = match tls {
                None => Box::new(stream),
                Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
            };
            Ok(wire.compat())
        }
    }
}
