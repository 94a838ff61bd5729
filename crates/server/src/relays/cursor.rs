//! The cursor of a relay: a record in the store that only the active relay can move.
//!
//! The record has the token of the lease under which it was written. A relay that takes over replaces the record with
//! one that has its own token, and from then on a write by the former relay finds another document than it expects and
//! is refused. It is not the state document of the lease, because writing that is an event: a relay would create an
//! event for every few that it sends.

use serde::{Deserialize, Serialize};
use solehold_api::document::{read, to_document};
use solehold_core::{
    command::{Command, Footprint, Over},
    key::{Document, Name},
    outcome::Refusal,
    record::Record,
    time::{Revision, Token},
};
use solehold_engine::{Engine, EngineError, store::LoadedRows};

use super::StartAt;
use crate::state::records::collection;

pub const CURSORS: &str = "relay_cursor";

#[derive(Debug, thiserror::Error)]
pub enum CursorError {
    #[error("another replica has taken over")]
    Fenced,
    #[error("cannot access the cursor of the relay: {0}")]
    Engine(#[from] EngineError),
    #[error("cannot write the cursor of the relay: {0}")]
    Refused(#[from] Refusal),
    /// There is no cursor, or it is not one of ours.
    #[error("the cursor of the relay is missing or cannot be read")]
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct CursorRecord {
    /// Every event up to this revision was sent.
    revision: Revision,
    /// The token of the lease under which it was written; 0 before the first.
    token: Token,
}

#[derive(Debug)]
pub struct FencedCursor {
    engine: Engine,
    name: Name,
    kept: CursorRecord,
    document: Document,
}

impl FencedCursor {
    pub async fn take_over(engine: &Engine, name: &Name, token: Token) -> Result<Self, CursorError> {
        let (found, document) = load(engine, name).await?.ok_or(CursorError::Missing)?;
        let kept = CursorRecord { token, ..found };
        let mut cursor = Self { engine: engine.clone(), name: name.clone(), kept: found, document };
        if found.token > token {
            return Err(CursorError::Fenced);
        }
        cursor.put(kept).await?;
        Ok(cursor)
    }

    /// Every event up to this revision was sent.
    pub fn revision(&self) -> Revision {
        self.kept.revision
    }

    /// Moves the cursor, unless another relay has taken over.
    pub async fn write(&mut self, revision: Revision) -> Result<(), CursorError> {
        self.put(CursorRecord { revision, ..self.kept }).await
    }

    async fn put(&mut self, kept: CursorRecord) -> Result<(), CursorError> {
        let over = Over::Document(self.document.clone());
        (self.kept, self.document) = match put(&self.engine, &self.name, kept, over).await {
            Ok(document) => (kept, document),
            Err(CursorError::Refused(Refusal::RecordChanged { .. } | Refusal::NoRecord { .. })) => {
                // By another relay, or by our own write whose response was lost.
                let (found, document) = load(&self.engine, &self.name).await?.ok_or(CursorError::Missing)?;
                if found.token != kept.token {
                    return Err(CursorError::Fenced);
                }
                (found, document)
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }
}

/// Creates the cursor of a relay that has none: events that are committed from now on will be sent.
pub async fn begin(engine: &Engine, name: &Name, from: StartAt) -> Result<(), CursorError> {
    let loaded = rows(engine, name).await?;
    if loaded.state.record(&collection(CURSORS), name).is_some() {
        return Ok(());
    }
    let revision = match from {
        StartAt::Now => loaded.cursor.revision,
        StartAt::Oldest => Revision(0),
    };
    match put(engine, name, CursorRecord { revision, token: Token(0) }, Over::Nothing).await {
        // Another replica was first.
        Ok(_) | Err(CursorError::Refused(Refusal::Exists | Refusal::RecordChanged { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The cursors of all relays, of former ones too.
pub async fn all(engine: &Engine) -> Result<Vec<(Name, Revision)>, EngineError> {
    let records = engine.records(&collection(CURSORS)).await?;
    let kept = |record: Record| Some((record.id, read::<CursorRecord>(&record.document)?.revision));
    Ok(records.into_iter().filter_map(kept).collect())
}

async fn rows(engine: &Engine, name: &Name) -> Result<LoadedRows, EngineError> {
    let records = vec![(collection(CURSORS), name.clone())];
    engine.load(&Footprint { records, ..Default::default() }).await
}

async fn load(engine: &Engine, name: &Name) -> Result<Option<(CursorRecord, Document)>, EngineError> {
    let loaded = rows(engine, name).await?;
    let document = loaded.state.record(&collection(CURSORS), name).map(|record| record.document.clone());
    Ok(document.and_then(|document| Some((read(&document)?, document))))
}

async fn put(engine: &Engine, name: &Name, kept: CursorRecord, over: Over) -> Result<Document, CursorError> {
    let document = to_document("cursor", &kept).map_err(|_| CursorError::Missing)?;
    let record = Record { collection: collection(CURSORS), id: name.clone(), document: document.clone() };
    engine.submit(Command::PutRecord { record, over }).await??;
    Ok(document)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use solehold_engine::{EngineOptions, clock::BootClock, resident};

    use super::*;

    #[tokio::test]
    async fn a_relay_that_was_succeeded_cannot_move_the_cursor() {
        let store = resident::memory(BootClock).expect("memory");
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        let name = Name::new("pipeline").expect("a name");
        begin(&engine, &name, StartAt::Oldest).await.expect("begun");
        begin(&engine, &name, StartAt::Now).await.expect("begun before");
        let mut old = FencedCursor::take_over(&engine, &name, Token(3)).await.expect("taken");
        old.write(Revision(5)).await.expect("moved");
        let mut new = FencedCursor::take_over(&engine, &name, Token(9)).await.expect("taken over");
        assert_eq!(new.revision(), Revision(5));
        assert!(matches!(old.write(Revision(50)).await, Err(CursorError::Fenced)));
        let late = FencedCursor::take_over(&engine, &name, Token(3)).await;
        assert!(matches!(late, Err(CursorError::Fenced)), "{late:?}");
        new.write(Revision(7)).await.expect("moved");
        assert_eq!(all(&engine).await.expect("read"), [(name, Revision(7))]);
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_write_whose_answer_was_lost_is_recognized() {
        let store = resident::memory(BootClock).expect("memory");
        let engine = Engine::start(store, EngineOptions::default(), Arc::new(()));
        let name = Name::new("pipeline").expect("a name");
        begin(&engine, &name, StartAt::Now).await.expect("begun");
        let mut cursor = FencedCursor::take_over(&engine, &name, Token(3)).await.expect("taken");
        let kept = CursorRecord { revision: Revision(4), token: Token(3) };
        put(&engine, &name, kept, Over::Document(cursor.document.clone())).await.expect("written");
        cursor.write(Revision(6)).await.expect("not fenced");
        assert_eq!(cursor.revision(), Revision(4), "as the store has it");
        cursor.write(Revision(6)).await.expect("moved");
        assert_eq!(all(&engine).await.expect("read"), [(name, Revision(6))]);
        engine.stop().await;
    }
}
