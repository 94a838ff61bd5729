//! `solehold node`: which nodes have a session, and which replicas answer.

use clap::Subcommand;
use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::json;
use solehold_api::{
    ops::{Health, Ready},
    paths,
    sessions::{Node, NodeList},
};
use solehold_core::session::Standing;

use crate::{
    client::{Client, ServerArgs, Url},
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::duration_ms,
    output::{self, or_dash},
};

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes that have a session, and what each reports
    #[command(after_help = examples!(
        "node ls --group green",
        "node ls --replicas --server 10.0.0.7:7070,10.0.0.8:7070",
    ))]
    Ls {
        /// Only nodes of this group
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
        /// At most N nodes [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// List the replicas that --server names instead, with the health of each
        #[arg(long, conflicts_with_all = ["group", "limit"])]
        replicas: bool,
    },
}

pub async fn run(command: NodeCommand, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let NodeCommand::Ls { group, limit, replicas } = command;
    if replicas {
        return list_replicas(server, global).await;
    }
    let client = Client::new(server)?;
    // The limit is of those that are shown.
    let asked = limit.filter(|_| group.is_none());
    let mut nodes = client.list::<NodeList>(&paths::nodes(), &[], asked).await.doing("list the nodes")?;
    nodes.retain(|node| group.is_none() || node.group == group);
    nodes.truncate(limit.unwrap_or(usize::MAX));
    let row = |node: &Node| {
        let metrics = serde_json::to_string(&node.metrics).ok().filter(|_| !node.metrics.is_empty());
        [
            node.node_id.clone(),
            or_dash(node.group.as_ref()),
            word(node.standing).to_owned(),
            node.lease_count.to_string(),
            node.weight.to_string(),
            format!("in {}", duration_ms(node.ttl_ms)),
            or_dash(metrics),
        ]
    };
    let headings = ["NODE", "GROUP", "STANDING", "LEASES", "WEIGHT", "EXPIRES", "REPORTS"];
    output::list(global, "nodes", &nodes, "no nodes are there", |nodes| {
        output::table(headings, &["LEASES", "WEIGHT"], nodes.iter().map(row).collect())
    })
}

/// A replica, as it answers for itself.
#[derive(Debug, Serialize)]
struct Replica {
    server: String,
    node_id: Option<String>,
    version: Option<String>,
    engine: Option<String>,
    ready: bool,
    /// Why it is not ready, or what it refuses although it is.
    reason: Option<String>,
}

impl Replica {
    /// Sends the request to one server only.
    async fn ask(args: ServerArgs) -> CommandResult<Self> {
        let client = Client::new(&args)?;
        let health = client.get::<Health>(paths::HEALTH, &[]).await;
        let (ready, reason) = match client.get::<Ready>(paths::READY, &[]).await {
            Ok(answer) => (answer.ready, answer.reason),
            Err(failure) => (false, Some(failure.problem.detail)),
        };
        let health = health.ok();
        Ok(Self {
            server: client.base().to_owned(),
            node_id: health.as_ref().map(|health| health.node_id.clone()),
            version: health.as_ref().map(|health| health.version.clone()),
            engine: health.map(|health| health.engine),
            ready,
            reason,
        })
    }
}

async fn list_replicas(server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let one = |url: Url| ServerArgs { server: Some(url.to_string()), ..server.clone() };
    let replicas = try_join_all(server.urls()?.into_iter().map(one).map(Replica::ask)).await?;
    let row = |replica: &Replica| {
        let state = match (&replica.reason, replica.ready) {
            (None, true) => "ready".to_owned(),
            (Some(reason), true) => format!("ready; {reason}"),
            (reason, false) => reason.clone().unwrap_or_else(|| "not ready".to_owned()),
        };
        let part = |part: &Option<String>| or_dash(part.as_ref());
        [replica.server.clone(), part(&replica.node_id), part(&replica.version), part(&replica.engine), state]
    };
    let headings = ["SERVER", "NODE", "VERSION", "ENGINE", "STATE"];
    output::show(global, &json!({ "replicas": replicas }), || {
        output::table(headings, &[], replicas.iter().map(row).collect())
    })
}

pub fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Current => "current",
        Standing::Draining => "draining",
        Standing::Superseded => "superseded",
    }
}
