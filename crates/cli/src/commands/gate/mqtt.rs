//! `solehold gate mqtt`: forwards only messages that carry the newest token of their resource.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use clap::{Args, ValueEnum};
use solehold_api::problem::ErrorCode;
use solehold_client::{
    OpenError,
    gate::{Gate, GateOptions},
};
use solehold_core::key::Name;
use solehold_mqtt_gate::{
    Routes,
    mqtt::{
        self, Broker, BrokerError, GateConfig, GateError, GateMetrics, Knowledge,
        check::{self, Findings, IN_FLIGHT_TRIED, QUEUED_TRIED},
    },
    shards::Shards,
    topic::Pattern,
};
use solehold_process::{
    manager::{self, ServiceManager},
    name,
};
use tokio::sync::watch;

use super::health::{self, MqttHealth};
use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
    files,
    global::GlobalArgs,
    output,
};

/// The settings with which Mosquitto loses no messages while no gate is connected.
const MOSQUITTO_CONF: &str = "persistence true
persistence_location /var/lib/mosquitto/
autosave_interval 30
max_queued_messages 0
max_inflight_messages 1000";

const TENANT_DEFAULT: &str = "default";

/// The options of `solehold gate mqtt`.
#[derive(Debug, Args)]
pub struct MqttArgs {
    /// The broker: mqtt://HOST:PORT, or mqtts:// with TLS; USER:PASSWORD@ before the host logs in
    #[arg(long, env = "SOLEHOLD_MQTT_URL", value_name = "URL", hide_env_values = true)]
    broker: String,
    /// Read the password of the broker's user from this file
    #[arg(long, value_name = "FILE")]
    broker_password_file: Option<PathBuf>,
    /// Trust only the authorities in this PEM file [default: those of the system]
    #[arg(long, value_name = "FILE")]
    broker_ca: Option<PathBuf>,
    /// Topics to read, as in plant/line/{key}/+: {key} is the level that names the resource, {kind} its kind, + any
    /// level, # all that follow; may be given more than once
    #[arg(long, value_name = "PATTERN", required = true)]
    topics: Vec<Pattern>,
    /// The kind of the resources; may be given more than once where the topics name it
    #[arg(long, value_name = "KIND", required = true)]
    kind: Vec<String>,
    /// The JSON member of a message that has its fencing token
    #[arg(long, alias = "version-field", value_name = "NAME", default_value = "token")]
    token_field: String,
    /// Publish messages that pass on their own topic below this prefix
    #[arg(long, value_name = "TOPIC", default_value = "gated")]
    prefix: String,
    /// Remove the token from messages that pass
    #[arg(long)]
    strip: bool,
    /// Publish refused messages below this topic, with their reason and topic: TOPIC/stale/... [default: only count
    /// them]
    #[arg(long, value_name = "TOPIC")]
    dead_letter: Option<String>,
    /// What to do with messages that the broker had retained
    #[arg(long, value_name = "FATE", default_value = "refuse")]
    retained: Retained,
    /// Refuse messages of more than this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    message_max: usize,
    /// How many bytes of messages a shard may hold before it stops reading from the broker
    #[arg(long, value_name = "BYTES", default_value_t = 256 * 1024 * 1024)]
    held_max: usize,
    /// The name of the gate: processes of one name share its shards
    #[arg(long, value_name = "NAME", default_value = "main")]
    name: String,
    /// How many shards the gate has, the same number for all its processes
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    shards: u32,
    /// How many of them this process may hold [default: all]
    #[arg(long, value_name = "COUNT")]
    hold: Option<u32>,
    /// The name of this process as a holder of shards [default: host and a random suffix]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// How long a process that was killed keeps its shards
    #[arg(long, value_name = "TIME", default_value = "10s")]
    ttl: humantime::Duration,
    /// Where to serve /healthz, /readyz and /metrics
    #[arg(long, alias = "listen", value_name = "ADDR", default_value = "127.0.0.1:7072")]
    metrics_listen: SocketAddr,
    /// How long to keep passing messages without hearing from the server; after that they are held back
    #[arg(long, value_name = "TIME", default_value = "30s")]
    cache_ttl: humantime::Duration,
    /// Keep the newest tokens in this file across restarts
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// Check the configuration, measure how the broker treats a disconnected gate, and exit
    #[arg(long)]
    check: bool,
}

/// What to do with messages that the broker had retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Retained {
    /// Refused: each was passed on when it was published, or is older than the gate
    Refuse,
    /// Judged like any other, and published as retained
    Pass,
}

impl MqttArgs {
    fn config(&self, server: &ServerArgs) -> CommandResult<GateConfig> {
        let usage = |flag: &str, why: String| CommandError::usage(format!("{flag} {why}"));
        let mut broker = Broker::new(&self.broker).map_err(|why| usage("--broker", why.to_string()))?;
        if let Some(path) = &self.broker_password_file {
            let option = "--broker-password-file";
            let password = files::secret(option, path)?;
            broker = broker.password(password).map_err(|why| files::invalid(option, path, &why))?;
        }
        if let Some(path) = &self.broker_ca {
            let pem = files::certificates("--broker-ca", path)?;
            broker = broker.ca_certs(pem).map_err(|why| files::invalid("--broker-ca", path, &why))?;
        }
        let kinds = self.kind.iter().map(Name::new).collect::<Result<_, _>>();
        let kinds = kinds.map_err(|error| usage("--kind", error.to_string()))?;
        let tenant = server.tenant.as_deref().filter(|name| !name.is_empty()).unwrap_or(TENANT_DEFAULT);
        let tenant = Name::new(tenant).map_err(|error| usage("--tenant", error.to_string()))?;
        let shards = Shards::new(&self.name, self.shards);
        let shards = shards.map_err(|error| CommandError::usage(error.to_string()))?;
        let routes = Routes {
            prefix: self.prefix.clone(),
            strip: self.strip.then(|| self.token_field.clone()),
            dead_letter: self.dead_letter.clone(),
        };
        let config = GateConfig {
            broker,
            patterns: self.topics.clone(),
            tenant,
            kinds,
            token_field: self.token_field.clone(),
            routes,
            takes_retained: self.retained == Retained::Pass,
            message_bytes_max: self.message_max,
            held_bytes_max: self.held_max,
            hold: self.hold.unwrap_or(self.shards),
            shards,
            holder: self.holder.clone().unwrap_or_else(|| name::unique("gate")),
            ttl: self.ttl.into(),
        };
        config.check().map_err(|error| CommandError::usage(error.to_string()))?;
        Ok(config)
    }
}

