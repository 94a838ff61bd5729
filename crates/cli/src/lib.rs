//! The command line of `solehold`: a server, and commands that send it requests.
//!
//! ```text
//!   args (clap) -> commands/, a file each -> client (HTTP to a server), or a store straight (admin), or the server itself
//!                         |
//!                output: tables for people, JSON for programs      error: one line or a problem document, an exit code
//! ```

// A build without some features has helpers that only their commands use.
#![cfg_attr(
    not(all(feature = "agent", feature = "gate", feature = "postgres")),
    allow(dead_code, unused_imports, reason = "used by commands that this build lacks")
)]

#[macro_use]
mod examples;

mod args;
mod client;
mod commands;
mod config;
#[cfg(all(feature = "agent", feature = "gate"))]
mod demo;
mod doctor;
mod engine_url;
mod error;
mod exit;
mod files;
mod global;
#[cfg(feature = "agent")]
mod hold;
mod human;
mod live;
mod logs;
mod output;
mod progress;
mod store;
mod target;
mod times;
mod top;
mod traces;
mod view;

use clap::CommandFactory;

#[cfg(feature = "gate")]
use crate::commands::gate;
#[cfg(not(all(feature = "agent", feature = "gate", feature = "kafka", feature = "postgres")))]
use crate::commands::not_built;
#[cfg(feature = "kafka")]
use crate::commands::orchestrator;
#[cfg(feature = "agent")]
use crate::commands::{agent, elect, hold as holding, keep, lock};
#[cfg(feature = "postgres")]
use crate::commands::{rows, sql};
use crate::{
    args::{Cli, Command},
    client::{Client, ServerArgs},
    commands::{
        admin, completions, deploy, doctor as doctoring, explain, health, job,
        lease::{self, LeaseCommand},
        man, node, placement, resource, runner, serve, session, watch,
    },
    error::{CommandError, CommandResult},
    exit::Exit,
    global::GlobalArgs,
};

/// Runs the command that the arguments of this process name, and ends the process.
pub fn main() -> ! {
    #[cfg(feature = "agent")]
    solehold_agent::keep::play_role();
    let cli = Cli::of_process().unwrap_or_else(|error| misused(error));
    // `serve` says it in its log.
    if !matches!(cli.command, Command::Serve(_)) {
        let variables: config::Variables = std::env::vars_os().collect();
        config::misspelt(&variables).for_each(|warning| output::note(format!("warning: {warning}")));
    }
    let json = cli.global.json;
    let runs_a_command = cli.command.runs_a_command();
    let code = run(cli).unwrap_or_else(|failure| {
        output::note(failure.show(json));
        let exit = if runs_a_command { failure.exit.before_the_command() } else { failure.exit };
        exit.code()
    });
    // At once: a task that still waits for something, such as stdin, is not waited for.
    std::process::exit(code.into());
}

/// Says what is wrong with the arguments, and ends.
fn misused(error: clap::Error) -> ! {
    let typed = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    let typed: Vec<String> = typed.collect();
    let before_dashes = || typed.iter().take_while(|arg| *arg != "--");
    let runs = before_dashes().find(|arg| ["run", "lock", "elect"].contains(&arg.as_str())).cloned();
    if let Some(runs) = runs.filter(|_| error.use_stderr()) {
        let _ = args::with_hint(error, &runs, &typed).print();
        std::process::exit(Exit::Usage.before_the_command().code().into());
    }
    if error.use_stderr() && typed.windows(2).any(|two| two == ["lease", "keep"]) {
        let _ = error.print();
        std::process::exit(Exit::Usage.before_the_command().code().into());
    }
    error.exit()
}

fn run(mut cli: Cli) -> CommandResult<u8> {
    let has_key = cli.server.api_key.as_ref().is_some_and(|key| !key.is_empty());
    if !has_key && !cli.command.is_local() {
        let variables: config::Variables = std::env::vars_os().collect();
        cli.server.api_key = variables.get("SOLEHOLD_API_KEY")?;
    }
    let asks_only = !matches!(
        cli.command,
        Command::Serve(_)
            | Command::Agent(_)
            | Command::Gate(_)
            | Command::Orchestrator(_)
            | Command::Admin(_)
    );
    let mut runtime = if asks_only {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| CommandError::broken(format!("cannot start: {error}")))?;
    let code = runtime.block_on(dispatch(cli.command, &cli.server, &cli.global));
    if asks_only {
        // A thread that reads stdin or waits for a process may never end.
        runtime.shutdown_background();
    }
    code
}

