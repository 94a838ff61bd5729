//! The calls on top of docs/api.md: what is typed there is run, and what was answered is shown.

use std::process::Command;

use serde_json::{Value, json};
use solehold_server::Running;

/// Where the server of the page listens.
const HERE: &str = "http://localhost:7070";
/// The variable that keeps the key of the last call.
const KEY: &str = "SOLEHOLD_API_KEY";

/// What a call is for, and the call. They build on each other.
const CALLS: [(&str, &str); 12] = [
    ("Is the server there, and can it serve?", "curl -s http://localhost:7070/readyz"),
    (
        "Declare a resource.",
        r#"curl -s -X PUT http://localhost:7070/api/v1/resources/job/nightly -d '{"labels": {"tier": "gold"}}'"#,
    ),
    (
        "Acquire it. The `token` is the fencing token: show it wherever the work leaves traces.",
        r#"curl -s http://localhost:7070/api/v1/resources/job/nightly/lease -d '{"holder": "worker-1", "ttl_seconds": 30}'"#,
    ),
    (
        "Nobody else can acquire it meanwhile. `\"wait_ms\": 30000` would wait in line.",
        r#"curl -s http://localhost:7070/api/v1/resources/job/nightly/lease -d '{"holder": "worker-2"}'"#,
    ),
    (
        "Renew the lease before its time has passed.",
        r#"curl -s http://localhost:7070/api/v1/resources/job/nightly/lease/renew -d '{"token": 2}'"#,
    ),
    (
        "Leave a document for the next holder.",
        r#"curl -s -X PUT http://localhost:7070/api/v1/resources/job/nightly/state -d '{"token": 2, "sequence": 1, "document": {"done": 41}}'"#,
    ),
    ("Who holds it?", "curl -s http://localhost:7070/api/v1/resources/job/nightly"),
    (
        "Release it. There is no answer but the status, 204.",
        r#"curl -s -X DELETE http://localhost:7070/api/v1/resources/job/nightly/lease -d '{"token": 2}'"#,
    ),
    ("What happened to it?", "curl -s 'http://localhost:7070/api/v1/resources/job/nightly/history?limit=2'"),
    (
        "A lock is a resource that nobody declares.",
        r#"curl -s http://localhost:7070/api/v1/locks/deploy -d '{"holder": "ci-7", "ttl_seconds": 60}'"#,
    ),
    (
        "Create a key. From now on every call needs one.",
        r#"curl -s http://localhost:7070/api/v1/admin/keys -d '{"name": "me", "role": "admin"}'"#,
    ),
    (
        "Show the key in a header.",
        r#"curl -s -H "Authorization: Bearer $SOLEHOLD_API_KEY" 'http://localhost:7070/api/v1/leases?kind=lock'"#,
    ),
];

/// The calls and their answers, as the page shows them.
pub fn page(running: &Running) -> String {
    let mut page = format!("## {} calls\n\n", CALLS.len());
    page += "Of a new server on this machine, which needs no key yet. Each answer is one line of JSON; here it is \
             indented, and its fields are in alphabetical order.\n\n";
    let mut key = String::new();
    for (what, call) in CALLS {
        let answer = run(call, &running.url(), &key);
        let shown = match answer {
            Value::Null => String::new(),
            mut answer => {
                key = answer["key"].as_str().filter(|key| key.starts_with("shk_")).map_or(key, str::to_owned);
                mask("", &mut answer);
                format!("{answer:#}\n")
            }
        };
        page += &format!("{what}\n\n```console\n$ {call}\n{shown}```\n\n");
    }
    page
}

/// Runs a call as it is typed; an empty answer is null.
fn run(call: &str, url: &str, key: &str) -> Value {
    let call = call.replace(HERE, url);
    let ran = Command::new("sh").args(["-c", &call]).env(KEY, key).output().expect("a shell");
    assert!(ran.status.success(), "{call}: {ran:?}; is curl installed?");
    let text = String::from_utf8(ran.stdout).expect("text");
    if text.is_empty() {
        return Value::Null;
    }
    assert!(text.ends_with("}\n"), "{call}: an answer ends with a newline: {text:?}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{call}: {e}: {text}"))
}

/// Puts fixed values in the place of those that differ from run to run. All calls are shown as if they were made at one
/// moment, so that times and the time that is left agree.
fn mask(field: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(field, value)| mask(field, value));
            let left_ms = fields.get("ttl_ms").and_then(Value::as_u64);
            let expires_at = fields.get_mut("expires_at").filter(|at| at.is_string());
            if let (Some(left_ms), Some(expires_at)) = (left_ms, expires_at) {
                *expires_at = json!(after(left_ms));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(field, item)),
        Value::Null => {}
        value => {
            let masked = match field {
                "lease_id" | "session_id" => json!("8f14e45f-ceea-467f-a0e6-b1d1f3c2a901"),
                "request_id" => json!("5d1c2b7e-1a"),
                "node_id" => json!("host-1f5eaf"),
                "key" if value.as_str().is_some_and(|text| text.starts_with("shk_")) => json!("shk_k7d2_..."),
                "id" => json!("k7d2"),
                "by" => json!("k7d2"),
                "ttl_ms" | "retry_after_ms" => json!(whole(value.as_u64().unwrap_or_default())),
                "detail" | "reason" => json!(without_times(value.as_str().unwrap_or_default())),
                _ if is_time(value) => json!(after(0)),
                _ => return,
            };
            *value = masked;
        }
    }
}

/// What was left at first of a time that has begun to pass.
fn whole(left_ms: u64) -> u64 {
    left_ms.div_ceil(30_000) * 30_000
}

/// The moment of the calls, and so much later.
fn after(ms: u64) -> String {
    let seconds = ms / 1_000;
    format!("2026-01-22T10:{:02}:{:02}.000Z", seconds / 60, seconds % 60)
}

fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() == 24 && text.ends_with('Z') && &text[10..11] == "T")
}

/// A text whose durations are all the same.
fn without_times(text: &str) -> String {
    let is_duration = |word: &str| {
        let word = word.trim_end_matches([',', ';', '.', ')']).trim_end_matches("ms").trim_end_matches('s');
        word.parse::<f64>().is_ok()
    };
    let mut after_duration = false;
    let mut words = Vec::new();
    for word in text.split(' ') {
        let is_unit = ["ms", "s"].contains(&word.trim_end_matches([',', ';', '.', ')']));
        match word {
            _ if after_duration && is_unit => {
                words.pop();
                words.push("30000");
                words.push(word);
            }
            _ if word.ends_with('s') && is_duration(word) => words.push("30s"),
            _ => words.push(word),
        }
        after_duration = is_duration(word);
    }
    words.join(" ")
}
