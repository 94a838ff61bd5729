//! The command line.

use clap::{
    ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind,
    parser::ValueSource,
};

#[cfg(not(feature = "kafka"))]
use crate::commands::not_built;
#[cfg(feature = "kafka")]
use crate::commands::orchestrator;
use crate::{
    client::ServerArgs,
    commands::{
        admin, agent, bench, completions, deploy, explain, gate, hold, job, lease, node, placement, resource,
        rows, runner, serve, session, watch,
    },
    exit,
    global::GlobalArgs,
};

/// The version, and the commit that it was built from where that is known.
const VERSION: &str = env!("SOLEHOLD_VERSION");

/// Leases with fencing tokens: every piece of work has exactly one owner
#[derive(Debug, Parser)]
#[command(name = "solehold", version = VERSION, after_long_help = exit::table(), propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// Which server.
    #[command(flatten)]
    pub server: ServerArgs,
}

impl Cli {
    /// Parses the arguments of this process.
    pub fn of_process() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let cli = Self::from_arg_matches(&matches)?;
        if let Some(name) = cli.command.asks_no_server().then(|| given_by_flag(&matches)).flatten() {
            let (flag, command) = (name.replace('_', "-"), matches.subcommand_name().unwrap_or_default());
            let message = format!("--{flag} is for commands that ask a server, and `{command}` asks none");
            return Err(Self::command().error(ErrorKind::UnknownArgument, message));
        }
        Ok(cli)
    }
}

/// The first of the options about a server that is in the arguments; the variables may be set for other commands.
fn given_by_flag(matches: &ArgMatches) -> Option<&'static str> {
    let is_flag = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    ServerArgs::NAMES.into_iter().find(is_flag)
}

/// The options about a server, hidden, of a command that asks none: its help does not show what it refuses.
#[derive(Debug, Args)]
pub struct NoServerArgs {
    #[arg(long, hide = true)]
    server: Option<String>,
    #[arg(long, hide = true)]
    api_key: Option<String>,
    #[arg(long, hide = true)]
    tenant: Option<String>,
    #[arg(long, hide = true)]
    ca_cert: Option<std::ffi::OsString>,
    #[arg(long, hide = true)]
    timeout: Option<String>,
}

/// A command that asks no server.
#[derive(Debug, Args)]
pub struct Alone<A: Args> {
    /// What it takes.
    #[command(flatten)]
    pub args: A,
    #[command(flatten)]
    _server: NoServerArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server
    Serve(Box<Alone<serve::ServeArgs>>),
    /// Run a command only while holding a lease, and leave nothing of it behind
    Run(hold::RunArgs),
    /// Run a command only while holding a lock, first come, first served
    Lock(hold::LockArgs),
    /// Keep workers that run only while leases are held
    Agent(agent::AgentArgs),
    /// Refuse work that bears an old token
    #[command(subcommand)]
    Gate(gate::GateCommand),
    /// Turn job commands from Kafka into tasks for workers, stage by stage
    #[cfg(feature = "kafka")]
    Orchestrator(orchestrator::OrchestratorArgs),
    /// (not in this build, which lacks --features kafka) Turn job commands from Kafka into tasks for workers
    #[cfg(not(feature = "kafka"))]
    Orchestrator(not_built::NotBuilt),
    /// List, show and steer the jobs of an orchestrator
    Job(job::JobArgs),
    /// List and revive the buried rows of a reconciler's table
    Rows(Box<Alone<rows::RowsArgs>>),
    /// List, acquire, renew and end leases
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// List, declare and remove resources
    #[command(subcommand)]
    Resource(resource::ResourceCommand),
    /// List, drain and remove runners
    #[command(subcommand)]
    Runner(runner::RunnerCommand),
    /// Show deployment groups and shift work between them
    #[command(subcommand)]
    Deploy(deploy::DeployCommand),
    /// Show and change how resources are placed on runners
    #[command(subcommand)]
    Placement(placement::PlacementCommand),
    /// Explain why a resource is where it is, and what happens if its holder dies
    Explain(explain::ExplainArgs),
    /// List and close sessions
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// List the nodes that are there
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Follow every change of ownership, with no gaps and no duplicates
    Watch(watch::WatchArgs),
    /// Manage keys and tokens, export and import: through a server, or directly on its store
    Admin(admin::AdminArgs),
    /// Measure acquire and release cycles per second
    Bench(Alone<bench::BenchArgs>),
    /// Print completions for a shell
    Completions(Alone<completions::CompletionsArgs>),
}

impl Command {
    /// Whether it runs a command of the user's, whose exit codes must be told apart from ours.
    pub fn runs_a_command(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Lock(lock) => !lock.is_question(),
            _ => false,
        }
    }

    fn asks_no_server(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Rows(_) | Self::Bench(_) | Self::Completions(_))
    }
}
