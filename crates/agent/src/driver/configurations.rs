//! The configuration of what is worked on, as the server has it: read with the grant, and again from time to time. A
//! change is told to the worker without a restart.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use solehold_api::{
    config::{Camera, ConfigVersion},
    kind, paths,
    problem::ErrorCode,
};
use solehold_client::{Http, ResourceName};
use tokio::time::timeout;

use super::cache::Cache;

/// How long the server may take for a configuration, or for a state to prepare with.
const READ_MAX: Duration = Duration::from_secs(1);

/// Where configurations come from: the server, and what it said last.
#[derive(Debug)]
pub struct Configurations {
    http: Arc<Http>,
    cache: Cache,
}

impl Configurations {
    pub fn new(http: Arc<Http>, cache: Cache) -> Self {
        Self { http, cache }
    }

    /// The configuration of a resource, for which is waited for a second. None if it has none, or if it cannot be read
    /// now and never was.
    pub async fn of(&self, resource: &ResourceName) -> Option<Value> {
        match timeout(READ_MAX, self.read(resource)).await {
            Ok(Ok(Some(config))) => {
                self.cache.keep(resource, &config);
                Some(config)
            }
            Ok(Ok(None)) => {
                self.cache.forget(resource);
                None
            }
            Ok(Err(error)) => self.last(resource, &error),
            Err(_) => self.last(resource, "the server does not answer"),
        }
    }

    fn last(&self, resource: &ResourceName, why: &str) -> Option<Value> {
        let last = self.cache.last(resource);
        tracing::debug!(%resource, why, is_kept = last.is_some(), "cannot read a configuration; using the cached one");
        last
    }

    /// The document of a camera, with its zones and versions, and the attributes of anything else.
    async fn read(&self, resource: &ResourceName) -> Result<Option<Value>, String> {
        let kind = resource.kind.as_str();
        let key = resource.key.as_str();
        let is_camera = kind == kind::CAMERA;
        let path = if is_camera { paths::camera(key) } else { paths::resource(kind, key) };
        let document = match self.http.get::<Map<String, Value>>(path).await {
            Ok(Ok(document)) => document,
            Ok(Err(refusal)) if refusal.code == ErrorCode::NotFound => return Ok(None),
            Ok(Err(refusal)) => return Err(refusal.detail),
            Err(error) => return Err(error.to_string()),
        };
        if is_camera {
            return Ok(Some(with_versions(document)));
        }
        let attributes = document.get("attributes").cloned();
        Ok(attributes.filter(|attributes| attributes.as_object().is_some_and(|fields| !fields.is_empty())))
    }

    /// The last state document of a resource, if it can be read in time.
    pub async fn last_state(&self, resource: &ResourceName) -> Option<Value> {
        let path = paths::resource_state(resource.kind.as_str(), resource.key.as_str());
        let state = timeout(READ_MAX, self.http.get::<Map<String, Value>>(path)).await;
        state.ok()?.ok()?.ok()?.remove("document")
    }
}

/// A camera's document with the versions of it and of its zones, by which a worker sees what has changed.
fn with_versions(mut document: Map<String, Value>) -> Value {
    if let Ok(camera) = serde_json::from_value::<Camera>(Value::Object(document.clone())) {
        let versions = ConfigVersion::of(&[camera], &[]);
        document.insert("config_version".to_owned(), versions.config_version.into());
        document.insert("zone_version".to_owned(), versions.zone_version.into());
    }
    Value::Object(document)
}
