//! Facts of a PostgreSQL, over a connection of its own that sets nothing.

use std::collections::BTreeMap;

use solehold_engine::{clock::wall_ms, postgres};
use tokio_postgres::{Client, Row};

use crate::{
    commands::rows,
    config::Failover,
    doctor::{Facts, Finding, clock::OtherClock, postgres::PostgresFacts},
    engine_url::EngineUrl,
    error::CommandError,
    store::StoreChoice,
};

const SETTINGS: &str = "SELECT name, setting, source FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', \
    'data_checksums', 'synchronous_commit', 'synchronous_standby_names', 'max_connections', \
    'superuser_reserved_connections', 'reserved_connections', 'server_version_num')";

/// Rights that the store needs and the role lacks: on the tables that are there, or to make them.
const LACKS: &str = "SELECT right_name || ' on ' || quote_ident(nspname) || '.' || quote_ident(relname) \
      FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace, \
           unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) right_name \
     WHERE nspname = 'solehold' AND relkind IN ('r', 'p') AND NOT has_table_privilege(c.oid, right_name) \
    UNION ALL SELECT 'USAGE on schema solehold' FROM pg_namespace \
     WHERE nspname = 'solehold' AND NOT has_schema_privilege(oid, 'USAGE') \
    UNION ALL SELECT 'CREATE on database ' || quote_ident(current_database()) \
     WHERE NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'solehold') \
       AND NOT has_database_privilege(current_database(), 'CREATE') \
    UNION ALL SELECT 'EXECUTE on function pg_control_system()' \
     WHERE NOT has_function_privilege('pg_control_system()', 'EXECUTE') \
    ORDER BY 1";

const STATE: &str = "SELECT pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication), \
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), \
    EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
             WHERE nspname = 'solehold' AND relname = 'migrations' \
               AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))";

const SCHEMA: &str = "SELECT max(version) FROM solehold.migrations";
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

pub async fn look(url: &EngineUrl, failover: Failover, facts: &mut Facts) {
    let place = url.place();
    let found = match rows::connect("--engine", url.reveal()).await {
        Ok(client) => gather(&client, &place, facts).await.map_err(|error| error.to_string()),
        Err(failure) => Err(failure.message),
    };
    match found {
        Ok(found) => {
            let refused = StoreChoice::Url(url.clone()).is_there().await.err();
            let refused = refused.map(|failure: CommandError| failure.message);
            facts.postgres = Some(PostgresFacts { refused, failover, ..found });
        }
        Err(error) => facts.gathered.push(Finding::problem(
            "store",
            format!("{place} cannot be asked: {}", url.redacted(&error)),
            "the server could not start, or is not ready",
            "start PostgreSQL, or correct --engine: host, port, user, password and database",
        )),
    }
}

/// The one row of a query that always has one. Never by a prepared statement, which a pooler may forget.
async fn one(client: &Client, sql: &str) -> Result<Row, GatherError> {
    let rows = client.query_typed(sql, &[]).await?;
    rows.into_iter().next().ok_or(GatherError::NoRow)
}

#[derive(Debug, thiserror::Error)]
enum GatherError {
    #[error("{}", said(.0))]
    Postgres(#[from] tokio_postgres::Error),
    #[error("PostgreSQL returned no row")]
    NoRow,
}

/// What PostgreSQL itself says, where it says something.
fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

async fn gather(client: &Client, place: &str, facts: &mut Facts) -> Result<PostgresFacts, GatherError> {
    let mut settings = BTreeMap::new();
    for row in client.query_typed(SETTINGS, &[]).await? {
        settings.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
    }
    let lacks = client.query_typed(LACKS, &[]).await?;
    let lacks = lacks.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let state = one(client, STATE).await?;
    let has_store: bool = state.try_get(3)?;
    let schema: Option<i32> = if has_store { one(client, SCHEMA).await?.try_get(0)? } else { None };
    let before_ms = wall_ms();
    let told_ms: i64 = one(client, CLOCK).await?.try_get(0)?;
    let after_ms = wall_ms();
    facts.clock.others.push(OtherClock {
        whose: "PostgreSQL".to_owned(),
        before_ms,
        told_ms: told_ms.cast_unsigned(),
        after_ms,
    });
    let version: Option<&(String, String)> = settings.get("server_version_num");
    Ok(PostgresFacts {
        place: place.to_owned(),
        version: version.and_then(|(text, _)| text.parse().ok()).unwrap_or_default(),
        standbys: state.try_get(1)?,
        is_standby: state.try_get(0)?,
        connections: state.try_get(2)?,
        pool: postgres::CONNECTIONS_MAX as i64,
        lacks,
        schema: schema.filter(|version| *version > 0).map(i32::cast_unsigned),
        schema_known: postgres::SCHEMA_VERSION,
        refused: None,
        failover: Failover::default(),
        settings,
    })
}
