//! `reconciler --role api|reconciler|all`: see the crate's front page.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use axum::Router;
use clap::{Parser, ValueEnum};
use deadpool_postgres::Pool;
use payments::{
    api::{self, Api},
    chain::Chain,
    observer::PaymentObserver,
    settings::Settings,
    store,
};
use prometheus_client::registry::Registry;
use solehold_sql::{
    Claims, Reconciler,
    reconciler::{Notifier, ReconcilerMetrics, Wake},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_postgres::NoTls;

/// At most one NOTIFY in this time, however many requests are made.
const NOTIFY_EVERY: Duration = Duration::from_millis(100);

/// Payment requests, and their reconciliation with a simulated chain.
///
/// The reconciler is configured by PAYMENT_REQUEST_RECONCILER_ENABLED (false), _POLL_INTERVAL_SECONDS (15), _BATCH_SIZE
/// (100), _LEASE_SECONDS (30), _ATTEMPTS_MAX (20), _BURIALS_PER_HOUR (100), _UNREACHABLE_BACKOFF_MAX_SECONDS (30) and
/// _WORKER_ID (host and pid).
#[derive(Debug, Parser)]
#[command(name = "reconciler")]
struct Args {
    /// What this process does: the API, the reconciler, or both (the reconciler only if it is enabled).
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// The database.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Where to listen; a reconciler alone listens only if this is given, for /healthz and /metrics.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Wake reconcilers by NOTIFY when there are new requests (not through PgBouncer).
    #[arg(long)]
    wake: bool,
    /// The simulated chain's time between blocks, in milliseconds.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    chain_block_ms: u64,
    /// How many of 100 questions the simulated node gets wrong.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    chain_faults_percent: u32,
    /// How long the simulated node takes at most, in milliseconds.
    #[arg(long, default_value_t = 20)]
    chain_latency_ms: u64,
    /// The simulated node is away while this file exists.
    #[arg(long, value_name = "FILE")]
    chain_away_file: Option<PathBuf>,
    /// Only print the DDL.
    #[arg(long)]
    print_migrations: bool,
}

impl Args {
    fn chain(&self) -> Chain {
        Chain {
            block: Duration::from_millis(self.chain_block_ms),
            faults_percent: self.chain_faults_percent,
            latency: Duration::from_millis(self.chain_latency_ms),
            away_file: self.chain_away_file.clone(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    Api,
    Reconciler,
    All,
}

#[tokio::main]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reconciler: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let args = Args::parse();
    if args.print_migrations {
        print!("{}", store::print_migrations()?);
        return Ok(());
    }
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    if args.role == Role::Reconciler && !settings.enabled {
        bail!("PAYMENT_REQUEST_RECONCILER_ENABLED is false: set it to true to run a reconciler");
    }
    run(&args, settings).await
}

async fn run(args: &Args, settings: Settings) -> Result<()> {
    let url = args.database_url.as_deref().context("name the database by --database-url or DATABASE_URL")?;
    store::migrate(url).await?;
    let pool = store::pool(url)?;
    let metrics = ReconcilerMetrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let registry = Arc::new(registry);
    let stopped = stop_on_signals()?;
    let reconciles = args.role == Role::Reconciler || (args.role == Role::All && settings.enabled);
    let reconciler = async {
        if !reconciles {
            return Ok(());
        }
        reconcile(args, settings, pool.clone(), url, &metrics, stopped.clone()).await
    };
    tokio::try_join!(serve(args, pool.clone(), registry, stopped.clone()), reconciler)?;
    Ok(())
}

async fn serve(
    args: &Args,
    pool: Pool,
    registry: Arc<Registry>,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    let router: Router = match args.role {
        Role::Reconciler => api::operations(registry),
        _ => {
            let notifier =
                args.wake.then(|| Notifier::start(pool.clone(), store::CHANNEL, NOTIFY_EVERY)).transpose()?;
            api::router(Api { pool, notifier, chain: args.chain() }, registry)?
        }
    };
    let address = match (args.listen, args.role) {
        (Some(address), _) => address,
        (None, Role::Reconciler) => return Ok(()),
        (None, _) => SocketAddr::from(([127, 0, 0, 1], 8080)),
    };
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    println!("payments listening on http://{}", listener.local_addr()?);
    axum::serve(listener, router).with_graceful_shutdown(until(stopped)).await.context("the server failed")
}

async fn reconcile(
    args: &Args,
    settings: Settings,
    pool: Pool,
    url: &str,
    metrics: &ReconcilerMetrics,
    stopped: watch::Receiver<bool>,
) -> Result<()> {
    let worker = settings.reconciler.worker.clone();
    let claims = Arc::new(Claims::new(store::table()?));
    let mut reconciler =
        Reconciler::new(pool, claims, PaymentObserver { chain: args.chain() }, settings.reconciler)?
            .metrics(metrics);
    if args.wake {
        let wake = Wake::default();
        wake.listen(url.parse()?, NoTls, store::CHANNEL)?;
        reconciler = reconciler.wake(&wake);
    }
    println!("reconciler running as {worker}");
    reconciler.run(until(stopped)).await;
    Ok(())
}

/// Becomes true at SIGTERM or SIGINT.
fn stop_on_signals() -> Result<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        stop.send_replace(true);
    });
    Ok(stopped)
}

async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
