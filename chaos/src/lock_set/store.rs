//! The store of the set: one value that is read and written as a whole, with or without a gate in front.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use axum::{Json, Router, extract::State, routing::get};
use clap::Args;
use parking_lot::Mutex;
use solehold_client::{
    Http, HttpConfig,
    gate::{RESOURCE, TOKEN},
};
use tokio::net::TcpListener;

use super::lock::{KEY, KIND};
use crate::sink::gate_layer;

/// What it prints when it listens.
pub const READY: &str = "store on ";

const WITHIN: Duration = Duration::from_secs(20);

pub type Elements = BTreeSet<u64>;

/// The store's process.
#[derive(Debug, Args)]
pub struct StoreOptions {
    #[arg(long)]
    listen: SocketAddr,
    /// The servers that a gate in front learns from; without them there is no gate
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
}

type Shared = Arc<Mutex<Elements>>;

/// Serves until it is ended.
pub async fn run(options: StoreOptions) -> Result<()> {
    let mut router = Router::new().route("/set", get(read).put(write)).with_state(Shared::default());
    if !options.servers.is_empty() {
        router =
            router.layer(gate_layer(KIND, Arc::new(Http::new(HttpConfig::new(&options.servers))?), None)?);
    }
    let listener = TcpListener::bind(options.listen).await.context("the store cannot listen")?;
    println!("{READY}{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

async fn read(State(set): State<Shared>) -> Json<Elements> {
    Json(set.lock().clone())
}

async fn write(State(set): State<Shared>, Json(next): Json<Elements>) {
    *set.lock() = next;
}

/// What became of a write.
pub enum Stored {
    Done,
    Refused,
}

pub struct StoreClient {
    client: reqwest::Client,
    url: String,
}

impl StoreClient {
    pub fn new(url: &str) -> Result<Self> {
        let client = reqwest::Client::builder().timeout(WITHIN).build()?;
        Ok(Self { client, url: format!("{url}/set") })
    }

    pub async fn read(&self) -> Result<Elements> {
        Ok(self.client.get(&self.url).send().await?.json().await?)
    }

    pub async fn write(&self, set: &Elements, token: u64) -> Result<Stored> {
        let request = self.client.put(&self.url).json(set);
        let request = request.header(RESOURCE, format!("{KIND}/{KEY}")).header(TOKEN, token.to_string());
        let status = request.send().await?.status();
        match status.as_u16() {
            200 => Ok(Stored::Done),
            409 | 412 | 503 => Ok(Stored::Refused),
            _ => bail!("the store answered with {status}"),
        }
    }
}
