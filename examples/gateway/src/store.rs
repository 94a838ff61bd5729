//! The gateway's own tables. What is written while answering is fenced in the same transaction (rule 21).

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Transaction};
use serde::Serialize;
use tokio_postgres::NoTls;

const SCHEMA: &str = include_str!("schema.sql");
/// Connections beside the engine's own.
const POOL_MAX: usize = 16;
/// How long to wait for a new connection, or for one from the pool.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A node that is paused in the middle of a transaction keeps its rows locked, and every node that waits for them keeps
/// a connection: without a limit one such node stalls all others.
const LIMITS: &str =
    "-c idle_in_transaction_session_timeout=1500ms -c lock_timeout=3s -c statement_timeout=5s";
/// Several nodes may start at once, and creating what is there already can collide.
const SCHEMA_TRIES: u32 = 10;

/// A message that has no reply yet.
#[derive(Debug, Clone)]
pub struct OpenMessage {
    pub position: i64,
    pub text: String,
}

/// A message as it is shown.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    pub id: String,
    pub position: i64,
    pub text: String,
    pub received_by: String,
    pub reply: Option<String>,
    pub replied_by: Option<String>,
}

/// Who writes, and under which token.
#[derive(Debug, Clone, Copy)]
pub struct Fence<'a> {
    pub session: &'a str,
    pub token: i64,
    pub node_id: &'a str,
}

/// A write was refused: someone with a larger token has written for that session.
#[derive(Debug, thiserror::Error)]
#[error("token {token} is fenced off: session {session} has gone on elsewhere")]
pub struct FencedOff {
    session: String,
    token: i64,
}

#[derive(Clone)]
pub struct Store {
    pool: Pool,
}

