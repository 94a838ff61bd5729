//! The commands that the benchmarks of the engines submit. Everything belongs to one tenant.

use anyhow::Result;
use solehold_core::{
    command::{Acquire, AskedTenure, Claim, Command, OpenSession, Target, Undeclared},
    key::{Document, HolderKey, LeaseId, Name, ResourceKey, SessionId},
    outcome::Answer,
};
use solehold_engine::Engine;
use uuid::Uuid;

pub fn name(text: impl AsRef<str>) -> Name {
    Name::new(text).expect("short names of letters and digits")
}

pub fn tenant() -> Name {
    name("bench")
}

pub fn resource(key: impl AsRef<str>) -> ResourceKey {
    ResourceKey::new(tenant(), name("job"), name(key))
}

/// An acquire of a resource that need not be declared. The request has no name.
pub fn acquire(key: ResourceKey, holder: Name, tenure: AskedTenure) -> Acquire {
    Acquire {
        lease: LeaseId::new(&key, Uuid::new_v4()),
        key,
        holder,
        tenure,
        request: None,
        attributes: Document::default(),
        undeclared: Undeclared::Allow,
        wait: None,
        slots: None,
        holds_at_most: None,
    }
}

/// The same with a name for the request, as our own client gives it, by which a repeat is recognised.
pub fn named(acquire: Acquire) -> Acquire {
    Acquire { request: Some(name(acquire.lease.to_string())), ..acquire }
}

pub fn release(lease: LeaseId) -> Command {
    let target = Target::Lease { tenant: tenant(), id: lease };
    Command::Release { claim: Claim { target, token: None, session: None, holder: None }, state: None }
}

pub fn open_session(id: SessionId, holder: Name, ttl_ms: u64) -> Command {
    Command::OpenSession(OpenSession {
        id,
        holder: HolderKey { tenant: tenant(), name: holder },
        ttl_ms,
        replace: None,
        fenced: false,
        follows: None,
        registration: None,
        metrics: None,
    })
}

pub fn heartbeat(session: SessionId) -> Command {
    Command::Heartbeat { tenant: tenant(), session, holder: None, metrics: None }
}

/// Submits a command, which must not be refused.
pub async fn submit(engine: &Engine, command: Command) -> Result<Answer> {
    Ok(engine.submit(command).await??)
}

/// Submits commands together, none of which may be refused.
pub async fn submit_all(engine: &Engine, commands: Vec<Command>) -> Result<Vec<Answer>> {
    engine.submit_all(commands).await.into_iter().map(|outcome| Ok(outcome??)).collect()
}
