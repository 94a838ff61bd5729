//! The table that is drained.

use anyhow::Result;
use solehold_sql::{ClaimTable, Claims, functions::Functions, migrations};
use tokio_postgres::{Client, NoTls};

const TABLE: &str = "CREATE SCHEMA IF NOT EXISTS app; DROP TABLE IF EXISTS app.jobs; \
    CREATE TABLE app.jobs (id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'pending', \
    created_at timestamptz NOT NULL DEFAULT now(), payload jsonb NOT NULL)";
/// As many bytes as the peers' jobs carry.
const FILL: &str = "INSERT INTO app.jobs (created_at, payload) \
    SELECT clock_timestamp(), json_build_object('note', repeat('x', 200)) FROM generate_series(1, $1::bigint)";
/// What the hand-written SQL adds to the table.
const HAND_WRITTEN: &str = "ALTER TABLE app.jobs ADD lease_owner text, ADD lease_until timestamptz; \
    CREATE INDEX jobs_hand_written ON app.jobs (status, lease_until, created_at, id)";

/// A connection.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Our description of it.
pub fn claims() -> Result<Claims> {
    let table = ClaimTable::builder("app.jobs").state("status").claimable("status = 'pending'");
    Ok(Claims::new(table.order(["created_at"]).payload(["payload"]).build()?))
}

/// A fresh table with `rows` rows, prepared for the hand-written SQL or for ours.
pub async fn prepare(client: &Client, rows: i64, is_hand_written: bool) -> Result<()> {
    client.batch_execute(TABLE).await?;
    if is_hand_written {
        client.batch_execute(HAND_WRITTEN).await?;
    } else {
        let claims = claims()?;
        migrations::apply(client, claims.table()).await?;
        Functions::describe(client, claims.table(), None).await?.apply(client).await?;
    }
    fill(client, rows).await?;
    client.batch_execute("VACUUM ANALYZE app.jobs").await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// More rows.
pub async fn fill(client: &Client, rows: i64) -> Result<()> {
    client.execute(FILL, &[&rows]).await?;
    Ok(())
}

/// How many rows are not done.
pub async fn open(client: &Client) -> Result<i64> {
    Ok(client.query_one("SELECT count(*) FROM app.jobs WHERE status = 'pending'", &[]).await?.get(0))
}
