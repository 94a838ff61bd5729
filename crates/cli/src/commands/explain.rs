//! `solehold explain`: why a resource is where it is.

use clap::Args;
use solehold_api::{paths, placement::Explanation};

use crate::{client::Client, error::CommandResult, global::GlobalArgs, output, target::ResourceArg};

/// What to explain.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The resource, as KIND/KEY
    resource: ResourceArg,
}

/// Runs it.
pub async fn run(args: ExplainArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let resource = args.resource;
    let path = paths::resource_explain(&resource.kind, &resource.key);
    let found = client.get::<Explanation>(&path, &[]).await;
    let found = found.map_err(|failure| failure.doing(format!("explain {resource}")))?;
    if global.json {
        return output::json(&found);
    }
    let failures = match (found.failures, found.quarantined) {
        (0, false) => None,
        (count, false) => Some(format!("{count}; at 5 it is in quarantine")),
        (count, true) => {
            Some(format!("{count}; it is in quarantine: `solehold resource clear {resource}` ends that"))
        }
    };
    let facts = output::facts(&[
        ("held by", Some(found.holder.clone().unwrap_or_else(|| "nobody".to_owned()))),
        ("should be", found.target.clone().filter(|_| found.target != found.holder)),
        ("step", Some(found.step.clone()).filter(|_| found.placed)),
        ("why", Some(found.detail.clone())),
        ("if it dies", found.if_holder_dies.map(|then| then.detail)),
        ("failures", failures),
        ("plan", Some(format!("algorithm {}, revision {}", found.algorithm, found.plan_revision))),
    ]);
    output::print(&format!("{resource}\n{facts}"))
}
