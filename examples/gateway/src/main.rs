//! A chat gateway that runs on many nodes. Sessions and messages are in PostgreSQL; so are the locks, by the engine in
//! this process, and there is nothing else to run.
//!
//! ```text
//!   client ── POST /sessions/{id}/messages ──> any node ── stores the message ── waits in line for the session's lock
//!                                                             └── answers all that waits, in order, under the lock's token
//! ```
//! A node that dies leaves its messages in the database, and another takes them up when the lock has run out. A node
//! that was paused past its ttl finds its lock lost; what it still writes carries an old token, and the session's fence
//! refuses it.

mod gateway;
mod http;
mod legacy;
mod store;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use solehold_client::{Cluster, ClusterConfig, Embedded};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{gateway::Gateway, legacy::LegacyTable, store::Store};

/// A chat gateway that runs on many nodes.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The database of sessions, messages and locks: postgres://USER@HOST/DATABASE.
    #[arg(long, env = "GATEWAY_DATABASE")]
    database: String,
    /// A YAML file with a section `cluster`; without one the gateway runs alone.
    #[arg(long)]
    config: Option<PathBuf>,
    /// How long answering a message takes.
    #[arg(long, default_value = "50ms", value_parser = humantime::parse_duration)]
    work: Duration,
    /// Also lock sessions in the table session_locks, while nodes that use only that table are being replaced.
    #[arg(long)]
    legacy_locks: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let args = Args::parse();
    let config = match &args.config {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            ClusterConfig::from_yaml(&text).with_context(|| path.display().to_string())?
        }
        None => ClusterConfig::default(),
    };
    let authority = Arc::new(Embedded::open(&args.database).await.context("the database of locks")?);
    let cluster = Cluster::start(authority.clone(), config).await?;
    let store = Store::open(&args.database).await?;
    let legacy = if args.legacy_locks { Some(LegacyTable::at(&args.database)?) } else { None };
    let gateway = Gateway::new(store, cluster, legacy, args.work);
    let listener = TcpListener::bind(args.listen).await.with_context(|| args.listen.to_string())?;
    let tasks =
        [tokio::spawn(gateway.clone().answer_abandoned()), tokio::spawn(gateway.clone().publish_metrics())];

    println!("gateway listening on http://{} as {}", listener.local_addr()?, gateway.node_id());
    let served =
        axum::serve(listener, http::router(gateway.clone())).with_graceful_shutdown(ended(gateway.clone()));
    let served = served.await;
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    gateway.close().await;
    authority.stop().await;
    Ok(served?)
}

/// Waits for a signal, or for the loss of the gateway lock: a gateway that must be the only one shuts down when it can
/// no longer be sure that it is.
async fn ended(gateway: Arc<Gateway>) {
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else { return };
    tokio::select! {
        _ = terminate.recv() => tracing::info!("received a signal; shutting down"),
        _ = interrupt.recv() => tracing::info!("received a signal; shutting down"),
        lost = gateway.cluster().lost() => tracing::error!(%lost, "lost the gateway lock: another gateway may be running; shutting down"),
    }
}
