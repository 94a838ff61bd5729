//! The sink's tables. A frame is written, and the mark of its camera moved, in one transaction (rule 21).

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

const SCHEMA: &str = include_str!("schema.sql");
const POOL_MAX: usize = 8;
/// How long to wait for a new connection, or for one from the pool.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A frame that a worker has processed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    pub camera: String,
    /// The fencing token of the lease under which it was processed.
    pub token: i64,
    /// Its number: the first one of a camera is 1.
    pub frame: i64,
    /// Who processed it.
    pub worker: String,
    /// By which configuration.
    pub config_version: Option<String>,
    pub zone_version: Option<String>,
}

/// What became of a frame, and the camera's mark afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Written {
    /// `written`; `repeated`, if it was there already; or `fenced`, if a newer token has written.
    pub outcome: String,
    pub token: i64,
    pub frame: i64,
}

/// The mark of a camera, and what did not get past it.
#[derive(Debug, Clone, Serialize)]
pub struct Mark {
    pub camera: String,
    pub token: i64,
    pub frame: i64,
    pub fenced: i64,
    pub repeated: i64,
    pub gaps: i64,
}

#[derive(Clone)]
pub struct Store {
    pool: Pool,
}

impl Store {
    /// Connects, and sees to it that the tables are there.
    pub async fn open(url: &str) -> Result<Self> {
        let config: tokio_postgres::Config = url.parse().context("the database's URL")?;
        let recycling_method = RecyclingMethod::Fast;
        let manager = Manager::from_config(config, NoTls, ManagerConfig { recycling_method });
        let pool = Pool::builder(manager)
            .max_size(POOL_MAX)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(CONNECT_WITHIN))
            .create_timeout(Some(CONNECT_WITHIN))
            .build()?;
        let store = Self { pool };
        store.client().await?.batch_execute(SCHEMA).await.context("creating the tables")?;
        Ok(store)
    }

    async fn client(&self) -> Result<Object> {
        self.pool.get().await.context("a connection to the database")
    }

    /// Writes a frame, unless it is there already or a newer token has written for its camera.
    pub async fn write(&self, frame: &Frame) -> Result<Written> {
        let client = self.client().await?;
        let sql = "SELECT outcome, newest_token, last_frame FROM pipeline.write($1, $2, $3, $4, $5, $6)";
        let statement = client.prepare_cached(sql).await?;
        let Frame { camera, token, frame, worker, config_version, zone_version } = frame;
        let row = client
            .query_one(&statement, &[camera, token, frame, worker, config_version, zone_version])
            .await?;
        Ok(Written { outcome: row.get(0), token: row.get(1), frame: row.get(2) })
    }

    /// The marks of all cameras.
    pub async fn marks(&self) -> Result<Vec<Mark>> {
        let sql = "SELECT camera, token, frame, fenced, repeated, gaps FROM pipeline.marks ORDER BY camera";
        let rows = self.client().await?.query(sql, &[]).await?;
        let mark = |row: &tokio_postgres::Row| Mark {
            camera: row.get(0),
            token: row.get(1),
            frame: row.get(2),
            fenced: row.get(3),
            repeated: row.get(4),
            gaps: row.get(5),
        };
        Ok(rows.iter().map(mark).collect())
    }
}
