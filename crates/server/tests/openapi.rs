//! The description is that of the code, and what it describes is there.

#[path = "support/calls.rs"]
mod calls;
#[path = "support/markdown.rs"]
mod markdown;
mod support;

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;
use solehold_api::{leases::ENVELOPED, paths, problem::ErrorCode};
use solehold_server::{Role, openapi_json};
use solehold_testkit::golden;
use support::{memory, orchestrator, serve, serve_with};

fn document() -> Value {
    serde_json::from_str(openapi_json()).expect("JSON")
}

/// Every path and method of the description.
fn operations() -> Vec<(String, Method)> {
    let document = document();
    let items = document["paths"].as_object().expect("paths").iter();
    let of_item = |(path, item): (&String, &Value)| {
        let methods = item.as_object().expect("an item").keys();
        let method = |name: &String| Method::from_bytes(name.to_uppercase().as_bytes()).expect("a method");
        methods.map(|name| (path.clone(), method(name))).collect::<Vec<_>>()
    };
    items.flat_map(of_item).collect()
}

#[test]
fn the_reference_for_programs_is_kept() {
    golden("openapi.json", openapi_json());
}

#[tokio::test]
async fn the_reference_is_kept_with_calls_that_were_made() {
    let first = serve().await;
    let running = first.running.clone();
    let calls = tokio::task::spawn_blocking(move || calls::page(&running)).await.expect("calls");
    let second = serve_with(orchestrator::configured().await, memory()).await;
    let running = second.running.clone();
    let third = serve().await;
    let other = third.running.clone();
    let examples = tokio::task::spawn_blocking(move || calls::examples(&running, &other)).await;
    let examples = examples.expect("calls");
    let page = markdown::render(&document(), &calls, &examples);
    golden("api.md", &page);
    // What is put together from several schemas is shown whole.
    let grant = page.split("### Grant\n").nth(1).and_then(|rest| rest.split("\n### ").next()).expect("Grant");
    for field in ["token", "lease_id", "holder", "ttl_ms", "confirm_within_ms"] {
        assert!(grant.contains(&format!("| `{field}` |")), "{field} is missing: {grant}");
    }
}

/// A path whatever its placeholders are called.
fn shape(path: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part }).collect::<Vec<_>>().join("/")
}

#[test]
fn every_path_that_clients_know_is_described() {
    let described: BTreeSet<String> = operations().iter().map(|(path, _)| shape(path)).collect();
    let ops = [paths::HEALTH, paths::READY, paths::METRICS];
    let known: BTreeSet<String> = paths::ALL.iter().copied().chain(ops).map(shape).collect();
    assert_eq!(known.difference(&described).collect::<Vec<_>>(), [""; 0], "are not described");
}

#[test]
fn every_operation_documents_its_errors_and_its_role() {
    let document = document();
    assert!(document["components"]["securitySchemes"]["bearer"].is_object());
    assert!(document["components"]["securitySchemes"]["key"].is_object());
    assert!(document["security"].as_array().is_some_and(|all| all.len() == 2));
    let mut ids = BTreeSet::new();
    for (path, method) in operations() {
        let operation = &document["paths"][&path][method.as_str().to_lowercase()];
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        assert!(!id.is_empty() && ids.insert(id.clone()), "{method} {path}: {id} is not an id of its own");
        let is_enveloped = ENVELOPED.contains(&path.as_str());
        let form = if is_enveloped { "application/json" } else { "application/problem+json" };
        assert!(operation["responses"]["default"]["content"][form].is_object(), "{method} {path}");
        assert!(operation["tags"][0].is_string(), "{method} {path}");
    }
}

#[test]
fn codes_are_described_in_the_words_of_the_wire() {
    let described = &document()["components"]["schemas"]["ErrorCode"]["enum"];
    let codes: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(*described, serde_json::json!(codes));
}

#[test]
fn every_text_and_number_of_a_request_is_bounded() {
    let document = document();
    let mut seen = BTreeSet::new();
    for (path, method) in operations() {
        let operation = &document["paths"][&path][method.as_str().to_lowercase()];
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            must_be_bounded(
                &document,
                &parameter["schema"],
                &format!("{method} {path}: {}", parameter["name"]),
                &mut seen,
            );
        }
        let content = operation["requestBody"]["content"].as_object();
        for (kind, body) in content.into_iter().flatten().filter(|(kind, _)| *kind != "application/jsonl") {
            must_be_bounded(&document, &body["schema"], &format!("{method} {path}: {kind}"), &mut seen);
        }
    }
}

