//! The command line.

use clap::{
    ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

#[cfg(feature = "gate")]
use crate::commands::gate;
#[cfg(not(all(feature = "agent", feature = "gate", feature = "kafka", feature = "postgres")))]
use crate::commands::not_built;
#[cfg(not(all(feature = "agent", feature = "gate")))]
use crate::commands::not_built::NotBuilt as DemoArgs;
#[cfg(not(feature = "postgres"))]
use crate::commands::not_built::{NotBuilt as RowsArgs, NotBuilt as SqlArgs};
#[cfg(not(feature = "agent"))]
use crate::commands::not_built::{
    NotBuilt as AgentArgs, NotBuilt as ElectArgs, NotBuilt as LockArgs, NotBuilt as RunArgs,
};
#[cfg(feature = "kafka")]
use crate::commands::orchestrator;
#[cfg(feature = "agent")]
use crate::commands::{
    agent::AgentArgs,
    elect::ElectArgs,
    hold::{LockArgs, RunArgs},
};
#[cfg(feature = "postgres")]
use crate::commands::{rows::RowsArgs, sql::SqlArgs};
#[cfg(all(feature = "agent", feature = "gate"))]
use crate::demo::DemoArgs;
use crate::{
    client::ServerArgs,
    commands::{
        admin, completions, deploy, doctor, explain, health, job, lease, man, node, placement, resource,
        runner, serve, session, watch,
    },
    exit,
    global::GlobalArgs,
    top::TopArgs,
};

/// The version, and the commit that it was built from where that is known.
const VERSION: &str = env!("BUILT_VERSION");

/// Leases with fencing tokens: every piece of work has exactly one owner
#[derive(Debug, Parser)]
#[command(name = "solehold", version = VERSION, after_long_help = exit::table(), propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(flatten)]
    pub server: ServerArgs,
}

impl Cli {
    /// Parses the arguments of this process.
    pub fn of_process() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let cli = Self::from_arg_matches(&matches)?;
        if let Some(name) = cli.command.is_local().then(|| given_by_flag(&matches)).flatten() {
            let flag = name.replace('_', "-");
            let command = matches.subcommand_name().unwrap_or_default();
            let message =
                format!("--{flag} is for commands that send requests to a server; `{command}` sends none");
            return Err(Self::command().error(ErrorKind::UnknownArgument, message));
        }
        Ok(cli)
    }
}

/// The first server option given on the command line. Variables do not count: they may be set for other commands.
fn given_by_flag(matches: &ArgMatches) -> Option<&'static str> {
    let is_flag = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
    ServerArgs::NAMES.into_iter().find(is_flag)
}

