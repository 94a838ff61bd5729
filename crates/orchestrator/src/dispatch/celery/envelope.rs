//! Celery's messages: tasks in protocol 2, and results.

use serde_json::{Map, Value, json};

use crate::model::task::{InvalidTaskId, Report, ReportKind, Task, TaskId};

/// How much of a task's arguments a worker's log shows.
const SHOWN_CHARS: usize = 200;

/// A task as Celery's workers take it, whatever broker it goes through.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// The same for the same attempt.
    pub id: String,
    /// What protocol 2 has outside the body.
    pub headers: Map<String, Value>,
    /// `[args, kwargs, embed]` in JSON.
    pub body: Vec<u8>,
}

impl Envelope {
    /// Without templates, the members of the input are the task's keyword arguments; an input that is not an object is
    /// its only argument. Job, stage and attempt are headers, so that a task need not have them in its signature: a
    /// bound task reads `self.request.solehold_job`, and its id has all three.
    pub fn new(task: &Task) -> Self {
        let id = task.id.to_string();
        let (args, kwargs) = match (&task.arguments, &task.input) {
            (Some(given), _) => (given.args.clone(), given.kwargs.clone()),
            (None, Value::Object(members)) => (Vec::new(), members.clone()),
            (None, other) => (vec![other.clone()], Map::new()),
        };
        let args = Value::Array(args);
        let kwargs = Value::Object(kwargs);
        let headers = json!({
            "lang": "py",
            "task": task.name,
            "id": id,
            "root_id": id,
            "parent_id": null,
            "group": null,
            "shadow": null,
            "eta": null,
            // Only the orchestrator decides that a task has waited too long: it has one clock.
            "expires": null,
            "retries": 0,
            // An attempt that has run out is ended by its worker, where the worker's pool can do that.
            "timelimit": [task.run_timeout.as_secs_f64(), null],
            "argsrepr": shown(&args),
            "kwargsrepr": shown(&kwargs),
            "origin": "solehold",
            "ignore_result": false,
            "solehold_job": task.id.job,
            "solehold_stage": task.id.stage,
            "solehold_attempt": task.id.attempt,
        });
        let embed = json!({ "callbacks": null, "errbacks": null, "chain": null, "chord": null });
        let body = json!([args, kwargs, embed]).to_string().into_bytes();
        let Value::Object(headers) = headers else { unreachable!("it is written as an object above") };
        Self { id, headers, body }
    }
}

