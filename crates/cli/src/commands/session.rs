//! `solehold session`: see and close sessions.

use clap::Subcommand;
use solehold_api::{
    paths,
    sessions::{ClosedSession, NodeList, SessionBody},
};
use solehold_clock::wall_ms;
use solehold_core::session::Standing;
use uuid::Uuid;

use crate::{
    client::{Client, Method},
    commands::node::word,
    error::{CommandResult, Doing},
    global::GlobalArgs,
    human::{ago, count, duration_ms},
    output,
    view::LeaseView,
};

#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List the active sessions, one for each holder
    #[command(after_help = examples!("session ls --limit 20"))]
    Ls {
        /// At most N sessions [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show a session and its leases
    #[command(after_help = examples!("session get 0f9d6f0e-6b5b-4c46-9d5b-0c7a3f3b2a11"))]
    Get {
        /// Id of the session
        session: Uuid,
    },
    /// Close a session and release all its leases; do this only when its holder has stopped
    #[command(after_help = examples!("session close 0f9d6f0e-6b5b-4c46-9d5b-0c7a3f3b2a11"))]
    Close {
        /// Id of the session
        session: Uuid,
    },
}

pub async fn run(command: SessionCommand, client: &Client, global: &GlobalArgs) -> CommandResult {
    match command {
        SessionCommand::Ls { limit } => ls(limit, client, global).await,
        SessionCommand::Get { session } => get(session, client, global).await,
        SessionCommand::Close { session } => {
            let path = paths::session(&session.to_string());
            let closed = client.call::<ClosedSession>(Method::DELETE, &path, &[], None::<&()>).await;
            let closed = closed.doing(format!("close session {session}"))?;
            if global.json {
                return output::json(&closed);
            }
            let released = count(usize::try_from(closed.released).unwrap_or(usize::MAX), "lease");
            output::line(format!("closed session {session} and released {released}"))
        }
    }
}

async fn ls(limit: Option<usize>, client: &Client, global: &GlobalArgs) -> CommandResult {
    let sessions = client.list::<NodeList>(&paths::nodes(), &[], limit).await.doing("list the sessions")?;
    let now_ms = wall_ms();
    let row = |session: &solehold_api::sessions::Node| {
        [
            session.session_id.to_string(),
            session.node_id.clone(),
            word(session.standing).to_owned(),
            session.lease_count.to_string(),
            format!("in {}", duration_ms(session.ttl_ms)),
            ago(session.opened_at, now_ms),
        ]
    };
    let headings = ["SESSION", "HOLDER", "STANDING", "LEASES", "EXPIRES", "OPENED"];
    output::list(global, "sessions", &sessions, "no sessions are open", |sessions| {
        output::table(headings, &["LEASES"], sessions.iter().map(row).collect())
    })
}

async fn get(id: Uuid, client: &Client, global: &GlobalArgs) -> CommandResult {
    let session = client.get::<SessionBody>(&paths::session(&id.to_string()), &[]).await;
    let session = session.doing(format!("show session {id}"))?;
    if global.json {
        return output::json(&session);
    }
    let expires = duration_ms(session.ttl_ms);
    let ttl = duration_ms(session.full_ttl_ms);
    let facts = output::facts(&[
        ("holder", Some(session.holder.clone())),
        (
            "standing",
            Some(word(session.standing).to_owned()).filter(|_| session.standing != Standing::Current),
        ),
        ("expires", Some(format!("in {expires} ({}), {ttl} after each heartbeat", session.expires_at))),
        ("opened", Some(session.opened_at.to_string())),
        ("renewed", Some(session.renewed_at.to_string())),
        ("tenant", Some(session.tenant.clone()).filter(|tenant| tenant != "default")),
    ]);
    let leases: Vec<LeaseView> = session.leases.into_iter().flatten().map(Into::into).collect();
    let held = match leases.as_slice() {
        [] => "\nholds no leases\n".to_owned(),
        leases => format!("\n{}", LeaseView::table(leases)),
    };
    output::print(&format!("session {id}\n{facts}{held}"))
}
