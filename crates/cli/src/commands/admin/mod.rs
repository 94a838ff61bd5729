//! `solehold admin`: keys, the audit trail, tokens, export and import, through a server or straight against its store.
//!
//! Against the store no server and no key is needed, so that the first key can be made, and everything can be moved.

mod audit;
mod import;
mod key;
mod transfer;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use serde_json::json;
use solehold_api::{
    admin::{NewHistory, RaiseToken, RaisedToken, RestoreNotice},
    paths,
};
use solehold_engine::{Engine, EngineOptions, history::Beginning};
use solehold_server::Operator;

use crate::{
    client::{Client, Method, ServerArgs},
    config::Layer,
    engine_url::EngineUrl,
    error::{Cause, CommandError, CommandResult, Doing, ValueError},
    global::GlobalArgs,
    human::duration_ms,
    output,
    store::{IfMissing, StoreChoice},
    times,
};

#[derive(Debug, Args)]
pub struct AdminArgs {
    #[command(subcommand)]
    command: AdminCommand,
    #[command(flatten)]
    store: StoreArgs,
}

/// The store to work on without a server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Store, instead of a server")]
pub struct StoreArgs {
    /// Work directly on this data folder, which no server may have open
    #[arg(long, global = true, value_name = "DIR", conflicts_with = "engine")]
    data_dir: Option<PathBuf>,
    /// Work directly on this PostgreSQL: postgres://USER@HOST/DATABASE
    #[arg(long, global = true, value_name = "URL")]
    engine: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Create, list, rotate and revoke API keys
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// List what operators did, newest first: who, when and to what
    #[command(after_help = examples!(
        "admin audit",
        "admin audit --limit 10 --json",
        "admin audit --data-dir /var/lib/solehold",
    ))]
    Audit {
        /// At most N entries
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Raise the next token above a number, when a gate has seen larger tokens than the store issues
    #[command(after_help = examples!("admin raise-token --above 90000"))]
    RaiseToken {
        /// Number that the next token must exceed
        #[arg(long, value_name = "N")]
        above: u64,
    },
    /// Report that the store was restored from a backup, so that it reuses no token or lease granted since then
    #[command(after_help = examples!(
        "admin restored --engine postgres://solehold@db.internal/solehold",
        "admin restored --holders-stopped",
    ))]
    Restored {
        /// Grant at once: every holder was stopped, so none works under a lease that the backup lacks
        #[arg(long)]
        holders_stopped: bool,
    },
    /// Shorten the wait after a failover or a restore, once every server has a shorter SOLEHOLD_TTL_MAX
    #[command(after_help = examples!(
        "admin lower-ttl-max 5m --engine postgres://solehold@db.internal/solehold",
    ))]
    LowerTtlMax {
        /// Longest ttl that any server of the store allows now; refused while a lease has a longer one
        #[arg(value_name = "TIME", value_parser = ttl_max)]
        to: Duration,
    },
    /// Export the store as JSON lines
    #[command(after_help = examples!(
        "admin export --output backup.jsonl",
        "admin export --retire db2 --data-dir /var/lib/solehold | gzip > backup.jsonl.gz",
    ))]
    Export {
        /// File to write, which appears when it is complete [default: stdout]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Retire the store first, and record where its data goes: from then on it refuses all requests but exports,
        /// and an import carries over leases and tokens. Otherwise, an import waits until all leases have expired
        #[arg(long, value_name = "WHERE")]
        retire: Option<String>,
    },
    /// Import an export into a store that has never been used, or take over what another system has
    #[command(after_help = examples!(
        "admin import backup.jsonl --engine postgres://solehold@db.internal/solehold",
        "admin import --from-table postgres://app@db.internal/app scene_leases --dry-run",
        "admin import --cameras cameras.csv --site hall-2",
    ))]
    Import(import::ImportArgs),
}

fn ttl_max(text: &str) -> Result<Duration, ValueError> {
    times::ttl(text).map_err(|_| "write a time from 1s to 24h, as in 5m".into())
}

/// The way to the store: through a server, or directly.
enum Door {
    Server(Client),
    Store(Engine),
}

impl Door {
    async fn open(
        store: Option<&StoreChoice>,
        missing: IfMissing,
        server: &ServerArgs,
    ) -> CommandResult<Self> {
        let Some(store) = store else {
            // The tenant is said where it matters, in the body.
            return Client::new(&ServerArgs { tenant: None, ..server.clone() }).map(Self::Server);
        };
        let layer = Layer::from_variables(&std::env::vars_os().collect())?;
        let options = layer.store_options().map_err(CommandError::usage)?;
        let opened = store.open(options, missing).await.map_err(|failure| {
            if failure.cause == Some(Cause::FolderInUse) {
                failure.hint("ask the server that runs there: use --server instead of --data-dir")
            } else {
                failure
            }
        });
        Ok(Self::Store(Engine::start(opened?, EngineOptions::default(), std::sync::Arc::new(()))))
    }

