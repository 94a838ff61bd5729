//! The configuration of what is worked on, as the server has it: read with the grant, and again from time to time. A
//! change is told to the worker without a restart.

use std::sync::Arc;

use serde_json::{Map, Value};
use solehold_api::{
    config::{Camera, ConfigVersion},
    kind, paths,
};
use solehold_client::{Http, Resource};
use tokio::sync::mpsc;

use super::leases::LeaseNews;

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
