//! `solehold deploy`: shift work between deployment groups.

use clap::Subcommand;
use solehold_api::{
    paths,
    placement::{Deployment, DeploymentList, PostShift, ShiftState},
};

use crate::{
    client::{Client, Method},
    error::{CommandError, CommandResult, Doing},
    global::GlobalArgs,
    human::count,
    output::{self, or_dash},
};

#[derive(Debug, Subcommand)]
pub enum DeployCommand {
    /// Show the deployment groups, the load of each, and the present shift
    #[command(after_help = examples!("deploy status"))]
    Status,
    /// Shift a share of the work to a group; a larger share later moves only the difference
    #[command(after_help = examples!("deploy shift --to green --percent 10"))]
    Shift {
        /// The deployment group
        #[arg(long, value_name = "GROUP")]
        to: String,
        /// Share of the resources that the group should hold
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
        percent: u32,
    },
    /// Shift everything to the group that work is being shifted to
    #[command(after_help = examples!("deploy promote"))]
    Promote,
    /// Shift everything back from the group that work is being shifted to
    #[command(after_help = examples!("deploy rollback"))]
    Rollback,
}

pub async fn run(command: DeployCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    match command {
        DeployCommand::Status => status(client, global).await,
        DeployCommand::Shift { to, percent } => shift(client, global, to, percent).await,
        DeployCommand::Promote => shift(client, global, present(client).await?, 100).await,
        DeployCommand::Rollback => shift(client, global, present(client).await?, 0).await,
    }
}

async fn list(client: &Client) -> CommandResult<DeploymentList> {
    client.get::<DeploymentList>(&paths::deployments(), &[]).await.doing("list the deployments")
}

async fn present(client: &Client) -> CommandResult<String> {
    let shift = list(client).await?.shift;
    let none = || {
        CommandError::usage("no shift is in progress")
            .hint("start one: solehold deploy shift --to GROUP --percent N")
    };
    shift.map(|shift| shift.to).ok_or_else(none)
}

async fn shift(client: &Client, global: &GlobalArgs, to: String, percent: u32) -> CommandResult {
    let body = PostShift { to: to.clone(), percent };
    let shifted = client.send::<ShiftState>(Method::POST, &paths::deployment_shift(), &body).await;
    let shifted = shifted.doing(format!("shift work to {to}"))?;
    output::show(global, &shifted, || {
        format!("{to} gets {percent} % of the resources, step by step; see `solehold deploy status`")
    })
}

async fn status(client: &Client, global: &GlobalArgs) -> CommandResult {
    let found = list(client).await?;
    if global.json {
        return output::json(&found);
    }
    if found.deployments.is_empty() {
        output::note("no runners are registered");
        return Ok(());
    }
    let shift = match &found.shift {
        None => "no shift: all groups share the work\n".to_owned(),
        Some(ShiftState { to, percent, halted: None, .. }) => {
            format!(
                "{to} should hold {percent} % of the resources; {} left\n",
                count(found.moves_left, "move")
            )
        }
        Some(ShiftState { to, percent, halted: Some(why), .. }) => {
            format!("the shift of {percent} % to {to} has halted: {why}\n")
        }
    };
    output::print(&format!("{}\n{shift}", table(&found.deployments)))
}

fn table(deployments: &[Deployment]) -> String {
    let row = |group: &Deployment| {
        [
            or_dash(group.deployment_group.as_ref()),
            or_dash(Some(group.versions.join(", "))),
            format!("{}/{}", group.active, group.runners),
            format!("{}/{}", group.held, group.capacity),
        ]
    };
    let headings = ["GROUP", "VERSIONS", "ACTIVE", "HOLDS"];
    output::table(headings, &["ACTIVE", "HOLDS"], deployments.iter().map(row).collect())
}
