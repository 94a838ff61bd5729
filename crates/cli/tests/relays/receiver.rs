//! A receiver of webhooks that does what a test tells it, over bare sockets: it also hangs, and hangs up.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::hmac;
use serde_json::Value;
use solehold_testkit::free_port;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::world::{Inbox, SECRET};

/// What to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Status(u16),
    /// Never, with the connection open.
    Hang,
    /// Never, and the connection is closed.
    HangUp,
}

type Rule = Box<dyn Fn(usize, &Value) -> Reply + Send + Sync>;

/// A receiver. What it answered with 2xx is in its inbox, and so is what it did not answer: it has seen both.
pub struct Receiver {
    address: SocketAddr,
    state: Arc<State>,
    /// Its listener and connections; none while it is down.
    running: Mutex<Option<JoinSet<()>>>,
}

struct State {
    inbox: Inbox,
    rule: Mutex<Rule>,
    requests: Mutex<Vec<(Value, Reply)>>,
    faults: Mutex<Vec<String>>,
}

impl Receiver {
    /// One that is down; its port is its own.
    pub fn down() -> Result<Self> {
        let address = (Ipv4Addr::LOCALHOST, free_port()?).into();
        let rule: Rule = Box::new(|_, _| Reply::Status(200));
        let state = State {
            inbox: Inbox::default(),
            rule: Mutex::new(rule),
            requests: Mutex::default(),
            faults: Mutex::default(),
        };
        Ok(Self { address, state: Arc::new(state), running: Mutex::default() })
    }

    /// One that answers everything with 200.
    pub async fn up() -> Result<Self> {
        let receiver = Self::down()?;
        receiver.start().await?;
        Ok(receiver)
    }

    pub async fn start(&self) -> Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        let mut running = JoinSet::new();
        running.spawn(listen(listener, self.state.clone()));
        *lock(&self.running) = Some(running);
        Ok(())
    }

    /// Closes the listener and every connection.
    pub fn stop(&self) {
        lock(&self.running).take();
    }

    /// From now on it answers so, by the number of the request and its body.
    pub fn answers(&self, rule: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static) {
        *lock(&self.state.rule) = Box::new(rule);
    }

    pub fn url(&self) -> String {
        format!("http://{}/events?key=hunter2", self.address)
    }

    pub fn inbox(&self) -> &Inbox {
        &self.state.inbox
    }

    /// Every request, and what it was answered.
    pub fn requests(&self) -> Vec<(Value, Reply)> {
        lock(&self.state.requests).clone()
    }

    /// Fails if a request was not signed as it should be.
    pub fn check_signatures(&self) -> Result<()> {
        let faults = lock(&self.state.faults);
        ensure!(faults.is_empty(), "{faults:?}");
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        connections.spawn(async move {
            // A connection that breaks is what some tests are about.
            let _ = converse(stream, &state).await;
        });
    }
}

async fn converse(stream: TcpStream, state: &State) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some((signature, id, body)) = read(&mut stream).await? else { return Ok(()) };
        let told: Value = serde_json::from_slice(&body)?;
        if let Err(fault) = verify(&signature, &body) {
            lock(&state.faults).push(format!("{fault:#}: {signature}"));
        }
        if told["event_id"].as_str() != Some(&id) {
            lock(&state.faults).push(format!("the header has another id than {told}"));
        }
        let reply = {
            let mut requests = lock(&state.requests);
            let reply = lock(&state.rule)(requests.len(), &told);
            requests.push((told.clone(), reply));
            reply
        };
        match reply {
            Reply::Status(status) => {
                if (200..300).contains(&status) {
                    state.inbox.put(told);
                }
                let answer = format!("HTTP/1.1 {status} Told\r\ncontent-length: 0\r\n\r\n");
                stream.get_mut().write_all(answer.as_bytes()).await?;
            }
            Reply::Hang => {
                state.inbox.put(told);
                std::future::pending::<()>().await;
            }
            Reply::HangUp => {
                state.inbox.put(told);
                return Ok(());
            }
        }
    }
}

/// One request: its signature, the id in its header, and its body.
async fn read(stream: &mut BufReader<TcpStream>) -> Result<Option<(String, String, Vec<u8>)>> {
    let mut signature = String::new();
    let mut id = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        match name.to_ascii_lowercase().as_str() {
            "solehold-signature" => signature = value.to_owned(),
            "solehold-event-id" => id = value.to_owned(),
            "content-length" => length = value.parse()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((signature, id, body)))
}

/// As the guide tells receivers to do it.
fn verify(signature: &str, body: &[u8]) -> Result<()> {
    let (time, digest) = signature.split_once(",v1=").context("no v1")?;
    let time = time.strip_prefix("t=").context("no t")?;
    let _: u64 = time.parse()?;
    let signed = [time.as_bytes(), b".", body].concat();
    let digest: Result<Vec<u8>, _> =
        (0..digest.len()).step_by(2).map(|at| u8::from_str_radix(&digest[at..at + 2], 16)).collect();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::verify(&key, &signed, &digest?).ok().context("the signature does not match")
}
