//! Tasks and reports as JSON, for workers other than Celery.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Value, json};

use crate::model::task::{Report, Task, TaskId};

/// Characters that a header cannot contain, and `%` for unambiguous decoding.
const NOT_IN_HEADERS: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

/// A task in JSON. `report_to` is the URL for reports that are not in the response.
pub fn task(task: &Task, report_to: Option<&str>) -> Value {
    let mut value = json!({
        "id": task.id.to_string(),
        "job": task.id.job,
        "stage": task.id.stage,
        "attempt": task.id.attempt,
        "task": task.name,
        "key": task.key,
        "input": task.input,
        "run_timeout_ms": u64::try_from(task.run_timeout.as_millis()).unwrap_or(u64::MAX),
    });
    if let (Some(url), Value::Object(members)) = (report_to, &mut value) {
        members.insert("report_to".to_owned(), json!(url));
    }
    value
}

/// The id of a task as the value of a header.
pub fn header(id: &TaskId) -> String {
    utf8_percent_encode(&id.to_string(), NOT_IN_HEADERS).to_string()
}

#[derive(Debug, thiserror::Error)]
#[error(
    "not a report such as {{\"job\": \"job-17\", \"stage\": \"detect\", \"attempt\": 1, \"kind\": \"succeeded\", \
     \"result\": {{}}}}: {0}"
)]
pub struct InvalidReport(#[from] serde_json::Error);

pub fn report(bytes: &[u8]) -> Result<Report, InvalidReport> {
    Ok(serde_json::from_slice(bytes)?)
}