/// Runs a gate until SIGTERM or Ctrl-C.
pub async fn run(args: MqttArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let config = args.config(server)?;
    if args.check {
        global.logs("warn")?.start("gate").map_err(CommandError::usage)?;
        return check(&config).await;
    }
    global.logs("info")?.start(&config.holder).map_err(CommandError::usage)?;
    let traces = global.traces("solehold-gate", &config.holder)?;
    let authority = Arc::new(server.authority()?);
    let options = GateOptions {
        tenant: config.tenant.clone(),
        cache_ttl: args.cache_ttl.into(),
        memory: args.memory.clone(),
        ..GateOptions::new(&args.kind).map_err(|error| CommandError::usage(error.to_string()))?
    };
    let gate = Gate::open(authority.clone(), options);
    let gate = Arc::new(gate.map_err(|error| CommandError::usage(error.to_string()))?);
    let knowledge = Knowledge { gate: gate.clone(), cache_ttl: args.cache_ttl.into() };
    let metrics = Arc::new(GateMetrics::new());
    let mut signals = super::super::ending_signals()?;
    let its_health = MqttHealth { metrics: metrics.clone(), knowledge };
    health::serve("mqtt", args.metrics_listen, its_health.clone()).await?;
    let manager = ServiceManager::of_process();
    let (end, ending) = watch::channel(false);
    let told = manager.clone();
    tokio::spawn(async move {
        signals.next().await;
        told.stopping("waiting for confirmations of the broker");
        end.send_replace(true);
        // A second signal does not wait.
        signals.next().await;
        std::process::exit(crate::exit::Exit::Interrupted.code().into());
    });
    tokio::select! {
        ended = mqtt::run(config, authority, gate, metrics, ending) => ended.map_err(of_error)?,
        never = health::report_ready(&manager, &its_health, "MQTT") => match never {},
        never = manager.keep_alive(manager::turns) => match never {},
    }
    traces.flush().await;
    output::say("solehold gate mqtt stopped");
    Ok(())
}

fn of_error(error: GateError) -> CommandError {
    match error {
        GateError::Open(OpenError::Refused(refusal)) => {
            CommandError::new(refusal.code, refusal.detail).doing("register the gate")
        }
        GateError::Over(_) => CommandError::new(ErrorCode::SessionSuperseded, error.to_string())
            .hint("is another gate running with the same --holder?"),
        error => CommandError::usage(error.to_string()),
    }
}

/// Measures the broker, and prints the settings that it needs.
async fn check(config: &GateConfig) -> CommandResult {
    let found = check::try_out(&config.broker, &config.routes.prefix).await;
    let found = found.map_err(|error| match error {
        BrokerError::Lost(_) | BrokerError::Silent(_) => {
            let message = format!("{}: {error}", config.broker);
            CommandError::new(ErrorCode::Unavailable, message).doing("reach the broker")
        }
        error => CommandError::new(ErrorCode::Forbidden, error.to_string()),
    })?;
    output::print(&report(config, found))?;
    if found.keeps_the_promise() {
        return Ok(());
    }
    Err(CommandError::new(
        ErrorCode::Conflict,
        "messages are lost while no gate is connected, unless the broker is configured to keep them",
    ))
}

fn report(config: &GateConfig, found: Findings) -> String {
    let Findings { in_flight, queued, keeps_sessions } = found;
    let many =
        |count: usize, of: usize| if count >= of { format!("{of} or more") } else { count.to_string() };
    let filters: Vec<String> = config.patterns.iter().map(|pattern| pattern.filter()).collect();
    let facts = output::facts(&[
        ("reads", Some(filters.join(", "))),
        ("publishes", Some(format!("below {}/, where messages arrive", config.routes.prefix))),
        ("sessions", Some(if keeps_sessions { "are kept" } else { "are NOT kept" }.to_owned())),
        ("queue", Some(format!("{} messages are kept for a disconnected gate", many(queued, QUEUED_TRIED)))),
        (
            "in flight",
            Some(format!("{} messages before one is acknowledged", many(in_flight, IN_FLIGHT_TRIED))),
        ),
    ]);
    let mut text = format!("{}\n{facts}", config.broker);
    if queued < QUEUED_TRIED {
        text += "\nFurther messages are dropped: set max_queued_messages.\n";
    }
    if in_flight < IN_FLIGHT_TRIED {
        text += "\nWhen that many messages cannot be decided, all others wait: set max_inflight_messages.\n";
    }
    let indented: String = MOSQUITTO_CONF.lines().map(|line| format!("  {line}\n")).collect();
    text + &format!(
        "\nThis check cannot tell whether the broker writes its queues to disk. Mosquitto needs these lines:\n{indented}\
         With them a restart loses no messages; kill -9 or a power failure loses those since the last autosave.\n"
    )
}
