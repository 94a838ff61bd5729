//! The claims of a table as SQL functions in the application's own database, so that programs in any language have the
//! guarantees of this crate. The functions run the same statements as [`Claims`](crate::Claims).
//!
//! ```text
//!   SELECT * FROM app.payments_claim('host-7', 100, 30)           owner, rows, seconds
//!   SELECT app.payments_complete('host-7', 42, 3, 'pending', 'confirmed')
//! ```
//!
//! - A function for one row fails with SQLSTATE [`LOST`] if the claim no longer holds, so that the transaction of a
//!   caller that looks at nothing cannot commit. Its `_all` form takes arrays and returns one row for each of theirs,
//!   with its outcome; a lost row does not affect the others.
//! - All names are qualified and quoted, the search path is fixed, and the functions have the rights of their caller.
//! - The statements are planned once per connection, as a short scan of the claim's indexes whatever the statistics
//!   say: a function can forbid other plans for itself.
//! - Where the next claim begins to look is kept in a setting of the connection. That is a hint: a connection that is
//!   new, or shared by a pooler, makes a full pass.

use std::collections::{HashMap, HashSet};

use tokio_postgres::{Client, types::Type};

use crate::{
    Error, ident,
    limits::{
        BATCH_ROWS_MAX, COLUMNS_MAX, DEFER_MAX, FULL_PASS_PAUSE_MAX, FULL_PASS_SHARE, IDENTIFIER_BYTES_MAX,
        LEASE_MAX, LEASE_MIN, OWNER_BYTES_MAX, REASON_BYTES_MAX,
    },
    migrations,
    statements::{self, Start, Statements},
    table::ClaimTable,
};

/// The SQLSTATE of a change to a row whose claim no longer holds. Nothing was changed.
pub const LOST: &str = "SH409";
/// The SQLSTATE of reviving a row that is not buried.
pub const NOT_BURIED: &str = "SH404";

/// What the names of the variables begin with.
const OWN_PREFIX: &str = "solehold_";
const GUARD: &str = "claim_guard";

/// One plan for each statement and connection, without a scan of the whole table or a sort of all that is open. Such a
/// plan has no alternative, however expensive it looks, and is not worth compiling.
const PLANNED: &str = "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off \
    SET enable_sort = off SET jit = off";

/// Claims without a result after which `fail` buries a row, unless its caller says otherwise.
const ATTEMPTS_MAX: u32 = 20;

/// Each function as it is named in the templates, what its name ends with, and whether only a table with a state column
/// or with dead-letter columns has it.
const FUNCTIONS: [(&str, &str, Needs); 18] = [
    ("claim", "claim", Needs::Nothing),
    ("extend", "extend", Needs::Nothing),
    ("extend_all", "extend_all", Needs::Nothing),
    ("release", "release", Needs::Nothing),
    ("release_all", "release_all", Needs::Nothing),
    ("defer", "defer", Needs::Nothing),
    ("defer_all", "defer_all", Needs::Nothing),
    ("fail", "fail", Needs::Nothing),
    ("fail_all", "fail_all", Needs::Nothing),
    ("complete", "complete", Needs::State),
    ("complete_all", "complete_all", Needs::State),
    ("revive", "revive", Needs::DeadLetter),
    ("revive_all", "revive_all", Needs::DeadLetter),
    ("check_owner", "claim_check_owner", Needs::Nothing),
    ("check_seconds", "claim_check_seconds", Needs::Nothing),
    ("check_batch", "claim_check_batch", Needs::Nothing),
    ("outcomes", "claim_outcomes", Needs::Nothing),
    ("unless_lost", "claim_unless_lost", Needs::Nothing),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    State,
    DeadLetter,
}

/// The names that an argument or a column of `claim` has; a payload column of the same name gets another one.
const OWN_NAMES: [&str; 8] = [
    "owner",
    "max_rows",
    "lease_seconds",
    "claim_id",
    "claim_epoch",
    "claim_attempts",
    "claim_state",
    "claimed_at",
];

/// The functions of one table. Made by [`Functions::describe`].
#[derive(Debug)]
pub struct Functions {
    /// With its schema, whatever the caller's search path is.
    table: ClaimTable,
    /// The schema of the functions.
    schema: String,
    /// What their names begin with.
    prefix: String,
    /// The types of the table's columns, as SQL names them.
    types: HashMap<String, String>,
    setting: String,
    statements: Statements,
}

