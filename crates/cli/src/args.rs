//! The command line.

use clap::{Args, Parser, Subcommand};

use crate::{
    client::ServerArgs,
    commands::{admin, bench, completions, hold, lease, resource, runner, serve, watch},
    exit,
    global::GlobalArgs,
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

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server
    Serve(serve::ServeArgs),
    /// Run a command only while holding a lease, and leave nothing of it behind
    Run(hold::RunArgs),
    /// Run a command only while holding a lock, first come, first served
    Lock(hold::LockArgs),
    /// List, acquire, renew and end leases
    Lease(ServerCommand<lease::LeaseCommand>),
    /// List, declare and remove resources
    Resource(ServerCommand<resource::ResourceCommand>),
    /// List and drain runners
    Runner(ServerCommand<runner::RunnerCommand>),
    /// Follow every change of ownership, with no gaps and no duplicates
    Watch(WatchCommand),
    /// Manage keys and tokens, export and import: through a server, or directly on its store
    Admin(admin::AdminArgs),
    /// Measure acquire and release cycles per second
    Bench(bench::BenchArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// A command with parts that asks a server.
#[derive(Debug, Args)]
pub struct ServerCommand<C: Subcommand> {
    /// Which part.
    #[command(subcommand)]
    pub command: C,
    /// Which server.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The watch, and the server that it asks.
#[derive(Debug, Args)]
pub struct WatchCommand {
    /// What to watch.
    #[command(flatten)]
    pub watch: watch::WatchArgs,
    /// Which server.
    #[command(flatten)]
    pub server: ServerArgs,
}
