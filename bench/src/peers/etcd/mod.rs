//! A client of etcd as thin as the others: gRPC over one HTTP/2 connection, which all tasks share.
//!
//! The gateway from JSON to gRPC, which etcd has too, would measure the gateway.

mod wire;

use std::{convert::Infallible, net::SocketAddr, pin::Pin, time::Duration};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, sync::mpsc, task::JoinSet};

use self::wire::Fields;

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// `Compare.CompareTarget.CREATE`
const TARGET_CREATE: u64 = 1;
/// Leases that are granted side by side.
const GRANTS_AT_ONCE: usize = 100;

/// The id of a lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseNumber(u64);

/// A connection; clones share it.
#[derive(Clone)]
pub struct EtcdClient {
    sender: SendRequest<StreamBody<Frames>>,
    address: SocketAddr,
}

impl EtcdClient {
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("connecting to etcd")?;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.context("HTTP/2 with etcd")?;
        // It ends with the last sender; whatever ends it before, the requests say.
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// Grants a lease.
    pub async fn grant(&mut self, ttl: Duration) -> Result<LeaseNumber> {
        let granted =
            self.call("etcdserverpb.Lease/LeaseGrant", Fields::default().number(1, ttl.as_secs())).await?;
        let id = wire::number(&granted, 2)?;
        ensure!(id != 0, "etcd granted no lease");
        Ok(LeaseNumber(id))
    }

    /// Grants many leases.
    pub async fn grant_all(&self, count: usize, ttl: Duration) -> Result<Vec<LeaseNumber>> {
        let mut granting = JoinSet::new();
        for task in 0..GRANTS_AT_ONCE {
            let mut client = self.clone();
            granting.spawn(async move {
                let mut leases = Vec::new();
                for _ in (task..count).step_by(GRANTS_AT_ONCE) {
                    leases.push(client.grant(ttl).await?);
                }
                anyhow::Ok(leases)
            });
        }
        let mut leases = Vec::with_capacity(count);
        while let Some(granted) = granting.join_next().await {
            leases.extend(granted.context("a task ended badly")??);
        }
        Ok(leases)
    }

    /// Waits in line for a lock under a lease; returns the key by which it is held.
    pub async fn lock(&mut self, name: &str, lease: LeaseNumber) -> Result<Bytes> {
        let request = Fields::default().bytes(1, name.as_bytes()).number(2, lease.0);
        let locked = self.call("v3lockpb.Lock/Lock", request).await?;
        wire::bytes(&locked, 2)?.context("etcd named no key for the lock")
    }

    pub async fn unlock(&mut self, key: &[u8]) -> Result<()> {
        self.call("v3lockpb.Lock/Unlock", Fields::default().bytes(1, key)).await.map(|_| ())
    }

    /// Watches a key; returns once the watch is there.
    pub async fn watch(&mut self, key: &str) -> Result<Watch> {
        let create = Fields::default().message(1, Fields::default().bytes(1, key.as_bytes()));
        // The stream stays open on this side.
        let request = stream::once(std::future::ready(Ok(Frame::data(create.framed()))));
        let frames = Box::pin(request.chain(stream::pending()));
        let response = self.send("etcdserverpb.Watch/Watch", frames).await?;
        check(response.headers())?;
        let mut watch = Watch(Messages { body: response.into_body(), received: BytesMut::new() });
        let created = watch.0.next().await?;
        ensure!(wire::number(&created, 3)? == 1, "etcd began no watch");
        Ok(watch)
    }

    /// Puts a key under a lease, unless the key is there.
    pub async fn create(&mut self, key: &str, value: &str, lease: LeaseNumber) -> Result<()> {
        let is_absent = Fields::default().number(2, TARGET_CREATE).bytes(3, key.as_bytes()).number(5, 0);
        let put = Fields::default().bytes(1, key.as_bytes()).bytes(2, value.as_bytes()).number(3, lease.0);
        let put = Fields::default().message(2, put);
        let created =
            self.call("etcdserverpb.KV/Txn", Fields::default().message(1, is_absent).message(2, put)).await?;
        ensure!(wire::number(&created, 2)? == 1, "{key} is held");
        Ok(())
    }

