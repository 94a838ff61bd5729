//! `solehold gate sql`: the fence of a PostgreSQL table as SQL, for applications in any language.

use clap::{Args, ValueEnum};
use serde_json::json;
use solehold_sql::{
    Error,
    fenced::{self, Marks},
};

use crate::{
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    output,
};

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Examples:
  Guard app.tracks, whose rows belong to the resources scene/SCENE_ID, against every writer:
    solehold gate sql --table app.tracks --kind scene --column scene_id | psql -v ON_ERROR_STOP=1 \"$DATABASE_URL\"
  A function to call at the beginning of a transaction:
    solehold gate sql --form statement --marks app.fences | psql -v ON_ERROR_STOP=1 \"$DATABASE_URL\"
  The newest token as a column of each row:
    solehold gate sql --form column --table app.tracks --column scene_id --set positions

The SQL may be applied again. At its end, comments show how to write from then on.";

#[derive(Debug, Args)]
pub struct GateSqlArgs {
    /// How writes are checked
    #[arg(long, value_enum, default_value_t = Form::Trigger)]
    form: Form,
    /// The table to guard: TABLE or SCHEMA.TABLE
    #[arg(long, value_name = "TABLE")]
    table: Option<String>,
    /// Column that identifies rows. By trigger: its value is the key of the resource that a row belongs to, as in
    /// KIND/VALUE. By column: its value identifies the row to update
    #[arg(long, value_name = "COLUMN")]
    column: Option<String>,
    /// By trigger: the kind of the resources, as in `solehold lease acquire KIND/KEY`
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// By trigger or statement: the table to create for the newest token of each resource; one serves all guarded
    /// tables [default: public.solehold_fences]
    #[arg(long, value_name = "TABLE")]
    marks: Option<String>,
    /// By column: the column to add for the newest token of each row [default: fence]
    #[arg(long, value_name = "COLUMN")]
    mark: Option<String>,
    /// By column: a column that the update sets; may be repeated
    #[arg(long, value_name = "COLUMN")]
    set: Vec<String>,
}

/// How writes are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// By the table itself, for every writer: INSERT, UPDATE, DELETE and TRUNCATE
    Trigger,
    /// By a function that the application calls first in its transaction
    Statement,
    /// By the condition of each UPDATE; a deleted row loses its token
    Column,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Trigger => "trigger",
            Self::Statement => "statement",
            Self::Column => "column",
        }
    }
}

pub fn run(args: &GateSqlArgs, global: &GlobalArgs) -> CommandResult {
    args.check()?;
    let sql = match args.form {
        Form::Trigger => args.trigger()?,
        Form::Statement => args.statement()?,
        Form::Column => args.column()?,
    };
    output::show(global, &json!({ "form": args.form.name(), "sql": sql }), || sql)
}

impl GateSqlArgs {
    /// An option that this form does not read is a mistake, not something to pass over.
    fn check(&self) -> CommandResult {
        let given = [
            ("--table", self.table.is_some(), &[Form::Trigger, Form::Column][..]),
            ("--column", self.column.is_some(), &[Form::Trigger, Form::Column]),
            ("--kind", self.kind.is_some(), &[Form::Trigger]),
            ("--marks", self.marks.is_some(), &[Form::Trigger, Form::Statement]),
            ("--mark", self.mark.is_some(), &[Form::Column]),
            ("--set", !self.set.is_empty(), &[Form::Column]),
        ];
        for (option, is_given, forms) in given {
            if is_given && !forms.contains(&self.form) {
                let forms: Vec<_> = forms.iter().map(|form| format!("--form {}", form.name())).collect();
                let message =
                    format!("{option} is for {}, not for --form {}", forms.join(" and "), self.form.name());
                return Err(CommandError::usage(message));
            }
        }
        Ok(())
    }

