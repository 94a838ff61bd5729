//! A server as a process reaches it: an engine over the store, the key of the process, and the plans of the server.

use std::{ops::Deref, sync::Arc, time::Duration};

use solehold_api::problem::Problem;
use solehold_client::{AuthorityError, Embedded, LeaseId, ResourceName, SessionId, authority::Reply};
use solehold_core::{
    call::{Actor, Call},
    command::{Command, HandOver},
    key::{Name, ResourceKey},
    outcome::{LeaseView, Outcome},
    time::Token,
};
use solehold_engine::{Engine, EngineError};
use uuid::Uuid;

use crate::{planner::Planner, world::resource_key};

pub struct Server {
    authority: Embedded,
    actor: Actor,
    pub planner: Arc<Planner>,
}

impl Deref for Server {
    type Target = Embedded;

    fn deref(&self) -> &Embedded {
        &self.authority
    }
}

impl Server {
    /// The server with this engine, for one that shows this key, or none.
    pub fn new(engine: Engine, key: Option<Name>, planner: Arc<Planner>) -> Self {
        let actor = key.map_or(Actor::Unnamed, |id| Actor::Key { id, scopes: Arc::from([]) });
        Self { authority: Embedded::over(engine).under(actor.clone()), actor, planner }
    }

    pub async fn decide(&self, command: Command) -> Result<Outcome, EngineError> {
        self.engine().submit(Call::new(command, self.actor.clone())).await
    }

    /// Hands a resource over as the route of the API does: by a plan, if the present holder has another key.
    pub async fn hand_over_planned(
        &self,
        resource: &ResourceName,
        request: Uuid,
        to: SessionId,
        within: Duration,
    ) -> Reply<LeaseId> {
        let key = resource_key(resource);
        let lease = LeaseId::new(&key, request);
        let unknown = |error: EngineError| AuthorityError::Unknown(error.to_string());
        let planned = self.planned(&key, to).await.map_err(AuthorityError::Unknown)?;
        let ask = HandOver { planned, ..HandOver::new(key, lease, to, within.as_millis() as u64) };
        let outcome = self.decide(Command::HandOver(ask)).await.map_err(unknown)?;
        Ok(outcome.map(|_| lease).map_err(|refusal| Problem::from_refusal(&refusal).into()))
    }

    async fn planned(&self, key: &ResourceKey, to: SessionId) -> Result<Option<Token>, String> {
        let loaded = self.engine().resource(key).await.map_err(|error| error.to_string())?;
        let Some(row) = loaded.state.resource(key) else { return Ok(None) };
        let Ok(Some(LeaseView { lease, .. })) = LeaseView::of(&loaded.state, row, loaded.now) else {
            return Ok(None);
        };
        if self.actor.may_act_for(lease.by.as_ref()) {
            return Ok(None);
        }
        let plan = self.planner.plan(self.engine(), None).await?;
        Ok(plan.speaks_for(key, &lease, to))
    }
}
