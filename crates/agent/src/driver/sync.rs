//! The configuration of what is worked on, as the server has it: read with the grant, and again from time to time. A
//! change is told to the worker without a restart.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use solehold_api::{
    config::{Camera, ConfigVersion},
    kind, paths,
};
use solehold_client::{Http, Resource};
use tokio::{sync::mpsc, time::timeout};

use super::leases::LeaseNews;
use crate::{machine::WorkerId, worker::ToWorker};

/// How long is waited for what a worker prepares with.
const READ_MAX: Duration = Duration::from_secs(1);
/// Configurations that are read at once.
const READS_AT_ONCE: usize = 8;

/// The configuration of a resource: the document of a camera, with its zones and versions, and the attributes of
/// anything else. None if it has none, or if it cannot be read now.
pub async fn configuration(http: &Http, resource: &Resource) -> Option<Value> {
    let (kind, key) = (resource.kind.as_str(), resource.key.as_str());
    let is_camera = kind == kind::CAMERA;
    let path = if is_camera { paths::camera(key) } else { paths::resource(kind, key) };
    let document = match http.get::<Map<String, Value>>(path).await {
        Ok(Ok(document)) => document,
        Ok(Err(refusal)) => {
            tracing::debug!(%resource, %refusal, "it has no configuration");
            return None;
        }
        Err(error) => {
            tracing::debug!(%resource, %error, "its configuration cannot be read now");
            return None;
        }
    };
    if is_camera {
        return Some(with_versions(document));
    }
    let attributes = document.get("attributes").cloned();
    attributes.filter(|attributes| attributes.as_object().is_some_and(|fields| !fields.is_empty()))
}

/// Reads what a worker prepares with, and then lets it be told: configuration and state as they are now. What cannot be
/// read is left out; the final word comes with the grant.
pub fn prepare(
    http: Arc<Http>,
    (worker, run): (WorkerId, u32),
    message: ToWorker,
    news: mpsc::Sender<LeaseNews>,
) {
    let ToWorker::Prepare { id, resource, deadline_boottime_ms, .. } = message else { return };
    tokio::spawn(async move {
        let named = resource.split_once('/').and_then(|(kind, key)| Resource::new(kind, key).ok());
        let (mut config, mut state) = (None, None);
        if let Some(named) = named {
            let both = async { tokio::join!(configuration(&http, &named), last_state(&http, &named)) };
            (config, state) = timeout(READ_MAX, both).await.unwrap_or_default();
        }
        let message = ToWorker::Prepare { id, resource, state, config, deadline_boottime_ms };
        let _ = news.send(LeaseNews::Prepare(worker, run, Box::new(message))).await;
    });
}

async fn last_state(http: &Http, resource: &Resource) -> Option<Value> {
    let path = paths::resource_state(resource.kind.as_str(), resource.key.as_str());
    let mut state = http.get::<Map<String, Value>>(path).await.ok()?.ok()?;
    state.remove("document")
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
pub fn refresh(http: Arc<Http>, resources: Vec<Resource>, news: mpsc::Sender<LeaseNews>) {
    tokio::spawn(async move {
        for some in resources.chunks(READS_AT_ONCE) {
            let reads: Vec<_> = some
                .iter()
                .map(|resource| {
                    let (http, resource) = (http.clone(), resource.clone());
                    tokio::spawn(async move { (configuration(&http, &resource).await, resource) })
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
