//! A lease table that was written by hand, read in one snapshot, with the time left by its own database's clock.

use std::collections::BTreeMap;

use solehold_api::{kind, problem::ErrorCode};
use solehold_core::{
    key::Name,
    limits::{REVISION_MAX, TTL_MS_MAX},
};
use solehold_sql::migrations;
use tokio_postgres::{Client, Row, types::Type};

use super::Selection;
use crate::{
    commands::rows::{connect, failure},
    error::{CommandError, CommandResult},
    human::duration_ms,
};

/// The holder of rows that were taken over with `--retire`.
pub const RETIRED: &str = "solehold";
/// A retired row is held until then: a time that every language's dates can have, unlike `infinity`.
const FOREVER: &str = "9999-12-31 00:00:00+00";
/// Rows that are taken over at once; they are kept in memory.
const ROWS_MAX: usize = 100_000;
/// How long one statement, and the wait for the lock of `--retire`, may take.
const STATEMENT_TIMEOUT: &str = "60s";
const LOCK_TIMEOUT: &str = "5s";
const LOCK_KIND: &str = "lock";

/// What a column of a lease table says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Key,
    Holder,
    Expires,
    Token,
    Tenant,
    Site,
    Status,
}

/// A lease table as one of the documents has it.
#[derive(Debug)]
struct Documented {
    name: &'static str,
    kind: &'static str,
    /// The columns that must be there, by the name in the document.
    columns: &'static [(Role, &'static str)],
    /// Whether the resource of a row must be declared, for which its key is enough.
    is_declared: bool,
}

const DOCUMENTED: [Documented; 3] = [
    Documented {
        name: "scene_leases",
        kind: kind::SCENE,
        columns: &[
            (Role::Key, "scene_id"),
            (Role::Holder, "holder_id"),
            (Role::Expires, "expires_at"),
            (Role::Token, "version"),
        ],
        is_declared: true,
    },
    Documented {
        name: "leases",
        kind: kind::CAMERA,
        columns: &[
            (Role::Key, "camera_uuid"),
            (Role::Holder, "runner_id"),
            (Role::Expires, "expires_at"),
            (Role::Tenant, "tenant_id"),
            (Role::Site, "site_id"),
            (Role::Status, "status"),
        ],
        is_declared: false,
    },
    Documented {
        name: "session_locks",
        kind: LOCK_KIND,
        columns: &[(Role::Key, "session_id"), (Role::Holder, "owner_id"), (Role::Expires, "expires_at")],
        is_declared: false,
    },
];

/// Which table to read, and the names of its columns.
#[derive(Debug)]
pub struct Shape {
    documented: &'static Documented,
    /// `table` or `schema.table`.
    pub table: String,
    columns: BTreeMap<Role, String>,
}

impl Shape {
    /// `TABLE`, or `SHAPE=TABLE` for a table of another name.
    pub fn of(text: &str, columns: &BTreeMap<String, String>, retire: bool) -> CommandResult<Self> {
        let (shape, table) = text.split_once('=').unwrap_or((text, text));
        let shape = shape.rsplit('.').next().unwrap_or(shape);
        let names = || DOCUMENTED.map(|documented| documented.name).join(", ");
        let documented = DOCUMENTED.iter().find(|documented| documented.name == shape).ok_or_else(|| {
            CommandError::usage(format!(
                "--from-table: {shape} is none of the tables {}; write scene_leases={text} if it is like scene_leases",
                names()
            ))
        })?;
        let mut mapped: BTreeMap<Role, String> =
            documented.columns.iter().map(|(role, name)| (*role, (*name).to_owned())).collect();
        for (from, to) in columns {
            // A token is the one thing that a table may have beyond its document.
            let role = documented.columns.iter().find(|(_, name)| name == from).map(|(role, _)| *role);
            let role = role.or((from == "version").then_some(Role::Token)).ok_or_else(|| {
                let known = documented.columns.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
                CommandError::usage(format!(
                    "--map {from}={to}: {shape} has no column {from}; its columns are {known}, and version for a token"
                ))
            })?;
            mapped.insert(role, to.clone());
        }
        if retire && documented.name == "session_locks" {
            // A lock's row is made when it is taken: a row that is not there cannot be retired.
            return Err(CommandError::usage(
                "--retire does not work for session_locks, whose nodes add rows at any time; stop them first, \
                 or move node by node as docs/guides/cluster.md describes",
            ));
        }
        Ok(Self { documented, table: table.to_owned(), columns: mapped })
    }

