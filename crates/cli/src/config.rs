//! How `serve` is configured: flags over `SOLEHOLD_*` variables over one YAML file.
//!
//! Each source is a [`Layer`], in which everything may be missing; each overrides the next, and what no layer says
//! is the server's default. Data folder and engine are one choice: a layer that sets either of them overrides both.
//!
//! By hand rather than by a configuration crate: those merge untyped trees, and then know neither the line of a wrong
//! value nor the variable that it came from, and they ignore unknown keys.

mod layer;
mod relays;
mod variables;

use std::{path::Path, time::Duration};

use secrecy::SecretString;
use solehold_engine::history::TTL_MAX_MS;
use solehold_server::{ServerConfig, TlsFiles};

pub use layer::{Address, Failover, Layer, LogLayer, NodeId, OrchestratorLayer, Span, TlsLayer, VARIABLES};
pub use variables::{GIVEN, SECRETS, Variables};

use solehold_process::config::{self, InvalidValue};

use crate::{
    error::{CommandError, CommandResult},
    logs::LogConfig,
    store::{DATA_DIR, StoreChoice, StoreOptions},
};

/// How long `serve` waits for its store, unless told otherwise.
const STORE_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Settings {
    pub server: ServerConfig,
    pub store: StoreChoice,
    pub store_options: StoreOptions,
    /// How long to wait for the store at the start.
    pub store_wait: Duration,
    pub log: LogConfig,
    pub warnings: Vec<String>,
}

/// A warning for each unknown variable, with the one that may be meant.
fn unknown(variables: &Variables) -> impl Iterator<Item = (String, bool)> {
    variables.strangers(layer::VARIABLES).map(|(name, meant)| {
        let is_close = meant.is_some();
        let meant = meant.map_or_else(String::new, |known| format!("; is {known} meant?"));
        (format!("{name} is set, and nothing reads it{meant}"), is_close)
    })
}

/// A warning for each unknown variable that is close to a known one: others may be of other programs.
pub fn misspelt(variables: &Variables) -> impl Iterator<Item = String> {
    unknown(variables).filter(|(_, is_close)| *is_close).map(|(warning, _)| warning)
}

/// Reads the configuration: `flags` over the variables over `file`.
pub fn load(flags: Layer, file: Option<&Path>, variables: &Variables) -> CommandResult<Settings> {
    let environment = Layer::from_variables(variables)?;
    let variable = variables.get::<std::path::PathBuf>("SOLEHOLD_CONFIG")?;
    let bootstrap = variables.get::<String>("SOLEHOLD_BOOTSTRAP_KEY")?;
    let file = match file.or(variable.as_deref()) {
        Some(path) => read_file(path)?,
        None => Layer::default(),
    };
    let layer = flags.over(environment)?.over(file)?;
    let mut settings = settle(layer)?;
    settings.server.bootstrap_key = bootstrap.map(SecretString::from);
    settings.warnings = unknown(variables).map(|(warning, _)| warning).collect();
    Ok(settings)
}

/// Reads a file; what is wrong with it is told with its line.
fn read_file(path: &Path) -> CommandResult<Layer> {
    let checked = |layer: Layer| match layer.check() {
        Ok(()) => Ok(layer),
        Err(message) => Err(InvalidValue::of_file(message)),
    };
    config::load(path, |_| {}, checked).map_err(|error| CommandError::usage(error.to_string()))
}

fn settle(layer: Layer) -> CommandResult<Settings> {
    let store = StoreChoice::given(layer.data_dir.as_deref(), layer.engine.as_ref());
    let mut store_options = layer.store_options().map_err(CommandError::usage)?;
    let mut server = ServerConfig::default();
    if let Some(Address(listen)) = layer.listen {
        server.listen = listen;
    }
    if let Some(node_id) = layer.node_id {
        server.node_id = node_id.0;
    }
    server.guard_metrics = layer.guard_metrics.unwrap_or_default();
    let client_ca = layer.tls.client_ca;
    server.tls = match (layer.tls.cert, layer.tls.key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert, key, client_ca }),
        (None, None) if client_ca.is_some() => {
            let what = "clients' certificates need TLS: give --tls-cert and --tls-key with --tls-client-ca";
            return Err(CommandError::usage(what));
        }
        (None, None) => None,
        (cert, _) => {
            let (has, lacks) = if cert.is_some() { ("certificate", "key") } else { ("key", "certificate") };
            return Err(CommandError::usage(format!(
                "TLS has a {has} and no {lacks}: give --tls-cert and --tls-key"
            )));
        }
    };
    layer.limits.apply(&mut server.limits);
    layer.events.apply(&mut server.engine);
    server.relays =
        relays::settle(layer.relays.as_deref().unwrap_or_default()).map_err(CommandError::usage)?;
    server.orchestrator = layer.orchestrator.settle()?;
    let level = layer.log.level.unwrap_or_else(|| "info".to_owned());
    let log = LogConfig { level, format: layer.log.format.unwrap_or_default() };
    log.filter().map_err(CommandError::usage)?;
    let store = store.unwrap_or_else(|| StoreChoice::Folder(DATA_DIR.into()));
    if matches!(store, StoreChoice::Url(_)) {
        // Told to the store, so that the server that notices a failover knows how long a lost lease can last.
        store_options.ttl_max_ms.get_or_insert(TTL_MAX_MS);
    }
    let store_wait = layer.store_wait.map_or(STORE_WAIT, Duration::from);
    Ok(Settings { server, store, store_options, store_wait, log, warnings: Vec::new() })
}

#[cfg(test)]
mod tests;
