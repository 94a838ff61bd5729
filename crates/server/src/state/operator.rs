//! An operator: who changes the store by hand, and the way to the engine on which each change is recorded in the audit
//! trail.

use std::sync::Arc;

use solehold_core::{
    call::{Actor, Call, Note},
    command::{Command, Over},
    key::Name,
    outcome::{Answer, Outcome},
    record::Record,
    time::{Revision, StoreTime},
};
use solehold_engine::{
    Engine, EngineError,
    history::{Bar, Beginning},
    store::Import,
};

use super::{
    audit::{self, AuditTrail, Deed},
    identity::Identity,
    records::{self, store_time},
};
use crate::error::{ApiError, unexpected};

/// The command that makes tokens continue above a number, and what the audit trail says of it.
pub(crate) fn raise_token(above: u64) -> (Command, Deed) {
    let deed = Deed::new("raise_token", "store").with("above", above);
    (Command::RaiseRevision { above: Revision(above) }, deed)
}

/// Who changes the store by hand. Clones are handles to the same trail.
#[derive(Debug, Clone)]
pub struct Operator {
    engine: Engine,
    identity: Identity,
    trail: Arc<AuditTrail>,
}

/// Someone who works on the store itself, without a server.
impl From<&Engine> for Operator {
    fn from(engine: &Engine) -> Self {
        Self { engine: engine.clone(), identity: Identity::keyless(), trail: Arc::default() }
    }
}

impl Operator {
    pub(crate) fn new(engine: Engine, identity: Identity, trail: Arc<AuditTrail>) -> Self {
        Self { engine, identity, trail }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn actor(&self) -> Actor {
        self.identity.actor()
    }

    fn note(&self, deed: &Deed) -> Note {
        audit::note(deed, &self.identity)
    }

    /// Submits a command. Unless it is refused, its entry commits with it.
    pub(crate) async fn submit(&self, command: Command, deed: &Deed) -> Result<Outcome, EngineError> {
        let call = Call { note: Some(self.note(deed)), ..Call::new(command, self.actor()) };
        let outcome = self.engine.submit(call).await?;
        if outcome.is_ok() {
            self.trail.written(&self.engine).await;
        }
        Ok(outcome)
    }

    /// Changes a record, as [`records::change`] does.
    pub(crate) async fn change<T>(
        &self,
        of: &'static str,
        id: &Name,
        deed: &Deed,
        how: impl Fn(Option<&Record>, StoreTime) -> Result<(Record, T), ApiError>,
    ) -> Result<T, ApiError> {
        let made = records::change_noted(&self.engine, of, id, Some(self.note(deed)), how).await?;
        self.trail.written(&self.engine).await;
        Ok(made)
    }

    /// Records what is about to be done, where the store cannot do both at once.
    async fn announce(&self, deed: &Deed) -> Result<(), ApiError> {
        let record = self.note(deed).record(store_time(&self.engine).await?);
        self.engine.submit(Command::PutRecord { record, over: Over::Nothing }).await??;
        self.trail.written(&self.engine).await;
        Ok(())
    }

    /// Makes tokens continue above a number; returns from where.
    pub async fn raise_token(&self, above: u64) -> Result<u64, ApiError> {
        let (command, deed) = raise_token(above);
        match self.submit(command, &deed).await?? {
            Answer::Raised(revision) => Ok(revision.0),
            other => Err(unexpected(&other)),
        }
    }

    /// Declares that the store was restored. While the store is retired or grants nothing, it takes no entry.
    pub async fn restored(&self, holders_stopped: bool) -> Result<Beginning, ApiError> {
        let deed = Deed::new("restored", "store").with("holders_stopped", holders_stopped);
        let mut announced = self.announce(&deed).await;
        let bar = if holders_stopped { Bar::None } else { Bar::LongestTtl };
        let beginning = self.engine.set_back(bar).await?;
        if announced.is_err() {
            announced = self.announce(&deed).await;
        }
        warn_unless(announced, "restored");
        Ok(beginning)
    }

    /// Retires the store, because its data moves elsewhere.
    pub async fn retire(&self, to: &str) -> Result<(), EngineError> {
        warn_unless(self.announce(&Deed::new("retire", "store").with("to", to)).await, "retire");
        self.engine.retire(to).await
    }

    /// Takes over an export, if the store is empty. The entry is one of the rows that are imported.
    pub async fn import(&self, mut import: Import) -> Result<Beginning, EngineError> {
        let deed = Deed::new("import", "store").with("rows", import.rows);
        import.state.load_record(self.note(&deed).record(import.header.now));
        self.engine.import(import).await
    }
}

/// A store that takes no entry must still be restored or retired.
fn warn_unless(announced: Result<(), ApiError>, action: &str) {
    if let Err(failure) = announced {
        tracing::warn!(action, error = %failure, "cannot write to the audit trail; continuing without an entry");
    }
}
