//! Where resources are: events do not say it, and routing keys do.

use std::collections::HashMap;

use parking_lot::Mutex;
use solehold_core::{
    event::{Event, What},
    key::{Name, ResourceKey},
};
use solehold_engine::{Engine, EngineError};

/// Resources that are remembered; beyond it all are forgotten and read again.
const SITES_MAX: usize = 10_000;

/// The sites of resources, as they were last declared.
#[derive(Debug, Default)]
pub struct Sites {
    known: Mutex<HashMap<ResourceKey, Option<Name>>>,
}

impl Sites {
    /// The site of an event's resource. A declaration says it; otherwise it is the present one.
    pub async fn of_event(&self, engine: &Engine, event: &Event) -> Result<Option<Name>, EngineError> {
        match &event.what {
            What::Declared(declared) => {
                self.learn(&event.key, declared.site.clone());
                Ok(declared.site.clone())
            }
            What::Deleted => {
                let site = self.of(engine, &event.key).await?;
                self.known.lock().remove(&event.key);
                Ok(site)
            }
            _ => self.of(engine, &event.key).await,
        }
    }

    /// The site of a resource.
    pub async fn of(&self, engine: &Engine, key: &ResourceKey) -> Result<Option<Name>, EngineError> {
        if let Some(site) = self.known.lock().get(key) {
            return Ok(site.clone());
        }
        let loaded = engine.resource(key).await?;
        let declared = loaded.state.resource(key).and_then(|resource| resource.declared.as_ref());
        let site = declared.and_then(|declared| declared.site.clone());
        self.learn(key, site.clone());
        Ok(site)
    }

    fn learn(&self, key: &ResourceKey, site: Option<Name>) {
        let mut known = self.known.lock();
        if known.len() >= SITES_MAX {
            known.clear();
        }
        known.insert(key.clone(), site);
    }
}
