//! `solehold admin audit`: what operators did.

use serde_json::Value;
use solehold_api::{
    admin::{AuditEntry, AuditList},
    field::maybe_name,
    paths,
    problem::Problem,
};
use solehold_server::audit;

use super::Door;
use crate::{
    error::{CommandResult, Doing},
    global::GlobalArgs,
    output::{self, or_dash},
};

pub async fn run(limit: usize, door: &Door, tenant: Option<String>, global: &GlobalArgs) -> CommandResult {
    let entries = list(limit, tenant, door).await.doing("read the audit trail")?;
    output::list(global, "entries", &entries, "no operator has changed anything yet", table)
}

async fn list(limit: usize, tenant: Option<String>, door: &Door) -> CommandResult<Vec<AuditEntry>> {
    match door {
        Door::Server(client) => {
            client.list::<AuditList>(&paths::audit(), &[("tenant", tenant)], Some(limit)).await
        }
        Door::Store(engine) => {
            let tenant = maybe_name("tenant", tenant.as_deref()).map_err(Problem::from)?;
            let entries = audit::list(engine, tenant.as_ref(), None, limit).await;
            Ok(entries.map_err(|failure| *failure.0)?)
        }
    }
}

fn table(entries: &[AuditEntry]) -> String {
    let row = |entry: &AuditEntry| {
        [
            entry.at.to_string(),
            entry.actor.clone(),
            or_dash(entry.tenant.as_ref()),
            entry.action.clone(),
            entry.target.clone(),
            details(entry),
        ]
    };
    let headings = ["TIME", "ACTOR", "TENANT", "ACTION", "TARGET", "DETAILS"];
    output::table(headings, &[], entries.iter().map(row).collect())
}

/// As NAME=VALUE, texts as they are.
fn details(entry: &AuditEntry) -> String {
    let each = entry.details.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    });
    each.collect::<Vec<_>>().join(" ")
}