    /// Deletes a key.
    pub async fn delete(&mut self, key: &str) -> Result<()> {
        let deleted =
            self.call("etcdserverpb.KV/DeleteRange", Fields::default().bytes(1, key.as_bytes())).await?;
        ensure!(wire::number(&deleted, 2)? == 1, "{key} was not held");
        Ok(())
    }

    /// Revokes a lease, and with it its keys.
    pub async fn revoke(&mut self, lease: LeaseNumber) -> Result<()> {
        self.call("etcdserverpb.Lease/LeaseRevoke", Fields::default().number(1, lease.0)).await.map(|_| ())
    }

    /// A stream on which many leases are kept alive, as etcd's own client has one.
    pub async fn keep_alive(&mut self, leases: &[LeaseNumber]) -> Result<KeepAlive> {
        let all: BytesMut =
            leases.iter().flat_map(|lease| Fields::default().number(1, lease.0).framed()).collect();
        let all = all.freeze();
        let (sender, receiver) = mpsc::channel(1);
        let frames = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
            Some((Ok(Frame::data(receiver.recv().await?)), receiver))
        });
        // etcd answers only when it has been asked.
        sender.try_send(all.clone()).context("a new stream has room")?;
        let response = self.send("etcdserverpb.Lease/LeaseKeepAlive", Box::pin(frames)).await?;
        check(response.headers())?;
        let answers = Messages { body: response.into_body(), received: BytesMut::new() };
        let mut stream = KeepAlive { sender, all, count: leases.len(), answers };
        stream.read_answers().await?;
        Ok(stream)
    }

    /// One request with one answer.
    async fn call(&mut self, method: &str, request: Fields) -> Result<Bytes> {
        let frame = Frame::data(request.framed());
        let frames = Box::pin(stream::once(std::future::ready(Ok(frame))));
        let response = self.send(method, frames).await?;
        check(response.headers())?;
        let answer = response.into_body().collect().await.with_context(|| format!("etcd's {method}"))?;
        if let Some(trailers) = answer.trailers() {
            check(trailers)?;
        }
        let mut received = BytesMut::from(answer.to_bytes());
        wire::next_message(&mut received)?.with_context(|| format!("etcd's {method} has no answer"))
    }

    async fn send(&mut self, method: &str, frames: Frames) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}/{method}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(frames))?;
        self.sender.ready().await.context("the connection to etcd is closed")?;
        self.sender.send_request(request).await.with_context(|| format!("etcd's {method}"))
    }
}

/// gRPC says in the trailers how a call went, or in the headers if there is nothing else to say.
fn check(headers: &HeaderMap) -> Result<()> {
    let status = headers.get("grpc-status").map_or("0", |status| status.to_str().unwrap_or("?"));
    let message = headers.get("grpc-message").and_then(|message| message.to_str().ok()).unwrap_or_default();
    ensure!(status == "0", "etcd answered with status {status}: {message}");
    Ok(())
}

/// What etcd sends on a stream.
struct Messages {
    body: Incoming,
    received: BytesMut,
}

impl Messages {
    async fn next(&mut self) -> Result<Bytes> {
        loop {
            if let Some(message) = wire::next_message(&mut self.received)? {
                return Ok(message);
            }
            let frame = self.body.frame().await.context("etcd closed the stream")??;
            if let Ok(data) = frame.into_data() {
                self.received.extend_from_slice(&data);
            }
        }
    }
}

/// Leases that are kept alive together.
pub struct KeepAlive {
    sender: mpsc::Sender<Bytes>,
    /// The requests of all of them.
    all: Bytes,
    count: usize,
    answers: Messages,
}

impl KeepAlive {
    /// Renews each lease once: all requests are sent, then all answers are read.
    pub async fn renew_all(&mut self) -> Result<()> {
        self.sender.send(self.all.clone()).await.context("the stream to etcd is closed")?;
        self.read_answers().await
    }

    async fn read_answers(&mut self) -> Result<()> {
        for _ in 0..self.count {
            let answer = self.answers.next().await?;
            ensure!(wire::number(&answer, 3)? > 0, "a lease of etcd has expired");
        }
        Ok(())
    }
}

/// The changes of a key.
pub struct Watch(Messages);

impl Watch {
    /// Waits for changes; returns how many there are.
    pub async fn next(&mut self) -> Result<usize> {
        let changes = self.0.next().await?;
        wire::fields(&changes, 11).try_fold(0, |count, change| change.map(|_| count + 1))
    }
}
