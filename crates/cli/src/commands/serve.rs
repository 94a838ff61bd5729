//! `solehold serve`: a server, until a signal ends it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use solehold_api::problem::ErrorCode;
use solehold_engine::store::{Store, Usage};
use solehold_process::manager::{self, ServiceManager};
use solehold_server::{
    Entrance, Running, Server, StartError,
    relays::{self, RelayConfig},
};

use tokio::sync::watch;

use super::ending_signals;
use crate::{
    config::{self, Address, Layer, LogLayer, OrchestratorLayer, Settings, TlsLayer},
    engine_url::EngineUrl,
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
    human::count,
    output,
    store::{IfMissing, StoreChoice},
};

/// Flags override `SOLEHOLD_*` variables, and those override the file.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on; port 0 picks a free port [env: SOLEHOLD_LISTEN] [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<Address>,
    /// Data folder of the embedded engine [env: SOLEHOLD_DATA_DIR] [default: ./solehold-data]
    #[arg(long, value_name = "DIR", conflicts_with = "engine")]
    data_dir: Option<PathBuf>,
    /// PostgreSQL database to use instead of a folder: postgres://USER@HOST/DATABASE [env: SOLEHOLD_ENGINE]
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Time to wait for PostgreSQL at startup; 0s does not wait [env: SOLEHOLD_STORE_WAIT] [default: 60s]
    #[arg(long, value_name = "TIME")]
    store_wait: Option<config::Span>,
    /// YAML configuration file; flags and variables override it [env: SOLEHOLD_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// PEM file of the TLS certificate and its chain; reloaded when it changes [env: SOLEHOLD_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// PEM file of the private key of the certificate [env: SOLEHOLD_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// PEM file of authorities whose client certificates are accepted instead of keys; see `admin key create
    /// --certificate` [env: SOLEHOLD_TLS_CLIENT_CA]
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Require a key for /metrics, too [env: SOLEHOLD_GUARD_METRICS]
    #[arg(long)]
    guard_metrics: bool,
    /// Name of this node in health, logs and a response header [env: SOLEHOLD_NODE_ID] [default: host and a random
    /// suffix]
    #[arg(long, value_name = "NAME")]
    node_id: Option<config::NodeId>,
    /// Orchestrator whose jobs the dashboard shows, as HOST:PORT or a URL; several of its processes are separated by
    /// commas, and any of them may answer [env: SOLEHOLD_ORCHESTRATOR]
    #[arg(long, value_name = "URL")]
    orchestrator: Option<String>,
    /// File with the key of the orchestrator's HTTP API [env: SOLEHOLD_ORCHESTRATOR_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    orchestrator_key_file: Option<PathBuf>,
    /// PEM file of a certificate to trust for the orchestrator in addition to the system's [env:
    /// SOLEHOLD_ORCHESTRATOR_CA_CERT]
    #[arg(long, value_name = "FILE")]
    orchestrator_ca_cert: Option<PathBuf>,
    /// Only check the configuration; with `=connect`, also check that the store and the relays can be reached, without
    /// changing them
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "config")]
    check: Option<Check>,
}

/// What `--check` checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// The configuration
    Config,
    /// Also that the store and the relays can be reached
    Connect,
}

pub async fn run(args: ServeArgs, global: &GlobalArgs) -> CommandResult {
    let flags = Layer {
        listen: args.listen,
        data_dir: args.data_dir,
        engine: args.engine.as_deref().map(EngineUrl::of_flag).transpose()?,
        node_id: args.node_id,
        store_wait: args.store_wait,
        log: LogLayer { level: global.log_level.clone(), format: global.log_format },
        tls: TlsLayer { cert: args.tls_cert, key: args.tls_key, client_ca: args.tls_client_ca },
        guard_metrics: args.guard_metrics.then_some(true),
        orchestrator: OrchestratorLayer {
            url: args.orchestrator,
            key_file: args.orchestrator_key_file,
            ca_cert: args.orchestrator_ca_cert,
        },
        ..Layer::default()
    };
    let settings = config::load(flags, args.config.as_deref(), &std::env::vars_os().collect())?;
    if let Some(what) = args.check {
        return check(&settings, what).await;
    }
    settings.log.start(&settings.server.node_id).map_err(CommandError::usage)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let traces = global.traces("solehold", &settings.server.node_id)?;
    let mut signals = ending_signals()?;
    let manager = ServiceManager::of_process();
    let started = tokio::select! {
        started = start(settings, &manager) => Some(started?),
        () = signals.next() => None,
    };
    if let Some(running) = started {
        let engine = running.engine().clone();
        tokio::select! {
            () = signals.next() => {}
            never = manager.keep_alive(async || engine.alive().await) => match never {},
        }
        tracing::info!("shutting down; waiting for requests in progress");
        manager.stopping("waiting for requests in progress");
        tokio::select! {
            () = running.shutdown() => {}
            () = signals.next() => return Err(at_once()),
            never = manager.keep_alive(manager::turns) => match never {},
        }
    }
    traces.flush().await;
    output::say("solehold stopped");
    Ok(())
}

