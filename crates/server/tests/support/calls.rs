//! The calls of docs/api.md: what is typed there is run, and what was answered is shown. A few stand on top of the page
//! and build on each other; `calls.txt` has one for each operation.

use std::{collections::BTreeMap, process::Command};

use serde_json::{Value, json};
use solehold_server::Running;

/// Where the server of the page listens, and the one that takes over from it.
const HERE: &str = "http://localhost:7070";
const THERE: &str = "http://localhost:7071";
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
        let text = run(call, &running.url(), "", &key);
        let answer: Value = if text.is_empty() { Value::Null } else { parsed(call, &text) };
        key = answer["key"].as_str().filter(|key| key.starts_with("shk_")).map_or(key, str::to_owned);
        let shown = shown(&text);
        page += &format!("{what}\n\n```console\n$ {call}\n{shown}```\n\n");
    }
    page
}

/// A call of each operation and its answer, by method and path: `GET /api/v1/leases/1`. They are made in their order.
pub fn examples(running: &Running, other: &Running) -> BTreeMap<String, String> {
    let mut examples = BTreeMap::new();
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    let mut key = String::new();
    let lines = include_str!("calls.txt").lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (is_shown, line) = line.strip_prefix("+ ").map_or((true, line), |rest| (false, rest));
        let call = command(line, !key.is_empty());
        let text = run(&with_names(&call, &names), &running.url(), &other.url(), &key);
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        let problem = answer["type"].as_str().filter(|kind| kind.starts_with("urn:solehold:problem:"));
        assert!(problem.is_none(), "{call}: {text}");
        if is_shown {
            let masked = names.iter().map(|(&name, value)| (name, masked_name(name, value))).collect();
            let block = format!("```console\n$ {}\n{}```", with_names(&call, &masked), shown(&text));
            examples.entry(operation(&call)).or_insert(block);
        }
        for (name, field) in NAMES {
            if let Some(value) = first(&answer, field) {
                names.insert(name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
        }
        let is_new = answer["key"].as_str().filter(|text| key.is_empty() && text.starts_with("shk_"));
        key = is_new.map_or(key, str::to_owned);
    }
    examples
}

/// The words of `calls.txt` that stand for what an earlier answer had, and the fields that had it.
const NAMES: [(&str, &str); 5] = [
    ("TOKEN", "token"),
    ("VERSION", "version"),
    ("LEASE_ID", "lease_id"),
    ("SESSION_ID", "session_id"),
    ("KEY_ID", "id"),
];

/// A line of `calls.txt` as a command; with a key, if one is needed by now.
fn command(line: &str, needs_key: bool) -> String {
    if let Some(command) = line.strip_prefix("$ ") {
        return command.to_owned();
    }
    let mut parts = line.splitn(3, ' ');
    let method = parts.next().expect("a method");
    let path = parts.next().expect("a path");
    let body = parts.next().map(|body| format!(" -d '{body}'")).unwrap_or_default();
    let is_implied = method == "GET" || (method == "POST" && !body.is_empty());
    let method = if is_implied { String::new() } else { format!("-X {method} ") };
    let header = if needs_key { format!("-H \"Authorization: Bearer ${KEY}\" ") } else { String::new() };
    let quote = if path.contains('?') { "'" } else { "" };
    format!("curl -s {method}{header}{quote}{HERE}{path}{quote}{body}")
}

/// The method and the path of the last call of a command.
fn operation(call: &str) -> String {
    let call = call.rsplit("| curl ").next().unwrap_or(call);
    let (_, rest) = call.split_once("http://localhost:707").expect("an address");
    let path = rest[1..].split(['?', ' ', '\'']).next().unwrap_or_default();
    let given = call.split_once("-X ").and_then(|(_, rest)| rest.split(' ').next());
    let has_body = call.contains(" -d ") || call.contains(" --data-binary ");
    format!("{} {path}", given.unwrap_or(if has_body { "POST" } else { "GET" }))
}

fn with_names(call: &str, names: &BTreeMap<&str, String>) -> String {
    names.iter().fold(call.to_owned(), |call, (name, value)| call.replace(name, value))
}

/// What the page shows in the place of a name: ids differ from run to run.
fn masked_name(name: &str, value: &str) -> String {
    match name {
        "LEASE_ID" | "SESSION_ID" => UUID.to_owned(),
        "KEY_ID" => KEY_ID.to_owned(),
        _ => value.to_owned(),
    }
}

/// The first field of this name that says something, those of an object before what is within it.
fn first<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    let is_said = |found: &&Value| found.is_u64() || found.as_str().is_some_and(|text| !text.is_empty());
    if let Some(found) = value.get(field).filter(is_said) {
        return Some(found);
    }
    match value {
        Value::Object(fields) => fields.values().find_map(|value| first(value, field)),
        Value::Array(items) => items.iter().find_map(|value| first(value, field)),
        _ => None,
    }
}

/// Runs a call as it is typed, and returns what it prints.
fn run(call: &str, here: &str, there: &str, key: &str) -> String {
    let call = call.replace(HERE, here).replace(THERE, there);
    let ran = Command::new("sh").args(["-c", &call]).env(KEY, key).output().expect("a shell");
    assert!(ran.status.success(), "{call}: {ran:?}; are curl and jq installed?");
    String::from_utf8(ran.stdout).expect("text")
}

fn parsed(call: &str, text: &str) -> Value {
    assert!(text.ends_with("}\n"), "{call}: an answer ends with a newline: {text:?}");
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{call}: {e}: {text}"))
}

/// An answer as the page shows it: documents indented, lines of a stream as they came.
fn shown(text: &str) -> String {
    if let Ok(mut answer) = serde_json::from_str::<Value>(text) {
        mask("", &mut answer);
        return format!("{answer:#}\n");
    }
    let line = |line: &str| match line.strip_prefix("data: ").map(serde_json::from_str::<Value>) {
        Some(Ok(mut event)) => {
            mask("", &mut event);
            format!("data: {event}\n")
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

const UUID: &str = "8f14e45f-ceea-467f-a0e6-b1d1f3c2a901";
const KEY_ID: &str = "k7d2";

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
            let text = value.as_str().unwrap_or_default();
            let number = value.as_u64().unwrap_or_default();
            let masked = match field {
                "lease_id" | "session_id" => json!(UUID),
                "sessions" if text.len() == UUID.len() => json!(UUID),
                "request_id" => json!("5d1c2b7e-1a"),
                // Nodes of the examples have names of their own.
                "node_id" if !text.starts_with("worker-") && !text.starts_with("gpu-") => {
                    json!("host-1f5eaf")
                }
                "key" if text.starts_with("shk_") => json!("shk_k7d2_..."),
                "id" | "by" | "key_id" => json!(KEY_ID),
                "target" if text.starts_with("key/") => json!(format!("key/{KEY_ID}")),
                // Entries of the audit trail are named by their time.
                "next" if text.len() == 33 => json!("0000019be52a6100-1cbcba83e911737a"),
                "ttl_ms" | "retry_after_ms" | "after_ms" => json!(whole(number)),
                "detail" | "reason" => json!(without_times(text)),
                "sealed_cursor" => json!("1.7.0.9c1e5a4f..."),
                "version" | "config_version" | "zone_version" if text.len() >= 16 => {
                    json!("9d6ecc5fe117e97a")
                }
                "uptime_seconds" => json!(7),
                "now" => json!(1_769_076_000_000_u64),
                // Those of another history are drawn by lot.
                "epoch" | "above" if number > 1_000 => json!(4_711_000_000_u64),
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
