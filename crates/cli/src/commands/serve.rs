//! `solehold serve`: a server, until a signal ends it.

use std::path::PathBuf;

use clap::Args;
use solehold_api::problem::ErrorCode;
use solehold_server::{Running, Server, StartError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    config::{self, Address, Layer, LogLayer, Settings, TlsLayer},
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
    output,
    store::{EngineUrl, StoreChoice},
};

/// How to serve. Flags go over `SOLEHOLD_*` variables, and those over the file.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to listen; port 0 takes a free one [env: SOLEHOLD_LISTEN] [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<Address>,
    /// Keep everything in this folder, with the embedded engine [env: SOLEHOLD_DATA_DIR] [default: ./solehold-data]
    #[arg(long, value_name = "DIR", conflicts_with = "engine")]
    data_dir: Option<PathBuf>,
    /// Keep everything in this PostgreSQL: postgres://USER@HOST/DATABASE [env: SOLEHOLD_ENGINE]
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Read the rest from this YAML file [env: SOLEHOLD_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve TLS with this certificate and its chain, PEM; read again when it changes [env: SOLEHOLD_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, PEM [env: SOLEHOLD_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The name of this node in health, logs and a response header [env: SOLEHOLD_NODE_ID] [default: host and a random
    /// suffix]
    #[arg(long, value_name = "NAME")]
    node_id: Option<config::NodeId>,
    /// Only check the configuration
    #[arg(long)]
    check: bool,
}

/// Runs it.
pub async fn run(args: ServeArgs, global: &GlobalArgs) -> CommandResult {
    let flags = Layer {
        listen: args.listen,
        data_dir: args.data_dir,
        engine: args.engine.as_deref().map(EngineUrl::of_flag).transpose()?,
        node_id: args.node_id,
        log: LogLayer { level: global.log_level.clone(), format: global.log_format },
        tls: TlsLayer { cert: args.tls_cert, key: args.tls_key },
        ..Layer::default()
    };
    let settings = config::load(flags, args.config.as_deref(), std::env::vars_os().collect())?;
    if args.check {
        return check(&settings);
    }
    settings.log.start(&settings.server.node_id).map_err(CommandError::usage)?;
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::new()?;
    let started = tokio::select! {
        started = start(settings) => Some(started?),
        () = signals.next() => None,
    };
    if let Some(running) = started {
        signals.next().await;
        tracing::info!("stopping: requests that have begun are finished");
        tokio::select! {
            () = running.shutdown() => {}
            () = signals.next() => return Err(at_once()),
        }
    }
    output::say("solehold stopped");
    Ok(())
}

/// Tells what would be done.
fn check(settings: &Settings) -> CommandResult {
    for warning in &settings.warnings {
        output::note(format!("warning: {warning}"));
    }
    let server = &settings.server;
    for file in server.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]) {
        let read = std::fs::read(file);
        read.map_err(|error| CommandError::usage(format!("cannot read {}: {error}", file.display())))?;
    }
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    output::line(format!("the configuration is good: {scheme}://{} ({})", server.listen, settings.store))
}

async fn start(settings: Settings) -> CommandResult<Running> {
    let Settings { server, store, store_options, .. } = settings;
    let opened = store.open(store_options).await?;
    let running = Server::start(server, opened).await.map_err(|error| refused(error, &store))?;
    tracing::info!(version = env!("SOLEHOLD_VERSION"), url = running.url(), %store, "listening");
    output::say(format!("solehold listening on {} ({store})", running.url()));
    Ok(running)
}

fn refused(error: StartError, store: &StoreChoice) -> CommandError {
    let text = error.to_string();
    match error {
        StartError::Bind { error, address } if error.kind() == std::io::ErrorKind::AddrInUse => {
            let message = format!("cannot listen on {address}: something listens there already");
            CommandError::new(ErrorCode::Unavailable, message)
                .hint("stop it, or choose another address with --listen")
        }
        StartError::NoKeys(address) => CommandError::usage(format!(
            "refusing to listen on {address}, which others can reach, while the store has no keys: make the first one \
             with `solehold admin key create {} --name first`, or start once with SOLEHOLD_BOOTSTRAP_KEY set to a \
             secret of {} characters or more",
            store.arguments(),
            solehold_server::keys::BOOTSTRAP_BYTES_MIN
        )),
        StartError::Bind { .. } | StartError::Tls(_) => CommandError::usage(text),
        StartError::Keys(failure) => CommandError::from(*failure.0).doing("read the keys"),
    }
}

fn at_once() -> CommandError {
    let failure = CommandError::broken("stopped at once by a second signal; what was answered is kept");
    CommandError { exit: Exit::Interrupted, ..failure }
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> CommandResult<Self> {
        let listen = |kind| {
            signal(kind).map_err(|error| CommandError::broken(format!("cannot listen for signals: {error}")))
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