async fn check(settings: &Settings, what: Check) -> CommandResult {
    for warning in &settings.warnings {
        output::note(format!("warning: {warning}"));
    }
    let server = &settings.server;
    for file in server.tls.iter().flat_map(|tls| [&tls.cert, &tls.key].into_iter().chain(&tls.client_ca)) {
        let read = std::fs::read(file);
        read.map_err(|error| CommandError::usage(format!("cannot read {}: {error}", file.display())))?;
    }
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    let found = match what {
        Check::Config => "",
        Check::Connect if settings.store.is_there().await? => "; the store exists",
        Check::Connect => "; the store does not exist yet and would be created",
    };
    for relay in &server.relays {
        let found = match what {
            Check::Config => String::new(),
            Check::Connect => {
                let failed = |why: relays::RelayError| {
                    CommandError::new(ErrorCode::Unavailable, unreachable(relay, why.to_string()))
                };
                format!(", {}", relays::check(relay).await.map_err(failed)?)
            }
        };
        output::line(format!("relay {}: {}{found}", relay.name, relay.to))?;
    }
    if let Some(orchestrator) = &server.orchestrator {
        output::line(format!("orchestrator: {}", orchestrator.servers.join(", ")))?;
    }
    output::line(format!(
        "the configuration is good: {scheme}://{} ({}){found}",
        server.listen, settings.store
    ))
}

fn unreachable(relay: &RelayConfig, why: String) -> String {
    format!("relay {}: {} cannot be reached: {why}", relay.name, relay.to)
}

async fn start(settings: Settings, manager: &ServiceManager) -> CommandResult<Running> {
    let Settings { server, store, store_options, store_wait, .. } = settings;
    let (started, found) = match &store {
        StoreChoice::Folder(_) => {
            let opened = store.open(store_options, IfMissing::Create).await?;
            let found = found(&*opened, &opened.usage(None).await?);
            (Server::start(server, opened).await, found)
        }
        // PostgreSQL may start after this server, which responds with 503 until then.
        StoreChoice::Url(_) => {
            let entrance = Entrance::open(&server).await.map_err(|error| refused(error, &store))?;
            let (reason, reasons) = watch::channel("the store is being opened".to_owned());
            let url = entrance.url();
            let waiting = |failure: &CommandError| {
                let error = &failure.message;
                let now = format!("{NOT_THERE}: {error}");
                let before = reason.send_replace(now.clone());
                if before != now {
                    manager.status(&now);
                }
                if !before.starts_with(NOT_THERE) {
                    tracing::warn!(%url, %store, wait = ?store_wait, %error, "store is not available yet; retrying");
                }
            };
            let open = async {
                let (opened, usage) = store.open_within(store_wait, store_options, waiting).await?;
                let found = found(&*opened, &usage);
                CommandResult::Ok((opened, found))
            };
            let (opened, found) = entrance.serve_until("postgres", reasons, open).await?;
            (Server::start_behind(entrance, server, opened).await, found)
        }
    };
    let running = started.map_err(|error| refused(error, &store))?;
    tracing::info!(
        version = env!("BUILT_VERSION"),
        url = running.url(),
        store = store.to_string(),
        found,
        "listening"
    );
    let listening = format!("listening on {} ({store}; {found})", running.url());
    output::say(format!("solehold {listening}"));
    manager.ready(&listening);
    Ok(running)
}

/// How the reason in `/readyz` begins while the store cannot be reached.
const NOT_THERE: &str = "the store is not available yet";

/// A summary of the store, so that an operator notices a wrong data folder or database. Its usage has been read before:
/// a store that was restored begins a new history when it is first read.
fn found(store: &dyn Store, usage: &Usage) -> String {
    let revision = store.cursor().revision.0;
    if revision == 0 {
        return "new store".to_owned();
    }
    let leases = count(usize::try_from(usage.live_leases).unwrap_or(usize::MAX), "lease");
    format!("{leases}, next token above {revision}")
}

fn refused(error: StartError, store: &StoreChoice) -> CommandError {
    let text = error.to_string();
    match error {
        StartError::Bind { error, address } if error.kind() == std::io::ErrorKind::AddrInUse => {
            let message = format!("cannot listen on {address}: the address is already in use");
            CommandError::new(ErrorCode::Unavailable, message)
                .hint("stop the other process, or choose another address with --listen")
        }
        StartError::NoKeys(address) => CommandError::usage(format!(
            "refusing to listen on {address}, which other hosts can reach, while the store has no keys: create the first one \
             with `solehold admin key create {} --name first --role admin`, or start once with SOLEHOLD_BOOTSTRAP_KEY set to a \
             secret of {} characters or more",
            store.arguments(),
            solehold_server::keys::BOOTSTRAP_BYTES_MIN
        )),
        StartError::Bind { .. } | StartError::Tls(_) | StartError::Relay(_) | StartError::Orchestrator(_) => {
            CommandError::usage(text)
        }
        StartError::Keys(failure) => CommandError::from(*failure.0).doing("read the keys"),
    }
}

fn at_once() -> CommandError {
    let failure = CommandError::broken("stopped at once by a second signal; acknowledged changes are kept");
    CommandError { exit: Exit::Interrupted, ..failure }
}
