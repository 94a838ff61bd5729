//! `solehold gate`: rejects requests, messages and writes that carry an old token.

mod explain;
mod health;
mod http;
mod mqtt;
mod refusals;
#[cfg(feature = "postgres")]
mod sql;

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, Subcommand};
use solehold_client::gate::{Fail, FlightLimits, Gate, GateOptions};
use solehold_core::key::Name;

use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    times::duration,
};

#[derive(Debug, Subcommand)]
pub enum GateCommand {
    /// Compare the forms of a gate: how strong each is, and what it does not protect
    #[command(after_help = examples!("gate explain"))]
    Explain,
    /// Run a reverse proxy in front of a service that cannot change
    #[command(after_help = examples!(
        "gate http --upstream http://127.0.0.1:8080 --kind camera",
        "gate http --upstream http://10.0.0.9:80 --kind job --strict --memory /var/lib/gate/marks",
    ))]
    Http(Box<http::HttpArgs>),
    /// Forward only MQTT messages that carry the newest token of their resource
    #[command(after_help = examples!(
        "gate mqtt --broker mqtt://broker.internal:1883 --topics plant/line/{key}/+ --kind line",
    ))]
    Mqtt(Box<mqtt::MqttArgs>),
    /// Print SQL that makes a PostgreSQL table reject writes under an old token, for applications in any language
    #[cfg(feature = "postgres")]
    #[command(after_help = sql::AFTER_HELP)]
    Sql(sql::GateSqlArgs),
    #[cfg(not(feature = "postgres"))]
    #[command(hide = true)]
    Sql(super::not_built::NotBuilt),
}

pub async fn run(command: GateCommand, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    match command {
        GateCommand::Explain => {
            global.logs("warn")?.start("cli").map_err(CommandError::usage)?;
            explain::run(global)
        }
        #[cfg(not(feature = "postgres"))]
        GateCommand::Sql(_) => Err(super::not_built::error("`gate sql`", "postgres")),
        #[cfg(feature = "postgres")]
        GateCommand::Sql(args) => {
            global.logs("warn")?.start("cli").map_err(CommandError::usage)?;
            sql::run(&args, global)
        }
        GateCommand::Http(args) => http::run(*args, server, global).await,
        GateCommand::Mqtt(args) => mqtt::run(*args, server, global).await,
    }
}

#[derive(Debug, Args)]
pub struct GateArgs {
    /// Kind of resource to check; may be repeated
    #[arg(long = "kind", value_name = "KIND", required = true)]
    kinds: Vec<String>,
    /// How long to keep admitting tokens without hearing from the server: the longest time that a superseded holder can
    /// get through a gate that is cut off
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    cache_ttl: Duration,
    /// While no server can be reached, admit every token that is not below the newest known
    #[arg(long)]
    fail_open: bool,
    /// Read the store before admitting a new token, even if the watch has reported it
    #[arg(long)]
    strict: bool,
    /// File that keeps the newest tokens across restarts; one per gate
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
}

impl GateArgs {
    /// Opens the gate, which learns the newest tokens from the server.
    pub fn open(self, server: &ServerArgs, flights: FlightLimits) -> CommandResult<Arc<Gate>> {
        let usage = |error: &dyn std::fmt::Display| CommandError::usage(error.to_string());
        let defaults = GateOptions::new(&self.kinds).map_err(|error| usage(&error))?;
        let tenant = server.tenant.as_deref().filter(|tenant| !tenant.is_empty()).map(Name::new);
        let tenant = tenant.transpose().map_err(|error| usage(&format!("--tenant {error}")))?;
        let options = GateOptions {
            tenant: tenant.unwrap_or(defaults.tenant),
            cache_ttl: self.cache_ttl,
            fail: if self.fail_open { Fail::Open } else { Fail::Closed },
            strict: self.strict,
            memory: self.memory,
            flights,
            ..defaults
        };
        let source = Arc::new(server.authority()?);
        Ok(Arc::new(Gate::open(source, options).map_err(|error| usage(&error))?))
    }
}
