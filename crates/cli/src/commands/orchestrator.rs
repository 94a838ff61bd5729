//! `solehold orchestrator`: turns job commands into tasks for workers, stage by stage.

use std::path::PathBuf;

use clap::Args;
use solehold_api::problem::ErrorCode;
use solehold_stream::{
    orchestrator,
    running::{Flags, RunError},
};

use crate::{
    client::ServerArgs,
    ending::EndingSignals,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
};

/// Where the configuration is.
#[derive(Debug, Args)]
pub struct OrchestratorArgs {
    /// The configuration file, as described in docs/guides/orchestrator.md
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration against the brokers, the database and the workers' brokers, and exit
    #[arg(long)]
    check: bool,
}

/// Runs an orchestrator until SIGTERM or Ctrl-C, and then hands its partitions over.
pub async fn run(args: OrchestratorArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let flags = Flags {
        server: given(&server.server),
        api_key: given(&server.api_key),
        tenant: given(&server.tenant),
        ca_cert: server.ca_cert.clone().filter(|path| !path.is_empty()).map(PathBuf::from),
    };
    if args.check {
        // What the Kafka client has to say is in the answer.
        global.logs("warn,librdkafka=off,rdkafka=off")?.start("orchestrator").map_err(CommandError::usage)?;
        let remarks = orchestrator::check(&args.config, flags).await.map_err(of_error)?;
        return remarks.iter().try_for_each(output::line);
    }
    global.logs("info")?.start("orchestrator").map_err(CommandError::usage)?;
    let mut signals = EndingSignals::new()?;
    let (end, ending) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        signals.next().await;
        let _ = end.send(());
        // A second signal does not wait.
        signals.next().await;
        std::process::exit(crate::exit::Exit::Interrupted.code().into());
    });
    let ending = async move { drop(ending.await) };
    orchestrator::run(&args.config, flags, |line| output::say(line), ending).await.map_err(of_error)?;
    output::say("solehold orchestrator stopped");
    Ok(())
}

fn of_error(error: RunError) -> CommandError {
    let code = match &error {
        RunError::Usage(_) => ErrorCode::BadRequest,
        RunError::Unavailable(_) => ErrorCode::Unavailable,
        RunError::Failed(_) => ErrorCode::Internal,
    };
    CommandError::new(code, error.to_string())
}
