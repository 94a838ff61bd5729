//! A schema for decisions that have no effect, beside the orchestrator's own: made for one run, and dropped after it.

use solehold_sql::Error;
use tokio_postgres::{Client, types::Type};

use crate::store::Store;

/// The comment by which such a schema is known. Another schema of its name is never dropped.
const SIGNATURE: &str = "decisions of solehold orchestrator shadow, which have no effect";

/// The outcome of [`create_shadow`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShadowSchema {
    /// It is new and empty. It is this session's until the session ends.
    Created,
    /// Another session uses it.
    InUse,
    /// There is such a schema, and it is not one of these.
    Foreign,
}

/// Creates a schema in place of one that an earlier run may have left.
pub(crate) async fn create_shadow(session: &Client, schema: &str) -> Result<ShadowSchema, Error> {
    let lock = format!("solehold orchestrator shadow {schema}");
    let take = "SELECT pg_try_advisory_lock(hashtext($1))";
    if !session.query_typed_one(take, &[(&lock, Type::TEXT)]).await?.get::<_, bool>(0) {
        return Ok(ShadowSchema::InUse);
    }
    let read = "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = $1";
    if let Some(found) = session.query_typed_opt(read, &[(&schema, Type::TEXT)]).await? {
        if found.get::<_, Option<&str>>(0) != Some(SIGNATURE) {
            return Ok(ShadowSchema::Foreign);
        }
        drop_shadow(session, schema).await?;
    }
    let create = format!("CREATE SCHEMA \"{schema}\"; COMMENT ON SCHEMA \"{schema}\" IS '{SIGNATURE}'");
    session.batch_execute(&create).await?;
    Ok(ShadowSchema::Created)
}

pub(crate) async fn drop_shadow(session: &Client, schema: &str) -> Result<(), Error> {
    Ok(session.batch_execute(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await?)
}

impl Store {
    /// Deletes everything from the outbox, and returns how many tasks there were.
    pub(crate) async fn discard_outbox(&self, client: &Client) -> Result<u64, Error> {
        let delete = format!(
            "WITH gone AS (DELETE FROM {} RETURNING kind) SELECT count(*) FROM gone WHERE kind = 'send'",
            self.table("outbox")
        );
        let tasks: i64 = client.query_typed_one(&delete, &[]).await?.get(0);
        Ok(tasks.unsigned_abs())
    }

    /// Deletes letters, so that nothing is parked behind them.
    pub(crate) async fn discard_letters(
        &self,
        client: &Client,
        partition: i32,
        positions: &[i64],
    ) -> Result<(), Error> {
        let delete =
            format!("DELETE FROM {} WHERE partition = $1 AND position = ANY($2)", self.table("letters"));
        client.execute_typed(&delete, &[(&partition, Type::INT4), (&positions, Type::INT8_ARRAY)]).await?;
        Ok(())
    }
}
