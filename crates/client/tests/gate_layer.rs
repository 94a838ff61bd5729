//! The gate as a layer of an HTTP service.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    routing::put,
};
use serde_json::Value;
use solehold_client::{
    ClientSession, Embedded, Guard, SessionConfig, Token,
    gate::{Gate, GateLayer, GateOptions, WhenOlder},
};
use tokio::sync::Notify;
use tower::ServiceExt;

/// Lets a request to `/slow` end, and tells that it has begun.
#[derive(Clone, Default)]
struct Slow {
    has_begun: Arc<Notify>,
    may_end: Arc<Notify>,
}

async fn slow(State(slow): State<Slow>) -> &'static str {
    slow.has_begun.notify_one();
    slow.may_end.notified().await;
    "slow"
}

async fn ask(router: &Router, method: &str, path: &str, headers: &[(&str, &str)]) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let answer = router.clone().oneshot(request).await.expect("an answer");
    let status = answer.status();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        assert!(answer.headers().contains_key("retry-after"));
    }
    let body = to_bytes(answer.into_body(), 10_000).await.expect("a body");
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

async fn write(router: &Router, path: &str, token: Token) -> (StatusCode, Value) {
    let token = token.to_string();
    ask(router, "PUT", path, &[("Solehold-Resource", "scene/lobby"), ("Solehold-Token", &token)]).await
}

/// A router behind a gate, and a resource whose holder has changed while a request of the former one, whose caller went
/// away, is still running.
struct Overtaken {
    router: Router,
    slow: Slow,
    old: Token,
    new: Guard,
    _session: ClientSession,
}

async fn overtaken(layer: impl FnOnce(GateLayer) -> GateLayer) -> Overtaken {
    let engine = Arc::new(Embedded::open("memory:").await.expect("an engine"));
    let gate = Gate::open(engine.clone(), GateOptions::new(["scene"]).expect("a kind")).expect("a gate");
    let slow_gate = Slow::default();
    let router = Router::new()
        .route("/", put(async || "written"))
        .route("/slow", put(slow))
        .with_state(slow_gate.clone())
        .layer(layer(GateLayer::new(Arc::new(gate)).patience(Duration::from_millis(200))));
    let session = ClientSession::open(engine, SessionConfig::new("one")).await.expect("a session");
    let first = session.acquire("scene", "lobby").await.expect("granted");
    let old = first.token();
    let caller = tokio::spawn({
        let router = router.clone();
        async move { write(&router, "/slow", old).await }
    });
    slow_gate.has_begun.notified().await;
    caller.abort();
    assert!(caller.await.expect_err("the caller is gone").is_cancelled());
    first.release().await.expect("released");
    let new = session.acquire("scene", "lobby").await.expect("granted");
    Overtaken { router, slow: slow_gate, old, new, _session: session }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_request_stays_out_while_an_older_one_whose_caller_went_away_still_runs() {
    let Overtaken { router, slow, old, new, _session } = overtaken(|layer| layer).await;
    let (status, problem) = write(&router, "/", new.token()).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &"in_flight".into()),
        "{problem}"
    );
    let expected = format!("the oldest has token {old}");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(&expected)), "{problem}");
    slow.may_end.notify_one();
    loop {
        match write(&router, "/", new.token()).await {
            (StatusCode::OK, _) => break,
            refused => assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_request_passes_a_running_one_where_it_may_cut_it_off() {
    let Overtaken { router, new, _session, .. } = overtaken(|layer| layer.when_older(WhenOlder::Cut)).await;
    assert_eq!(write(&router, "/", new.token()).await.0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tokens_do_not_reach_the_service() {
    let engine = Arc::new(Embedded::open("memory:").await.expect("an engine"));
    let gate = Gate::open(engine.clone(), GateOptions::new(["scene"]).expect("a kind")).expect("a gate");
    let slow_gate = Slow::default();
    let router = Router::new()
        .route("/", put(async || "written").get(async || "read"))
        .route("/slow", put(slow))
        .with_state(slow_gate.clone())
        .layer(GateLayer::new(Arc::new(gate)));
    let session = ClientSession::open(engine, SessionConfig::new("one")).await.expect("a session");
    let first = session.acquire("scene", "lobby").await.expect("granted");
    let old = first.token();
    assert_eq!(write(&router, "/", old).await.0, StatusCode::OK);

    // A request that was admitted in time is still under way when the next holder's comes.
    let under_way = tokio::spawn({
        let router = router.clone();
        async move { write(&router, "/slow", old).await.0 }
    });
    slow_gate.has_begun.notified().await;
    first.release().await.expect("released");
    let second = session.acquire("scene", "lobby").await.expect("granted");
    let new = second.token();
    let next = tokio::spawn({
        let router = router.clone();
        async move { write(&router, "/", new).await.0 }
    });
    // As soon as the gate knows of the newer token, the older one is refused, though the newer still waits.
    let (status, problem) = loop {
        match write(&router, "/", old).await {
            (StatusCode::OK, _) => tokio::task::yield_now().await,
            refused => break refused,
        }
    };
    assert_eq!((status, &problem["code"]), (StatusCode::PRECONDITION_FAILED, &"stale".into()));
    assert_eq!(problem["token"], new.0);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("stop this work")), "{problem}");
    // Long enough for the newer one to get through, if it did not wait.
    for _ in 0..1_000 {
        assert_eq!(write(&router, "/", old).await.0, StatusCode::PRECONDITION_FAILED);
    }
    assert!(!next.is_finished(), "one with a lower token is under way");
    slow_gate.may_end.notify_one();
    assert_eq!(under_way.await.expect("answered"), StatusCode::OK);
    assert_eq!(next.await.expect("answered"), StatusCode::OK);

    let (status, problem) = write(&router, "/", Token(new.0 + 1_000)).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &"never_given".into()));
    assert_eq!(ask(&router, "GET", "/", &[]).await.0, StatusCode::OK, "reads need no token");
    for (headers, wanted) in [
        (&[][..], "are missing"),
        (&[("Solehold-Resource", "scene/lobby")][..], "are missing"),
        (&[("Solehold-Resource", "lobby"), ("Solehold-Token", "1")][..], "write KIND/KEY"),
        (&[("Solehold-Resource", "scene/"), ("Solehold-Token", "1")][..], "the key is empty"),
        (
            &[("Solehold-Resource", "scene/lobby"), ("Solehold-Token", "-1")][..],
            "write the token of the grant",
        ),
        (
            &[("Solehold-Resource", "scene/lobby"), ("Solehold-Token", "+1")][..],
            "write the token of the grant",
        ),
        (
            &[("Solehold-Resource", "scene/lobby"), ("Solehold-Token", "1"), ("Solehold-Token", "2")][..],
            "must be given once",
        ),
        (
            &[("Solehold-Resource", "scene/lobby"), ("Solehold-Token", "1"), ("Solehold-Slot", "0")][..],
            "write the slot of the grant",
        ),
    ] {
        let (status, problem) = ask(&router, "PUT", "/", headers).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(
            status == StatusCode::BAD_REQUEST && detail.contains(wanted),
            "{headers:?}: {status} {problem}"
        );
    }
}

