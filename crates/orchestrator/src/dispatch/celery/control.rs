//! What Celery's workers are told and asked beside their tasks, by the exchange that all of them listen to.

use serde_json::{Value, json};

/// The fanout exchange of all workers.
pub const EXCHANGE: &str = "celery.pidbox";

/// Workers drop the task when they meet it. One that runs is ended only with `terminate`: the worker's process is.
pub fn revoke(task_id: &str, terminate: bool) -> Value {
    json!({
        "method": "revoke",
        "arguments": { "task_id": task_id, "terminate": terminate, "signal": "SIGTERM" },
        "destination": null,
        "pattern": null,
        "matcher": null,
    })
}

/// A question to every worker; each answers to the queue `reply_to`.
pub fn ask(method: &str, arguments: Value, reply_to: &str) -> Value {
    json!({
        "method": method,
        "arguments": arguments,
        "destination": null,
        "pattern": null,
        "matcher": null,
        "ticket": reply_to,
        // The nameless exchange leads straight to a queue, with either broker.
        "reply_to": { "exchange": "", "routing_key": reply_to },
    })
}
