//! The tables: payment requests with the columns of their lease, the outbox, the inbox.

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use solehold_sql::{ClaimTable, inbox::Inbox, migrations};
use tokio_postgres::{Client, NoTls};

/// The channel that says that there are new requests.
pub const CHANNEL: &str = "payment_requests";

const CONNECTIONS_MAX: usize = 16;
const CONNECTION_WAIT: Duration = Duration::from_secs(5);
/// Replicas that start together create the tables at the same time, and some of them get an error that the others were
/// first.
const ATTEMPTS: usize = 20;

const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS app;
CREATE TABLE IF NOT EXISTS app.payment_requests (
    id uuid PRIMARY KEY,
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'detected', 'confirmed', 'expired', 'reorged')),
    chain text NOT NULL,
    address text NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS app.payment_outbox (
    id bigserial PRIMARY KEY,
    payment_request_id uuid NOT NULL,
    from_status text NOT NULL,
    to_status text NOT NULL,
    epoch bigint NOT NULL,
    worker_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
)";

/// What is claimed. The index by status also serves the API's lists, and the claims of old workers that still run.
pub fn table() -> Result<ClaimTable> {
    Ok(ClaimTable::builder("app.payment_requests")
        .state("status")
        .claimable("status IN ('pending', 'detected', 'reorged')")
        .order(["created_at"])
        .lease("reconcile_lease_owner", "reconcile_lease_until", "reconcile_lease_epoch")
        .attempts("reconcile_attempts")
        .next_attempt("reconcile_next_attempt_at")
        .dead_letter("reconcile_dead_at", "reconcile_dead_reason")
        .touched("updated_at")
        .payload(["chain", "address", "created_at", "expires_at"])
        .index(["status", "reconcile_lease_until", "created_at", "id"])
        .build()?)
}

/// Where `Idempotency-Key`s are kept.
pub fn inbox() -> Result<Inbox> {
    Ok(Inbox::new("app.inbox")?)
}

/// All DDL, for those who apply it by hand.
pub fn print_migrations() -> Result<String> {
    Ok(format!("{TABLES};\n{};\n{}", inbox()?.migration(), migrations::print(&table()?)))
}

/// Makes what is missing; safe while others run, and when they do the same.
pub async fn migrate(url: &str) -> Result<()> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("cannot connect to the database")?;
    let connection = tokio::spawn(connection);
    let result = migrate_on(&client).await;
    drop(client);
    connection.abort();
    result
}

async fn migrate_on(client: &Client) -> Result<()> {
    let ddl = format!("{TABLES}; {}", inbox()?.migration());
    for attempt in 1.. {
        match client.batch_execute(&ddl).await {
            Ok(()) => break,
            Err(error) if attempt < ATTEMPTS && error.as_db_error().is_some() => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error).context("cannot make the tables"),
        }
    }
    Ok(migrations::apply(client, &table()?).await?)
}

/// What a process that is paused in the middle of a transaction can cost the others.
const LIMITS: &str = "-c idle_in_transaction_session_timeout=5s -c lock_timeout=5s";

/// A pool for the API and the reconciler.
pub fn pool(url: &str) -> Result<Pool> {
    let mut config: tokio_postgres::Config = url.parse().context("the database URL cannot be read")?;
    config.options(format!("{LIMITS} {}", config.get_options().unwrap_or_default()));
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let timeouts = Timeouts {
        wait: Some(CONNECTION_WAIT),
        create: Some(CONNECTION_WAIT),
        recycle: Some(CONNECTION_WAIT),
    };
    let pool = Pool::builder(Manager::from_config(config, NoTls, recycling))
        .max_size(CONNECTIONS_MAX)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1);
    pool.build().context("cannot make the pool")
}
