//! Each fault of the proxy, in front of a server that answers each line with its number.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use solehold_testkit::{Proxy, wait_for};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(100);

/// A server that counts the lines it got, and its count.
async fn counter() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let count = Arc::new(AtomicUsize::new(0));
    let lines = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(answer(client, lines.clone()));
        }
    });
    Ok((address, count))
}

async fn answer(client: TcpStream, count: Arc<AtomicUsize>) -> Result<()> {
    let mut client = BufReader::new(client);
    while client.read_line(&mut String::new()).await? > 0 {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        client.write_all(format!("{number}\n").as_bytes()).await?;
    }
    Ok(())
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(proxy: &Proxy) -> Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(proxy.addr()).await?)))
    }

    async fn send(&mut self) -> Result<()> {
        Ok(self.0.write_all(b"hello\n").await?)
    }

    async fn receive(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line).await? > 0, "closed");
        Ok(line.trim().to_owned())
    }

    async fn ask(&mut self) -> Result<String> {
        self.send().await?;
        tokio::time::timeout(SOON, self.receive()).await?
    }
}

#[tokio::test]
async fn forwards_when_nothing_is_wrong() -> Result<()> {
    let (target, _) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut client = Client::connect(&proxy).await?;
    assert_eq!(client.ask().await?, "1");
    assert_eq!(Client::connect(&proxy).await?.ask().await?, "2");
    assert_eq!(client.ask().await?, "3");
    Ok(())
}

#[tokio::test]
async fn cuts_and_restores() -> Result<()> {
    let (target, _) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut client = Client::connect(&proxy).await?;
    assert_eq!(client.ask().await?, "1");
    proxy.cut().await;
    assert!(client.ask().await.is_err());
    assert!(Client::connect(&proxy).await.is_err());
    proxy.cut().await;
    proxy.restore().await?;
    assert_eq!(Client::connect(&proxy).await?.ask().await?, "2");
    Ok(())
}

#[tokio::test]
async fn stalls_and_goes_on() -> Result<()> {
    let (target, count) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut old = Client::connect(&proxy).await?;
    assert_eq!(old.ask().await?, "1");
    proxy.stall();
    let mut new = Client::connect(&proxy).await?;
    new.send().await?;
    assert!(tokio::time::timeout(MOMENT, new.receive()).await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), 1);
    proxy.unstall();
    assert_eq!(new.receive().await?, "2");
    assert_eq!(old.ask().await?, "3");
    Ok(())
}

#[tokio::test]
async fn a_half_open_connection_delivers_requests_and_no_answers() -> Result<()> {
    let (target, count) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut client = Client::connect(&proxy).await?;
    proxy.stall_responses();
    client.send().await?;
    wait_for("the request to arrive", SOON, async || count.load(Ordering::SeqCst) == 1).await?;
    assert!(tokio::time::timeout(MOMENT, client.receive()).await.is_err());
    proxy.unstall();
    assert_eq!(client.receive().await?, "1");
    Ok(())
}

#[tokio::test]
async fn loses_the_answer_after_the_effect() -> Result<()> {
    let (target, count) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut client = Client::connect(&proxy).await?;
    proxy.drop_responses();
    assert!(client.ask().await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), 1);
    proxy.restore().await?;
    assert_eq!(Client::connect(&proxy).await?.ask().await?, "2");
    Ok(())
}

#[tokio::test]
async fn loses_one_answer_on_command() -> Result<()> {
    let (target, count) = counter().await?;
    let proxy = Proxy::start(target).await?;
    let mut client = Client::connect(&proxy).await?;
    proxy.lose_answer("nobody asks this", "1");
    assert_eq!(client.ask().await?, "1");
    proxy.lose_answer("\n", "2");
    assert!(client.ask().await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), 2);
    assert_eq!(Client::connect(&proxy).await?.ask().await?, "3");
    Ok(())
}

#[tokio::test]
async fn is_slow_on_command() -> Result<()> {
    let (target, _) = counter().await?;
    let proxy = Proxy::start(target).await?;
    proxy.latency(MOMENT);
    let before = std::time::Instant::now();
    Client::connect(&proxy).await?.ask().await?;
    assert!(before.elapsed() >= 2 * MOMENT);
    Ok(())
}

#[tokio::test]
async fn closes_the_client_when_the_target_is_away() -> Result<()> {
    let gone = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let proxy = Proxy::start(gone).await?;
    assert!(Client::connect(&proxy).await?.ask().await.is_err());
    let address = proxy.addr();
    drop(proxy);
    wait_for("the port to be closed", SOON, async || TcpStream::connect(address).await.is_err()).await
}
