//! The file that `{config}` in a worker's command stands for: what it works on, and the configuration of its shard as
//! the workers of camera pipelines know it.

use std::time::Duration;

use serde_json::{Map, Value, json};
use solehold_api::kind;

use super::leases::{shard_id, worker_name};
use crate::{config::Settings, machine::WorkerId, worker::Assignment};

/// The configuration of a worker's shard. The template's fields come first; what follows fills in what it leaves out,
/// but for what only the agent knows: the shard, and what it works on.
pub fn of(settings: &Settings, worker: WorkerId, assignments: &[Assignment]) -> Value {
    let runner = &settings.runner;
    let lease = &settings.lease;
    let text = |text: &Option<String>| Value::from(text.clone().unwrap_or_default());
    let server = settings.server.servers.first().cloned().unwrap_or_default();
    let mut fields = settings.worker.template.clone();
    let filled_in = [
        ("cp", json!({"url": server})),
        ("control_plane_url", json!(server)),
        // The agent's own key is not passed on: a worker that needs one has it from the template.
        ("api_key", json!("")),
        ("database_url", json!("")),
        ("manager_mode", json!(true)),
        ("max_workers", json!(settings.worker.max)),
        ("max_resources_per_worker", json!(settings.worker.per_worker)),
        ("max_cameras_per_worker", json!(settings.worker.per_worker)),
        ("lease_ttl_seconds", seconds(lease.ttl)),
        ("heartbeat_interval_seconds", seconds(lease.every)),
        ("lease_retry_interval_seconds", seconds(lease.retry)),
        ("deployment_group", text(&runner.deployment_group)),
        ("deployment_version", text(&runner.deployment_version)),
        ("tenant_id", text(&runner.tenant_id)),
        ("site_id", text(&runner.site_id)),
    ];
    for (field, value) in filled_in {
        fields.entry(field).or_insert(value);
    }
    let cameras: Vec<Value> = assignments.iter().filter_map(camera).collect();
    let own = [
        ("runner_id", json!(runner.runner_id)),
        ("worker", json!(worker_name(&runner.runner_id, worker))),
        ("shard_id", json!(shard_id(worker))),
        ("cameras", json!(cameras)),
        ("assignments", json!(assignments)),
    ];
    fields.extend(own.map(|(field, value)| (field.to_owned(), value)));
    Value::Object(fields)
}

/// The document of a camera that is worked on.
fn camera(assignment: &Assignment) -> Option<Value> {
    let (of_kind, key) = assignment.resource.split_once('/')?;
    if of_kind != kind::CAMERA {
        return None;
    }
    let bare = || Map::from_iter([("camera_uuid".to_owned(), json!(key))]).into();
    Some(assignment.config.clone().unwrap_or_else(bare))
}

/// A whole number where it is one: schemas may ask for it.
fn seconds(time: Duration) -> Value {
    match time.subsec_nanos() {
        0 => json!(time.as_secs()),
        _ => json!(time.as_secs_f64()),
    }
}
