//! Which tenant a request is about, where neither its key nor the request names one.
//!
//! An id belongs to one tenant forever: the tenant of a lease or session is looked up once and cached. A name means
//! the one tenant that has it; where several do, the caller must name the tenant. Unknown names belong to `default`.

use std::collections::HashMap;

use parking_lot::Mutex;
use solehold_api::{
    field, kind,
    problem::{ErrorCode, Problem},
};
use solehold_core::{
    command::Footprint,
    key::{HolderKey, LeaseId, Name, SessionId},
};
use solehold_engine::store::{EventQuery, HolderQuery, ResourceQuery};
use uuid::Uuid;

use super::Context;
use crate::error::ApiError;

/// How many ids are remembered; then all are forgotten, and looked up again.
const REMEMBERED_MAX: usize = 1 << 18;

/// The tenants of ids.
#[derive(Debug, Default)]
pub(crate) struct KnownTenants(Mutex<HashMap<Uuid, Name>>);

impl KnownTenants {
    fn get(&self, id: Uuid) -> Option<Name> {
        self.0.lock().get(&id).cloned()
    }

    fn learn(&self, id: Uuid, tenant: &Name) {
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(id, tenant.clone());
    }
}

/// What a request names, and so the tenant that has it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Named<'a> {
    Lease(LeaseId),
    Session(SessionId),
    Runner(&'a Name),
    Camera(&'a Name),
}

impl Context {
    /// The tenant that a request is about: the key's, or the one that the request says, or else the one that has what
    /// the request names.
    pub(crate) async fn tenant_of(&self, said: Option<&str>, what: Named<'_>) -> Result<Name, ApiError> {
        if let Some(tenant) = self.caller().tenant_or_all(said)? {
            return Ok(tenant);
        }
        let found = match what {
            Named::Lease(LeaseId(id)) | Named::Session(SessionId(id)) => self.tenant_of_id(id, what).await?,
            Named::Runner(name) => only_one(self.tenants_of_runner(name).await?, "runner", name)?,
            Named::Camera(name) => only_one(self.tenants_of_camera(name).await?, kind::CAMERA, name)?,
        };
        found.map_or_else(|| self.caller().tenant(None), Ok)
    }

    async fn tenant_of_id(&self, id: Uuid, what: Named<'_>) -> Result<Option<Name>, ApiError> {
        if let Some(known) = self.tenants.get(id) {
            return Ok(Some(known));
        }
        let found = match what {
            Named::Lease(id) => self.tenant_of_lease(id).await?,
            _ => self.tenant_of_session(SessionId(id)).await?,
        };
        found.iter().for_each(|tenant| self.tenants.learn(id, tenant));
        Ok(found)
    }

    /// Also of a lease that has ended, for as long as the history has its events.
    async fn tenant_of_lease(&self, id: LeaseId) -> Result<Option<Name>, ApiError> {
        let loaded = self.engine().load(&Footprint { leases: vec![id], ..Default::default() }).await?;
        if let Some(key) = loaded.state.resource_of(id) {
            return Ok(Some(key.tenant.clone()));
        }
        let query = EventQuery { lease: Some(id), limit: 1, ..Default::default() };
        let events = self.engine().events(&query).await?.events;
        Ok(events.into_iter().next().map(|event| event.key.tenant))
    }

    async fn tenant_of_session(&self, id: SessionId) -> Result<Option<Name>, ApiError> {
        let loaded = self.engine().load(&Footprint { sessions: vec![id], ..Default::default() }).await?;
        // A replica's waiting room belongs to no tenant.
        let session = loaded.state.session(id).filter(|session| !session.is_room());
        Ok(session.map(|session| session.holder.tenant.clone()))
    }

    async fn tenants_of_runner(&self, name: &Name) -> Result<Vec<Name>, ApiError> {
        let query =
            HolderQuery { name: Some(name.clone()), registered: true, limit: 2, ..Default::default() };
        let found = self.engine().find_holders(&query).await?;
        Ok(found.keys.into_iter().map(|HolderKey { tenant, .. }| tenant).collect())
    }

    async fn tenants_of_camera(&self, name: &Name) -> Result<Vec<Name>, ApiError> {
        let kind = Some(field::name("kind", kind::CAMERA)?);
        let key = Some(name.clone());
        let query = ResourceQuery { kind, key, limit: 2, ..Default::default() };
        let found = self.engine().find_resources(&query).await?;
        Ok(found.keys.into_iter().map(|key| key.tenant).collect())
    }
}

/// The one tenant among those that have a name, if there is one.
fn only_one(tenants: Vec<Name>, what: &str, name: &Name) -> Result<Option<Name>, ApiError> {
    match tenants.as_slice() {
        [first, second, ..] => {
            let detail =
                format!("tenants {first} and {second} both have a {what} {name}; name one with ?tenant=");
            Err(Problem::new(ErrorCode::Conflict, detail).into())
        }
        _ => Ok(tenants.into_iter().next()),
    }
}
