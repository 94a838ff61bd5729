//! `solehold agent`: keeps workers that run only while leases are held.

use std::path::PathBuf;

use clap::Args;
use solehold_agent::{
    config::{AgentFile, OneOrMore, Source},
    driver::{self, AgentError, Reloader},
};
use solehold_api::problem::ErrorCode;
use solehold_client::OpenError;
use solehold_process::manager::{self, ServiceManager};

use super::ending_signals;
use crate::{
    client::ServerArgs,
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
};

/// Where the configuration is.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// The configuration file, as described in docs/guides/workers.md; it is read again when it changes
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
}

/// Runs an agent until SIGTERM or Ctrl-C, and then drains it.
pub async fn run(args: AgentArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let flags = server.clone();
    let change = Box::new(move |file: &mut AgentFile| apply(&flags, file));
    let loaded = Reloader::load(args.config, change);
    let (reloader, settings) = loaded.map_err(|error| CommandError::usage(error.to_string()))?;
    for remark in settings.remarks() {
        output::note(format!("note: {remark}"));
    }
    if args.check {
        let worker = &settings.worker;
        let shown = humantime::format_duration;
        let source = match &settings.source {
            Source::Assigned => "what the server assigns".to_owned(),
            Source::Static(resources) => format!("{} resources of its own", resources.len()),
        };
        return output::line(format!(
            "the configuration is good: runner {} works on {source}, with up to {} workers of {} resources; it drains within {}",
            settings.runner.runner_id,
            worker.max,
            worker.per_worker,
            shown(settings.drain),
        ));
    }
    global.logs("info")?.start(&settings.runner.runner_id).map_err(CommandError::usage)?;
    let traces = global.traces("solehold-agent", &settings.runner.runner_id)?;
    let mut signals = ending_signals()?;
    let manager = ServiceManager::of_process();
    let ending = {
        let manager = manager.clone();
        Box::pin(async move {
            signals.next().await;
            manager.stopping("draining");
        })
    };
    let runner = settings.runner.runner_id.clone();
    manager.status(&format!("registering runner {runner}"));
    let ready = |session: &str| {
        output::say(format!("solehold agent {runner} is registered, with session {session}"));
        manager.ready(&format!("runner {runner} is registered"));
    };
    // The driver's loop waits for nothing but its next event, in this task: while it gets on, so does the watchdog.
    tokio::select! {
        ended = driver::run(reloader, settings, ready, ending) => ended.map_err(of_error)?,
        never = manager.keep_alive(manager::turns) => match never {},
    }
    traces.flush().await;
    output::say("solehold agent stopped");
    Ok(())
}

/// Flags and variables override the file.
fn apply(flags: &ServerArgs, file: &mut AgentFile) {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(server) = given(&flags.server) {
        file.server = Some(OneOrMore::One(server));
    }
    if let Some(key) = given(&flags.api_key) {
        (file.api_key, file.api_key_file) = (Some(key), None);
    }
    if let Some(tenant) = given(&flags.tenant) {
        file.tenant = Some(tenant);
    }
    if let Some(path) = flags.ca_cert.as_ref().filter(|path| !path.is_empty()) {
        file.ca_cert = Some(path.into());
    }
}

fn of_error(error: AgentError) -> CommandError {
    match error {
        AgentError::Open(OpenError::Refused(refusal)) => {
            CommandError::new(refusal.code, refusal.detail).doing("register the runner")
        }
        AgentError::Open(error) => CommandError::usage(error.to_string()),
        AgentError::Over(why) => CommandError::new(ErrorCode::SessionSuperseded, why)
            .hint("is another agent running with the same runner_id?"),
        error @ AgentError::Io(..) => CommandError::broken(error.to_string()),
    }
}
