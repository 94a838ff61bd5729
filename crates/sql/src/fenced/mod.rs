//! Fenced writes: the newest token of a resource is a row of the application's own database, and is compared and raised
//! in the same transaction as the write (rule 21). This is the strongest form of a gate: a write under an older token
//! never commits after one under a newer token, whatever was paused where.
//!
//! ```text
//!   BEGIN
//!     raise the mark, or find it above      one statement; its row is locked until the end
//!     the application's own writes
//!   COMMIT                                  both or neither
//! ```
//! Three ways to do it, from the least change of the application to the most:
//!
//! - *By trigger*: [`Marks::trigger`] guards a table against all writers. A writer says its token once per
//!   transaction ([`Marks::show`]); one that says none is refused.
//! - *By statement*: [`Marks::admit`] at the beginning of the transaction. From other languages, the function that
//!   [`Marks::schema`] makes does the same: `SELECT fences_admit('scene/lobby', 42)`.
//! - *By column*: the mark is a column of the written row itself ([`guarded_update`]). No other table, but a row that
//!   is deleted takes its mark along.
//!
//! `solehold gate sql` prints all of this for programs in other languages.
//!
//! A mark is raised by the first write under a new token, not by the grant. Until then a writer with the former token
//! still passes: in the order of commits it comes first, so nothing is overwritten. A new holder that must keep the
//! former one out before its own first write calls [`Marks::admit`] when it takes over.

use tokio_postgres::GenericClient;
use uuid::Uuid;

use crate::{
    Error, ident,
    limits::{KIND_BYTES_MAX, RESOURCE_BYTES_MAX},
};

/// The SQLSTATE of a write under an old token.
pub const STALE: &str = "SH412";
/// The SQLSTATE of a write that shows no token, to a table that needs one.
pub const NO_TOKEN: &str = "SH428";

/// Whether a write may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// It may. The mark is this token or was raised to it; the row is locked until the transaction ends.
    Admitted,
    /// It may not: roll back. A newer token has been used, or this one by another session.
    Stale { newest: u64 },
}

/// The table of marks in the application's database.
///
/// ```
/// use solehold_sql::fenced::Marks;
///
/// let marks = Marks::new("app.fences")?;
/// assert!(marks.schema().contains("CREATE TABLE IF NOT EXISTS \"app\".\"fences\""));
/// assert!(marks.trigger("app.tracks", "scene", "scene_id")?.contains("'scene', 'scene_id'"));
/// # Ok::<(), solehold_sql::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    quoted: String,
    function: String,
}

impl Marks {
    /// Marks in that table, `name` or `schema.name`.
    pub fn new(table: &str) -> Result<Self, Error> {
        let quoted = ident::table(table)?;
        // The name of its functions has a suffix.
        let function = ident::table(&format!("{table}_admit"))?;
        Ok(Self { quoted, function })
    }

    /// The table and its functions, to be made once. It may be applied again, and replaces what an older version made.
    pub fn schema(&self) -> String {
        self.fill(include_str!("marks.sql"))
    }

    /// The name of the functions that [`schema`](Self::schema) makes, quoted.
    pub fn function(&self) -> &str {
        &self.function
    }

    /// Triggers that guard a table: a row belongs to the resource `kind/` and the value of a column. Rows whose column
    /// is null belong to no resource and are refused. To be applied after [`schema`](Self::schema); it may be applied
    /// again. A table has one such guard: another kind or column replaces it.
    ///
    /// The row trigger fires after the write, since PostgreSQL lets any trigger that fires before it change the row
    /// once more, in the order of their names. It fails in the transaction of the write, so nothing is left of it.
    /// TRUNCATE needs a token that is as new as the marks of all resources whose rows it removes, and reads the table
    /// to learn which these are. Each partition has a trigger of its own for that; apply it again for partitions that
    /// were made or attached since.
    pub fn trigger(&self, table: &str, kind: &str, column: &str) -> Result<String, Error> {
        let guarded = ident::table(table)?;
        ident::column(column)?;
        if kind.is_empty() || kind.len() > KIND_BYTES_MAX || kind.chars().any(char::is_control) {
            let wanted = format!("use 1 to {KIND_BYTES_MAX} bytes without control characters");
            return Err(Error::invalid("kind", kind, wanted));
        }
        let kind = format!("'{}'", kind.replace('\'', "''"));
        let sql = self.fill(include_str!("trigger.sql"));
        Ok(sql.replace("{table}", &guarded).replace("{column}", column).replace("{kind}", &kind))
    }

