//! How lapin reaches RabbitMQ: over TCP, or over TLS by the rustls that the rest of the program uses. lapin's own TLS
//! would bring dozens of crates for files that nobody has here.

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
use lapin::uri::{AMQPScheme, AMQPUri};
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// What lapin runs on.
pub type AmqpRuntime = Runtime<RuntimeParts<Tokio, Transport>>;

/// Connects, with TLS if the URL says so.
#[derive(Clone)]
pub struct Transport {
    tokio: Tokio,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").field("tls", &self.tls.is_some()).finish()
    }
}

/// A connection, whatever it goes over.
pub trait Wire: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<W: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Wire for W {}

/// Where to connect, and what to connect with.
pub fn prepare(url: &str) -> Result<(AMQPUri, AmqpRuntime), String> {
    let mut uri: AMQPUri = url.parse()?;
    let tls = match uri.scheme {
        AMQPScheme::AMQP => None,
        AMQPScheme::AMQPS => Some(tls(&uri.authority.host)?),
    };
    // lapin sees a plain connection: what is under it is ours.
    uri.scheme = AMQPScheme::AMQP;
    let tokio = Tokio::current();
    let transport = Transport { tokio: tokio.clone(), tls };
    Ok((uri, Runtime::new(RuntimeParts::new(tokio, transport))))
}

/// TLS to a host, trusting the authorities of the system.
fn tls(host: &str) -> Result<(TlsConnector, ServerName<'static>), String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
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