/// Those who share a resource write side by side; an exclusive holder fences them, and each of them the one before.
#[tokio::test]
async fn slots_and_exclusive_holders_are_fenced_from_each_other() {
    let engine = Arc::new(Embedded::open("memory:").await.expect("an engine"));
    let gate = Gate::open(engine.clone(), GateOptions::new(["scene"]).expect("a kind")).expect("a gate");
    let layer = GateLayer::new(Arc::new(gate));
    let router = Router::new().route("/", put(async || "written")).layer(layer);
    let session = ClientSession::open(engine, SessionConfig::new("one")).await.expect("a session");
    let shown = |guard: &Guard| (guard.token().to_string(), guard.slot().map(|slot| slot.to_string()));
    let write = async |(token, slot): &(String, Option<String>)| {
        let mut headers = vec![("Solehold-Resource", "scene/lobby"), ("Solehold-Token", token.as_str())];
        headers.extend(slot.as_deref().map(|slot| ("Solehold-Slot", slot)));
        ask(&router, "PUT", "/", &headers).await.0
    };
    let share = async || session.acquire_shared("scene", "lobby", 2, None).await.expect("granted");
    let sharers = [share().await, share().await];
    let shared = sharers.each_ref().map(shown);
    for of in [&shared[0], &shared[1], &shared[0]] {
        assert_eq!(write(of).await, StatusCode::OK, "none fences the other");
    }
    for guard in sharers {
        guard.release().await.expect("released");
    }
    let alone = session.acquire("scene", "lobby").await.expect("granted");
    let of_alone = shown(&alone);
    assert_eq!(write(&of_alone).await, StatusCode::OK);
    for of in &shared {
        assert_eq!(write(of).await, StatusCode::PRECONDITION_FAILED, "an exclusive holder came");
    }
    alone.release().await.expect("released");
    let third = share().await;
    assert_eq!(write(&shown(&third)).await, StatusCode::OK);
    assert_eq!(write(&of_alone).await, StatusCode::PRECONDITION_FAILED, "a sharer came");
}
