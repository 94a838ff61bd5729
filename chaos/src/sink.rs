//! The sink: an HTTP service behind the product's own gate, and beside it a record of what would have happened without
//! one.
//!
//! ```text
//!   PUT /writes ── arrived: all of them (the unfenced sink) ── GateLayer ── taken: what it lets pass (the fenced sink)
//! ```

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    middleware::{self, Next},
    response::Response,
    routing::{get, put},
};
use clap::Args;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use solehold_client::{
    Http,
    gate::{Gate, GateLayer, GateOptions, RESOURCE, TOKEN},
};
use solehold_clock::BootTime;
use tokio::net::TcpListener;

use crate::{
    broken::Broken,
    history::{Outcome, Recorder, Write},
    servers::ServersOptions,
    writer::KIND,
};

/// What it prints when it listens.
pub const READY: &str = "sink on ";

/// The header that names a write.
const ID: &str = "chaos-write";
/// How old the gate's knowledge may be that admits.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Longer than any fault holds a write back, so that it is late and not lost.
const WRITE_WITHIN: Duration = Duration::from_secs(60);

/// The sink's process.
#[derive(Debug, Args)]
pub struct SinkOptions {
    #[arg(long)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub servers: ServersOptions,
    /// The file in which the gate keeps its marks
    #[arg(long)]
    pub memory: PathBuf,
    /// The folder of the history
    #[arg(long)]
    pub history: PathBuf,
    #[arg(long = "break")]
    pub broken: Option<Broken>,
}

/// The last write that was taken of each resource.
pub type LastWrites = BTreeMap<String, LastWrite>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LastWrite {
    /// Nanoseconds since boot.
    pub at: u64,
    pub token: u64,
    pub id: String,
}

#[derive(Clone)]
struct Sink {
    recorder: Arc<Recorder>,
    last: Arc<Mutex<LastWrites>>,
}

/// Serves until it is ended.
pub async fn run(options: SinkOptions) -> Result<()> {
    let sink = Sink {
        recorder: Arc::new(Recorder::create(&options.history, "sink")?),
        last: Arc::new(Mutex::new(LastWrites::new())),
    };
    let mut writes = Router::new().route("/writes", put(take)).with_state(sink.clone());
    if options.broken != Some(Broken::Gate) {
        writes = writes.layer(gate_layer(KIND, options.servers.connect()?, Some(&options.memory))?);
    }
    let writes = writes.layer(middleware::from_fn_with_state(sink.clone(), arrive));
    let progress = Router::new().route("/last", get(last)).with_state(sink);
    let listener = TcpListener::bind(options.listen).await.context("the sink cannot listen")?;
    println!("{READY}{}", listener.local_addr()?);
    Ok(axum::serve(listener, writes.merge(progress)).await?)
}

/// The product's gate, which learns from these servers.
pub fn gate_layer(kind: &str, authority: Arc<Http>, memory: Option<&Path>) -> Result<GateLayer> {
    let memory = memory.map(Path::to_owned);
    let options = GateOptions { cache_ttl: CACHE_TTL, memory, ..GateOptions::new([kind])? };
    Ok(GateLayer::new(Arc::new(Gate::open(authority, options)?)))
}

/// Everything passes here, before the gate.
async fn arrive(State(sink): State<Sink>, request: Request, next: Next) -> Result<Response, StatusCode> {
    let write = shown(request.headers()).ok_or(StatusCode::BAD_REQUEST)?;
    sink.recorder.arrived(write).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(next.run(request).await)
}

/// What the gate lets pass. It is kept when it is answered: the file outlives the process.
async fn take(State(sink): State<Sink>, headers: HeaderMap) -> Result<(), StatusCode> {
    let write = shown(&headers).ok_or(StatusCode::BAD_REQUEST)?;
    let mut last = sink.last.lock();
    let now = BootTime::now().as_nanos();
    let written = LastWrite { at: now, token: write.token, id: write.id.clone() };
    last.insert(write.resource.clone(), written);
    sink.recorder.taken(write).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn last(State(sink): State<Sink>) -> Json<LastWrites> {
    Json(sink.last.lock().clone())
}

fn shown(headers: &HeaderMap) -> Option<Write> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let (_, resource) = text(RESOURCE.as_str())?.split_once('/')?;
    let token = text(TOKEN.as_str())?.parse().ok()?;
    Some(Write { resource: resource.to_owned(), token, id: text(ID)?.to_owned() })
}

/// Writes to a sink.
#[derive(Debug, Clone)]
pub struct SinkClient {
    client: reqwest::Client,
    url: String,
}

impl SinkClient {
    /// For the sink at `url`, such as `http://127.0.0.1:4000`.
    pub fn new(url: &str) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(WRITE_WITHIN).build()?;
        Ok(Self { client, url: url.to_owned() })
    }

    /// Writes once. What the gate refuses is refused; what has no answer is unknown.
    pub async fn write(&self, write: &Write) -> Outcome {
        let request = self.client.put(format!("{}/writes", self.url));
        let request = request
            .header(RESOURCE, format!("{KIND}/{}", write.resource))
            .header(TOKEN, write.token.to_string())
            .header(ID, &write.id);
        match request.send().await.map(|response| response.status()) {
            Ok(StatusCode::OK) => Outcome::Done,
            // Stale, never given, and not decidable now.
            Ok(StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT | StatusCode::SERVICE_UNAVAILABLE) => {
                Outcome::Refused
            }
            Ok(_) | Err(_) => Outcome::Unknown,
        }
    }

    /// What each resource was last written by, since the sink was started.
    pub async fn last(&self) -> Result<LastWrites> {
        Ok(self.client.get(format!("{}/last", self.url)).send().await?.json().await?)
    }
}
