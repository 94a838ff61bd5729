//! Tasks and reports as JSON, for workers that are no Celery.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{Report, Task, TaskId};

/// What a header cannot carry; `%` so that what is encoded can be told apart.
const NOT_IN_HEADERS: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

/// A task in JSON. `report_to` is where a service reports what it does not answer at once.
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

/// A report in JSON, with what is wrong about it in the words of who wrote it.
pub fn report(bytes: &[u8]) -> Result<Report, String> {
    serde_json::from_slice(bytes).map_err(|error| {
        format!(
            "it is not a report such as {{\"job\": \"job-17\", \"stage\": \"detect\", \"attempt\": 1, \
             \"kind\": \"succeeded\", \"result\": {{}}}}: {error}"
        )
    })
}
