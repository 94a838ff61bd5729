//! `solehold runner`: see, drain and remove runners.

use clap::Subcommand;
use serde_json::json;
use solehold_api::{
    leases::LeaseList,
    paths,
    runners::{PutRunnerStatus, RemoveRunner, RemovedRunner, Runner, RunnerList, RunnerStatus},
};
use solehold_clock::wall_ms;
use uuid::Uuid;

use crate::{
    client::{Client, Method},
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::{ago, count, duration_ms},
    output::{self, or_dash},
    view::LeaseView,
};

#[derive(Debug, Subcommand)]
pub enum RunnerCommand {
    /// List the registered runners
    #[command(after_help = examples!("runner ls"))]
    Ls {
        /// At most N runners [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show a runner and its leases
    #[command(after_help = examples!("runner get runner-2"))]
    Get {
        /// Name of the runner
        runner: String,
    },
    /// Hand the leases of a runner over to others, and assign it no more
    #[command(after_help = examples!("runner drain runner-2", "runner drain runner-2 --undo"))]
    Drain {
        /// Name of the runner
        runner: String,
        /// Until --undo, even if the runner registers again
        #[arg(long, conflicts_with = "undo")]
        maintenance: bool,
        /// Let the runner take work again
        #[arg(long)]
        undo: bool,
        /// Only if this is the present session of the runner
        #[arg(long, value_name = "ID")]
        session: Option<Uuid>,
    },
    /// Remove a runner from the registry, and end its leases
    ///
    /// Its resources are held back until the deadline that the runner had, since it may still be working. Drain it
    /// first if its resources must not wait.
    #[command(after_help = examples!("runner rm runner-2"))]
    Rm {
        /// Name of the runner
        runner: String,
        /// Session of a runner that is known to have stopped: its resources are free at once
        #[arg(long, value_name = "ID")]
        session: Option<Uuid>,
    },
}

pub async fn run(command: RunnerCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    match command {
        RunnerCommand::Ls { limit } => {
            let runners = client.list::<RunnerList>(&paths::runners(), &[], limit).await;
            let runners = runners.doing("list the runners")?;
            if runners.is_empty() {
                client.check_tenant().await.doing("list the runners")?;
            }
            output::list(global, "runners", &runners, "no runners are registered", table)
        }
        RunnerCommand::Get { runner } => get(&runner, client, global).await,
        RunnerCommand::Drain { runner, maintenance, undo, session } => {
            let status = match (maintenance, undo) {
                (true, _) => RunnerStatus::Maintenance,
                (_, true) => RunnerStatus::Active,
                _ => RunnerStatus::Draining,
            };
            let path = paths::runner_status(&runner);
            let body = PutRunnerStatus { status, session_id: session };
            let shown = client.send::<Runner>(Method::PUT, &path, &body).await;
            let shown = shown.doing(format!("drain {runner}"))?;
            if global.json {
                return output::json(&shown);
            }
            let held = match usize::try_from(shown.held).unwrap_or(usize::MAX) {
                0 => "holds no leases".to_owned(),
                held => format!("hands {} over to other runners as they have room", count(held, "lease")),
            };
            output::line(match status {
                RunnerStatus::Active => format!("{runner} takes work again"),
                _ => format!("{runner} is {}: it gets no new leases, and {held}", word(shown.status)),
            })
        }
        RunnerCommand::Rm { runner, session } => {
            let path = paths::runner(&runner);
            let body = RemoveRunner { session_id: session };
            let removed = client.send::<RemovedRunner>(Method::DELETE, &path, &body).await;
            let removed = removed.doing(format!("remove {runner}"))?;
            output::show(global, &removed, || match (removed.released, removed.revoked) {
                (0, 0) => format!("removed {runner}, which held no leases"),
                (released, 0) => format!("removed {runner}: {} released", count(released, "lease")),
                (_, revoked) => format!(
                    "removed {runner}: {} revoked, and held back until the deadline that it had",
                    count(revoked, "lease")
                ),
            })
        }
    }
}

async fn get(name: &str, client: &Client, global: &GlobalArgs) -> CommandResult {
    let (runner, leases) = read(name, client).await?;
    if global.json {
        return output::json(&json!({ "runner": runner, "leases": leases }));
    }
    output::print(&shown(&runner, &leases))
}

/// What `solehold runner get` prints.
pub async fn text(name: &str, client: &Client) -> CommandResult<String> {
    let (runner, leases) = read(name, client).await?;
    Ok(shown(&runner, &leases))
}

async fn read(name: &str, client: &Client) -> CommandResult<(Runner, Vec<LeaseView>)> {
    let runner =
        client.get::<Runner>(&paths::runner(name), &[]).await.doing(format!("show runner {name}"))?;
    let query = [("holder", Some(name.to_owned()))];
    let leases = client.list::<LeaseList>(&paths::leases(), &query, None).await;
    let leases = leases.doing(format!("list the leases of {name}"))?;
    Ok((runner, leases.into_iter().map(Into::into).collect()))
}

fn shown(runner: &Runner, leases: &[LeaseView]) -> String {
    let about = &runner.about;
    let metrics = serde_json::to_string(&runner.metrics).ok();
    let session = runner
        .session_id
        .map(|id| format!("{id}, expires in {}", duration_ms(runner.ttl_ms.unwrap_or_default())));
    let facts = output::facts(&[
        ("status", Some(word(runner.status).to_owned())),
        ("load", Some(format!("{} of {}", runner.current_load, about.capacity))),
        ("session", Some(or_dash(session))),
        ("last seen", Some(ago(runner.last_heartbeat, wall_ms()))),
        ("deployment", Some(deployment(runner)).filter(|text| text != "-")),
        ("host", about.host.clone()),
        ("site", Some(runner.site_id.clone()).filter(|site| !site.is_empty())),
        ("can do", Some(about.capabilities.join(", ")).filter(|text| !text.is_empty())),
        ("metrics", metrics.filter(|_| !runner.metrics.is_empty())),
        ("tenant", Some(runner.tenant_id.clone()).filter(|tenant| tenant != "default")),
    ]);
    let held = match leases {
        [] => "\nholds no leases\n".to_owned(),
        leases => format!("\n{}", LeaseView::table(leases)),
    };
    format!("{}\n{facts}{held}", runner.runner_id)
}

pub fn word(status: RunnerStatus) -> &'static str {
    match status {
        RunnerStatus::Active => "active",
        RunnerStatus::Draining => "draining",
        RunnerStatus::Maintenance => "under maintenance",
        RunnerStatus::Inactive => "inactive",
    }
}

pub fn deployment(runner: &Runner) -> String {
    let group = &runner.about.deployment_group;
    let version = &runner.about.deployment_version;
    let parts: Vec<&str> = [group, version].into_iter().flatten().map(String::as_str).collect();
    or_dash(Some(parts.join(" ")))
}

fn table(runners: &[Runner]) -> String {
    let now_ms = wall_ms();
    let row = |runner: &Runner| {
        [
            runner.runner_id.clone(),
            word(runner.status).to_owned(),
            format!("{}/{}", runner.current_load, runner.about.capacity),
            ago(runner.last_heartbeat, now_ms),
            or_dash(runner.ttl_ms.map(|ms| format!("in {}", duration_ms(ms)))),
            deployment(runner),
            or_dash(Some(&runner.site_id)),
        ]
    };
    let headings = ["RUNNER", "STATUS", "LOAD", "LAST SEEN", "EXPIRES", "DEPLOYMENT", "SITE"];
    output::table(headings, &["LOAD"], runners.iter().map(row).collect())
}
