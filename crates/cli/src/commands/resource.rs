//! `solehold resource`: see, declare and remove resources.

use std::{collections::BTreeMap, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use solehold_api::{
    hand_over::{OfferResource, OfferedLease},
    paths,
    placement::{Failures, PutQuarantine},
    resources::{PutResource, ResourceBody, ResourceList},
};

use crate::{
    client::{Client, Method},
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::duration_ms,
    output::{self, or_dash},
    target::{ResourceArg, pair},
    view::shared_by,
};

#[derive(Debug, Subcommand)]
pub enum ResourceCommand {
    /// List resources, declared or held
    #[command(after_help = examples!("resource ls --kind camera"))]
    Ls {
        /// Only resources of this kind
        #[arg(long)]
        kind: Option<String>,
        /// Only resources at this site
        #[arg(long)]
        site: Option<String>,
        /// Only held resources
        #[arg(long, conflicts_with = "free")]
        held: bool,
        /// Only resources that are not held
        #[arg(long)]
        free: bool,
        /// At most N resources [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show a resource and who holds it
    #[command(after_help = examples!("resource get camera/lobby"))]
    Get {
        /// The resource, as KIND/KEY
        resource: ResourceArg,
    },
    /// Declare a resource, or replace its declaration: options that are left out are cleared
    #[command(after_help = examples!(
        "resource put camera/lobby --site hall-2 --label floor=1 --lock-delay 5s",
    ))]
    Put(PutArgs),
    /// Hand a held resource over to its next holder, without a gap between the two
    #[command(after_help = examples!(
        "resource hand-over camera/lobby --to runner-2",
        "resource hand-over camera/lobby --call-off",
    ))]
    HandOver(HandOverArgs),
    /// Stop placing a resource until it is cleared; its present holder keeps it
    #[command(after_help = examples!("resource quarantine camera/lobby --reason \"its lens is broken\""))]
    Quarantine {
        /// The resource, as KIND/KEY
        resource: ResourceArg,
        /// Reason to record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Forget the failures of a resource and end its quarantine
    #[command(after_help = examples!("resource clear camera/lobby"))]
    Clear {
        /// The resource, as KIND/KEY
        resource: ResourceArg,
    },
    /// Remove a resource
    #[command(after_help = examples!(
        "resource rm camera/lobby",
        "resource rm camera/lobby --force --fenced",
    ))]
    Rm {
        /// The resource, as KIND/KEY
        resource: ResourceArg,
        /// Remove it even if it is held, and revoke its lease
        #[arg(long)]
        force: bool,
        /// The holder is known to be stopped or fenced off: do not hold the resource back
        #[arg(long, requires = "force")]
        fenced: bool,
    },
}

#[derive(Debug, Args)]
pub struct HandOverArgs {
    /// The resource, as KIND/KEY
    resource: ResourceArg,
    /// The next holder, which must have a session
    #[arg(long, value_name = "HOLDER", required_unless_present = "call_off")]
    to: Option<String>,
    /// How long the next holder waits for the present one, as in 30s
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    within: Duration,
    /// Revoke the present lease at once instead of requesting its release
    #[arg(long)]
    force: bool,
    /// The present holder is known to be stopped or fenced off: do not hold the resource back
    #[arg(long, requires = "force")]
    fenced: bool,
    /// Cancel the hand-over: the present holder keeps the resource
    #[arg(long, conflicts_with_all = ["to", "force"])]
    call_off: bool,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// The resource, as KIND/KEY
    resource: ResourceArg,
    /// The site that it belongs to
    #[arg(long)]
    site: Option<String>,
    /// A label, as NAME=VALUE; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// An attribute, as NAME=VALUE: the value is JSON, or else a string; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
    /// How long it is held back after a lease has expired, as in 5s
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    lock_delay: Duration,
}

pub async fn run(command: ResourceCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    match command {
        ResourceCommand::Ls { kind, site, held, free, limit } => {
            let held = (held || free).then(|| held.to_string());
            let query = [("kind", kind), ("site", site), ("held", held)];
            let resources = client.list::<ResourceList>(&paths::resources(), &query, limit).await;
            let resources = resources.doing("list the resources")?;
            if resources.is_empty() {
                client.check_tenant().await.doing("list the resources")?;
            }
            output::list(global, "resources", &resources, "no such resources", table)
        }
        ResourceCommand::Get { resource } => {
            let path = paths::resource(&resource.kind, &resource.key);
            let found = client.get::<ResourceBody>(&path, &[]).await;
            show(&found.doing(format!("show {resource}"))?, "", global)
        }
        ResourceCommand::Put(args) => {
            let resource = args.resource;
            let body = PutResource {
                site: args.site,
                labels: args.labels.into_iter().collect(),
                attributes: args.attributes.into_iter().map(|(name, text)| (name, value(text))).collect(),
                lock_delay_ms: u64::try_from(args.lock_delay.as_millis()).unwrap_or(u64::MAX),
            };
            let path = paths::resource(&resource.kind, &resource.key);
            let declared = client.send::<ResourceBody>(Method::PUT, &path, &body).await;
            show(&declared.doing(format!("declare {resource}"))?, "declared ", global)
        }
        ResourceCommand::HandOver(args) => hand_over(args, client, global).await,
        ResourceCommand::Quarantine { resource, reason } => {
            let path = paths::resource_quarantine(&resource.kind, &resource.key);
            let failures = client.send::<Failures>(Method::PUT, &path, &PutQuarantine { reason }).await;
            let failures = failures.doing(format!("put {resource} into quarantine"))?;
            output::show(global, &failures, || {
                format!("{resource} is in quarantine: it is placed nowhere until it is cleared")
            })
        }
        ResourceCommand::Clear { resource } => {
            let path = paths::resource_quarantine(&resource.kind, &resource.key);
            let done = client.call::<Value>(Method::DELETE, &path, &[], None::<&()>).await;
            done.doing(format!("clear {resource}"))?;
            output::show(global, &json!({ "kind": resource.kind, "key": resource.key }), || {
                format!("{resource} is cleared, and placed again")
            })
        }
        ResourceCommand::Rm { resource, force, fenced } => {
            let path = paths::resource(&resource.kind, &resource.key);
            let given = |flag: bool| flag.then(|| "true".to_owned());
            let query = [("force", given(force)), ("fenced", given(fenced))];
            let done = client.call::<Value>(Method::DELETE, &path, &query, None::<&()>).await;
            done.doing(format!("remove {resource}"))?;
            output::show(global, &json!({ "kind": resource.kind, "key": resource.key }), || {
                format!("removed {resource}")
            })
        }
    }
}

