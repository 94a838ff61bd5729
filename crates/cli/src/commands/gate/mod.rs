//! `solehold gate`: work that carries an old token is refused.

mod explain;
mod figures;
mod http;
mod mqtt;
mod refusals;
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

/// What kinds of gates there are.
#[derive(Debug, Subcommand)]
pub enum GateCommand {
    /// Say how strong each form of a gate is, and what it does not protect
    Explain,
    /// Run a reverse proxy in front of a service that cannot change
    Http(Box<http::HttpArgs>),
    /// Pass on only those MQTT messages that bear the newest token of their resource
    Mqtt(Box<mqtt::MqttArgs>),
    /// Print the SQL by which a PostgreSQL table refuses writes under an old token, for applications in any language
    #[command(after_help = sql::AFTER_HELP)]
    Sql(sql::SqlArgs),
}

/// Runs it.
pub async fn run(command: GateCommand, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    match command {
        GateCommand::Explain => {
            global.logs("warn")?.start("cli").map_err(CommandError::usage)?;
            explain::run(global)
        }
        GateCommand::Sql(args) => {
            global.logs("warn")?.start("cli").map_err(CommandError::usage)?;
            sql::run(&args, global)
        }
        GateCommand::Http(args) => http::run(*args, server, global).await,
        GateCommand::Mqtt(args) => mqtt::run(*args, server, global).await,
    }
}

/// How a gate judges.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// A kind of resource to judge; may be given several times
    #[arg(long = "kind", value_name = "KIND", required = true)]
    kinds: Vec<String>,
    /// How old knowledge may be that admits: the longest time for which a superseded holder can get through a gate
    /// that is cut off
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    cache_ttl: Duration,
    /// While no server can be reached, admit every token that is not below the newest known
    #[arg(long)]
    fail_open: bool,
    /// Read the store before a new token is admitted, even if the watch has told of it
    #[arg(long)]
    strict: bool,
    /// A file in which the newest tokens are kept across restarts; one per gate
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
}

impl GateArgs {
    /// Opens the gate. It learns from the server.
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