/// Sees to it that every text has a length or a form, and every number its bounds.
fn must_be_bounded(document: &Value, schema: &Value, at: &str, seen: &mut BTreeSet<String>) {
    if let Some(to) = schema["$ref"].as_str() {
        if seen.insert(to.to_owned()) {
            must_be_bounded(document, document.pointer(&to[1..]).expect(to), to, seen);
        }
        return;
    }
    let is = |kind: &str| {
        schema["type"] == kind || schema["type"].as_array().is_some_and(|all| all.contains(&kind.into()))
    };
    let has = |words: &[&str]| words.iter().any(|word| schema.get(word).is_some());
    assert!(
        !is("string") || has(&["maxLength", "pattern", "format", "enum"]),
        "{at} has no bounds: {schema}"
    );
    assert!(!is("integer") || (has(&["minimum"]) && has(&["maximum"])), "{at} has no bounds: {schema}");
    let parts = ["oneOf", "anyOf", "allOf"]
        .into_iter()
        .flat_map(|choice| schema[choice].as_array().into_iter().flatten());
    for part in parts.chain(schema.get("items")) {
        must_be_bounded(document, part, at, seen);
    }
    for (field, property) in schema["properties"].as_object().into_iter().flatten() {
        must_be_bounded(document, property, &format!("{at}.{field}"), seen);
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, all: &Value) {
        if let Some(to) = value["$ref"].as_str() {
            let pointer = to.trim_start_matches('#');
            assert!(all.pointer(pointer).is_some(), "{to} leads nowhere");
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|field| walk(field, all)),
            Value::Array(items) => items.iter().for_each(|item| walk(item, all)),
            _ => {}
        }
    }
    let document = document();
    walk(&document, &document);
}

/// The role that an operation is described to need; none, if it needs no key.
fn role_of(document: &Value, path: &str, method: &Method) -> Option<Role> {
    let security = &document["paths"][path][method.as_str().to_lowercase()]["security"];
    assert!(
        security.as_array().is_some_and(|all| !all.is_empty()),
        "{method} {path} does not say who may call"
    );
    let role = security[0].get("bearer")?;
    Some(serde_json::from_value(role[0].clone()).expect("a role"))
}

#[tokio::test]
async fn every_operation_refuses_a_lower_role_before_it_reads_the_body() {
    let asking = serve().await;
    let mut keys = Vec::new();
    for role in [Role::Admin, Role::Runner, Role::Reader] {
        keys.push((role, asking.make_key(role, None).await.1));
    }
    let document = document();
    for (path, method) in operations() {
        let Some(role) = role_of(&document, &path, &method) else { continue };
        let filled = path.replace(['{', '}'], "");
        // A body is announced that never comes: whoever waits for it does not answer.
        let send = async |asking: &support::Asking| {
            let mut half = asking.half_sent(&method, &filled, &["Content-Length: 100"], "{").await;
            half.answer().await
        };
        let answer = send(&asking).await;
        assert_eq!(answer.status, 401, "{method} {path}: {answer:?}");
        for (_, key) in keys.iter().filter(|(lower, _)| *lower < role) {
            let answer = send(&asking.with_key(key.clone())).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.json()["code"]),
                (403, &"forbidden".into()),
                "{method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn every_described_route_exists() {
    let asking = serve().await;
    let served: Value = asking.get(paths::OPENAPI).await.json();
    assert_eq!(served, document());
    for (path, method) in operations() {
        let filled: Vec<_> =
            path.split('/').map(|part| if part.starts_with('{') { "1" } else { part }).collect();
        let request = asking.request(method.clone(), &filled.join("/"));
        let response = request.send().await.expect("an answer");
        let status = response.status().as_u16();
        // A watch has no end to wait for.
        let text = if path == paths::WATCH { String::new() } else { response.text().await.expect("a body") };
        let is_missing = status == 405 || (status == 404 && text.contains("no_such_route"));
        assert!(!is_missing, "{method} {path}: {status} {text}");
        assert!(status != 500, "{method} {path}: {text}");
    }
}