    fn fill(&self, sql: &str) -> String {
        let sql = sql.replace("{STALE}", STALE).replace("{NO_TOKEN}", NO_TOKEN);
        sql.replace("{marks}", &self.quoted).replace("{admit}", &self.function)
    }

    /// Compares and raises the mark of a resource, as in `scene/lobby`, in the caller's transaction. It waits for a
    /// writer of the same resource that has not committed yet.
    pub async fn admit(
        &self,
        transaction: &impl GenericClient,
        resource: &str,
        token: u64,
        session: Option<Uuid>,
    ) -> Result<Fencing, Error> {
        if resource.is_empty() || resource.len() > RESOURCE_BYTES_MAX {
            let wanted = format!("name it as KIND/KEY, in 1 to {RESOURCE_BYTES_MAX} bytes");
            return Err(Error::invalid("resource", resource, wanted));
        }
        let token = signed(token)?;
        let quoted = &self.quoted;
        let raise = format!(
            "INSERT INTO {quoted} AS kept (resource, token, session) VALUES ($1, $2, $3) \
             ON CONFLICT (resource) DO UPDATE SET token = excluded.token, \
             session = CASE WHEN kept.token = excluded.token THEN coalesce(kept.session, excluded.session) \
             ELSE excluded.session END \
             WHERE kept.token < excluded.token OR kept.token = excluded.token \
             AND coalesce(kept.session = excluded.session, true)"
        );
        if transaction.execute(&raise, &[&resource, &token, &session]).await? > 0 {
            return Ok(Fencing::Admitted);
        }
        let read = format!("SELECT token FROM {quoted} WHERE resource = $1");
        let newest: i64 = transaction.query_one(&read, &[&resource]).await?.get(0);
        Ok(Fencing::Stale { newest: newest.unsigned_abs() })
    }

    /// Says the token of this transaction, for tables that a trigger guards.
    pub async fn show(&self, transaction: &impl GenericClient, token: u64) -> Result<(), Error> {
        let token = signed(token)?.to_string();
        transaction.execute("SELECT set_config('solehold.token', $1, true)", &[&token]).await?;
        Ok(())
    }
}

/// A token as PostgreSQL keeps it.
pub(crate) fn signed(token: u64) -> Result<i64, Error> {
    let odd = || Error::invalid("token", token.to_string(), "a token is at least 1 and below 2^63");
    i64::try_from(token).ok().filter(|token| *token > 0).ok_or_else(odd)
}

/// The column form: adds the mark to a table, at 0.
pub fn column(table: &str, mark: &str) -> Result<String, Error> {
    let table = ident::table(table)?;
    let mark = ident::column(mark)?;
    Ok(format!("ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {mark} bigint NOT NULL DEFAULT 0"))
}

/// The column form: an update of one row by its id (`$1`) under a token (`$2`), with the values of the other columns
/// from `$3` on. It changes no row if the row has seen a newer token, or is not there.
///
/// ```
/// let sql = solehold_sql::fenced::guarded_update("tracks", "scene_id", "fence", &["positions"])?;
/// assert_eq!(
///     sql,
///     "UPDATE \"tracks\" SET \"fence\" = $2, \"positions\" = $3 WHERE \"scene_id\" = $1 AND \"fence\" <= $2"
/// );
/// # Ok::<(), solehold_sql::Error>(())
/// ```
pub fn guarded_update(table: &str, id: &str, mark: &str, columns: &[&str]) -> Result<String, Error> {
    let table = ident::table(table)?;
    let id = ident::column(id)?;
    let mark = ident::column(mark)?;
    let mut set = vec![format!("{mark} = $2")];
    for (at, name) in columns.iter().enumerate() {
        set.push(format!("{} = ${}", ident::column(name)?, at + 3));
    }
    Ok(format!("UPDATE {table} SET {} WHERE {id} = $1 AND {mark} <= $2", set.join(", ")))
}

/// Whether PostgreSQL refused a write because its token is old.
pub fn is_stale(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == STALE)
}
