//! The sites of resources. Routing keys contain them; events other than declarations do not.

use std::collections::HashMap;

use parking_lot::Mutex;
use solehold_core::{
    event::{Event, What},
    key::{Name, ResourceKey},
};
use solehold_engine::{Engine, EngineError};

/// The size of the cache; a full one is emptied.
const SITES_MAX: usize = 10_000;

/// A cache of the sites of resources. It is kept up to date by the declarations among the events that pass through it,
/// so it must not outlive the reading of them without a gap: another replica may have sent the declarations in between.
#[derive(Debug, Default)]
pub struct Sites {
    known: Mutex<HashMap<ResourceKey, Option<Name>>>,
}

impl Sites {
    /// The site of an event's resource: the one that a declaration states, or else the present one.
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

    /// Empties the cache, after events have been missed.
    pub fn forget(&self) {
        self.known.lock().clear();
    }

    async fn of(&self, engine: &Engine, key: &ResourceKey) -> Result<Option<Name>, EngineError> {
        if let Some(site) = self.known.lock().get(key) {
            return Ok(site.clone());
        }
        let site = site_of(engine, key).await?;
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

/// The present site of a resource, read from the store.
pub async fn site_of(engine: &Engine, key: &ResourceKey) -> Result<Option<Name>, EngineError> {
    let loaded = engine.resource(key).await?;
    let declared = loaded.state.resource(key).and_then(|resource| resource.declared.as_ref());
    Ok(declared.and_then(|declared| declared.site.clone()))
}
