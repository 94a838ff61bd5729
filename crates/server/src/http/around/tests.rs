use std::sync::Arc;

use axum::{Router, body::to_bytes, middleware, routing::get};
use serde_json::Value;
use solehold_engine::{Engine, EngineOptions, clock::BootClock, resident};
use tower::ServiceExt;

use super::*;
use crate::{context::ContextOptions, limits::ServerLimits, metrics::Metrics};

/// Asks a router of odd handlers, with all that goes around them.
async fn ask(path: &str) -> (Response, Value) {
    let metrics = Arc::new(Metrics::new("n"));
    let store = resident::memory(BootClock).expect("memory");
    let engine = Engine::start(store, EngineOptions::default(), metrics.clone());
    let limits = ServerLimits { request_timeout: Duration::from_millis(50), ..ServerLimits::default() };
    let options = ContextOptions {
        node_id: "n".to_owned(),
        limits,
        guards_metrics: false,
        is_loopback: true,
        orchestrator: None,
    };
    let context = Context::new(engine, options, metrics);
    let router = Router::new()
        .route("/panic", get(async || -> () { panic!("an odd handler") }))
        .route("/never", get(std::future::pending::<()>))
        .route("/bare", get(async || (StatusCode::CONFLICT, "some words")))
        .route("/json", get(async || (StatusCode::CONFLICT, axum::Json(7))))
        .layer(middleware::from_fn_with_state(context.clone(), around));
    let peer = Peer { ip: std::net::Ipv4Addr::LOCALHOST.into(), names: Arc::default() };
    let request = Request::builder().uri(path).extension(peer).body(Body::empty()).expect("a request");
    let mut response = router.oneshot(request).await.expect("an answer");
    let body = std::mem::take(response.body_mut());
    let body = to_bytes(body, 100_000).await.expect("a body");
    (response, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn a_panic_is_a_problem_with_the_request_id() {
    let (response, problem) = ask("/panic").await;
    assert_eq!(response.status(), 500);
    assert_eq!((&problem["code"], &problem["instance"]), (&"internal".into(), &"/panic".into()));
    assert_eq!(problem["request_id"], response.headers()["x-request-id"].to_str().expect("text"));
    assert!(!problem.to_string().contains("odd handler"), "the log tells it, not the answer");
}

#[tokio::test]
async fn a_request_that_times_out_has_an_unknown_outcome() {
    let (response, problem) = ask("/never").await;
    assert_eq!((response.status().as_u16(), &problem["code"]), (503, &"unknown_outcome".into()));
    assert_eq!(problem["limit"]["name"], "request_timeout_ms");
}

#[tokio::test]
async fn a_bare_error_becomes_a_problem_and_json_stays_as_it_is() {
    let (_, problem) = ask("/bare").await;
    assert_eq!((&problem["code"], &problem["status"]), (&"conflict".into(), &409.into()));
    let (response, body) = ask("/json").await;
    assert_eq!((response.status().as_u16(), body), (409, 7.into()));
}

#[test]
fn sane_request_ids_are_taken_and_others_made() {
    let id = |given: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static(given));
        request_id(&headers)
    };
    assert_eq!(id("0190-ab.c:d/e+f=_"), "0190-ab.c:d/e+f=_");
    for odd in ["", "with space", "quo\"te", "{json}"] {
        assert_ne!(id(odd), odd);
    }
    assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
}