fn shown(arguments: &Value) -> String {
    let text = arguments.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// The report in a result message, if its status is one. `correlation_id` is the task's id outside the body.
pub fn report(correlation_id: Option<&str>, body: &[u8]) -> Result<Option<Report>, InvalidTaskId> {
    let Ok(message) = serde_json::from_slice::<Value>(body) else {
        // Python writes NaN, which is not JSON. Fail the attempt now, not at its timeout.
        let id: TaskId = correlation_id.unwrap_or_default().parse()?;
        let reason = "the result is not JSON (a NaN, or another serializer than json?)".to_owned();
        return Ok(Some(Report { id, kind: ReportKind::Failed { reason } }));
    };
    let id = message["task_id"].as_str().or(correlation_id).unwrap_or_default();
    let id: TaskId = id.parse()?;
    Ok(kind(&message).map(|kind| Report { id, kind }))
}

fn kind(message: &Value) -> Option<ReportKind> {
    let result = &message["result"];
    match message["status"].as_str().unwrap_or_default() {
        "SUCCESS" => Some(ReportKind::Succeeded { result: result.clone() }),
        "FAILURE" => Some(ReportKind::Failed { reason: reason(result) }),
        status @ ("REVOKED" | "REJECTED") => {
            let reason = format!("{}: {}", status.to_lowercase(), reason(result));
            Some(ReportKind::Failed { reason })
        }
        "STARTED" => Some(ReportKind::Started),
        // Celery retries it under the same id.
        "PENDING" | "RECEIVED" | "RETRY" | "IGNORED" => None,
        // A state of the task's own, which it set by update_state.
        _ => Some(ReportKind::Progress { fraction: fraction(result)? }),
    }
}

/// `meta={"fraction": 0.4}`, or `meta={"current": 40, "total": 100}` as Celery's manual has it.
fn fraction(meta: &Value) -> Option<f64> {
    let part = || Some(meta["current"].as_f64()? / meta["total"].as_f64()?);
    let fraction = meta["fraction"].as_f64().or_else(part)?;
    fraction.is_finite().then(|| fraction.clamp(0.0, 1.0))
}

/// `{"exc_type": "ValueError", "exc_message": ["no such file"]}`, in the worker's words.
fn reason(exception: &Value) -> String {
    let name = exception["exc_type"].as_str().unwrap_or("no reason given");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let message = match &exception["exc_message"] {
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(", "),
        other => text(other),
    };
    if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::task::Arguments;

    fn task(input: Value) -> Task {
        Task {
            id: TaskId { job: "job-17".to_owned(), stage: "detect".to_owned(), attempt: 2 },
            name: "video.detect".to_owned(),
            queue: None,
            input,
            arguments: None,
            key: "org:match".to_owned(),
            run_timeout: Duration::from_secs(90),
        }
    }

    #[test]
    fn a_task_is_an_envelope_of_protocol_two() {
        let envelope = Envelope::new(&task(json!({ "video": "a.mp4" })));
        assert_eq!(envelope.id, "job-17:detect:2");
        assert_eq!(envelope.headers["task"], "video.detect");
        assert_eq!(envelope.headers["id"], envelope.headers["root_id"]);
        assert_eq!(envelope.headers["timelimit"], json!([90.0, null]));
        assert_eq!(envelope.headers["solehold_attempt"], 2);
        let body: Value = serde_json::from_slice(&envelope.body).expect("JSON");
        assert_eq!(body[0], json!([]));
        assert_eq!(body[1], json!({ "video": "a.mp4" }));
        let body: Value = serde_json::from_slice(&Envelope::new(&task(json!([1, 2]))).body).expect("JSON");
        assert_eq!((&body[0], &body[1]), (&json!([[1, 2]]), &json!({})));
        let mut given = task(json!({ "video": "a.mp4" }));
        let kwargs = Map::from_iter([("path".to_owned(), json!("a.mp4"))]);
        given.arguments = Some(Arguments { args: vec![json!(7)], kwargs });
        let body: Value = serde_json::from_slice(&Envelope::new(&given).body).expect("JSON");
        assert_eq!((&body[0], &body[1]), (&json!([7]), &json!({"path": "a.mp4"})));
        let long = Envelope::new(&task(json!({ "name": "ü".repeat(1_000) })));
        assert_eq!(long.headers["kwargsrepr"].as_str().map(|text| text.chars().count()), Some(203));
    }

    #[test]
    fn worker_states_become_reports() {
        let of = |status: &str, result: Value| {
            let body = json!({ "task_id": "j:s:1", "status": status, "result": result, "traceback": null });
            report(None, body.to_string().as_bytes()).expect("one of ours").map(|report| report.kind)
        };
        assert_eq!(of("SUCCESS", json!([1])), Some(ReportKind::Succeeded { result: json!([1]) }));
        assert_eq!(of("STARTED", json!({ "pid": 1 })), Some(ReportKind::Started));
        assert_eq!(of("RETRY", json!({ "exc_type": "X" })), None);
        assert_eq!(
            of("PROGRESS", json!({ "fraction": 0.25 })),
            Some(ReportKind::Progress { fraction: 0.25 })
        );
        assert_eq!(
            of("HALFWAY", json!({ "current": 1, "total": 2 })),
            Some(ReportKind::Progress { fraction: 0.5 })
        );
        assert_eq!(of("PROGRESS", json!({ "current": 1, "total": 0 })), None);
        assert_eq!(of("PROGRESS", json!({ "fraction": 7 })), Some(ReportKind::Progress { fraction: 1.0 }));
        let failed = |reason: &str| Some(ReportKind::Failed { reason: reason.to_owned() });
        let exception =
            json!({ "exc_type": "OSError", "exc_message": ["no space", 28], "exc_module": "builtins" });
        assert_eq!(of("FAILURE", exception), failed("OSError: no space, 28"));
        assert_eq!(
            of("REVOKED", json!({ "exc_type": "TaskRevokedError" })),
            failed("revoked: TaskRevokedError")
        );
    }

    #[test]
    fn foreign_results_are_rejected_and_invalid_json_fails_the_attempt() {
        let foreign = br#"{"task_id": "4d1e6fd2-ffae-4a3c-bf53-0d21a5ff1a4e", "status": "SUCCESS"}"#;
        assert!(report(None, foreign).is_err());
        let nan = br#"{"task_id": "j:s:1", "status": "SUCCESS", "result": NaN}"#;
        let report = report(Some("j:s:1"), nan).expect("one of ours").expect("a report");
        assert!(matches!(report.kind, ReportKind::Failed { reason } if reason.contains("not JSON")));
    }
}
