//! `solehold node`: see who is there.

use clap::Subcommand;
use serde_json::json;
use solehold_api::{
    page::PageCursor,
    paths,
    sessions::{Node, NodeList},
};
use solehold_core::session::Standing;

use crate::{
    client::{Client, Page},
    error::CommandResult,
    global::GlobalArgs,
    human::duration_ms,
    output::{self, or_dash},
};

/// What can be done with nodes.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes that have a session, and what each reports
    Ls {
        /// Only of this group
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
        /// At most N nodes [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
}

impl Page for NodeList {
    type Item = Node;
    fn into_parts(self) -> (Vec<Node>, Option<PageCursor>) {
        (self.nodes, self.next)
    }
}

/// Runs it.
pub async fn run(command: NodeCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    let NodeCommand::Ls { group, limit } = command;
    // The limit is of those that are shown.
    let asked = limit.filter(|_| group.is_none());
    let nodes = client.list::<NodeList>(&paths::nodes(), &[], asked).await;
    let mut nodes = nodes.map_err(|failure| failure.doing("list the nodes"))?;
    nodes.retain(|node| group.is_none() || node.group == group);
    nodes.truncate(limit.unwrap_or(usize::MAX));
    if global.json {
        return output::json(&json!({ "nodes": nodes }));
    }
    if nodes.is_empty() {
        output::note("no nodes are there");
        return Ok(());
    }
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
    output::print(&output::table(headings, &["LEASES", "WEIGHT"], nodes.iter().map(row).collect()))
}

/// What a session may still do, in a word.
pub fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Current => "current",
        Standing::Draining => "draining",
        Standing::Superseded => "superseded",
    }
}
