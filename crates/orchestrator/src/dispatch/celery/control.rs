//! Celery's remote control: broadcasts and queries to all workers.

use serde_json::{Value, json};

/// The fanout exchange of all workers.
pub const EXCHANGE: &str = "celery.pidbox";

/// Workers drop the task when they receive it. With `terminate`, the process that runs it is ended.
pub fn revoke(task_id: &str, terminate: bool) -> Value {
    json!({
        "method": "revoke",
        "arguments": { "task_id": task_id, "terminate": terminate, "signal": "SIGTERM" },
        "destination": null,
        "pattern": null,
        "matcher": null,
    })
}

/// A query to every worker; each replies to the queue `reply_to`.
pub fn query(method: &str, arguments: Value, reply_to: &str) -> Value {
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