    fn required<'a>(&self, option: &str, value: &'a Option<String>) -> CommandResult<&'a str> {
        value.as_deref().ok_or_else(|| {
            CommandError::usage(format!(
                "--form {} needs {option}; see `solehold gate sql --help`",
                self.form.name()
            ))
        })
    }

    fn marks(&self) -> CommandResult<Marks> {
        let table = self.marks.as_deref().unwrap_or("public.solehold_fences");
        Marks::new(table).map_err(|error| CommandError::usage(format!("--marks: {error}")))
    }

    fn trigger(&self) -> CommandResult<String> {
        let table = self.required("--table", &self.table)?;
        let kind = self.required("--kind", &self.kind)?;
        let column = self.required("--column", &self.column)?;
        let marks = self.marks()?;
        let trigger = marks.trigger(table, kind, column).map_err(usage)?;
        let stale = fenced::STALE;
        let no_token = fenced::NO_TOKEN;
        Ok(script(
            &format!("Guards {table} against writes under an old fencing token."),
            &format!("{}\n{trigger}", marks.schema()),
            &format!(
                "Every transaction that writes to {table} first sets the token of its lease:\n\
                 \x20 BEGIN;\n\
                 \x20 SELECT set_config('solehold.token', '42', true);   -- true: until the transaction ends\n\
                 \x20 ... INSERT, UPDATE, DELETE, TRUNCATE ...\n\
                 \x20 COMMIT;\n\
                 SQLSTATE {stale}: the token is old. Roll back and stop: another holder does this work now.\n\
                 SQLSTATE {no_token}: the transaction has set no token.\n\
                 Roles that write need SELECT, INSERT and UPDATE on the table of the marks, too."
            ),
        ))
    }

    fn statement(&self) -> CommandResult<String> {
        let marks = self.marks()?;
        let stale = fenced::STALE;
        let admit = marks.function();
        Ok(script(
            "The newest fencing token of each resource, and a function that refuses older ones.",
            &marks.schema(),
            &format!(
                "Every transaction that writes first raises the mark of its resource to the token of its lease:\n\
                 \x20 BEGIN;\n\
                 \x20 SELECT {admit}('scene/lobby', 42);   -- a third argument may be the id of the session\n\
                 \x20 ... INSERT, UPDATE, DELETE ...\n\
                 \x20 COMMIT;\n\
                 SQLSTATE {stale}: the token is old. Roll back and stop: another holder does this work now.\n\
                 A transaction that does not call the function is not checked; see --form trigger."
            ),
        ))
    }

    fn column(&self) -> CommandResult<String> {
        let table = self.required("--table", &self.table)?;
        let id = self.required("--column", &self.column)?;
        let mark = self.mark.as_deref().unwrap_or("fence");
        let set: Vec<&str> = self.set.iter().map(String::as_str).collect();
        let update = fenced::guarded_update(table, id, mark, &set).map_err(usage)?;
        Ok(script(
            &format!("The newest fencing token of each row of {table}."),
            &format!("{};\n", fenced::column(table, mark).map_err(usage)?),
            &format!(
                "Every update of a row ($1) compares and raises its token ($2) in the same statement:\n\
                 \x20 {update};\n\
                 No row was updated: the token is old, or the row does not exist.\n\
                 Writes without the condition are not checked, and a deleted row loses its token; see --form trigger."
            ),
        ))
    }
}

/// A script for psql: all of it or nothing, and then comments.
fn script(title: &str, sql: &str, use_it: &str) -> String {
    let comments: String = use_it.lines().map(|line| format!("-- {line}\n")).collect();
    format!(
        "-- {title} Printed by `solehold gate sql`; may be applied again.\n\
         BEGIN;\n\
         -- If a lock cannot be had within this time, nothing is changed: run it again. Without the limit, writers would\n\
         -- have to wait behind this transaction.\n\
         SET LOCAL lock_timeout = '5s';\n\n{sql}\nCOMMIT;\n\n{comments}"
    )
}

fn usage(error: Error) -> CommandError {
    CommandError::usage(error.to_string())
}
