//! Facts of running servers.

use solehold_api::{
    ops::{Health, Ready},
    paths,
};
use solehold_core::time::StoreTime;
use solehold_engine::clock::wall_ms;

use crate::{
    client::{Client, ServerArgs},
    doctor::{Facts, Finding, clock::OtherClock, versions::ServerVersion},
    error::CommandResult,
    human::duration_ms,
};

const CHECK: &str = "server";

/// Asks each server on its own.
pub async fn look(args: &ServerArgs, facts: &mut Facts) -> CommandResult {
    for url in args.urls()? {
        let alone = ServerArgs { server: Some(url.to_string()), ..args.clone() };
        // Health needs no key, and the key may be for another server.
        let client = Client::new(&ServerArgs { api_key: None, tenant: None, ..alone })?;
        look_at(&client, url.as_str().trim_end_matches('/'), facts).await;
    }
    Ok(())
}

async fn look_at(client: &Client, url: &str, facts: &mut Facts) {
    let health: Health = match client.get(paths::HEALTH, &[]).await {
        Ok(health) => health,
        Err(failure) => {
            facts.gathered.push(Finding::problem(
                CHECK,
                format!("{url} does not answer: {}", failure.message),
                "holders that know no other server stop at their deadline",
                "start the server, or correct --server; a certificate is replaced by new files",
            ));
            return;
        }
    };
    let Health { node_id, version, engine, .. } = health;
    facts.versions.servers.push(ServerVersion { url: url.to_owned(), node_id: node_id.clone(), version });
    let before_ms = wall_ms();
    let ready: CommandResult<Ready> = client.get(paths::READY, &[]).await;
    let after_ms = wall_ms();
    facts.gathered.push(match &ready {
        Ok(Ready { barred_ms: Some(left), .. }) => Finding::warning(
            CHECK,
            format!("{url} ({node_id}) grants and renews nothing for another {}", duration_ms(*left)),
            "its store was restored or failed over, and leases that were lost may still be worked on",
            "wait; or, if no holder is left, see `solehold admin restored --help`",
        ),
        Ok(_) => Finding::ok(CHECK, format!("{url} ({node_id}) is ready, with the {engine} engine")),
        Err(failure) => Finding::problem(
            CHECK,
            format!("{url} ({node_id}) is not ready: {}", failure.message),
            "nothing is granted or renewed there, and holders stop at their deadline",
            "see the failure table in docs/operating.md, and the server's log",
        ),
    });
    if let Some(told) = ready.ok().and_then(|ready| ready.store_time) {
        let told_ms = StoreTime::from(told).0;
        let whose = format!("the store behind {url}");
        facts.clock.others.push(OtherClock { whose, before_ms, told_ms, after_ms });
    }
}
