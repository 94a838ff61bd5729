//! Where a gate learns from: a Solehold server, or the engine in this process.

use async_trait::async_trait;
use solehold_api::watch::{Cursor, WatchFrame};
use solehold_core::{
    fence::MarkLookup,
    key::{Name, ResourceKey},
};

use crate::authority::AuthorityError;

#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// How far the store is, as just read from it.
    async fn head(&self) -> Result<Cursor, AuthorityError>;

    /// The newest token of a resource, as just read from the store, and the epoch of the answer, if it is told.
    async fn newest(&self, key: &ResourceKey) -> Result<(MarkLookup, Option<u64>), AuthorityError>;

    /// Who owns what and every change, of one kind or of all; only changes, from a cursor on.
    async fn watch(
        &self,
        tenant: &Name,
        kind: Option<&Name>,
        from: Option<Cursor>,
    ) -> Result<Box<dyn Frames>, NoWatch>;
}

#[async_trait]
pub trait Frames: Send {
    /// The next one; none when the stream has ended. An error means that it cannot be read on.
    async fn next(&mut self) -> Result<Option<WatchFrame>, AuthorityError>;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWatch {
    /// The events after the cursor were compacted: watch again without one.
    #[error("the events after the cursor were compacted; watch again without a cursor")]
    Compacted,
    /// It was refused, or the server was not reached.
    #[error(transparent)]
    Failed(#[from] AuthorityError),
}
