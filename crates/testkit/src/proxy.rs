//! A TCP proxy that hurts connections on command.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::port::Port;

/// Stands between a client and `target`, on a port of its own. Without faults it only forwards.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    target: SocketAddr,
    faults: watch::Sender<Faults>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    cut: bool,
    stalled: bool,
    responses_stalled: bool,
    drop_responses: bool,
    lost: Option<LostAnswer>,
    /// Requests in which this occurs are held back.
    held: Option<&'static str>,
    latency: Duration,
}

/// Which answer is lost: the next one with the second word, after a request with the first.
type LostAnswer = (&'static str, &'static str);

impl Proxy {
    /// Starts to forward to `target`, which need not be there yet.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let faults = watch::Sender::new(Faults { cut: true, ..Faults::default() });
        let proxy = Self { port: Port::reserve()?, target, faults, accepting: Mutex::new(None) };
        proxy.restore().await?;
        Ok(proxy)
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number).into()
    }

    /// Closes all connections and refuses new ones; both are done when this returns.
    pub async fn cut(&self) {
        self.faults.send_modify(|faults| faults.cut = true);
        let accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(accepting) = accepting {
            let _ = accepting.await;
        }
    }

    /// Ends every fault; after a cut, listens again on the same port.
    pub async fn restore(&self) -> Result<()> {
        let was_cut = self.faults.send_replace(Faults::default()).cut;
        if was_cut {
            let listener = TcpListener::bind(self.addr()).await;
            let listener = listener.with_context(|| format!("the proxy cannot listen on {}", self.addr()))?;
            let accepting = tokio::spawn(accept(listener, self.target, self.faults.subscribe()));
            *self.accepting.lock().unwrap_or_else(PoisonError::into_inner) = Some(accepting);
        }
        Ok(())
    }

    /// Keeps accepting connections, but forwards no bytes either way.
    pub fn stall(&self) {
        self.faults.send_modify(|faults| faults.stalled = true);
    }

    /// Forwards requests and holds answers back: the connection is half open. What was asked for happens, and the
    /// client does not learn of it before [`Proxy::unstall`].
    pub fn stall_responses(&self) {
        self.faults.send_modify(|faults| faults.responses_stalled = true);
    }

    /// Moves bytes again, those held back first.
    pub fn unstall(&self) {
        self.faults.send_modify(|faults| {
            faults.stalled = false;
            faults.responses_stalled = false;
        });
    }

    /// Forwards requests, swallows the answer and closes the connection: the effect happened, and nobody
    /// was told. Until [`Proxy::restore`].
    pub fn drop_responses(&self) {
        self.faults.send_modify(|faults| faults.drop_responses = true);
    }

    /// After a request in which `asked` occurs, swallows the next answer on that connection in which `answered` occurs,
    /// and closes it: the server has done what was asked, and nobody was told. Until [`Proxy::restore`].
    pub fn lose_answer(&self, asked: &'static str, answered: &'static str) {
        self.faults.send_modify(|faults| faults.lost = Some((asked, answered)));
    }

    /// Holds back requests in which `word` occurs, and forwards all others. Until [`Proxy::restore`].
    pub fn hold_requests(&self, word: &'static str) {
        self.faults.send_modify(|faults| faults.held = Some(word));
    }

    /// Delays what is forwarded by this long, each way.
    pub fn latency(&self, latency: Duration) {
        self.faults.send_modify(|faults| faults.latency = latency);
    }
}

/// Accepts until the proxy is cut or dropped, then ends every connection.
async fn accept(listener: TcpListener, target: SocketAddr, faults: watch::Receiver<Faults>) {
    let mut connections = JoinSet::new();
    let accept_each = async {
        loop {
            tokio::select! {
                Ok((client, _)) = listener.accept() => {
                    connections.spawn(forward(client, target, faults.clone()));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    };
    let mut ending = faults.clone();
    tokio::select! {
        () = accept_each => {}
        _ = ending.wait_for(|faults| faults.cut) => {}
    }
    drop(listener);
    connections.shutdown().await;
}

async fn forward(client: TcpStream, target: SocketAddr, faults: watch::Receiver<Faults>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let is_asked = AtomicBool::new(false);
    let requests = pump(from_client, to_server, faults.clone(), true, |faults, request| {
        if faults.lost.is_some_and(|(asked, _)| occurs(asked, request)) {
            is_asked.store(true, Ordering::SeqCst);
        }
        false
    });
    let responses = pump(from_server, to_client, faults, false, |faults, answer| {
        let is_lost = |(_, answered): LostAnswer| is_asked.load(Ordering::SeqCst) && occurs(answered, answer);
        faults.drop_responses || faults.lost.is_some_and(is_lost)
    });
    // An error, or a swallowed answer, ends both ways; the end of one way lets the other finish.
    let _ = tokio::try_join!(requests, responses);
}

fn occurs(word: &str, bytes: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word.as_bytes())
}

/// Moves bytes one way, as the faults allow; an error means that the whole connection ends.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut faults: watch::Receiver<Faults>,
    is_request: bool,
    swallows: impl Fn(&Faults, &[u8]) -> bool,
) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        let is_held =
            |faults: &Faults| is_request && faults.held.is_some_and(|word| occurs(word, &buffer[..count]));
        let is_stalled = |faults: &Faults| faults.stalled || (faults.responses_stalled && !is_request);
        let now = *faults.wait_for(|faults| !is_stalled(faults) && !is_held(faults)).await?;
        if count == 0 {
            return Ok(to.shutdown().await?);
        }
        anyhow::ensure!(!swallows(&now, &buffer[..count]), "the answer is swallowed");
        if !now.latency.is_zero() {
            tokio::time::sleep(now.latency).await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}
