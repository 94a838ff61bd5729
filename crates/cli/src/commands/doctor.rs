//! `solehold doctor`: looks for what is wrong with a configuration or a running server, and says what to do about it.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use solehold_engine::history::TTL_MAX_MS;
use solehold_process::name;

use crate::{
    client::ServerArgs,
    config::{self, Layer, Settings, Variables},
    doctor::{
        Facts, Finding, Severity,
        gather::{host, server},
        judge,
        ttl::AgentTimes,
    },
    engine_url::EngineUrl,
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
    human::{count, one_line},
    output,
    store::{DATA_DIR, StoreChoice},
};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Configuration file of `serve` to check; variables override it [env: SOLEHOLD_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder of an embedded store to check [env: SOLEHOLD_DATA_DIR]
    #[arg(long, value_name = "DIR", conflicts_with = "engine")]
    data_dir: Option<PathBuf>,
    /// PostgreSQL database to check: postgres://USER@HOST/DATABASE [env: SOLEHOLD_ENGINE]
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Configuration file of an agent, whose times are compared with the server's
    #[cfg(feature = "agent")]
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

/// Changes nothing. Ends with 1 if there is a problem.
pub async fn run(args: DoctorArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult<u8> {
    let variables: Variables = std::env::vars_os().collect();
    let flags = Layer {
        data_dir: args.data_dir.clone(),
        engine: args.engine.as_deref().map(EngineUrl::of_flag).transpose()?,
        ..Layer::default()
    };
    let is_given = args.config.is_some()
        || flags != Layer::default()
        || variables.get::<PathBuf>("SOLEHOLD_CONFIG")?.is_some()
        || Layer::from_variables(&variables)? != Layer::default();
    let names_server = server.server.as_ref().is_some_and(|server| !server.is_empty());
    let has_folder = std::path::Path::new(DATA_DIR).is_dir();

    let began = host::Clocks::read();
    let mut facts = Facts::default();
    facts.versions.this = env!("CARGO_PKG_VERSION").to_owned();
    facts.clock.services = host::time_services();
    if is_given || (has_folder && !names_server) {
        let settings = config::load(flags, args.config.as_deref(), &variables)?;
        look_at_configuration(&settings, args.config, &variables, &mut facts).await?;
    }
    if names_server || !(is_given || has_folder) {
        server::look(server, &mut facts).await?;
    }
    #[cfg(feature = "agent")]
    if let Some(path) = &args.agent {
        facts.ttl.agent = Some(agent_times(path)?);
    }
    facts.clock.moved_ms = Some(began.moved_ms());
    report(&judge(&facts), global)
}

async fn look_at_configuration(
    settings: &Settings,
    file: Option<PathBuf>,
    variables: &Variables,
    facts: &mut Facts,
) -> CommandResult {
    let why = "the configuration may not be what was meant";
    let warn =
        |warning: &String| Finding::warning("configuration", warning.clone(), why, "correct or remove it");
    facts.gathered.extend(settings.warnings.iter().map(warn));
    if let Some(file) = file.or(variables.get("SOLEHOLD_CONFIG")?) {
        facts.secrets.push(host::secret("the configuration", &file));
    }
    for (variable, what) in SECRET_FILES {
        if let Some(path) = variables.path(variable) {
            facts.secrets.push(host::secret(what, &path));
        }
    }
    match &settings.store {
        StoreChoice::Folder(path) => facts.folder = Some(host::folder(path)),
        StoreChoice::Url(url) if url.is_memory() => facts.gathered.push(Finding::warning(
            "store",
            "the memory engine keeps nothing",
            "a restart of the server begins with token 1 again, which gates refuse",
            "use --data-dir or PostgreSQL, unless this is a test",
        )),
        #[cfg(feature = "postgres")]
        StoreChoice::Url(url) => {
            let failover = settings.store_options.failover;
            crate::doctor::gather::postgres::look(url, failover, facts).await;
            facts.ttl.slack = solehold_engine::postgres::CLOCK_SLACK;
        }
        #[cfg(not(feature = "postgres"))]
        StoreChoice::Url(_) => {}
    }
    let ttl_max_ms = settings.store_options.ttl_max_ms.unwrap_or(TTL_MAX_MS);
    facts.ttl.ttl_max = Some(std::time::Duration::from_millis(ttl_max_ms));
    if let Some(tls) = &settings.server.tls {
        facts.secrets.push(host::secret("the private key of TLS", &tls.key));
        let address = settings.server.listen.ip();
        // Behind an address that stands for all of them, clients use the name of this host.
        let hosts = match address {
            all if all.is_unspecified() => vec![name::host()],
            one if one.is_loopback() => vec!["localhost".to_owned(), one.to_string()],
            one => vec![one.to_string(), name::host()],
        };
        facts.certificate = Some(host::certificate(tls, hosts).await);
    }
    Ok(())
}

/// The variables that name files with secrets.
const SECRET_FILES: [(&str, &str); 3] = [
    ("SOLEHOLD_API_KEY_FILE", "the API key"),
    ("SOLEHOLD_BOOTSTRAP_KEY_FILE", "the bootstrap key"),
    ("SOLEHOLD_ENGINE_FILE", "the URL of the database"),
];

#[cfg(feature = "agent")]
fn agent_times(path: &std::path::Path) -> CommandResult<AgentTimes> {
    let loaded = solehold_agent::config::load(path, |_| {});
    let settings = loaded.map_err(|error| CommandError::usage(error.to_string()))?;
    Ok(AgentTimes {
        ttl: settings.lease.ttl,
        every: settings.lease.every,
        stop: settings.worker.bounds.stop,
        remarks: settings.remarks(),
    })
}

fn report(findings: &[Finding], global: &GlobalArgs) -> CommandResult<u8> {
    let number = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let problems = number(Severity::Problem);
    let warnings = number(Severity::Warning);
    let document = json!({ "problems": problems, "warnings": warnings, "findings": findings });
    output::show(global, &document, || {
        let lines: String = findings.iter().map(lines_of).collect();
        let good = number(Severity::Ok);
        let summary =
            [count(problems, "problem"), count(warnings, "warning"), format!("{good} ok")].join(", ");
        match number(Severity::NotChecked) {
            0 => format!("{lines}{summary}\n"),
            open => format!("{lines}{summary}, {open} not checked\n"),
        }
    })?;
    Ok(if problems > 0 { Exit::Failed } else { Exit::Done }.code())
}

fn lines_of(finding: &Finding) -> String {
    let Finding { check, severity, seen, why, remedy } = finding;
    let mut lines = format!("{:<11}  {check:<12}  {}\n", severity.word(), one_line(seen));
    for (word, text) in [("why", why), ("do", remedy)] {
        if let Some(text) = text {
            lines += &format!("{:27}{word:<3}  {}\n", "", one_line(text));
        }
    }
    lines
}