    async fn close(self) {
        if let Self::Store(engine) = self {
            engine.stop().await;
        }
    }
}

impl StoreArgs {
    fn choice(&self) -> CommandResult<Option<StoreChoice>> {
        let engine = self.engine.as_deref().map(EngineUrl::of_flag).transpose()?;
        Ok(StoreChoice::given(self.data_dir.as_deref(), engine.as_ref()))
    }
}

pub async fn run(args: AdminArgs, server: &ServerArgs, global: &GlobalArgs) -> CommandResult {
    let store = args.store.choice()?;
    let missing = match args.command {
        AdminCommand::Import(args) => return import::run(args, store.as_ref(), server, global).await,
        AdminCommand::Key(key::KeyCommand::Create { .. }) => IfMissing::Create,
        _ => IfMissing::Refuse,
    };
    let door = Door::open(store.as_ref(), missing, server).await?;
    let result = match args.command {
        AdminCommand::Key(command) => {
            let tenant = server.tenant.clone().filter(|tenant| !tenant.is_empty());
            key::run(command, &door, tenant, global).await
        }
        AdminCommand::Audit { limit } => {
            let tenant = server.tenant.clone().filter(|tenant| !tenant.is_empty());
            audit::run(limit, &door, tenant, global).await
        }
        AdminCommand::RaiseToken { above } => raise_token(above, &door, global).await,
        AdminCommand::Restored { holders_stopped } => restored(holders_stopped, &door, global).await,
        AdminCommand::LowerTtlMax { to } => lower_ttl_max(to, &door, global).await,
        AdminCommand::Export { output, retire } => {
            transfer::export(output.as_deref(), retire, &door, global).await
        }
        AdminCommand::Import(_) => unreachable!("an import opens its store itself"),
    };
    door.close().await;
    result
}

async fn raise_token(above: u64, door: &Door, global: &GlobalArgs) -> CommandResult {
    let raised = match door {
        Door::Server(client) => client.send(Method::POST, &paths::raise_token(), &RaiseToken { above }).await,
        Door::Store(engine) => match Operator::from(engine).raise_token(above).await {
            Ok(above) => Ok(RaisedToken { above }),
            Err(failure) => Err((*failure.0).into()),
        },
    };
    let raised: RaisedToken = raised.doing(format!("raise tokens above {above}"))?;
    output::show(global, &raised, || format!("tokens go on from above {}", raised.above))
}

async fn lower_ttl_max(to: Duration, door: &Door, global: &GlobalArgs) -> CommandResult {
    let ttl_max_ms = u64::try_from(to.as_millis()).unwrap_or(u64::MAX);
    match door {
        Door::Server(_) => {
            let message = "lower-ttl-max works on the store, not through a server";
            return Err(CommandError::usage(message).hint("give --engine postgres://USER@HOST/DATABASE"));
        }
        Door::Store(engine) => {
            engine.lower_ttl_max(ttl_max_ms).await.map_err(CommandError::from).doing("lower ttl_max")?;
        }
    }
    output::show(global, &json!({ "ttl_max_ms": ttl_max_ms }), || {
        format!("after a failover or a restore nothing is granted for {}", duration_ms(ttl_max_ms))
    })
}

async fn restored(holders_stopped: bool, door: &Door, global: &GlobalArgs) -> CommandResult {
    let told = match door {
        Door::Server(client) => {
            client.send(Method::POST, &paths::restored(), &RestoreNotice { holders_stopped }).await
        }
        Door::Store(engine) => {
            let begins = Operator::from(engine).restored(holders_stopped).await;
            let Beginning { cursor, barred_ms } = begins.map_err(|failure| *failure.0)?;
            Ok(NewHistory { epoch: cursor.epoch, above: cursor.revision.0, barred_ms })
        }
    };
    let told: NewHistory = told.doing("take up the restored store")?;
    output::show(global, &told, || {
        format!("epoch {}; tokens go on from above {}; {}", told.epoch, told.above, from_when(told.barred_ms))
    })
}

fn from_when(barred_ms: u64) -> String {
    match barred_ms {
        0 => "grants begin at once".to_owned(),
        ms => format!("nothing is granted or renewed for {}", duration_ms(ms)),
    }
}