async fn dispatch(command: Command, server: &ServerArgs, global: &GlobalArgs) -> CommandResult<u8> {
    let logs_by_itself = matches!(
        command,
        Command::Serve(_) | Command::Agent(_) | Command::Gate(_) | Command::Orchestrator(_)
    );
    if !logs_by_itself {
        // They tell people what matters in words of their own.
        let is_silent = command.runs_a_command() || command.is_view();
        let level = if is_silent { "off" } else { "warn" };
        global.logs(level)?.start("cli").map_err(CommandError::usage)?;
    }
    let client = || Client::new(server);
    let done = match command {
        #[cfg(feature = "agent")]
        Command::Run(args) => return holding::run(args, server).await,
        #[cfg(feature = "agent")]
        Command::Lock(args) if args.is_question() => lock::ls(&client()?, global).await,
        #[cfg(feature = "agent")]
        Command::Lock(args) => return holding::lock(args, server).await,
        #[cfg(feature = "agent")]
        Command::Elect(args) if args.is_question() => {
            return elect::observe(args, &client()?, global).await;
        }
        #[cfg(feature = "agent")]
        Command::Elect(args) => return elect::run(args, server).await,
        #[cfg(feature = "agent")]
        Command::Agent(args) => agent::run(args, server, global).await,
        #[cfg(not(feature = "agent"))]
        Command::Run(_) | Command::Lock(_) | Command::Elect(_) | Command::Agent(_) => {
            Err(not_built::error("`run`, `lock`, `elect` and `agent`", "agent"))
        }
        #[cfg(all(feature = "agent", feature = "gate"))]
        Command::Demo(alone) => return demo::run(alone.args).await,
        #[cfg(not(all(feature = "agent", feature = "gate")))]
        Command::Demo(_) => Err(not_built::error("`demo`", "agent,gate")),
        Command::Top(args) => top::run(args, server).await,
        Command::Doctor(args) => return doctoring::run(args, server, global).await,
        Command::Watch(args) => return watch::run(args, &client()?, global).await,
        Command::Serve(alone) => serve::run(alone.args, global).await,
        #[cfg(feature = "agent")]
        Command::Lease(LeaseCommand::Keep(args)) => return keep::run(*args, server, global).await,
        Command::Lease(LeaseCommand::Request(request)) => lease::run(request, &client()?, global).await,
        Command::Resource(command) => resource::run(command, &client()?, global).await,
        Command::Runner(command) => runner::run(command, &client()?, global).await,
        Command::Deploy(command) => deploy::run(command, &client()?, global).await,
        Command::Placement(command) => placement::run(command, &client()?, global).await,
        Command::Explain(args) => explain::run(args, &client()?, global).await,
        #[cfg(feature = "gate")]
        Command::Gate(command) => gate::run(command, server, global).await,
        #[cfg(not(feature = "gate"))]
        Command::Gate(_) => Err(not_built::error("`gate`", "gate")),
        #[cfg(feature = "kafka")]
        Command::Orchestrator(args) => orchestrator::run(args, server, global).await,
        #[cfg(not(feature = "kafka"))]
        Command::Orchestrator(_) => Err(not_built::error("`orchestrator`", "kafka")),
        Command::Job(args) => job::run(args, server, global).await,
        #[cfg(feature = "postgres")]
        Command::Rows(alone) => rows::run(alone.args, global).await,
        #[cfg(not(feature = "postgres"))]
        Command::Rows(_) => Err(not_built::error("`rows`", "postgres")),
        #[cfg(feature = "postgres")]
        Command::Sql(alone) => sql::run(alone.args, global).await,
        #[cfg(not(feature = "postgres"))]
        Command::Sql(_) => Err(not_built::error("`sql`", "postgres")),
        Command::Session(command) => session::run(command, &client()?, global).await,
        Command::Node(command) => node::run(command, server, global).await,
        Command::Health(args) => health::run(args, server, global).await,
        Command::Admin(args) => admin::run(args, server, global).await,
        Command::Completions(alone) => completions::run(&alone.args, &mut Cli::command()),
        Command::Man(alone) => man::run(&alone.args, Cli::command()),
    };
    done.map(|()| Exit::Done.code())
}