impl Store {
    /// Connects, and sees to it that the tables are there.
    pub async fn open(url: &str) -> Result<Self> {
        let mut config: tokio_postgres::Config = url.parse().context("the database's URL")?;
        let options = format!("{LIMITS} {}", config.get_options().unwrap_or_default());
        config.options(options);
        let recycling_method = RecyclingMethod::Fast;
        let manager = Manager::from_config(config, NoTls, ManagerConfig { recycling_method });
        let pool = Pool::builder(manager)
            .max_size(POOL_MAX)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_WITHIN))
            .create_timeout(Some(CONNECT_WITHIN))
            .build()?;
        let store = Self { pool };
        store.create_tables().await?;
        Ok(store)
    }

    async fn create_tables(&self) -> Result<()> {
        let client = self.client().await?;
        let mut tries = 1;
        while let Err(error) = client.batch_execute(SCHEMA).await {
            anyhow::ensure!(tries < SCHEMA_TRIES && error.code().is_some(), "creating the tables: {error}");
            tries += 1;
        }
        Ok(())
    }

    async fn client(&self) -> Result<Object> {
        self.pool.get().await.context("a connection to the database")
    }

    /// Takes a message in, once: the same id again is the same message.
    pub async fn receive(&self, session: &str, id: &str, text: &str, node_id: &str) -> Result<()> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let numbered = transaction
            .query_one(
                "INSERT INTO gateway.sessions (id, received) VALUES ($1, 1)
                 ON CONFLICT (id) DO UPDATE SET received = sessions.received + 1 RETURNING received",
                &[&session],
            )
            .await?;
        let position: i64 = numbered.get(0);
        let inserted = transaction
            .execute(
                "INSERT INTO gateway.messages (session_id, position, id, text, received_by)
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT (session_id, id) DO NOTHING",
                &[&session, &position, &id, &text, &node_id],
            )
            .await?;
        if inserted == 0 {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
        }
        Ok(())
    }

    /// The largest token that has written for a session; 0 if none has.
    pub async fn fence(&self, session: &str) -> Result<i64> {
        let sql = "SELECT fence FROM gateway.sessions WHERE id = $1";
        let row = self.client().await?.query_opt(sql, &[&session]).await?;
        Ok(row.map_or(0, |row| row.get(0)))
    }

    /// The first message of a session that has no reply.
    pub async fn next_unanswered(&self, session: &str) -> Result<Option<OpenMessage>> {
        let found = self
            .client()
            .await?
            .query_opt(
                "SELECT position, text FROM gateway.messages WHERE session_id = $1 AND reply IS NULL
                 ORDER BY position LIMIT 1",
                &[&session],
            )
            .await?;
        Ok(found.map(|row| OpenMessage { position: row.get(0), text: row.get(1) }))
    }

    /// Notes that a node has come into a session by its lock, or gone. Not behind the fence.
    pub async fn visit(&self, fence: Fence<'_>, step: &str) -> Result<()> {
        let sql = "INSERT INTO gateway.visits (session_id, token, node_id, step) VALUES ($1, $2, $3, $4)";
        self.client().await?.execute(sql, &[&fence.session, &fence.token, &fence.node_id, &step]).await?;
        Ok(())
    }

    /// Notes that a message is being answered.
    pub async fn begin(&self, fence: Fence<'_>, position: i64) -> Result<()> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        pass(&transaction, fence).await?;
        log(&transaction, fence, position, "begun").await?;
        Ok(transaction.commit().await?)
    }

    /// Writes the reply to a message.
    pub async fn answer(&self, fence: Fence<'_>, position: i64, reply: &str) -> Result<()> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        pass(&transaction, fence).await?;
        let answered = transaction
            .execute(
                "UPDATE gateway.messages SET reply = $3, replied_by = $4
                 WHERE session_id = $1 AND position = $2 AND reply IS NULL",
                &[&fence.session, &position, &reply, &fence.node_id],
            )
            .await?;
        anyhow::ensure!(answered == 1, "message {position} of session {} has a reply already", fence.session);
        log(&transaction, fence, position, "answered").await?;
        Ok(transaction.commit().await?)
    }

    /// A message by its client's name.
    pub async fn message(&self, session: &str, id: &str) -> Result<Option<Message>> {
        Ok(self.messages_where(session, Some(id)).await?.pop())
    }

    /// The last messages of a session, in order.
    pub async fn messages(&self, session: &str) -> Result<Vec<Message>> {
        self.messages_where(session, None).await
    }

    async fn messages_where(&self, session: &str, id: Option<&str>) -> Result<Vec<Message>> {
        let rows = self
            .client()
            .await?
            .query(
                "SELECT id, position, text, received_by, reply, replied_by FROM (
                    SELECT * FROM gateway.messages WHERE session_id = $1 AND ($2::text IS NULL OR id = $2)
                    ORDER BY position DESC LIMIT 1000
                 ) last ORDER BY position",
                &[&session, &id],
            )
            .await?;
        let message = |row: &tokio_postgres::Row| Message {
            id: row.get(0),
            position: row.get(1),
            text: row.get(2),
            received_by: row.get(3),
            reply: row.get(4),
            replied_by: row.get(5),
        };
        Ok(rows.iter().map(message).collect())
    }

    /// Sessions with messages that are unanswered for this long: their node has most likely died.
    pub async fn left_behind(&self, for_ms: i64, limit: i64) -> Result<Vec<String>> {
        let rows = self
            .client()
            .await?
            .query(
                "SELECT session_id FROM gateway.messages
                 WHERE reply IS NULL AND received_at < statement_timestamp() - $1 * interval '1 millisecond'
                 GROUP BY session_id ORDER BY min(received_at) LIMIT $2",
                &[&(for_ms as f64), &limit],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Lets a write pass if no larger token has written, and keeps out all smaller ones from then on.
async fn pass(transaction: &Transaction<'_>, fence: Fence<'_>) -> Result<()> {
    let passed = transaction
        .execute(
            "UPDATE gateway.sessions SET fence = $2 WHERE id = $1 AND fence <= $2",
            &[&fence.session, &fence.token],
        )
        .await?;
    if passed == 0 {
        return Err(FencedOff { session: fence.session.to_owned(), token: fence.token }.into());
    }
    Ok(())
}

async fn log(transaction: &Transaction<'_>, fence: Fence<'_>, position: i64, step: &str) -> Result<()> {
    let sql =
        "INSERT INTO gateway.log (session_id, position, token, node_id, step) VALUES ($1, $2, $3, $4, $5)";
    transaction.execute(sql, &[&fence.session, &position, &fence.token, &fence.node_id, &step]).await?;
    Ok(())
}