/// Adds a suggestion to an error about the arguments of `run` or `lock`: the command to run comes after two dashes, and
/// `run` names its resource by an option.
pub fn with_hint(mut error: clap::Error, runs: &str, typed: &[String]) -> clap::Error {
    let Some(ContextValue::String(odd)) = error.get(ContextKind::InvalidArg).cloned() else { return error };
    if error.kind() != ErrorKind::UnknownArgument || odd.starts_with('-') {
        return error;
    }
    let lacks_lease =
        runs == "run" && !typed.iter().any(|arg| arg == "--lease" || arg.starts_with("--lease="));
    let lease = if lacks_lease { "--lease " } else { "" };
    // The arguments as typed, with the missing ones before the one that was refused.
    let at = typed.iter().position(|arg| *arg == odd).unwrap_or(typed.len());
    let (before, after) = typed.split_at(at);
    let has_dashes = after.iter().any(|arg| arg == "--");
    let dashes = if lacks_lease || has_dashes { "" } else { "-- " };
    let mut rest = after.to_vec();
    if lacks_lease && !has_dashes && rest.len() > 1 {
        rest.insert(1, "--".to_owned());
    }
    let meant = format!("solehold {} {lease}{dashes}{}", before.join(" "), rest.join(" "));
    let tip = format!("write it as in `{}`", meant.trim_end());
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// The server options, hidden, of a command that sends no requests: its help does not list options that it refuses.
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

/// A command that sends no requests to a server.
#[derive(Debug, Args)]
pub struct Alone<A: Args> {
    #[command(flatten)]
    pub args: A,
    #[command(flatten)]
    _server: NoServerArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a server
    #[command(after_help = examples!(
        "serve",
        "serve --listen 0.0.0.0:7070 --engine postgres://solehold@db.internal/solehold",
        "serve --config /etc/solehold/solehold.yaml --check=connect",
    ))]
    Serve(Box<Alone<serve::ServeArgs>>),
    /// See it work: a server, a gate and three agents in a temporary folder, to be killed, paused and drained
    #[cfg_attr(not(all(feature = "agent", feature = "gate")), command(hide = true))]
    #[command(after_help = examples!("demo", "demo --tour"))]
    Demo(Alone<DemoArgs>),
    /// Run a command while holding a lease; kill it and all its children if the lease is lost
    #[cfg_attr(not(feature = "agent"), command(hide = true))]
    #[command(after_help = examples!(
        "run --lease job/nightly -- ./report.sh",
        "run --lease job/nightly --no-wait --ttl 1m --restart -- ./report.sh",
    ))]
    Run(RunArgs),
    /// Run a command while holding a lock; waiters are served in order of arrival
    #[cfg_attr(not(feature = "agent"), command(hide = true))]
    #[command(after_help = examples!(
        "lock nightly -- ./report.sh",
        "lock deploy --wait 10m -- make deploy",
        "lock ls",
    ))]
    Lock(LockArgs),
    /// Run a command only while this process leads: leader election for any program
    #[cfg_attr(not(feature = "agent"), command(hide = true))]
    #[command(after_help = examples!(
        "elect compactor -- ./compact",
        "elect compactor --holder node-7 --restart=always -- ./compact",
        "elect compactor --observe",
    ))]
    Elect(ElectArgs),
    /// Supervise workers that run only while their leases are held
    #[cfg_attr(not(feature = "agent"), command(hide = true))]
    #[command(after_help = examples!(
        "agent --config /etc/solehold/agents/edge-1.yaml",
        "agent --config agent.yaml --check",
    ))]
    Agent(AgentArgs),
    /// Reject requests, messages and writes that carry an old token
    #[cfg(feature = "gate")]
    #[command(subcommand)]
    Gate(gate::GateCommand),
    #[cfg(not(feature = "gate"))]
    #[command(hide = true)]
    Gate(not_built::NotBuilt),
    /// Turn job commands from Kafka into tasks for workers, stage by stage
    #[cfg(feature = "kafka")]
    #[command(after_help = examples!("orchestrator --config orchestrator.yaml --check"))]
    Orchestrator(orchestrator::OrchestratorArgs),
    /// (not in this build, which lacks --features kafka) Turn job commands from Kafka into tasks for workers
    #[cfg(not(feature = "kafka"))]
    #[command(after_help = examples!("orchestrator --config orchestrator.yaml --check"))]
    Orchestrator(not_built::NotBuilt),
    /// List, show and control the jobs of an orchestrator
    Job(job::JobArgs),
    /// List and revive the buried rows of a reconciler's table
    #[cfg_attr(not(feature = "postgres"), command(hide = true))]
    Rows(Box<Alone<RowsArgs>>),
    /// Prepare a table of your own PostgreSQL for row claims from any language
    #[cfg_attr(not(feature = "postgres"), command(hide = true))]
    Sql(Box<Alone<SqlArgs>>),
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
    /// Explain why a resource is placed where it is, and what happens if its holder dies
    #[command(after_help = examples!("explain camera/lobby", "explain job/nightly --events 50 --json"))]
    Explain(explain::ExplainArgs),
    /// List and close sessions
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// List the nodes that have a session
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Check whether a server, agent, gate or orchestrator is ready; exits with 5 if it is not
    #[command(after_help = examples!(
        "health",
        "health 127.0.0.1:7072",
        "health --server https://leases.example:7070 --ca-cert ca.pem",
    ))]
    Health(health::HealthArgs),
    /// Look for what is wrong with a configuration, its store or a server, and what to do; exits with 1 on a problem
    #[command(after_help = examples!(
        "doctor",
        "doctor --config /etc/solehold/solehold.yaml",
        "doctor --engine postgres://solehold@db.internal/solehold --server 10.0.0.7:7070",
        "doctor --data-dir /var/lib/solehold --agent agent.yaml --json",
    ))]
    Doctor(doctor::DoctorArgs),
    /// Follow every change of ownership, with no gaps and no duplicates
    #[command(after_help = examples!(
        "watch",
        "watch --kind camera --snapshot",
        "watch --from 1.187 --limit 10 --json",
    ))]
    Watch(watch::WatchArgs),
    /// Show resources, runners and events as they change; one page of text where there is no terminal
    #[command(after_help = examples!(
        "top",
        "top --tab runners --sort holder",
        "top --filter runner-2 --server leases.example:7070",
    ))]
    Top(TopArgs),
    /// Manage keys and tokens, export and import, through a server or directly on its store
    Admin(admin::AdminArgs),
    /// Print completions for a shell
    #[command(after_help = examples!("completions bash > /etc/bash_completion.d/solehold"))]
    Completions(Alone<completions::CompletionsArgs>),
    /// Write the manual pages, one for each command
    #[command(after_help = examples!("man /usr/local/share/man/man1"))]
    Man(Alone<man::ManArgs>),
}

impl Command {
    /// Whether it runs a user's command, whose exit codes must be distinguishable from ours, or holds a lease for one.
    pub fn runs_a_command(&self) -> bool {
        match self {
            Self::Run(_) => true,
            #[cfg(feature = "agent")]
            Self::Lease(lease::LeaseCommand::Keep(_)) => true,
            #[cfg(feature = "agent")]
            Self::Lock(lock) => !lock.is_question(),
            #[cfg(feature = "agent")]
            Self::Elect(elect) => !elect.is_question(),
            _ => false,
        }
    }

    /// Whether it takes the whole terminal, where log lines would only get in the way.
    pub fn is_view(&self) -> bool {
        matches!(self, Self::Demo(_) | Self::Top(_))
    }

    /// Whether it sends no requests to a server.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Demo(_) | Self::Rows(_) | Self::Completions(_) | Self::Man(_))
    }
}
