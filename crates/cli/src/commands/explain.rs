//! `solehold explain`: why a resource is where it is.

use clap::Args;
use solehold_api::{
    paths,
    placement::{Explanation, Penalty},
};
use solehold_clock::wall_ms;

use crate::{
    client::Client,
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::{ago, duration_ms},
    output,
    target::ResourceArg,
};

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The resource, as KIND/KEY
    resource: ResourceArg,
}

pub async fn run(args: ExplainArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let resource = args.resource;
    let path = paths::resource_explain(&resource.kind, &resource.key);
    let found = client.get::<Explanation>(&path, &[]).await.doing(format!("explain {resource}"))?;
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
    let settling = found.settling.iter().map(|settling| {
        format!(
            "{} gets nothing for balance for another {}",
            settling.runner_id,
            duration_ms(settling.for_ms)
        )
    });
    let settling: Vec<String> = settling.collect();
    let settling = format!("{}; settle_ms is {}", settling.join(", "), found.settle_ms);
    let penalties: Vec<String> = found.penalties.iter().map(penalty).collect();
    let last_failure = found.last_failure.as_ref().map(|last| {
        let reason = last.reason.as_deref().unwrap_or("no reason was given");
        format!("on {}, {}: {reason}", last.runner_id, ago(last.at, wall_ms()))
    });
    let facts = output::facts(&[
        ("held by", Some(found.holder.clone().unwrap_or_else(|| "nobody".to_owned()))),
        ("should be", found.target.clone().filter(|_| found.target != found.holder)),
        ("step", Some(found.step.clone()).filter(|_| found.placed)),
        ("why", Some(found.detail.clone())),
        ("if it dies", found.if_holder_dies.map(|then| then.detail)),
        ("failures", failures),
        ("last failure", last_failure),
        ("penalty", Some(penalties.join(", ")).filter(|text| !text.is_empty())),
        ("settling", Some(settling).filter(|_| !found.settling.is_empty())),
        ("plan", Some(format!("algorithm {}, revision {}", found.algorithm, found.plan_revision))),
    ]);
    output::print(&format!("{resource}\n{facts}"))
}

fn penalty(penalty: &Penalty) -> String {
    let told = format!(
        "other runners than {} are preferred for another {}",
        penalty.runner_id,
        duration_ms(penalty.for_ms)
    );
    match &penalty.declines {
        Some(why) => format!("{told}, and it does not ask for it now ({why})"),
        None => told,
    }
}
