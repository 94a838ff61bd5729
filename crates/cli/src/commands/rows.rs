//! `solehold rows`: the buried rows of a reconciler's table, straight from the application's PostgreSQL.

use std::{collections::HashSet, time::SystemTime};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use solehold_api::{problem::ErrorCode, time::Timestamp};
use solehold_core::time::StoreTime;
use solehold_engine::postgres::Target;
use solehold_sql::{
    BuriedRow, ClaimTable, ClaimTableBuilder, Claims, RowId, limits::BURIED_PAGE_MAX, migrations,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    human,
    output::{self, or_dash},
};

const SHOWN: usize = 20;

/// What can be done with the rows of a table, and which table.
#[derive(Debug, Args)]
pub struct RowsArgs {
    #[command(subcommand)]
    command: RowsCommand,
    #[command(flatten)]
    table: TableArgs,
}

/// Which table.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// The application's database: postgres://USER@HOST/DATABASE
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database: Option<String>,
    /// The table whose rows are claimed: TABLE or SCHEMA.TABLE
    #[arg(long, global = true, value_name = "TABLE")]
    table: Option<String>,
    /// What the names of the claim's columns begin with, such as `reconcile_`: PREFIX and then lease_owner,
    /// lease_until, lease_epoch, attempts, next_attempt_at, dead_at, dead_reason
    #[arg(long, global = true, default_value = "", value_name = "PREFIX", hide_default_value = true)]
    prefix: String,
    /// The key's column
    #[arg(long, global = true, default_value = "id", value_name = "COLUMN")]
    id_column: String,
    /// The state's column, if the table has it
    #[arg(long, global = true, default_value = "status", value_name = "COLUMN")]
    state_column: String,
}

impl TableArgs {
    /// A connection to the database, and the columns that the table has, with their types.
    pub(super) async fn columns(&self, help: &str) -> CommandResult<(Client, Vec<(String, String)>)> {
        let missing = || CommandError::usage(format!("name it by --database or DATABASE_URL; see `{help}`"));
        let url = self.database.clone().filter(|text| !text.is_empty()).ok_or_else(missing)?;
        let name = self.name(help)?;
        let client = connect("--database", &url).await?;
        let columns = migrations::columns(&client, name).await.map_err(failure)?;
        Ok((client, columns))
    }

    pub(super) fn name(&self, help: &str) -> CommandResult<&str> {
        let missing = || CommandError::usage(format!("name it by --table; see `{help}`"));
        self.table.as_deref().filter(|text| !text.is_empty()).ok_or_else(missing)
    }

    /// A column of the claim.
    pub(super) fn column(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn state_column(&self) -> &str {
        &self.state_column
    }

    /// The table with its lease, and of the optional columns those that it has.
    pub(super) fn describe(&self, has: impl Fn(&str) -> bool) -> ClaimTableBuilder {
        let mut builder = ClaimTable::builder(self.table.as_deref().unwrap_or_default())
            .id(&self.id_column)
            .lease(&self.column("lease_owner"), &self.column("lease_until"), &self.column("lease_epoch"));
        if has(&self.state_column) {
            builder = builder.state(&self.state_column);
        }
        if has(&self.column("attempts")) {
            builder = builder.attempts(&self.column("attempts"));
        }
        if has(&self.column("next_attempt_at")) {
            builder = builder.next_attempt(&self.column("next_attempt_at"));
        }
        if has(&self.column("dead_at")) {
            builder = builder.dead_letter(&self.column("dead_at"), &self.column("dead_reason"));
        }
        builder
    }
}

/// What can be done with buried rows.
#[derive(Debug, Subcommand)]
pub enum RowsCommand {
    /// List rows that were buried: a reconciler has given them up and no longer claims them
    #[command(after_help = examples!(
        "rows buried --database postgres://app@db.internal/app --table app.documents --reason timeout",
    ))]
    Buried {
        /// Only rows whose reason contains TEXT
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// At most N rows, those buried earliest first
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
    },
    /// Make buried rows claimable again; shows what it would do unless --yes is given
    #[command(after_help = examples!(
        "rows revive 17 18 --database postgres://app@db.internal/app --table app.documents --yes",
    ))]
    Revive {
        /// The ids of the rows, as `rows buried` shows them
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        ids: Vec<String>,
        /// Every buried row
        #[arg(long)]
        all: bool,
        /// With --all: only rows whose reason contains TEXT
        #[arg(long, requires = "all", value_name = "TEXT")]
        reason: Option<String>,
        /// Do it, instead of showing what would be done
        #[arg(long)]
        yes: bool,
    },
}

pub async fn run(args: RowsArgs, global: &GlobalArgs) -> CommandResult {
    let table = Table::open(&args.table).await?;
    match args.command {
        RowsCommand::Buried { reason, limit } => table.list(reason.as_deref(), limit, global).await,
        RowsCommand::Revive { ids, reason, yes, .. } => {
            let chosen =
                if ids.is_empty() { Chosen::All { reason } } else { Chosen::Ids(table.parse(&ids)?) };
            if yes { table.revive(&chosen, global).await } else { table.show(&chosen, global).await }
        }
    }
}

enum Chosen {
    Ids(Vec<RowId>),
    All { reason: Option<String> },
}

struct Table {
    client: Client,
    claims: Claims,
    id_type: String,
}

