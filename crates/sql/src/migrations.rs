//! The columns and indexes that claims need, made while the application runs.
//!
//! - Columns are nullable and have no default: adding one changes the catalog and no row.
//! - That takes a short exclusive lock. Who waits for one makes everybody after it wait, so the wait is short, and is
//!   tried again.
//! - Indexes are built `CONCURRENTLY`: no writer is blocked, though the build waits for older transactions.
//! - Everything may be applied again. An index that an interrupted build left invalid is dropped and rebuilt.
//! - An index of an older description is replaced: the new one is built beside it, and takes its name when it is done.

use std::time::Duration;

use solehold_clock::Backoff;
use tokio_postgres::{Client, SimpleQueryMessage, types::Type};

use crate::{
    Error, ident,
    limits::IDENTIFIER_BYTES_MAX,
    table::{ClaimTable, Dead},
};

/// How long one attempt waits for the exclusive lock, while everybody else waits behind it.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often it is attempted.
const LOCK_ATTEMPTS: u32 = 60;
/// The pause between two attempts; it does not grow.
const LOCK_PAUSE: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_millis(500) };

/// One step of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Runs in a transaction with a short lock timeout.
    Locked(String),
    /// Runs alone, outside any transaction.
    Concurrently {
        /// The index, quoted with its schema.
        index: String,
        /// What makes it.
        sql: String,
    },
}

impl ClaimTable {
    /// The names of the indexes that the migrations make, those of the claims first.
    pub fn index_names(&self) -> Vec<String> {
        let table = self.name.rsplit('.').next().unwrap_or(&self.name);
        let own = ["claim_fresh", "claim_due"].into_iter().chain(self.dead.is_some().then_some("claim_dead"));
        let extra = (1..=self.indexes.len()).map(|i| format!("index_{i}"));
        own.map(str::to_owned)
            .chain(extra)
            .map(|suffix| {
                let room = IDENTIFIER_BYTES_MAX - suffix.len() - 1;
                format!("{}_{suffix}", &table[..table.len().min(room)])
            })
            .collect()
    }

    /// The steps to apply to the table, in order. The table itself is the application's.
    pub fn migrations(&self) -> Vec<Step> {
        let mut columns = vec![(&self.owner, "text"), (&self.until, "timestamptz"), (&self.epoch, "bigint")];
        columns.extend(self.attempts.iter().map(|column| (column, "integer")));
        columns.extend(self.next_attempt.iter().map(|column| (column, "timestamptz")));
        columns.extend(self.dead.iter().flat_map(|dead| [(&dead.at, "timestamptz"), (&dead.reason, "text")]));
        let add: Vec<String> = columns
            .iter()
            .map(|(column, kind)| format!("ADD COLUMN IF NOT EXISTS {column} {kind}"))
            .collect();
        let mut steps = vec![Step::Locked(format!("ALTER TABLE {} {}", self.quoted, add.join(", ")))];
        let build = |index: Index| Step::Concurrently {
            index: index.path(&index.name),
            sql: index.build(&index.name),
        };
        steps.extend(self.wanted_indexes().map(build));
        steps
    }

    fn wanted_indexes(&self) -> impl Iterator<Item = Index> {
        let bodies = self.index_names().into_iter().zip(self.index_bodies());
        bodies.map(|(name, body)| Index { table: self.quoted.clone(), name, body })
    }

    fn index_bodies(&self) -> Vec<String> {
        let key: Vec<&str> = self.key().map(String::as_str).collect();
        let open = self.open();
        let due = self.due();
        let mut bodies = vec![
            format!("({}) WHERE {open} AND {due} IS NULL", key.join(", ")),
            format!("(({due}), {}) WHERE {open} AND {due} IS NOT NULL", self.id),
        ];
        let buried = |dead: &Dead| format!("({at}, {id}) WHERE {at} IS NOT NULL", at = dead.at, id = self.id);
        bodies.extend(self.dead.as_ref().map(buried));
        bodies.extend(self.indexes.iter().map(|columns| format!("({})", columns.join(", "))));
        bodies
    }
}

/// The migrations as a script to be applied by hand, not in one transaction.
pub fn print(table: &ClaimTable) -> String {
    let mut script = format!("SET lock_timeout = '{}ms';\n", LOCK_TIMEOUT.as_millis());
    for step in table.migrations() {
        match step {
            Step::Locked(sql) => script += &format!("{sql};\nRESET lock_timeout;\n"),
            Step::Concurrently { sql, .. } => script += &format!("{sql};\n"),
        }
    }
    script
}

