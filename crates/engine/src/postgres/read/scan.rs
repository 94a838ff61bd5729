//! All resources that match, page by page in one snapshot.

use std::time::Duration;

use solehold_core::{key::ResourceKey, ledger::Ledger};
use tokio::sync::SemaphorePermit;

use crate::postgres::{
    PostgresStore,
    clock::Reading,
    connection::pool::{Conn, Purpose, ROUND_TRIP, in_time},
    fault::Fault,
    read::{SNAPSHOT, load_page, load_sessions, resource_query},
    statements::Sql,
    tables::part::refs,
};
use crate::{
    clock::BootTime,
    flow::Outlet,
    store::{LoadedRows, ResourcePage, ResourceQuery, StoreError},
};

/// Snapshots and exports that are read at once: each has a connection for as long as it takes, and readers of a few
/// rows need some, too.
pub(crate) const BULK_READS_MAX: usize = 2;
/// How long a snapshot or an export waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(30);
/// How many times a scan is begun when the clock was stepped.
const ATTEMPTS: u32 = 4;

impl PostgresStore {
    /// Waits for the turn of a snapshot or an export.
    pub(crate) async fn bulk_turn(&self) -> Result<SemaphorePermit<'_>, StoreError> {
        let busy = || StoreError::Contended {
            attempts: 1,
            last: "too many snapshots and exports are being read".to_owned(),
        };
        let turn = tokio::time::timeout(TURN_WITHIN, self.bulk.acquire()).await.map_err(|_| busy())?;
        turn.map_err(|_| StoreError::Unavailable("the store is closed".to_owned()))
    }

    pub(crate) async fn scan_all(
        &self,
        query: &ResourceQuery,
        pages: &Outlet<ResourcePage>,
    ) -> Result<(), StoreError> {
        let _turn = self.bulk_turn().await?;
        let mut attempt = 1;
        loop {
            let lent = self.lend(Purpose::Read).await.map_err(Fault::told)?;
            let begun = in_time("reading a snapshot", ROUND_TRIP, self.begin_scan(&lent)).await;
            match begun {
                Ok(empty) => {
                    // Unless it goes well the connection is dropped, and with it the snapshot.
                    self.scan_pages(&lent, query, empty, pages).await.map_err(Fault::told)?;
                    lent.give_back();
                    return Ok(());
                }
                Err(fault @ (Fault::Stepped | Fault::SetBack)) if attempt < ATTEMPTS => {
                    self.mend_and_retry(&fault).await?;
                    attempt += 1;
                }
                Err(fault) => return Err(fault.told()),
            }
        }
    }

    async fn begin_scan(&self, conn: &Conn) -> Result<LoadedRows, Fault> {
        // From before the transaction begins: that is the time that the clock is read at.
        let asked = BootTime::now();
        conn.simple(SNAPSHOT).await?;
        let reading = Reading::of(&conn.query(Sql::SnapshotClock, &[]).await?, asked)?;
        self.loaded(Ledger::default(), &reading)
    }

    async fn scan_pages(
        &self,
        conn: &Conn,
        query: &ResourceQuery,
        empty: LoadedRows,
        pages: &Outlet<ResourcePage>,
    ) -> Result<(), Fault> {
        let mut query = query.clone();
        loop {
            let page = in_time("reading a snapshot", ROUND_TRIP, self.scan_page(conn, &query));
            let (state, keys, more) = page.await?;
            query.after = keys.last().cloned();
            pages.give(ResourcePage { loaded: LoadedRows { state, ..empty.clone() }, keys, more }).await?;
            if !more {
                return conn.simple("COMMIT").await;
            }
        }
    }

    async fn scan_page(
        &self,
        conn: &Conn,
        query: &ResourceQuery,
    ) -> Result<(Ledger, Vec<ResourceKey>, bool), Fault> {
        let (sql, params) = resource_query(query, self.time.lock().given_ms());
        let statement = conn.shaped(&sql).await?;
        let found = conn.client.query(&statement, &refs(&params)).await?;
        let (mut state, sessions, keys) = load_page(&found, query)?;
        load_sessions(conn, &mut state, &sessions).await?;
        Ok((state, keys, found.len() > query.limit))
    }
}