impl Table {
    async fn open(args: &TableArgs) -> CommandResult<Self> {
        let (client, columns) = args.columns("solehold rows --help").await?;
        let builder = args.describe(|name| columns.iter().any(|(column, _)| column == name));
        let builder = builder.dead_letter(&args.column("dead_at"), &args.column("dead_reason"));
        let claims = Claims::new(builder.build().map_err(failure)?);
        let checked = migrations::check(&client, claims.table()).await;
        checked.map_err(|error| failure(error).hint("check --prefix and --id-column"))?;
        let id_type = columns.into_iter().find(|(column, _)| *column == args.id_column);
        Ok(Self { client, claims, id_type: id_type.map(|(_, kind)| kind).unwrap_or_default() })
    }

    fn name(&self) -> &str {
        self.claims.table().name()
    }

    fn parse(&self, ids: &[String]) -> CommandResult<Vec<RowId>> {
        ids.iter().map(|id| RowId::parse(id, &self.id_type).map_err(failure)).collect()
    }

    async fn chosen(&self, chosen: &Chosen) -> CommandResult<Vec<BuriedRow>> {
        let rows = match chosen {
            Chosen::Ids(ids) => self.claims.buried_among(&self.client, ids).await,
            Chosen::All { reason } => {
                self.claims.buried(&self.client, BURIED_PAGE_MAX, reason.as_deref()).await
            }
        };
        rows.map_err(failure)
    }

    async fn list(&self, reason: Option<&str>, limit: usize, global: &GlobalArgs) -> CommandResult {
        let rows = self.claims.buried(&self.client, limit, reason).await.map_err(failure)?;
        if global.json {
            return output::json(&json!({ "buried": documents(&rows) }));
        }
        if rows.is_empty() {
            output::note(format!("no such rows of {} are buried", self.name()));
            return Ok(());
        }
        output::print(&table(&rows))
    }

    async fn show(&self, chosen: &Chosen, global: &GlobalArgs) -> CommandResult {
        let rows = self.chosen(chosen).await?;
        if global.json {
            return output::json(&json!({ "would_revive": documents(&rows) }));
        }
        if rows.is_empty() {
            output::note(format!("no such rows of {} are buried; there is nothing to revive", self.name()));
            return Ok(());
        }
        let more = if rows.len() == BURIED_PAGE_MAX { "at least " } else { "" };
        let shown = table(&rows[..rows.len().min(SHOWN)]);
        let rest = match rows.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!("... and {rest} more\n"),
        };
        output::print(&format!(
            "{more}{} of {} would be revived:\n{shown}{rest}",
            rows_of(rows.len()),
            self.name()
        ))?;
        output::note("nothing was changed; run the same command with --yes to revive them");
        Ok(())
    }

    async fn revive(&self, chosen: &Chosen, global: &GlobalArgs) -> CommandResult {
        let mut revived: Vec<RowId> = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let rows = self.chosen(chosen).await?.into_iter().map(|row| row.id);
            // One that is buried again meanwhile is not revived again.
            let ids: Vec<RowId> = rows.filter(|id| seen.insert(id.clone())).collect();
            if ids.is_empty() {
                break;
            }
            revived.extend(self.claims.revive(&self.client, &ids).await.map_err(failure)?);
        }
        if global.json {
            let ids: Vec<String> = revived.iter().map(ToString::to_string).collect();
            return output::json(&json!({ "revived": ids }));
        }
        if revived.is_empty() {
            let message = format!("no such rows of {} are buried; nothing was changed", self.name());
            return Err(CommandError::new(ErrorCode::NotFound, message));
        }
        output::line(format!(
            "revived {} of {}: reconcilers claim them again, and their attempts begin at zero",
            rows_of(revived.len()),
            self.name()
        ))
    }
}

fn rows_of(count: usize) -> String {
    human::count(count, "row")
}

fn table(rows: &[BuriedRow]) -> String {
    let row = |row: &BuriedRow| {
        let buried = time(row.at).to_string();
        let attempts = row.attempts.to_string();
        [row.id.to_string(), or_dash(row.state.clone()), attempts, buried, row.reason.clone()]
    };
    let headings = ["ID", "STATE", "ATTEMPTS", "BURIED", "REASON"];
    output::table(headings, &["ATTEMPTS"], rows.iter().map(row).collect())
}

fn documents(rows: &[BuriedRow]) -> Vec<Value> {
    let document = |row: &BuriedRow| {
        json!({
            "id": row.id.to_string(),
            "state": row.state,
            "attempts": row.attempts,
            "buried_at": time(row.at),
            "reason": row.reason,
        })
    };
    rows.iter().map(document).collect()
}

fn time(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from(StoreTime(since.as_millis() as u64))
}

/// Connects to the application's database, which `flag` names.
pub async fn connect(flag: &str, url: &str) -> CommandResult<Client> {
    let target: Target = url.parse().map_err(|error| CommandError::usage(format!("{flag}: {error}")))?;
    let unreachable = |error: tokio_postgres::Error| {
        failure(solehold_sql::Error::from(error)).doing("connect to the database")
    };
    match target.tls {
        Some(tls) => {
            let (client, connection) = target.config.connect(tls).await.map_err(unreachable)?;
            tokio::spawn(connection);
            Ok(client)
        }
        None => {
            let (client, connection) = target.config.connect(NoTls).await.map_err(unreachable)?;
            tokio::spawn(connection);
            Ok(client)
        }
    }
}

pub fn failure(error: solehold_sql::Error) -> CommandError {
    match &error {
        solehold_sql::Error::Invalid { .. } => CommandError::usage(error.to_string()),
        _ if error.code().is_some() => CommandError::broken(error.to_string()),
        _ => CommandError::new(ErrorCode::Unavailable, error.to_string()),
    }
}
