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
use tokio::{sync::mpsc, time::timeout};

use super::{cache::Cache, leases::LeaseNews};
use crate::{machine::WorkerId, worker::ToWorker};

/// How long the server may take for a configuration, or for a state to prepare with.
const READ_MAX: Duration = Duration::from_secs(1);
/// Configurations that are read at once.
const READS_AT_ONCE: usize = 8;

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

    async fn last_state(&self, resource: &ResourceName) -> Option<Value> {
        let path = paths::resource_state(resource.kind.as_str(), resource.key.as_str());
        let mut state = self.http.get::<Map<String, Value>>(path).await.ok()?.ok()?;
        state.remove("document")
    }
}

/// Reads what a worker prepares with, and then lets it be told: configuration and state as they are now. What cannot be
/// read is left out; the final word comes with the grant.
pub fn prepare(
    configurations: Arc<Configurations>,
    (worker, run): (WorkerId, u32),
    message: ToWorker,
    news: mpsc::Sender<LeaseNews>,
) {
    let ToWorker::Prepare { id, resource, deadline_boottime_ms, .. } = message else { return };
    tokio::spawn(async move {
        let named = resource.split_once('/').and_then(|(kind, key)| ResourceName::new(kind, key).ok());
        let mut config = None;
        let mut state = None;
        if let Some(named) = named {
            let last_state = timeout(READ_MAX, configurations.last_state(&named));
            let (read, last) = tokio::join!(configurations.of(&named), last_state);
            (config, state) = (read, last.ok().flatten());
        }
        let message = ToWorker::Prepare { id, resource, state, config, deadline_boottime_ms };
        let _ = news.send(LeaseNews::Prepare(worker, run, Box::new(message))).await;
    });
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

/// Reads the configurations of all these again, a few at a time.
pub fn refresh(
    configurations: Arc<Configurations>,
    resources: Vec<ResourceName>,
    news: mpsc::Sender<LeaseNews>,
) {
    tokio::spawn(async move {
        for some in resources.chunks(READS_AT_ONCE) {
            let reads: Vec<_> = some
                .iter()
                .map(|resource| {
                    let configurations = configurations.clone();
                    let resource = resource.clone();
                    tokio::spawn(async move { (configurations.of(&resource).await, resource) })
                })
                .collect();
            for read in reads {
                if let Ok((Some(config), resource)) = read.await {
                    let _ = news.send(LeaseNews::Configured(resource, config)).await;
                }
            }
        }
    });
}
