//! `solehold health`: whether a process is ready, as an exit code. Images without `curl` check their health by it.

use clap::Args;
use serde_json::json;
use solehold_api::paths;

use crate::{
    client::{Client, ServerArgs},
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
};

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Process to ask, as HOST:PORT or a URL: a server, or where an agent, a gate or an orchestrator serves /readyz
    /// [default: what --server names]
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
}

pub async fn run(args: HealthArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    // Health needs no key, and the process that is asked may be another than the server that the key is for.
    let server = ServerArgs { api_key: None, tenant: None, ..server.clone() };
    let client = Client::new(&ServerArgs { server: args.address.or(server.server.clone()), ..server })?;
    // Only the status counts: a server responds with a document, the others with lines of text.
    client
        .stream(paths::READY, &[])
        .await
        .map_err(|failure| CommandError { message: format!("not ready: {}", failure.message), ..failure })?;
    let base = client.base();
    output::show(global, &json!({ "server": base, "ready": true }), || format!("{base} is ready"))
}
