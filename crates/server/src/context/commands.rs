//! The commands of the API, each with its answer. A refusal is an error here.

use std::time::Duration;

use solehold_core::{
    command::{Acquire, Claim, Command, Footprint, StateWrite},
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
    lease::{Declaration, Resource, StateDocument},
    outcome::{Answer, Grant, SessionView},
};
use solehold_engine::{EngineError, store::LoadedRows};
use uuid::Uuid;

use super::{Context, about};
use crate::{
    error::{ApiError, unexpected},
    state::{operator, quota::Quota},
};

pub fn new_lease_id(key: &ResourceKey) -> LeaseId {
    LeaseId::new(key, Uuid::new_v4())
}

pub fn new_session_id() -> SessionId {
    SessionId(Uuid::now_v7())
}

/// A part of the only answer that a command can have.
macro_rules! expect {
    ($answer:expr, $expected:pat => $part:expr) => {
        match $answer {
            $expected => Ok($part),
            other => Err(unexpected(&other)),
        }
    };
}

impl Context {
    /// Submits a command; a refusal is an error.
    pub(crate) async fn execute(&self, command: Command) -> Result<Answer, ApiError> {
        Ok(self.submit(command).await??)
    }

    /// A holder and its present session.
    pub(crate) async fn load_holder(&self, key: &HolderKey) -> Result<LoadedRows, EngineError> {
        self.engine().load(&Footprint { holders: vec![key.clone()], ..Default::default() }).await
    }

    /// Acquires, waiting in line for at most `wait` if it is given. A client that disconnects leaves the line, and so
    /// do all when the server stops: a retry at another replica keeps the place in line, by its request id.
    pub(crate) async fn acquire(&self, acquire: Acquire, wait: Option<Duration>) -> Result<Grant, ApiError> {
        let Some(wait) = wait else { return granted(self.execute(Command::Acquire(acquire)).await?) };
        let mut stopping = self.stopping();
        let waiting = async {
            tokio::select! {
                answer = self.acquire_waiting(acquire, wait) => granted(answer??),
                _ = stopping.wait_for(|stopping| *stopping) => Err(EngineError::Stopping.into()),
            }
        };
        about::waiting(wait, waiting).await
    }

    /// Executes a command about a lease. If it is refused because the lease is over, the error says how it ended.
    async fn execute_on(
        &self,
        claim: Claim,
        command: impl FnOnce(Claim) -> Command,
    ) -> Result<Answer, ApiError> {
        match self.submit(command(claim.clone())).await? {
            Ok(answer) => Ok(answer),
            Err(refusal) => Err(self.explained(&claim, refusal).await),
        }
    }

    pub(crate) async fn renew(
        &self,
        claim: Claim,
        ttl_ms: Option<u64>,
        stats: Option<Document>,
    ) -> Result<Grant, ApiError> {
        expect!(self.execute_on(claim, |claim| Command::Renew { claim, ttl_ms, stats }).await?, Answer::Renewed(grant) => grant)
    }

    /// Releases a lease. The late release of one that was taken from its holder ends the hold-back after it.
    pub(crate) async fn release(&self, claim: Claim, state: Option<StateWrite>) -> Result<LeaseId, ApiError> {
        let has_state = state.is_some();
        match self.submit(Command::Release { claim: claim.clone(), state }).await? {
            Ok(Answer::Released(id)) => Ok(id),
            Ok(other) => Err(unexpected(&other)),
            Err(refusal) => self.released_late(&claim, has_state, refusal).await,
        }
    }

    /// Revokes a lease, or ends the hold-back after one; returns which lease, and for how many milliseconds the
    /// resource is held back.
    pub(crate) async fn revoke(
        &self,
        claim: Claim,
        fenced: bool,
        reason: Option<String>,
    ) -> Result<(Option<LeaseId>, u64), ApiError> {
        let command = Command::Revoke { claim: claim.clone(), fenced, reason: reason.clone() };
        match self.submit(command).await? {
            Ok(Answer::Revoked { lease, held_back_ms }) => Ok((Some(lease), held_back_ms)),
            Ok(Answer::HoldBackLifted) => Ok((None, 0)),
            Ok(other) => Err(unexpected(&other)),
            Err(refusal) if fenced => Ok((Some(self.fenced_late(&claim, reason, refusal).await?), 0)),
            Err(refusal) => Err(self.explained(&claim, refusal).await),
        }
    }

    pub(crate) async fn write_state(
        &self,
        claim: Claim,
        write: StateWrite,
    ) -> Result<StateDocument, ApiError> {
        expect!(self.execute_on(claim, |claim| Command::WriteState { claim, write }).await?, Answer::StateWritten(state) => state)
    }

    /// Refuses a resource that nobody declared and that would be one more than the tenant may have. Only when the
    /// tenant seems to have that many already is it read whether this is a new one: most acquires are of what is there.
    pub(crate) async fn check_resource_quota(&self, key: &ResourceKey) -> Result<(), ApiError> {
        match self.quota(&key.tenant, Quota::Resources).await {
            Err(failure) if !self.exists(key).await? => Err(failure),
            _ => Ok(()),
        }
    }

    /// Declares a resource, if the tenant may have one more; returns whether it was not declared before.
    pub(crate) async fn declare(
        &self,
        key: ResourceKey,
        declaration: Declaration,
        only_new: bool,
    ) -> Result<(Resource, bool), ApiError> {
        if !self.exists(&key).await? {
            self.quota(&key.tenant, Quota::Resources).await?;
        }
        expect!(self.execute(Command::Declare { key, declaration, only_new }).await?, Answer::Declared { resource, created } => (resource, created))
    }

    async fn exists(&self, key: &ResourceKey) -> Result<bool, ApiError> {
        Ok(self.engine().resource(key).await?.state.resource(key).is_some())
    }

    /// Makes tokens continue above a number; returns from where.
    pub(crate) async fn raise_token(&self, above: u64) -> Result<u64, ApiError> {
        let (command, deed) = operator::raise_token(above);
        expect!(self.audited(deed).execute(command).await?, Answer::Raised(revision) => revision.0)
    }

    /// Acquires several resources, all or none.
    pub(crate) async fn acquire_all(&self, asks: Vec<Acquire>) -> Result<Vec<Grant>, ApiError> {
        expect!(self.execute(Command::AcquireAll(asks)).await?, Answer::GrantedAll(grants) => grants)
    }

    pub(crate) async fn session(&self, command: Command) -> Result<SessionView, ApiError> {
        expect!(self.execute(command).await?, Answer::Session(view) => view)
    }

    /// Closes a session; returns how many leases were released.
    pub(crate) async fn close_session(&self, tenant: Name, session: SessionId) -> Result<usize, ApiError> {
        expect!(self.execute(Command::CloseSession { tenant, session }).await?, Answer::Closed { released } => released)
    }

    /// Removes a registered holder; returns how many leases of its session were released, and how many revoked.
    pub(crate) async fn remove_holder(
        &self,
        holder: HolderKey,
        session: Option<SessionId>,
    ) -> Result<(usize, usize), ApiError> {
        expect!(self.execute(Command::RemoveHolder { holder, session }).await?, Answer::HolderRemoved { released, revoked } => (released, revoked))
    }
}

pub fn granted(answer: Answer) -> Result<Grant, ApiError> {
    expect!(answer, Answer::Granted(grant) => grant)
}