/// Applies what is missing, on a live table. Use a direct connection to PostgreSQL.
pub async fn apply(client: &Client, table: &ClaimTable) -> Result<(), Error> {
    if !missing_columns(client, table).await?.is_empty() {
        for step in table.migrations() {
            if let Step::Locked(sql) = step {
                apply_locked(client, &sql).await?;
            }
        }
    }
    let indexes: Vec<Index> = table.wanted_indexes().collect();
    let definitions = definitions(client, &indexes).await?;
    for (at, index) in indexes.iter().enumerate() {
        index.apply(client, definitions.get(at).map(String::as_str)).await?;
    }
    Ok(())
}

/// Refuses a table that lacks a column, naming all that it lacks.
pub async fn check(client: &Client, table: &ClaimTable) -> Result<(), Error> {
    let mut lacks = missing_columns(client, table).await?;
    let own = [Some(&table.id), table.state.as_ref(), table.touched.as_ref()].into_iter().flatten();
    lacks.extend(missing(client, table, own.chain(&table.order).chain(&table.payload)).await?);
    lacks.dedup();
    if lacks.is_empty() {
        return Ok(());
    }
    let wanted = format!("it lacks {}: apply the migrations, or correct the description", lacks.join(", "));
    Err(Error::invalid("table", table.name(), wanted))
}

/// The indexes of the claims that a table lacks, by name.
pub(crate) async fn missing_indexes(client: &Client, table: &ClaimTable) -> Result<Vec<String>, Error> {
    let mut lacks = Vec::new();
    for index in table.wanted_indexes().take(2) {
        if index.look(client, &index.name).await?.is_none_or(|found| !found.is_valid) {
            lacks.push(index.name);
        }
    }
    Ok(lacks)
}

async fn missing_columns(client: &Client, table: &ClaimTable) -> Result<Vec<String>, Error> {
    let lease = [&table.owner, &table.until, &table.epoch].into_iter();
    let optional = table.attempts.iter().chain(&table.next_attempt);
    let dead = table.dead.iter().flat_map(|dead| [&dead.at, &dead.reason]);
    missing(client, table, lease.chain(optional).chain(dead)).await
}

/// The columns that a table has, `table` or `schema.table`, and their types: for a tool that is told only a part of a
/// table's description.
pub async fn columns(client: &Client, table: &str) -> Result<Vec<(String, String)>, Error> {
    let sql = "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute \
        WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
    let rows = client.query_typed(sql, &[(&ident::table(table)?, Type::TEXT)]).await?;
    if rows.is_empty() {
        return Err(Error::invalid("table", table, "there is no such table; make it first"));
    }
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

async fn missing<'a>(
    client: &Client,
    table: &ClaimTable,
    wanted: impl Iterator<Item = &'a String>,
) -> Result<Vec<String>, Error> {
    let there = columns(client, table.name()).await?;
    let names = wanted.map(|column| column.trim_matches('"').to_owned());
    Ok(names.filter(|name| !there.iter().any(|(column, _)| column == name)).collect())
}

pub(crate) async fn apply_locked(client: &Client, sql: &str) -> Result<(), Error> {
    let timeout = LOCK_TIMEOUT.as_millis();
    let script = format!("BEGIN; SET LOCAL lock_timeout = '{timeout}ms'; {sql}; COMMIT");
    for attempt in 1.. {
        let Err(error) = client.batch_execute(&script).await else { break };
        client.batch_execute("ROLLBACK").await?;
        let error = Error::from(error);
        // A lock timeout, or another process that adds the same column at the same time.
        let in_the_way = matches!(error.code(), Some("55P03" | "42701" | "XX000")) || error.is_contention();
        if !in_the_way || attempt >= LOCK_ATTEMPTS {
            return Err(error);
        }
        tokio::time::sleep(LOCK_PAUSE.scattered(1)).await;
    }
    Ok(())
}

/// An index that a description asks for.
#[derive(Debug)]
struct Index {
    /// The table, quoted.
    table: String,
    name: String,
    /// What it is over, as in `CREATE INDEX`.
    body: String,
}

/// An index that is there.
struct Found {
    is_valid: bool,
    definition: String,
    /// The table that it is on, if that is another one.
    elsewhere: Option<String>,
}

