//! How `serve` is configured: flags over `SOLEHOLD_*` variables over one YAML file.
//!
//! Each source is a [`Layer`], in which everything may be missing; each overrides the next, and what no layer says
//! is the server's default. Data folder and engine are one choice: a layer that sets either of them overrides both.
//!
//! By hand rather than by a configuration crate: those merge untyped trees, and then know neither the line of a wrong
//! value nor the variable that it came from, and they ignore unknown keys.

mod layer;
mod variables;

use std::{fs, path::Path};

use secrecy::SecretString;
use solehold_engine::history::TTL_MAX_MS;
use solehold_server::{ServerConfig, TlsFiles};

pub use layer::{Address, Layer, LogLayer, NodeId, TlsLayer};
pub use variables::{GIVEN, Variables};

use crate::{
    error::{CommandError, CommandResult},
    logs::LogConfig,
    store::{DATA_DIR, StoreChoice, StoreOptions},
};

/// All that `serve` needs to know.
#[derive(Debug)]
pub struct Settings {
    /// How the server runs.
    pub server: ServerConfig,
    /// Where it keeps its rows.
    pub store: StoreChoice,
    /// How the store is opened.
    pub store_options: StoreOptions,
    /// What it logs.
    pub log: LogConfig,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Reads the configuration: `flags` over the variables over `file`.
pub fn load(flags: Layer, file: Option<&Path>, mut variables: Variables) -> CommandResult<Settings> {
    let environment = Layer::from_variables(&mut variables)?;
    let variable = variables.get::<std::path::PathBuf>("SOLEHOLD_CONFIG")?;
    let bootstrap = variables.get::<String>("SOLEHOLD_BOOTSTRAP_KEY")?;
    let file = match file.or(variable.as_deref()) {
        Some(path) => read_file(path)?,
        None => Layer::default(),
    };
    let layer = flags.over(environment)?.over(file)?;
    let mut settings = settle(layer)?;
    settings.server.bootstrap_key = bootstrap.map(SecretString::from);
    settings.warnings = variables.unknown();
    Ok(settings)
}

/// Reads a file; what is wrong with it is told with its line.
fn read_file(path: &Path) -> CommandResult<Layer> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        CommandError::usage(format!("cannot read the configuration file {shown}: {error}"))
    })?;
    let layer = parse_file(&text).map_err(|(line, what)| {
        let at = line.map_or_else(String::new, |line| format!(":{line}"));
        CommandError::usage(format!("{shown}{at}: {what}"))
    })?;
    layer.check().map_err(|what| CommandError::usage(format!("{shown}: {what}")))?;
    Ok(layer)
}

/// What a file says, or the line that is wrong and what is wrong with it.
fn parse_file(text: &str) -> Result<Layer, (Option<u64>, String)> {
    let says_nothing = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    if text.lines().all(says_nothing) {
        return Ok(Layer::default());
    }
    serde_saphyr::from_str(text).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map(|location| location.line());
        let message = error.to_string();
        let (message, _) = message.rsplit_once(" at line ").unwrap_or((&message, ""));
        // The parser tells where it noticed, and what it took the rest for.
        if let Some((opened, open)) = unclosed(text)
            && line.is_none_or(|line| line >= opened)
        {
            return (Some(opened), format!("the {open} is not closed"));
        }
        let key = line.and_then(|line| text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?));
        (line, reworded(key.unwrap_or_default(), message))
    })
}

/// The line and the character of the last bracket or quote that is opened and never closed.
fn unclosed(text: &str) -> Option<(u64, char)> {
    let mut open: Vec<(u64, char)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // What came before: a word in which brackets and quotes are nothing special, or what a value follows.
        let (mut before, mut last) = (' ', ':');
        for c in line.chars() {
            let innermost = open.last().map(|(_, open)| *open);
            let is_value = ":-,[{".contains(last) && (before.is_whitespace() || "[{,".contains(before));
            match (c, innermost) {
                ('"' | '\'', Some(quote)) if c == quote && before != '\\' => drop(open.pop()),
                (_, Some('"' | '\'')) => {}
                ('#', _) if before.is_whitespace() => break,
                ('[' | '{' | '"' | '\'', _) if is_value => open.push((number, c)),
                (']' | '}', Some('[' | '{')) => drop(open.pop()),
                _ => {}
            }
            last = if c.is_whitespace() { last } else { c };
            before = c;
        }
    }
    open.pop()
}

/// The parser's words where they speak of the parser, in words of the file.
fn reworded(line: &str, message: &str) -> String {
    // The key alone: a value may be secret.
    let key = line.split(':').next().unwrap_or_default().trim().trim_start_matches("- ");
    if message.starts_with("invalid u") {
        return format!("{key} is not a whole number from 0 on");
    }
    match message {
        "expected string scalar" => format!("{key} must be a string"),
        "expected mapping start" => format!("{key} must have keys of its own below it, indented"),
        _ => message.split(", set DuplicateKeyPolicy").next().unwrap_or(message).to_owned(),
    }
}

/// Fills in the server's defaults.
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
    let level = layer.log.level.unwrap_or_else(|| "info".to_owned());
    let log = LogConfig { level, format: layer.log.format.unwrap_or_default() };
    log.filter().map_err(CommandError::usage)?;
    let store = store.unwrap_or_else(|| StoreChoice::Folder(DATA_DIR.into()));
    if matches!(store, StoreChoice::Url(_)) {
        // Told to the store, so that the server that notices a failover knows how long a lost lease can last.
        store_options.ttl_max_ms.get_or_insert(TTL_MAX_MS);
    }
    Ok(Settings { server, store, store_options, log, warnings: Vec::new() })
}

#[cfg(test)]
mod tests;