    pub fn kind(&self) -> &'static str {
        self.documented.kind
    }

    /// Whether its rows say at which site a resource is.
    pub fn has_sites(&self) -> bool {
        self.columns.contains_key(&Role::Site)
    }

    /// Whether the resources of its rows are declared.
    pub fn is_declared(&self) -> bool {
        self.documented.is_declared
    }

    fn column(&self, role: Role) -> Option<String> {
        self.columns.get(&role).map(|name| quoted(name))
    }

    fn quoted_table(&self) -> String {
        self.table.split('.').map(quoted).collect::<Vec<_>>().join(".")
    }

    fn must(&self, role: Role) -> String {
        self.column(role).unwrap_or_default()
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A row of the old table: the newest of its resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldRow {
    pub tenant: Name,
    pub key: Name,
    pub site: Option<String>,
    pub lease: OldLease,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OldLease {
    Free,
    /// Held for this time by the old database's clock.
    Live {
        holder: Name,
        left_ms: u64,
    },
    /// Taken over before, with `--retire`.
    Retired,
}

/// The old table in one snapshot: an open transaction, which [`OldTable::finish`] ends.
pub struct OldTable {
    client: Client,
    shape: Shape,
    pub rows: Vec<OldRow>,
    /// The largest token of all rows, whether or not they are selected.
    pub highest_token: u64,
}

impl OldTable {
    /// Reads the table. With `retire` it is locked against writes until [`Self::finish`].
    pub async fn read(
        url: &str,
        shape: Shape,
        time_zone: Option<&str>,
        selection: &Selection,
        tenant: &Name,
        retire: bool,
    ) -> CommandResult<Self> {
        let client = connect("--from-table", url).await?;
        let expires = check_columns(&client, &shape).await?;
        let bounds = format!(
            "SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}'; SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"
        );
        let begin = if retire {
            // Writers wait, so that every later statement sees the same rows.
            let table = shape.quoted_table();
            format!("BEGIN; {bounds}; LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
        } else {
            format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {bounds}")
        };
        client.batch_execute(&begin).await.map_err(broken)?;
        if let Some(zone) = time_zone {
            let sql = "SELECT set_config('TimeZone', $1, true)";
            let set = client.query_typed(sql, &[(&zone, Type::TEXT)]).await;
            set.map_err(|error| broken(error).doing(format!("use --time-zone {zone}")))?;
        }
        let highest_token = highest_token(&client, &shape).await?;
        let found = client.query_typed(&select(&shape, &expires, selection), &[]).await.map_err(broken)?;
        if found.len() > ROWS_MAX {
            let message = format!("{} has more than {ROWS_MAX} rows", shape.table);
            return Err(CommandError::usage(message).hint("take them over in parts, with --only or --site"));
        }
        let mut rows = Vec::with_capacity(found.len());
        let mut faults = Vec::new();
        for row in &found {
            match read_row(row, tenant) {
                Ok(row) => rows.push(row),
                Err(fault) => faults.push(fault),
            }
        }
        super::refuse_faults(ErrorCode::BadRequest, &faults)?;
        rows.retain(|row| selection.takes(row.key.as_str(), row.site.as_deref()));
        selection.refuse_unknown(rows.iter().map(|row| row.key.as_str()))?;
        Ok(Self { client, shape, rows, highest_token })
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Marks the rows that were read as held by solehold, by the old table's own rules, and commits. Returns how many
    /// were not marked before.
    pub async fn retire(self) -> CommandResult<usize> {
        let keys: Vec<String> = self.rows.iter().map(|row| row.key.to_string()).collect();
        let is_new = |row: &&OldRow| row.lease != OldLease::Retired;
        let count = self.rows.iter().filter(is_new).count();
        for sql in self.retirement() {
            let marked = self.client.query_typed(&sql, &[(&keys, Type::TEXT_ARRAY)]).await;
            marked.map_err(|error| broken(error).doing(format!("retire rows of {}", self.shape.table)))?;
        }
        self.finish("COMMIT").await?;
        Ok(count)
    }

    fn retirement(&self) -> Vec<String> {
        let table = self.shape.quoted_table();
        let column = |role| self.shape.must(role);
        let key = column(Role::Key);
        let holder = column(Role::Holder);
        let expires = column(Role::Expires);
        let Some(status) = self.shape.column(Role::Status) else {
            return vec![format!(
                "UPDATE {table} SET {holder} = '{RETIRED}', {expires} = '{FOREVER}' WHERE {key}::text = ANY($1)"
            )];
        };
        // A runner renews by the id of its lease, so that lease is ended, and another one keeps the camera.
        let tenant = column(Role::Tenant);
        let site = column(Role::Site);
        let others = ["shard_id", "config_version", "zone_version"].map(quoted).join(", ");
        vec![
            format!(
                "UPDATE {table} SET {status} = 'revoked' WHERE {key}::text = ANY($1) \
                 AND {status} IN ('active', 'pending') AND {holder}::text <> '{RETIRED}'"
            ),
            format!(
                "INSERT INTO {table} ({key}, {holder}, {tenant}, {site}, {expires}, {status}, {others}) \
                 SELECT DISTINCT ON ({key}) {key}, '{RETIRED}', {tenant}, {site}, '{FOREVER}'::timestamptz, 'active', \
                 '{RETIRED}', '', '' FROM {table} AS found WHERE {key}::text = ANY($1) AND NOT EXISTS (\
                 SELECT FROM {table} AS kept WHERE kept.{key} = found.{key} AND kept.{holder}::text = '{RETIRED}' \
                 AND kept.{status} = 'active') ORDER BY {key}, {expires} DESC"
            ),
        ]
    }

    /// Ends the snapshot, and changes nothing.
    pub async fn leave(self) -> CommandResult {
        self.finish("ROLLBACK").await
    }

    async fn finish(&self, how: &str) -> CommandResult {
        self.client.batch_execute(how).await.map_err(broken)
    }
}

/// Fails if the table lacks columns, and names all of them. Returns the type of the deadline.
async fn check_columns(client: &Client, shape: &Shape) -> CommandResult<String> {
    let columns = migrations::columns(client, &shape.table).await;
    let there: BTreeMap<String, String> =
        columns.map_err(|error| failure(error).doing("read the old table"))?.into_iter().collect();
    let lacking: Vec<&str> =
        shape.columns.values().map(String::as_str).filter(|name| !there.contains_key(*name)).collect();
    if !lacking.is_empty() {
        let has = there.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("{} has no column {}; it has {has}", shape.table, lacking.join(", "));
        let hint = format!("--map {}=COLUMN names one that is called otherwise", lacking[0]);
        return Err(CommandError::usage(message).hint(hint));
    }
    let expires = shape.columns.get(&Role::Expires).and_then(|name| there.get(name)).cloned();
    let expires = expires.unwrap_or_default();
    if !expires.starts_with("timestamp") {
        let message = format!("the deadlines of {} are of type {expires}, not timestamps", shape.table);
        return Err(CommandError::usage(message));
    }
    Ok(expires)
}

async fn highest_token(client: &Client, shape: &Shape) -> CommandResult<u64> {
    let Some(token) = shape.column(Role::Token) else { return Ok(0) };
    let sql = format!("SELECT max({token})::bigint, min({token})::bigint FROM {}", shape.quoted_table());
    let found = client.query_typed(&sql, &[]).await.map_err(broken)?;
    let bound = |at| found.first().and_then(|row| row.get::<_, Option<i64>>(at)).unwrap_or(0);
    let most = u64::try_from(bound(0)).ok().filter(|token| *token < REVISION_MAX);
    match (most, bound(1)) {
        (Some(most), 0..) => Ok(most),
        _ => Err(CommandError::usage(format!(
            "the tokens of {} are {} to {}; a token is 0 to {}",
            shape.table,
            bound(1),
            bound(0),
            REVISION_MAX - 1
        ))),
    }
}

/// The newest row of each resource: a live one, if there is one.
fn select(shape: &Shape, expires_type: &str, selection: &Selection) -> String {
    let column = |role| shape.column(role);
    let key = shape.must(Role::Key);
    let holder = shape.must(Role::Holder);
    let expires = shape.must(Role::Expires);
    // A time without a zone was written in one, and is compared in the same.
    let deadline = if expires_type.contains("without") {
        format!("({expires} AT TIME ZONE current_setting('TimeZone'))")
    } else {
        expires
    };
    // Times that are not finite cannot be subtracted.
    let left = format!(
        "CASE WHEN NOT isfinite({deadline}) THEN CASE WHEN {deadline} > now() THEN 'Infinity'::float8 ELSE 0 END \
         ELSE EXTRACT(EPOCH FROM ({deadline} - clock_timestamp())) * 1000 END::float8"
    );
    let live = match column(Role::Status) {
        Some(status) => format!("{status} IN ('active', 'pending')"),
        None => "true".to_owned(),
    };
    let text = |role| column(role).map_or_else(|| "NULL::text".to_owned(), |name| format!("{name}::text"));
    let tenant = text(Role::Tenant);
    let wanted = match (column(Role::Site), &selection.site) {
        (Some(site), Some(wanted)) => format!("{site}::text = '{}'", wanted.replace('\'', "''")),
        _ => "true".to_owned(),
    };
    // The sort begins with what is distinct; then a row that is held comes before one that is not.
    format!(
        "SELECT DISTINCT ON (1, 2) {tenant} AS tenant, {key}::text AS key, {holder}::text AS holder, \
         {live} AND {holder} IS NOT NULL AS held, {left} AS left_ms, {site} AS site FROM {table} WHERE {wanted} \
         ORDER BY 1, 2, 4 DESC, 5 DESC NULLS FIRST LIMIT {limit}",
        site = text(Role::Site),
        table = shape.quoted_table(),
        limit = ROWS_MAX + 1,
    )
}

fn read_row(row: &Row, default_tenant: &Name) -> Result<OldRow, String> {
    let text = |at: &str| row.try_get::<_, Option<String>>(at).map_err(|error| error.to_string());
    let shown = text("key")?.unwrap_or_default();
    let named = |what: &str, value: &str| {
        Name::new(value).map_err(|error| format!("row {shown:?}: the {what} {error}"))
    };
    let key = named("key", &shown)?;
    let tenant = match text("tenant")? {
        Some(tenant) => named("tenant", &tenant)?,
        None => default_tenant.clone(),
    };
    let site = text("site")?;
    let is_held = row.try_get::<_, Option<bool>>("held").map_err(|error| error.to_string())?.unwrap_or(false);
    let left_ms: Option<f64> = row.try_get("left_ms").map_err(|error| error.to_string())?;
    let holder = text("holder")?.unwrap_or_default();
    let lease = match left_ms {
        _ if !is_held => OldLease::Free,
        _ if holder == RETIRED => OldLease::Retired,
        Some(left_ms) if left_ms <= 0.0 => OldLease::Free,
        Some(left_ms) if left_ms.is_finite() && left_ms > TTL_MS_MAX as f64 => {
            let left = duration_ms(left_ms as u64);
            return Err(format!(
                "row {shown:?} is held by {holder} for another {left}, which is longer than any lease may last: \
                 check --time-zone, or release it"
            ));
        }
        Some(left_ms) if left_ms.is_finite() => {
            OldLease::Live { holder: named("holder", &holder)?, left_ms: left_ms.ceil() as u64 }
        }
        _ => return Err(format!("row {shown:?} is held by {holder} and never expires; release it first")),
    };
    Ok(OldRow { tenant, key, site, lease })
}

fn broken(error: tokio_postgres::Error) -> CommandError {
    failure(solehold_sql::Error::from(error))
}
