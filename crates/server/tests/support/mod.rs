//! A server in this process, over memory, and someone who asks it.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod flaky;
pub mod orchestrator;
pub mod world;

use std::{sync::Arc, time::Duration};

use reqwest::{
    Client, Method, RequestBuilder, StatusCode,
    header::{HeaderMap, HeaderName},
};
use serde_json::Value;
use solehold_core::key::Name;
use solehold_engine::{clock::BootClock, resident, store::Store};
use solehold_server::{Role, Running, Server, ServerConfig, keys};
use solehold_testkit::wait_for;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn memory() -> Arc<dyn Store> {
    resident::memory(BootClock).expect("memory")
}

pub fn config() -> ServerConfig {
    let listen = "127.0.0.1:0".parse().expect("an address");
    ServerConfig { listen, node_id: "node-under-test".to_owned(), ..ServerConfig::default() }
}

/// A running server, and a client that shows a key if it was given one.
pub struct Asking {
    pub running: Arc<Running>,
    pub http: Client,
    pub key: Option<String>,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let headers = response.headers().clone();
        Self { status, headers, text: response.text().await.expect("a body") }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// Sees to it that this is a problem document of that code, and gives it.
    #[track_caller]
    pub fn problem(&self, code: &str) -> Value {
        let problem = self.json();
        assert_eq!(problem["code"], code, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert_eq!(problem["status"], self.status.as_u16());
        assert_eq!(problem["type"], format!("urn:solehold:problem:{code}"));
        assert_eq!(problem["request_id"], self.header("x-request-id"));
        assert!(problem["instance"].as_str().is_some_and(|path| path.starts_with('/')), "{problem}");
        assert!(!problem["detail"].as_str().unwrap_or_default().is_empty());
        problem
    }
}

/// A request of which only a part was sent.
pub struct HalfSent(BufReader<TcpStream>);

impl HalfSent {
    /// What is answered nevertheless.
    pub async fn answer(&mut self) -> Answer {
        let read = async {
            let first = self.line().await;
            let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
            let mut headers = HeaderMap::new();
            loop {
                let line = self.line().await;
                let Some((name, value)) = line.split_once(": ") else { break };
                let name: HeaderName = name.parse().expect("a header");
                headers.insert(name, value.parse().expect("a value"));
            }
            let length = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
            let mut text = vec![0; length.unwrap_or(0)];
            self.0.read_exact(&mut text).await.expect("a body");
            let status = status.unwrap_or_else(|| panic!("no status: {first:?}"));
            Answer { status, headers, text: String::from_utf8(text).expect("text") }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("an answer")
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.expect("a line");
        line.trim_end().to_owned()
    }
}

pub async fn serve() -> Asking {
    serve_with(config(), memory()).await
}

pub async fn serve_with(config: ServerConfig, store: Arc<dyn Store>) -> Asking {
    let running = Server::start(config, store).await.expect("a server");
    Asking { running: Arc::new(running), http: Client::new(), key: None }
}

impl Asking {
    /// The same, showing that key.
    pub fn with_key(&self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self.again() }
    }

    /// The same, showing no key.
    pub fn with_no_key(&self) -> Self {
        Self { key: None, ..self.again() }
    }

    /// The same once more.
    pub fn again(&self) -> Self {
        Self { running: self.running.clone(), http: self.http.clone(), key: self.key.clone() }
    }

    /// Makes a key straight in the store, and waits until the server has seen that there are keys.
    pub async fn make_key(&self, role: Role, tenant: Option<&str>) -> (keys::Key, String) {
        use secrecy::ExposeSecret;
        let new = keys::NewKey { tenant: tenant.map(name), ..keys::NewKey::new(name("test"), role) };
        let issued = keys::create(self.running.engine(), new).await.expect("a key");
        let stranger = || self.http.get(format!("{}/api/v1", self.running.url())).send();
        let is_closed =
            async || stranger().await.is_ok_and(|answer| matches!(answer.status().as_u16(), 401 | 429));
        wait_for("keys to be required", PATIENCE, is_closed).await.expect("401");
        (issued.key, issued.text.expose_secret().to_owned())
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.running.url()));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path)).await
    }

    pub async fn send(&self, method: Method, path: &str, body: &str) -> Answer {
        Answer::of(self.request(method, path).body(body.to_owned())).await
    }

    /// Sends the head of a request and the beginning of its body, and no more.
    pub async fn half_sent(&self, method: &Method, path: &str, headers: &[&str], body: &str) -> HalfSent {
        let mut stream = TcpStream::connect(self.running.local_addr()).await.expect("a connection");
        let key = self.key.as_ref().map(|key| format!("Authorization: Bearer {key}"));
        let headers =
            headers.iter().map(|header| (*header).to_owned()).chain(key).collect::<Vec<_>>().join("\r\n");
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await.expect("a request");
        HalfSent(BufReader::new(stream))
    }

    pub async fn shutdown(self) {
        Arc::into_inner(self.running).expect("the last one").shutdown().await;
    }
}