/// What an index `i` is over, as PostgreSQL writes it. Settings such as the fill factor are left to the operator.
const DEFINITION: &str = "concat_ws(' ', (SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam \
    WHERE c.oid = i.indexrelid), ARRAY(SELECT pg_get_indexdef(i.indexrelid, k, false) \
    FROM generate_series(1, i.indnkeyatts) AS k), i.indoption, i.indclass, i.indcollation, \
    pg_get_expr(i.indpred, i.indrelid))";

/// The definitions of these indexes, all of one table, as PostgreSQL writes them: they are built on an empty copy of
/// the table, which is dropped at once. Empty where that is not allowed, as to a user who may not make temporary
/// tables: then an index is believed by its name.
async fn definitions(client: &Client, indexes: &[Index]) -> Result<Vec<String>, Error> {
    let Some(first) = indexes.first() else { return Ok(Vec::new()) };
    let mut script = format!("CREATE TEMPORARY TABLE solehold_wanted (LIKE {}) ON COMMIT DROP;", first.table);
    let mut names = Vec::new();
    for (at, index) in indexes.iter().enumerate() {
        script += &format!("CREATE INDEX solehold_wanted_{at} ON pg_temp.solehold_wanted {};", index.body);
        names.push(format!("({at}, 'pg_temp.solehold_wanted_{at}'::regclass)"));
    }
    script += &format!(
        "SELECT {DEFINITION} FROM (VALUES {}) AS wanted (at, index) JOIN pg_index i ON i.indexrelid = wanted.index \
         ORDER BY wanted.at",
        names.join(", ")
    );
    // Several statements at once are one transaction.
    let answer = client.simple_query(&script).await.map_err(Error::from);
    let messages = match answer {
        Err(error) if matches!(error.code(), Some("42501" | "25006")) => {
            tracing::warn!(table = first.table, %error, "cannot compare the indexes of the table with their definitions; keeping them");
            return Ok(Vec::new());
        }
        answer => answer?,
    };
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
        _ => None,
    });
    Ok(rows.collect())
}

impl Index {
    /// The name of an index with the table's schema, quoted.
    fn path(&self, name: &str) -> String {
        match self.table.split_once('.') {
            Some((schema, _)) => format!("{schema}.\"{name}\""),
            None => format!("\"{name}\""),
        }
    }

    fn build(&self, name: &str) -> String {
        format!("CREATE INDEX CONCURRENTLY IF NOT EXISTS \"{name}\" ON {} {}", self.table, self.body)
    }

    /// The name while it is built, or when it is no longer needed. The end of a long name tells it from its siblings.
    fn beside(&self, suffix: &str) -> String {
        let room = IDENTIFIER_BYTES_MAX - suffix.len() - 1;
        format!("{}_{suffix}", &self.name[self.name.len().saturating_sub(room)..])
    }

    async fn look(&self, client: &Client, name: &str) -> Result<Option<Found>, Error> {
        let look = format!(
            "SELECT i.indisvalid, {DEFINITION}, NULLIF(i.indrelid, to_regclass($2))::regclass::text FROM pg_index i \
             WHERE i.indexrelid = to_regclass($1)"
        );
        let parameters = [(&self.path(name) as _, Type::TEXT), (&self.table as _, Type::TEXT)];
        let Some(row) = client.query_typed_opt(&look, &parameters).await? else { return Ok(None) };
        Ok(Some(Found { is_valid: row.try_get(0)?, definition: row.try_get(1)?, elsewhere: row.try_get(2)? }))
    }

    /// Builds it unless it is there, and replaces one of another definition.
    async fn apply(&self, client: &Client, definition: Option<&str>) -> Result<(), Error> {
        // One process at a time. Another one looks again and again: if it waited for the lock inside PostgreSQL, the
        // build would wait for its snapshot.
        let lock = format!("solehold index {}", self.path(&self.name));
        let take = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let release = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        while !self.is_done(client, definition).await? {
            if client.query_typed_one(take, &[(&lock, Type::TEXT)]).await?.try_get(0)? {
                let made = self.make(client, definition).await;
                client.query_typed_one(release, &[(&lock, Type::TEXT)]).await?;
                return made;
            }
            tokio::time::sleep(LOCK_PAUSE.scattered(1)).await;
        }
        Ok(())
    }

    /// Whether it is there, as described, and nothing is left of another one.
    async fn is_done(&self, client: &Client, definition: Option<&str>) -> Result<bool, Error> {
        let Some(found) = self.look(client, &self.name).await? else { return Ok(false) };
        if let Some(table) = found.elsewhere {
            let wanted = format!("it is an index of the table {table}; give that one another name");
            return Err(Error::invalid("index", &self.name, wanted));
        }
        let is_right = definition.is_none_or(|definition| definition == found.definition);
        let is_alone = self.look(client, &self.beside("new")).await?.is_none()
            && self.look(client, &self.beside("old")).await?.is_none();
        Ok(found.is_valid && is_right && is_alone)
    }

