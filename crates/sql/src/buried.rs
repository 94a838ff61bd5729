//! Buried rows: listing and reviving them.

use std::time::SystemTime;

use tokio_postgres::{GenericClient, Row, types::Type};

use crate::{
    Claims, Error,
    limits::BURIED_PAGE_MAX,
    row::{Ids, RowId},
};

/// A row that was set aside, and is not claimed until it is revived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuriedRow {
    pub id: RowId,
    /// When it was buried, by the database's clock.
    pub at: SystemTime,
    pub reason: String,
    /// The attempts that were counted; reviving starts at zero again.
    pub attempts: i32,
    /// The state in which it is, and in which it is revived.
    pub state: Option<String>,
}

impl BuriedRow {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: RowId::read(row, 0)?,
            at: row.try_get(1)?,
            reason: row.try_get::<_, Option<String>>(2)?.unwrap_or_default(),
            attempts: row.try_get(3)?,
            state: row.try_get(4)?,
        })
    }
}

impl Claims {
    /// The first `limit` buried rows, those buried earliest first; with `reason`, only those whose reason contains it.
    /// There is an index of buried rows, but none of reasons: with one, it may read all that are buried.
    pub async fn buried(
        &self,
        client: &(impl GenericClient + Sync),
        limit: usize,
        reason: Option<&str>,
    ) -> Result<Vec<BuriedRow>, Error> {
        let sql = self.statements.buried.as_ref().ok_or_else(|| self.no_dead_letter())?;
        Error::unless_within("limit", limit, 1..=BURIED_PAGE_MAX)?;
        let limit = limit as i64;
        let rows = client.client().query_typed(sql, &[(&limit, Type::INT8), (&reason, Type::TEXT)]).await?;
        rows.iter().map(BuriedRow::read).collect()
    }

    /// Those of these rows that are buried, the earliest first; at most [`BURIED_PAGE_MAX`] ids.
    pub async fn buried_among(
        &self,
        client: &(impl GenericClient + Sync),
        ids: &[RowId],
    ) -> Result<Vec<BuriedRow>, Error> {
        let sql = self.statements.buried_among.as_ref().ok_or_else(|| self.no_dead_letter())?;
        Error::unless_within("number of ids", ids.len(), 1..=BURIED_PAGE_MAX)?;
        let limit = ids.len() as i64;
        let ids = Ids::collect(ids.iter())?;
        let rows = client.client().query_typed(sql, &[(&limit, Type::INT8), ids.parameter()]).await?;
        rows.iter().map(BuriedRow::read).collect()
    }

    /// Makes buried rows claimable again, in the state in which they were buried and with no attempt counted. Returns
    /// those that were buried; the others are left as they are.
    pub async fn revive(
        &self,
        client: &(impl GenericClient + Sync),
        ids: &[RowId],
    ) -> Result<Vec<RowId>, Error> {
        let sql = self.statements.revive.as_ref().ok_or_else(|| self.no_dead_letter())?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids = Ids::collect(ids.iter())?;
        let rows = client.client().query_typed(sql, &[ids.parameter()]).await?;
        rows.iter().map(|row| RowId::read(row, 0)).collect()
    }
}
