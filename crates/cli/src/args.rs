//! The command line.

use clap::{Args, Parser, Subcommand};

use crate::{
    client::ServerArgs,
    commands::{admin, bench, completions, hold, lease, resource, runner, serve, watch},
    config::Variables,
    exit,
    failure::Outcome,
    logs::{LogConfig, LogFormat},
};

/// The version, and the commit that it was built from where that is known.
const VERSION: &str = env!("SOLEHOLD_VERSION");

/// Leases with fencing tokens: every piece of work has exactly one owner
#[derive(Debug, Parser)]
#[command(name = "solehold", version = VERSION, after_help = exit::table(), propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct GlobalArgs {
    /// Print JSON for programs: one document, or one a line where there is no end; errors as problem documents on stderr
    #[arg(long, global = true)]
    pub json: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or as in `info,solehold_engine=debug`
    /// [env: SOLEHOLD_LOG_LEVEL] [default: info for serve, warn otherwise]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// What a log line looks like [env: SOLEHOLD_LOG_FORMAT] [default: text]
    #[arg(long, global = true, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl GlobalArgs {
    /// How commands other than `serve` log.
    pub fn logs(&self) -> Outcome<LogConfig> {
        let mut variables: Variables = std::env::vars_os().collect();
        let level = self.log_level.clone().or(variables.get("SOLEHOLD_LOG_LEVEL")?);
        let format = self.log_format.or(variables.get("SOLEHOLD_LOG_FORMAT")?);
        Ok(LogConfig {
            level: level.unwrap_or_else(|| "warn".to_owned()),
            format: format.unwrap_or_default(),
        })
    }
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server
    Serve(serve::ServeArgs),
    /// Run a command only while holding a lease, and leave nothing of it behind
    Run(hold::RunArgs),
    /// Run a command only while holding a lock, first come, first served
    Lock(hold::LockArgs),
    /// See, take, keep and end leases
    Lease(Asking<lease::LeaseCommand>),
    /// See, declare and remove resources
    Resource(Asking<resource::ResourceCommand>),
    /// See and drain runners
    Runner(Asking<runner::RunnerCommand>),
    /// Follow every change of ownership, without a gap and without a double
    Watch(Watching),
    /// Keys, tokens, export and import: through a server, or straight against its store
    Admin(admin::AdminArgs),
    /// Measure acquire+release cycles a second
    Bench(bench::BenchArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// A command with parts that asks a server.
#[derive(Debug, Args)]
pub struct Asking<C: Subcommand> {
    /// Which part.
    #[command(subcommand)]
    pub command: C,
    /// Which server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The watch, and the server that it asks.
#[derive(Debug, Args)]
pub struct Watching {
    /// What to watch.
    #[command(flatten)]
    pub watch: watch::WatchArgs,
    /// Which server.
    #[command(flatten)]
    pub server: ServerArgs,
}
