//! An HTTP proxy that hurts requests one by one.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::port::Port;

/// Most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long a server may take over a request whose client has hung up.
const UNATTENDED: Duration = Duration::from_secs(60);

/// What happens to a request on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// How late it reaches the server, which it does although its client has hung up meanwhile.
    pub delay: Duration,
    /// Whether its response is swallowed and the connection closed.
    pub is_answer_lost: bool,
}

/// Stands between clients and an HTTP/1.1 server, and gives each request a fate of its own: one can overtake another
/// that was sent before it, as on a network with several ways.
#[derive(Debug)]
pub struct RequestProxy {
    port: Port,
    accepting: JoinHandle<()>,
}

type Fates = dyn Fn(&str) -> Fate + Send + Sync;

impl RequestProxy {
    /// Starts to forward to `target`, which need not be there yet; `fate` is asked with the first line of each request,
    /// such as `POST /api/v1/sessions HTTP/1.1`.
    pub async fn start(
        target: SocketAddr,
        fate: impl Fn(&str) -> Fate + Send + Sync + 'static,
    ) -> Result<Self> {
        let port = Port::reserve()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number)).await?;
        let accepting = tokio::spawn(accept(listener, target, Arc::new(fate)));
        Ok(Self { port, accepting })
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number)
    }
}

impl Drop for RequestProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, fate: Arc<Fates>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                connections.spawn(forward(client, target, fate.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards the requests of one client, each over a connection of its own. An error ends the client's connection.
async fn forward(client: TcpStream, target: SocketAddr, fate: Arc<Fates>) -> Result<()> {
    client.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let mut from_client = BufReader::new(from_client);
    loop {
        let (first_line, request) = read_request(&mut from_client).await?;
        let fate = fate(&first_line);
        if !fate.delay.is_zero() {
            sleep(fate.delay).await;
        }
        let server = TcpStream::connect(target).await?;
        server.set_nodelay(true)?;
        let (mut from_server, mut to_server) = server.into_split();
        to_server.write_all(&request).await?;
        let mut has_answered = false;
        let no_client = async {
            // Either the next request, which comes after the whole response, or the end of the connection.
            Ok::<_, anyhow::Error>(from_client.fill_buf().await?.is_empty())
        };
        let is_over = tokio::select! {
            ended = respond(&mut from_server, &mut to_client, fate.is_answer_lost, &mut has_answered) => {
                return ended;
            }
            is_over = no_client => is_over.unwrap_or(true),
        };
        if is_over {
            // A server may drop a request whose connection is closed, and this one is to be delivered.
            if !has_answered {
                let _ = timeout(UNATTENDED, from_server.read(&mut [0; 1])).await;
            }
            return Ok(());
        }
    }
}

/// The first line of the next request, and all of its bytes.
async fn read_request(client: &mut BufReader<OwnedReadHalf>) -> Result<(String, Vec<u8>)> {
    let mut head = String::new();
    let mut length = 0;
    loop {
        let start = head.len();
        let mut line = client.take(REQUEST_BYTES_MAX);
        ensure!(line.read_line(&mut head).await? > 0, "the client has hung up");
        ensure!(head.len() as u64 <= REQUEST_BYTES_MAX, "the head is too large");
        let line = head[start..].to_ascii_lowercase();
        ensure!(!line.starts_with("transfer-encoding:"), "bodies in chunks are not forwarded");
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().context("a length")?;
        }
        if line == "\r\n" {
            break;
        }
    }
    ensure!(length <= REQUEST_BYTES_MAX, "the body is too large");
    let first_line = head.lines().next().unwrap_or_default().to_owned();
    let mut request = head.into_bytes();
    let mut body = client.take(length);
    body.read_to_end(&mut request).await?;
    ensure!(body.limit() == 0, "the client has hung up within a body");
    Ok((first_line, request))
}

/// Forwards a response until the server closes the connection.
async fn respond(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    is_lost: bool,
    has_answered: &mut bool,
) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        *has_answered |= count > 0;
        ensure!(count > 0 && !is_lost, "the connection ends");
        to.write_all(&buffer[..count]).await?;
    }
}
