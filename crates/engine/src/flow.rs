//! Streams of results that are too large for one answer: piece by piece, as fast as the reader takes them.
//!
//! Two pieces at most lie between the store and the reader, so that neither an export nor the snapshot of a watch takes
//! more memory for being large. All pieces are of one moment. A reader that takes none for too long is given up, so
//! that it does not keep from others what a store has few of.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;

use crate::store::{ResourcePage, ResourceQuery, Row, Store, StoreError};

/// Pieces that may wait for their reader.
const PIECES_AHEAD: usize = 2;
/// A reader that takes nothing for this long is given up.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Rows in one piece of an export.
pub const EXPORT_ROWS_AT_ONCE: usize = 128;

/// Where a store puts the pieces.
#[derive(Debug)]
pub struct Outlet<T>(mpsc::Sender<Result<T, StoreError>>);

impl<T> Outlet<T> {
    /// Waits until the reader has room for a piece. An error means that the reader is gone: the store can stop.
    pub async fn give(&self, piece: T) -> Result<(), StoreError> {
        let last = |what: &str| StoreError::Contended { attempts: 1, last: what.to_owned() };
        match tokio::time::timeout(TAKEN_WITHIN, self.0.send(Ok(piece))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(last("the reader has gone away")),
            Err(_) => Err(last("the reader is too slow")),
        }
    }
}

/// What a reader takes the pieces from. Dropping it ends the work behind it.
#[derive(Debug)]
pub struct Flow<T>(mpsc::Receiver<Result<T, StoreError>>);

impl<T: Send + 'static> Flow<T> {
    /// Starts work that gives pieces, in a task of its own; an error of it is the last that the reader gets.
    pub fn of<W>(work: impl FnOnce(Outlet<T>) -> W) -> Self
    where
        W: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let (pieces, taken) = mpsc::channel(PIECES_AHEAD);
        let work = work(Outlet(pieces.clone()));
        tokio::spawn(async move {
            if let Err(error) = work.await {
                // A reader that has gone away does not need to know.
                let _ = pieces.send(Err(error)).await;
            }
        });
        Self(taken)
    }

    /// The next piece; none at the end. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<T, StoreError>> {
        let next = self.0.recv().await;
        if matches!(next, Some(Err(_))) {
            self.0.close();
        }
        next
    }
}

impl<T: Send + 'static> Flow<Vec<T>> {
    /// All of it at once, where that is known to be little.
    pub async fn collect(mut self) -> Result<Vec<T>, StoreError> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            all.append(&mut piece?);
        }
        Ok(all)
    }
}

/// Where a store puts the rows of an export: the header first, then everything else. The end is written here.
#[derive(Debug)]
pub struct Exporter {
    outlet: Outlet<Vec<Row>>,
    piece: Vec<Row>,
    lines: u64,
}

impl Exporter {
    pub async fn put(&mut self, row: Row) -> Result<(), StoreError> {
        self.lines += 1;
        self.piece.push(row);
        if self.piece.len() >= EXPORT_ROWS_AT_ONCE {
            self.outlet.give(std::mem::take(&mut self.piece)).await?;
        }
        Ok(())
    }

    /// Whether anything was given yet: if so, the export cannot begin again.
    pub fn has_begun(&self) -> bool {
        self.lines > 0
    }

    async fn end(mut self) -> Result<(), StoreError> {
        let rows = self.lines.saturating_sub(1);
        self.piece.push(Row::End { rows });
        self.outlet.give(self.piece).await
    }
}

/// Everything that a store keeps, in one snapshot, from header to end.
pub fn export(store: Arc<dyn Store>) -> Flow<Vec<Row>> {
    Flow::of(async move |outlet| {
        let mut exporter = Exporter { outlet, piece: Vec::new(), lines: 0 };
        store.export(&mut exporter).await?;
        exporter.end().await
    })
}

/// All resources that match, in one snapshot: page by page, each as large as the query's limit. The last page, and no
/// other, has no more after it.
pub fn scan(store: Arc<dyn Store>, query: ResourceQuery) -> Flow<ResourcePage> {
    Flow::of(async move |outlet| store.scan(&query, &outlet).await)
}
