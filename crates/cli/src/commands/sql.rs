//! `solehold sql`: row claims in the application's PostgreSQL, for programs in any language.

use clap::{Args, Subcommand};
use serde_json::json;
use solehold_sql::{ClaimTable, ClaimTableBuilder, functions::Functions, migrations};
use tokio_postgres::Client;

use super::rows::{TableArgs, failure};
use crate::{error::CommandResult, global::GlobalArgs, output};

const HELP: &str = "solehold sql --help";

/// What is made for a table, and which table.
#[derive(Debug, Args)]
pub struct SqlArgs {
    #[command(subcommand)]
    command: SqlCommand,
    #[command(flatten)]
    table: TableArgs,
    #[command(flatten)]
    rows: RowArgs,
}

/// Which rows are claimed, in which order.
#[derive(Debug, Args)]
struct RowArgs {
    /// Which rows are open, in SQL over the table's columns; it must not depend on the time. All rows without it
    #[arg(long, global = true, default_value = "true", value_name = "SQL", hide_default_value = true)]
    claimable: String,
    /// The order in which rows are claimed, ascending: COLUMN,COLUMN. The key's column is always last
    #[arg(long, global = true, value_delimiter = ',', value_name = "COLUMNS")]
    order: Vec<String>,
    /// The columns that a claim returns beside the key: COLUMN,COLUMN
    #[arg(long, global = true, value_delimiter = ',', value_name = "COLUMNS")]
    payload: Vec<String>,
    /// A timestamptz that each change of state sets to the database's time, such as updated_at
    #[arg(long, global = true, value_name = "COLUMN")]
    touched_column: Option<String>,
}

impl RowArgs {
    fn describe(&self, builder: ClaimTableBuilder) -> CommandResult<ClaimTable> {
        let mut builder = builder
            .claimable(&self.claimable)
            .order(self.order.iter().map(String::as_str))
            .payload(self.payload.iter().map(String::as_str));
        if let Some(column) = &self.touched_column {
            builder = builder.touched(column);
        }
        builder.build().map_err(failure)
    }
}

/// What is made for a table.
#[derive(Debug, Subcommand)]
pub enum SqlCommand {
    /// Print the columns and indexes that claims need; with --apply, add what is missing to a live table
    #[command(after_help = examples!(
        "sql migrations --table app.documents --claimable \"status = 'new'\"",
        "sql migrations --database postgres://app@db.internal/app --table app.documents --apply",
    ))]
    Migrations {
        /// Add what is missing, instead of printing it
        #[arg(long)]
        apply: bool,
    },
    /// Print SQL functions that claim, extend, complete, fail, release and revive rows; with --apply, make them
    #[command(after_help = examples!(
        "sql functions --database postgres://app@db.internal/app --table app.documents --apply",
    ))]
    Functions {
        /// Make or replace them in the database, instead of printing them
        #[arg(long)]
        apply: bool,
        /// Drop them; print what drops them without --apply
        #[arg(long = "drop")]
        drops: bool,
        /// What their names begin with: NAME_ or SCHEMA.NAME_ [default: the table's own name, in its schema]
        #[arg(long, value_name = "NAME_")]
        function_prefix: Option<String>,
    },
    /// Print a trigger for as long as old workers claim by SQL of their own, without epochs; with --apply, make it
    #[command(after_help = examples!(
        "sql guard --database postgres://app@db.internal/app --table app.documents --drop --apply",
    ))]
    Guard {
        /// Make or replace it in the database, instead of printing it
        #[arg(long)]
        apply: bool,
        /// Drop it; print what drops it without --apply
        #[arg(long = "drop")]
        drops: bool,
    },
}

pub async fn run(args: SqlArgs, global: &GlobalArgs) -> CommandResult {
    match &args.command {
        SqlCommand::Migrations { apply } => migrate(&args, *apply, global).await,
        SqlCommand::Functions { apply, drops, function_prefix } => {
            make(&args, *apply, *drops, function_prefix.as_deref(), global).await
        }
        SqlCommand::Guard { apply, drops } => guard(&args, *apply, *drops, global).await,
    }
}

/// All optional columns are added.
async fn migrate(args: &SqlArgs, apply: bool, global: &GlobalArgs) -> CommandResult {
    let name = args.table.name(HELP)?;
    let table = args.rows.describe(args.table.describe(|_| true))?;
    if !apply {
        return script(&migrations::print(&table), global);
    }
    let (client, _) = args.table.columns(HELP).await?;
    migrations::apply(&client, &table).await.map_err(failure)?;
    done(&format!("{name} has the columns and indexes of its claims"), &table.index_names(), global)
}

async fn guard(args: &SqlArgs, apply: bool, drops: bool, global: &GlobalArgs) -> CommandResult {
    let (client, functions) = describe(args, None).await?;
    let sql = if drops { functions.drop_guard() } else { functions.guard() };
    if !apply {
        return script(&sql, global);
    }
    functions.apply_guard(&client, &sql).await.map_err(failure)?;
    let what = if drops { "dropped" } else { "made" };
    let table = args.table.name(HELP)?;
    done(&format!("{what} the guard of {table}"), &[functions.name("claim_guard")], global)
}

async fn describe(args: &SqlArgs, prefix: Option<&str>) -> CommandResult<(Client, Functions)> {
    let (client, columns) = args.table.columns(HELP).await?;
    let has = |name: &str| columns.iter().any(|(column, _)| column == name);
    let table = args.rows.describe(args.table.describe(has))?;
    if !has(args.table.state_column()) {
        let column = args.table.state_column();
        output::note(format!(
            "{} has no column {column}: name the state's with --state-column",
            table.name()
        ));
    }
    let described = Functions::describe(&client, &table, prefix).await;
    let hint =
        "check --prefix and --id-column, and run `solehold sql migrations --apply` with the same options";
    Ok((client, described.map_err(|error| failure(error).hint(hint))?))
}

async fn make(
    args: &SqlArgs,
    apply: bool,
    drops: bool,
    prefix: Option<&str>,
    global: &GlobalArgs,
) -> CommandResult {
    let (client, functions) = describe(args, prefix).await?;
    let table = args.table.name(HELP)?;
    match (apply, drops) {
        (false, false) => script(&functions.create().map_err(failure)?, global),
        (false, true) => script(&functions.drop(), global),
        (true, false) => {
            functions.apply(&client).await.map_err(failure)?;
            done(&format!("made the functions of {table}"), &functions.names(), global)
        }
        (true, true) => {
            functions.remove(&client).await.map_err(failure)?;
            done(&format!("dropped the functions of {table}"), &functions.names(), global)
        }
    }
}

fn script(sql: &str, global: &GlobalArgs) -> CommandResult {
    if global.json { output::json(&json!({ "sql": sql })) } else { output::print(sql) }
}

fn done(sentence: &str, names: &[String], global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(&json!({ "names": names }));
    }
    output::line(format!("{sentence}: {}", names.join(", ")))
}