    async fn make(&self, client: &Client, definition: Option<&str>) -> Result<(), Error> {
        let name = &self.name;
        let new = self.beside("new");
        let old = self.beside("old");
        let differs = |found: &Found| definition.is_some_and(|definition| definition != found.definition);
        self.drop(client, &old).await?;
        if self.look(client, name).await?.is_some_and(|found| found.is_valid && differs(&found)) {
            tracing::info!(index = name, "index differs from its definition; rebuilding it");
            if self.look(client, &new).await?.is_some_and(|found| differs(&found)) {
                self.drop(client, &new).await?;
            }
            apply_concurrently(client, &self.path(&new), &self.build(&new)).await?;
            // A rename does not block readers or writers.
            let from = self.path(name);
            let to = self.path(&new);
            let swap =
                format!("ALTER INDEX {from} RENAME TO \"{old}\"; ALTER INDEX {to} RENAME TO \"{name}\"");
            apply_locked(client, &swap).await?;
            self.drop(client, &old).await?;
        }
        apply_concurrently(client, &self.path(name), &self.build(name)).await?;
        self.drop(client, &new).await
    }

    async fn drop(&self, client: &Client, name: &str) -> Result<(), Error> {
        for _ in 0..LOCK_ATTEMPTS {
            if self.look(client, name).await?.is_none() {
                return Ok(());
            }
            let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {}", self.path(name));
            unless_in_the_way(client.batch_execute(&drop).await)?;
        }
        Err(Error::invalid("index", name, "it is no longer needed and cannot be dropped; drop it"))
    }
}

async fn apply_concurrently(client: &Client, index: &str, sql: &str) -> Result<(), Error> {
    let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)";
    let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS {index}");
    for attempt in 0..LOCK_ATTEMPTS {
        match client.query_typed_opt(valid, &[(&index, Type::TEXT)]).await? {
            Some(row) if row.try_get(0)? => return Ok(()),
            // Somebody may be building it: to ask for it again waits for them. Whatever is invalid after that is a
            // leftover.
            Some(_) if attempt > 0 => unless_in_the_way(client.batch_execute(&drop).await)?,
            _ => {}
        }
        unless_in_the_way(client.batch_execute(sql).await)?;
        if attempt > 0 {
            tokio::time::sleep(LOCK_PAUSE.scattered(1)).await;
        }
    }
    Err(Error::invalid("index", index, "it stays invalid; look for what blocks its build, and drop it"))
}

/// Two who build or drop the same index at once get in each other's way; then it is looked at again.
fn unless_in_the_way(result: Result<(), tokio_postgres::Error>) -> Result<(), Error> {
    match result.map_err(Error::from) {
        Err(error) if error.is_contention() => Ok(()),
        Err(error) if matches!(error.code(), Some("55P03" | "42P07" | "23505" | "XX000")) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_what_an_operator_would_write() {
        let table = ClaimTable::builder("app.payment_requests")
            .claimable("status IN ('pending', 'detected')")
            .order(["created_at"])
            .lease("reconcile_lease_owner", "reconcile_lease_until", "reconcile_lease_epoch")
            .index(["status", "reconcile_lease_until", "created_at", "id"])
            .build()
            .unwrap();
        assert_eq!(
            print(&table),
            r#"SET lock_timeout = '500ms';
ALTER TABLE "app"."payment_requests" ADD COLUMN IF NOT EXISTS "reconcile_lease_owner" text, ADD COLUMN IF NOT EXISTS "reconcile_lease_until" timestamptz, ADD COLUMN IF NOT EXISTS "reconcile_lease_epoch" bigint;
RESET lock_timeout;
CREATE INDEX CONCURRENTLY IF NOT EXISTS "payment_requests_claim_fresh" ON "app"."payment_requests" ("created_at", "id") WHERE (status IN ('pending', 'detected')) AND "reconcile_lease_until" IS NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS "payment_requests_claim_due" ON "app"."payment_requests" (("reconcile_lease_until"), "id") WHERE (status IN ('pending', 'detected')) AND "reconcile_lease_until" IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS "payment_requests_index_1" ON "app"."payment_requests" ("status", "reconcile_lease_until", "created_at", "id");
"#
        );
    }
}