impl Functions {
    /// The functions of a table that its migrations have been applied to. Their names begin with `prefix`, `name_` or
    /// `schema.name_`; by default with the table's own name, in its schema. The types of the columns are read from the
    /// database; nothing is changed.
    pub async fn describe(client: &Client, table: &ClaimTable, prefix: Option<&str>) -> Result<Self, Error> {
        migrations::check(client, table).await?;
        let lacks = migrations::missing_indexes(client, table).await?;
        if !lacks.is_empty() {
            let wanted =
                format!("it lacks the index {}: apply the migrations", lacks.join(" and the index "));
            return Err(Error::invalid("table", table.name(), wanted));
        }
        let named = "SELECT nspname::text, relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
            WHERE c.oid = to_regclass($1)";
        let row = client.query_typed_one(named, &[(&table.quoted, Type::TEXT)]).await?;
        let schema: String = row.try_get(0)?;
        let name: String = row.try_get(1)?;
        let types = column_types(client, table).await?;
        let mut table = table.clone();
        table.name = format!("{schema}.{name}");
        table.quoted = ident::table(&table.name)?;
        if let Some(state) = &table.state {
            table.state_type = type_of(&types, state)?;
        }
        let default = format!("{schema}.{name}_");
        let given = prefix.unwrap_or(&default);
        let (schema, prefix) = given.split_once('.').unwrap_or((&schema, given));
        let longest = FUNCTIONS.iter().map(|(_, suffix, _)| suffix.len()).max().unwrap_or_default();
        if prefix.len() + longest > IDENTIFIER_BYTES_MAX {
            let wanted = format!("use at most {} bytes", IDENTIFIER_BYTES_MAX - longest);
            return Err(Error::invalid("prefix of the functions", prefix, wanted));
        }
        ident::table(&format!("{schema}.{prefix}claim"))?;
        let statements = Statements::new(&table);
        // Another description has another floor.
        let text = format!("{}{types:?}", statements.claim(Start::Floor, false), types = sorted(&types));
        let setting = format!("solehold.floor_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        let functions =
            Self { schema: schema.to_owned(), prefix: prefix.to_owned(), table, types, setting, statements };
        if functions.table.claimable.contains("$solehold$") {
            let wanted = "it must not contain $solehold$";
            return Err(Error::invalid("claimable condition", functions.table.claimable, wanted));
        }
        if let Some(column) = functions.types.keys().find(|column| column.starts_with(OWN_PREFIX)) {
            let wanted = "columns of other names; the functions use solehold_ for their variables";
            return Err(Error::invalid("column", column, wanted));
        }
        Ok(functions)
    }

    /// The name of a function with its schema, quoted: `claim`, `extend`, `complete_all` and so on.
    pub fn name(&self, function: &str) -> String {
        format!("\"{}\".\"{}{function}\"", self.schema, self.prefix)
    }

    /// The names of all functions, those for callers first.
    pub fn names(&self) -> Vec<String> {
        self.made().map(|(_, suffix)| self.name(suffix)).collect()
    }

    fn made(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let has = |needs: Needs| match needs {
            Needs::Nothing => true,
            Needs::State => self.table.state.is_some(),
            Needs::DeadLetter => self.table.dead.is_some(),
        };
        FUNCTIONS.into_iter().filter(move |(.., needs)| has(*needs)).map(|(name, suffix, _)| (name, suffix))
    }

    /// The setting of a connection that says where its next claim begins to look: a JSON object, with the number of
    /// full passes among its members.
    pub fn floor_setting(&self) -> &str {
        &self.setting
    }

    /// The script that makes the functions, or replaces them. PostgreSQL refuses to replace a function whose result has
    /// changed, as `claim` does with the payload: run [`drop`](Self::drop) first, in the same transaction.
    pub fn create(&self) -> Result<String, Error> {
        let mut script = include_str!("claim.sql").to_owned();
        script += "\n";
        script += include_str!("settle.sql");
        if self.table.state.is_some() {
            script += "\n";
            script += include_str!("complete.sql");
        }
        if self.table.dead.is_some() {
            script += "\n";
            script += include_str!("revive.sql");
        }
        for (name, value) in self.values()? {
            script = script.replace(&format!("{{{name}}}"), &value);
        }
        Ok(script)
    }

    /// The script that drops the functions. The table and its claims stay.
    pub fn drop(&self) -> String {
        self.names().iter().map(|name| format!("DROP FUNCTION IF EXISTS {name};\n")).collect()
    }

    /// Makes the functions, or replaces them, in one transaction: callers see all of the old ones or all of the new
    /// ones. The statements are checked against the table before that.
    pub async fn apply(&self, client: &Client) -> Result<(), Error> {
        let key: Vec<String> = self.key_types()?;
        let check = format!(
            "SET LOCAL search_path = {}; PREPARE solehold_check (bigint, text, float8, timestamptz, {}) AS {}; \
             DEALLOCATE solehold_check;",
            self.path(),
            key.join(", "),
            self.statements.claim(Start::Floor, true)
        );
        match self.in_transaction(client, &format!("{check} {}", self.create()?)).await {
            // The result of a function has changed.
            Err(error) if error.code() == Some("42P13") => {
                self.in_transaction(client, &format!("{check} {} {}", self.drop(), self.create()?)).await
            }
            result => result,
        }
    }

    /// A trigger for as long as other workers claim rows of the table by SQL of their own, with the same columns but
    /// without an epoch. It gives their claims one, and makes them change no row where the lease is another's by the
    /// database's clock, where their own has run out, or where the row is buried. It may be applied again.
    pub fn guard(&self) -> String {
        let ClaimTable { owner, until, epoch, state, dead, .. } = &self.table;
        let mut script = include_str!("guard.sql").to_owned();
        let buried = dead.as_ref().map(|dead| format!(" OR OLD.{} IS NOT NULL", dead.at)).unwrap_or_default();
        let moved = state.as_ref().map(|state| format!(" AND NEW.{state} IS DISTINCT FROM OLD.{state}"));
        for (name, value) in [
            ("owner_column", owner.clone()),
            ("until_column", until.clone()),
            ("epoch_column", epoch.clone()),
            ("or_buried", buried),
            ("and_moved", moved.unwrap_or_default()),
            ("guard", self.name(GUARD)),
            ("guard_trigger", self.guard_trigger()),
            ("table", self.table.quoted.clone()),
            ("search_path", format!("SET search_path = {}", self.path())),
        ] {
            script = script.replace(&format!("{{{name}}}"), &value);
        }
        script
    }

    /// What drops the trigger, when the last of those workers has ended.
    pub fn drop_guard(&self) -> String {
        let Self { table, .. } = self;
        let trigger = self.guard_trigger();
        format!(
            "DROP TRIGGER IF EXISTS {trigger} ON {};\nDROP FUNCTION IF EXISTS {}();\n",
            table.quoted,
            self.name(GUARD)
        )
    }

    fn guard_trigger(&self) -> String {
        format!("\"{}{GUARD}\"", self.prefix)
    }

    /// Runs what [`guard`](Self::guard) or [`drop_guard`](Self::drop_guard) returns, waiting for the table's lock in
    /// short turns, since everybody waits behind it.
    pub async fn apply_guard(&self, client: &Client, script: &str) -> Result<(), Error> {
        migrations::apply_locked(client, script.trim_end().trim_end_matches(';')).await
    }

    /// Drops the functions.
    pub async fn remove(&self, client: &Client) -> Result<(), Error> {
        self.in_transaction(client, &self.drop()).await
    }

    /// One process at a time changes them.
    async fn in_transaction(&self, client: &Client, script: &str) -> Result<(), Error> {
        let lock = format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('solehold functions {}.{}', 0))",
            self.schema, self.prefix
        );
        let done = client.batch_execute(&format!("BEGIN; {lock}; {script} COMMIT")).await;
        if done.is_err() {
            client.batch_execute("ROLLBACK").await?;
        }
        Ok(done?)
    }

    fn path(&self) -> String {
        let table = self.table.quoted.split('.').next().unwrap_or_default();
        format!("pg_catalog, {table}, pg_temp")
    }

    fn key_types(&self) -> Result<Vec<String>, Error> {
        self.table.key().map(|column| type_of(&self.types, column)).collect()
    }

    /// What stands in the templates for each name. Statements come last, since they contain the application's own SQL.
    fn values(&self) -> Result<Vec<(&'static str, String)>, Error> {
        let table = &self.table;
        let mut values: Vec<(&'static str, String)> =
            self.made().map(|(name, suffix)| (name, self.name(suffix))).collect();
        values.extend([
            ("LOST", LOST.to_owned()),
            ("NOT_BURIED", NOT_BURIED.to_owned()),
            ("search_path", format!("SET search_path = {}", self.path())),
            ("planned", format!("SET search_path = {} {PLANNED}", self.path())),
            ("setting", self.setting.clone()),
            ("name", table.name.clone()),
            ("table", table.quoted.clone()),
            ("id", table.id.clone()),
            ("id_type", type_of(&self.types, &table.id)?),
            ("id_key", literal(bare(&table.id))),
            ("batch_rows_max", BATCH_ROWS_MAX.to_string()),
            ("owner_bytes_max", OWNER_BYTES_MAX.to_string()),
            ("columns_max", COLUMNS_MAX.to_string()),
            ("reason_max", REASON_BYTES_MAX.to_string()),
            ("lease_min", LEASE_MIN.as_secs_f64().to_string()),
            ("lease_max", LEASE_MAX.as_secs().to_string()),
            ("defer_max", DEFER_MAX.as_secs().to_string()),
            ("full_pass_share", FULL_PASS_SHARE.to_string()),
            ("full_pass_pause_max", FULL_PASS_PAUSE_MAX.as_secs().to_string()),
        ]);
        values.extend(self.key_values()?);
        values.extend(self.payload_values()?);
        values.extend(self.burial_values());
        values.extend(self.statement_values());
        Ok(values)
    }

    /// The key of the order: where the floor is, what was found last, and what each row returns.
    fn key_values(&self) -> Result<[(&'static str, String); 4], Error> {
        let types = self.key_types()?;
        let variables = (0..).zip(&types).map(|(at, kind)| {
            let i = at + 1;
            format!(
                "    solehold_key_{i} {kind} := (solehold_floor->'fresh'->>{at})::{kind};\n    \
                 solehold_found_{i} {kind};\n    solehold_order_{i} {kind};"
            )
        });
        let moves = (1..=types.len()).map(|i| format!("        solehold_key_{i} := solehold_found_{i};"));
        Ok([
            ("floor_key", self.key_variables("key")),
            ("found_key", self.key_variables("found")),
            ("key_variables", variables.collect::<Vec<_>>().join("\n")),
            ("move_floor", moves.collect::<Vec<_>>().join("\n")),
        ])
    }

    fn key_variables(&self, name: &str) -> String {
        let names: Vec<String> =
            (1..=self.table.key().count()).map(|i| format!("solehold_{name}_{i}")).collect();
        names.join(", ")
    }

    /// The columns that `claim` returns for the payload, and all variables that a row of its statement goes into.
    fn payload_values(&self) -> Result<[(&'static str, String); 2], Error> {
        let mut used: HashSet<String> = OWN_NAMES.iter().map(|name| (*name).to_owned()).collect();
        let mut columns = String::new();
        let mut names = String::new();
        for column in &self.table.payload {
            let mut name = bare(column).to_owned();
            while used.contains(&name) {
                name = format!("payload_{name}");
            }
            let quoted = ident::column(&name)?;
            columns += &format!(", {quoted} {}", type_of(&self.types, column)?);
            names += &format!(", {quoted}");
            used.insert(name);
        }
        let claimed = format!(
            "claimed_at, solehold_fresh_rows, solehold_due_rows, solehold_last_due, solehold_ahead, {}, \
             claim_id, claim_epoch, claim_attempts, claim_state, {}{names}",
            self.key_variables("found"),
            self.key_variables("order")
        );
        Ok([("payload_columns", columns), ("claimed", claimed)])
    }

    fn burial_values(&self) -> [(&'static str, String); 5] {
        let ClaimTable { attempts, dead, .. } = &self.table;
        let missing = match (attempts, dead) {
            (_, None) => "dead-letter columns",
            (None, _) => "a column that counts attempts",
            _ => "nothing",
        };
        let buries = attempts.is_some() && dead.is_some();
        [
            ("attempts", attempts.as_ref().map_or("0".into(), |column| format!("COALESCE(t.{column}, 0)"))),
            ("counts_attempts", attempts.is_some().to_string()),
            ("can_bury", dead.is_some().to_string()),
            ("missing_to_bury", missing.to_owned()),
            ("attempts_max", if buries { ATTEMPTS_MAX.to_string() } else { "NULL".into() }),
        ]
    }

    fn statement_values(&self) -> Vec<(&'static str, String)> {
        let Statements { extend, release, defer_resetting, defer_counting, defer_restoring, .. } =
            &self.statements;
        let statements = &self.statements;
        let explain = format!(
            "SELECT a.id, CASE WHEN a.id = ANY($6) THEN 'done' ELSE a.why END, \
             CASE WHEN a.id = ANY($6) THEN NULL ELSE a.owner END, CASE WHEN a.id = ANY($6) THEN NULL ELSE a.epoch END, \
             CASE WHEN a.id = ANY($6) THEN NULL ELSE a.state END FROM ({}) AS a",
            statements.explain
        );
        let managed: Vec<String> = self.table.managed().map(|column| literal(bare(column))).collect();
        let none = || "NULL".to_owned();
        let mut values = vec![
            ("managed", format!("ARRAY[{}]", managed.join(", "))),
            ("explain", literal(&explain)),
            ("extend_sql", settling(extend, &["solehold_ms"])),
            ("release_sql", settling(release, &[])),
            ("defer_resetting_sql", settling(defer_resetting, &["solehold_ms"])),
            ("defer_counting_sql", settling(defer_counting, &["solehold_ms"])),
            ("defer_restoring_sql", settling(defer_restoring, &["solehold_ms"])),
            ("bury_sql", statements.bury.as_deref().map_or_else(none, |sql| literal(&done(sql, "")))),
            ("revive_sql", statements.revive.as_deref().map_or_else(none, |sql| literal(&done(sql, "")))),
            (
                "transition_sql",
                settling(&statements::transition(&self.table, &[]), &["solehold_froms", "solehold_tos"]),
            ),
            (
                "transition_setting_sql",
                literal(&done(&statements::transition_setting(&self.table, Some("/*changes*/")), "")),
            ),
        ];
        let keys = self.key_variables("key");
        let mut names = vec!["solehold_limit", "solehold_owner", "solehold_ms", "solehold_due"];
        names.extend(keys.split(", "));
        for (name, start, due_first) in [
            ("all_due_first", Start::Beginning, true),
            ("all_fresh_first", Start::Beginning, false),
            ("floor_due_first", Start::Floor, true),
            ("floor_fresh_first", Start::Floor, false),
        ] {
            values.push((name, bound(statements.claim(start, due_first), &names)));
        }
        values
    }
}

/// A statement that returns the ids of the rows that it changed, as one that returns them in one array.
fn done(statement: &str, into: &str) -> String {
    format!("WITH done(id) AS ({statement}) SELECT COALESCE(array_agg(done.id), '{{}}'){into} FROM done")
}

/// The same in the body of a function, over its variables.
fn settling(statement: &str, more: &[&str]) -> String {
    let names = [&["solehold_ids", "solehold_epochs", "solehold_owners"][..], more].concat();
    bound(&done(statement, " INTO STRICT solehold_done"), &names)
}

/// A statement over variables in place of `$1`, `$2` and so on.
fn bound(statement: &str, names: &[&str]) -> String {
    let numbered = (1..).zip(names).collect::<Vec<(usize, _)>>().into_iter().rev();
    numbered.fold(statement.to_owned(), |sql, (i, name)| sql.replace(&format!("${i}"), name))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn bare(column: &str) -> &str {
    column.trim_matches('"')
}

fn sorted(types: &HashMap<String, String>) -> Vec<(&String, &String)> {
    let mut sorted: Vec<_> = types.iter().collect();
    sorted.sort();
    sorted
}

fn type_of(types: &HashMap<String, String>, column: &str) -> Result<String, Error> {
    let known = types.get(bare(column)).cloned();
    known.ok_or_else(|| Error::invalid("column", bare(column), "the table does not have it"))
}

/// The types of the columns, with their schemas unless they are PostgreSQL's own.
async fn column_types(client: &Client, table: &ClaimTable) -> Result<HashMap<String, String>, Error> {
    let sql = "SELECT attname::text, CASE WHEN nspname = 'pg_catalog' AND typname NOT IN ('bpchar', 'bit') \
            THEN format_type(atttypid, NULL) ELSE format('%I.%I', nspname, typname) END \
        FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid JOIN pg_namespace n ON n.oid = typnamespace \
        WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";
    let rows = client.query_typed(sql, &[(&table.quoted, Type::TEXT)]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