async fn hand_over(args: HandOverArgs, client: &Client, global: &GlobalArgs) -> CommandResult {
    let HandOverArgs { resource, to, within, force, fenced, call_off } = args;
    let path = paths::resource_handover(&resource.kind, &resource.key);
    if call_off {
        let done = client.call::<Value>(Method::DELETE, &path, &[], None::<&()>).await;
        done.doing(format!("call off the hand-over of {resource}"))?;
        return output::show(global, &json!({ "kind": resource.kind, "key": resource.key }), || {
            format!("{resource} stays where it is")
        });
    }
    let ttl_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let body = OfferResource { to, ttl_ms: Some(ttl_ms.into()), force, fenced, ..Default::default() };
    let pending = client.send::<OfferedLease>(Method::POST, &path, &body).await;
    let pending = pending.doing(format!("hand over {resource}"))?;
    if global.json {
        return output::json(&pending);
    }
    let from = pending.present.as_deref().unwrap_or("nobody");
    output::line(format!(
        "{resource} goes from {from} to {} when it is released, within {}",
        pending.holder,
        duration_ms(pending.ttl_ms)
    ))
}

/// The value as JSON if it parses, otherwise as a string.
fn value(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

fn show(resource: &ResourceBody, what: &str, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(resource);
    }
    let lease = resource.lease.as_ref();
    let held = lease.map(|lease| {
        format!("{}, token {}, expires in {}", lease.holder, lease.token, duration_ms(lease.ttl_ms))
    });
    let attributes = serde_json::to_string(&resource.attributes).ok();
    let facts = output::facts(&[
        ("held by", Some(held.unwrap_or_else(|| free(resource)))),
        ("lease", lease.map(|lease| lease.lease_id.to_string())),
        ("next", resource.pending.as_ref().map(|pending| pending.holder.clone())),
        ("last token", Some(resource.last_token).filter(|token| *token > 0).map(|token| token.to_string())),
        ("site", resource.site.clone()),
        ("labels", Some(labels(&resource.labels)).filter(|labels| !labels.is_empty())),
        ("attributes", attributes.filter(|_| !resource.attributes.is_empty())),
        ("lock delay", Some(resource.lock_delay_ms).filter(|ms| *ms > 0).map(duration_ms)),
        (
            "state",
            resource.state.as_ref().map(|s| format!("written at {} under token {}", s.written_at, s.token)),
        ),
        (
            "declared",
            Some(if resource.declared { "yes" } else { "no: it is gone when it is not held" }.to_owned()),
        ),
        ("tenant", Some(resource.tenant.clone()).filter(|tenant| tenant != "default")),
    ]);
    output::print(&format!("{what}{}/{}\n{facts}", resource.kind, resource.key))
}

fn free(resource: &ResourceBody) -> String {
    if let Some(shared) = shared_by(&resource.shared) {
        return shared;
    }
    match resource.held_back_ms {
        0 => "nobody".to_owned(),
        ms => format!("nobody, held back for {}", duration_ms(ms)),
    }
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    let labels = labels.iter().map(|(name, value)| format!("{name}={value}"));
    labels.collect::<Vec<_>>().join(",")
}

fn table(resources: &[ResourceBody]) -> String {
    let row = |resource: &ResourceBody| {
        let lease = resource.lease.as_ref();
        let left = match (lease, resource.held_back_ms) {
            (Some(lease), _) => format!("in {}", duration_ms(lease.ttl_ms)),
            (None, 0) => "-".to_owned(),
            (None, ms) => format!("held back {}", duration_ms(ms)),
        };
        [
            format!("{}/{}", resource.kind, resource.key),
            or_dash(lease.map(|lease| &lease.holder)),
            or_dash(Some(resource.last_token).filter(|token| *token > 0)),
            left,
            or_dash(resource.site.as_ref()),
            or_dash(Some(labels(&resource.labels))),
        ]
    };
    let headings = ["RESOURCE", "HOLDER", "TOKEN", "EXPIRES", "SITE", "LABELS"];
    output::table(headings, &["TOKEN"], resources.iter().map(row).collect())
}
