//! What holds for every request, whatever it asks.

mod support;

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::get};
use reqwest::Method;
use solehold_api::paths;
use solehold_server::{Server, ServerConfig};
use solehold_testkit::wait_for;
use support::{Answer, PATIENCE, config, flaky::Flaky, memory, serve, serve_with};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    time::timeout,
};

#[tokio::test]
async fn every_error_is_a_problem_document() {
    let asking = serve().await;
    let no_route = asking.get("/nowhere").await;
    assert_eq!(no_route.problem("no_such_route")["instance"], "/nowhere");
    asking.get("/api/v1/nowhere/at/all").await.problem("no_such_route");
    let wrong_method = asking.send(Method::PATCH, "/api/v1/scenes/1/lease", "").await;
    wrong_method.problem("method_not_allowed");
    let allowed: Vec<_> = wrong_method.header("allow").split(',').collect();
    for method in ["GET", "HEAD", "POST", "DELETE"] {
        assert!(allowed.contains(&method), "{allowed:?}");
    }
    let bad_json = asking.send(Method::POST, "/api/v1/admin/raise-token", "{\"above\":\n nine}").await;
    let problem = bad_json.problem("invalid_json");
    assert!(problem["detail"].to_string().contains("line 2 column 3"), "{problem}");
    let bad_field = asking.send(Method::POST, "/api/v1/admin/raise-token", r#"{"above": "x"}"#).await;
    assert_eq!(bad_field.problem("invalid_field")["errors"][0]["field"], "above");
    asking.get("/api/v1/admin/keys?limit=x").await.problem("invalid_field");
    asking.get("/api/v1/admin/keys/%FF").await.problem("invalid_field");
}

#[tokio::test]
async fn a_large_body_is_refused_and_the_bound_is_named() {
    let asking = serve().await;
    let body = format!(r#"{{"above": 1, "x": "{}"}}"#, "x".repeat(1024 * 1024));
    let answer = asking.send(Method::POST, "/api/v1/admin/raise-token", &body).await;
    let problem = answer.problem("payload_too_large");
    assert_eq!(
        (&problem["limit"]["name"], &problem["limit"]["value"]),
        (&"body_bytes".into(), &1048576.into())
    );
}

#[tokio::test]
async fn a_body_announced_as_too_large_is_refused_before_it_is_sent() {
    let asking = serve().await;
    for (method, path, bytes, code) in [
        (Method::PUT, "/api/v1/resources/job/k", 1024 * 1024 + 1_u64, 413),
        (Method::POST, "/api/v1/leases/acquire", 1 << 40, 413),
        (Method::POST, "/api/v1/admin/import", (1 << 30) + 1, 413),
        // One that is not too large is waited for.
        (Method::PUT, "/api/v1/resources/job/k", 2, 201),
    ] {
        let length = format!("Content-Length: {bytes}");
        let mut asked = asking.half_sent(&method, path, &[&length, "Expect: 100-continue"], "").await;
        let answer = asked.answer().await;
        if code == 413 {
            assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (413, &"payload_too_large".into()));
        } else {
            assert_eq!(answer.status, 100, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_body_that_stops_arriving_is_a_request_timeout() {
    let mut config = config();
    config.limits.request_timeout = Duration::from_millis(300);
    let asking = serve_with(config, memory()).await;
    for (method, path) in [
        (Method::PUT, "/api/v1/resources/job/k"),
        (Method::POST, "/api/v1/locks/l"),
        (Method::POST, "/api/v1/leases/acquire"),
        (Method::POST, "/api/v1/admin/import"),
    ] {
        let mut asked = asking.half_sent(&method, path, &["Content-Length: 1000"], "{\"hold").await;
        let answer = asked.answer().await;
        let problem = answer.json();
        assert_eq!((answer.status.as_u16(), &problem["code"]), (408, &"request_timeout".into()), "{path}");
        assert_eq!(problem["limit"]["value"], 300);
        assert_eq!(problem["request_id"], answer.header("x-request-id"));
    }
}

#[tokio::test]
async fn a_client_that_is_still_sending_sees_why_it_was_refused() {
    let asking = serve().await;
    let large = "x".repeat(5 * 1024 * 1024);
    let length = format!("Content-Length: {}", large.len());
    // As many clients do, it reads no answer before all is sent.
    let send = async || {
        let mut sent = asking.half_sent(&Method::PUT, "/api/v1/resources/job/k", &[&length], &large).await;
        sent.answer().await
    };
    send().await.problem("payload_too_large");
    asking.make_key(solehold_server::Role::Admin, None).await;
    send().await.problem("unauthorized");
}

#[tokio::test]
async fn single_leases_fail_within_an_envelope_whatever_fails() {
    let asking = serve().await;
    let lease = "/api/v1/leases/8f14e45f-ceea-467f-a0e6-b1d1f3c2a901";
    let large = "x".repeat(1024 * 1024 + 1);
    let failures = [
        (Method::GET, lease.to_owned(), "", "not_found"),
        (Method::PATCH, lease.to_owned(), "", "method_not_allowed"),
        (Method::PUT, format!("{lease}/renew"), "{", "invalid_json"),
        (Method::PUT, format!("{lease}/renew?tenant="), "{}", "invalid_field"),
        (Method::POST, "/api/v1/leases/acquire".to_owned(), &large, "payload_too_large"),
    ];
    let check = |answer: Answer, code: &str| {
        let envelope = answer.json();
        assert_eq!((&envelope["success"], &envelope["code"]), (&false.into(), &code.into()), "{answer:?}");
        assert_eq!(envelope["error"], envelope["detail"]);
        assert_eq!(envelope["status"], answer.status.as_u16());
        assert_eq!(envelope["request_id"], answer.header("x-request-id"));
        assert_eq!(answer.header("content-type"), "application/json");
    };
    for (method, path, body, code) in failures {
        check(asking.send(method, &path, body).await, code);
    }
    asking.make_key(solehold_server::Role::Admin, None).await;
    let refused = asking.get(lease).await;
    assert_eq!(refused.header("www-authenticate"), "Bearer realm=\"solehold\"");
    check(refused, "unauthorized");
}

#[tokio::test]
async fn answers_of_json_end_with_a_newline() {
    let asking = serve().await;
    let put = asking.send(Method::PUT, "/api/v1/resources/job/k", "{}").await;
    for answer in [put, asking.get("/healthz").await, asking.get("/nowhere").await] {
        assert!(answer.text.ends_with("}\n") && !answer.text.ends_with("\n\n"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_trailing_slash_or_none_and_encoded_slashes_stay_in_names() {
    let asking = serve().await;
    for path in
        ["/healthz", "/healthz/", "/api/v1/admin/keys", "/api/v1/admin/keys/", "/api/v1/admin/keys//?limit=1"]
    {
        assert_eq!(asking.get(path).await.status, 200, "{path}");
    }
    for (path, tenant) in
        [("a%2Fb", "a/b"), ("a%2F/", "a/"), ("%2F", "/"), ("%252F", "%2F"), ("s%C3%B6hne", "söhne")]
    {
        let answer = asking.get(&format!("/api/v1/admin/tenants/{path}")).await;
        assert_eq!(answer.json()["tenant"], tenant, "{path}");
    }
}

#[tokio::test]
async fn head_works_where_get_does() {
    let asking = serve().await;
    for path in ["/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/api/v1/admin/keys"] {
        let get = asking.get(path).await;
        let head = Answer::of(asking.request(Method::HEAD, path)).await;
        assert_eq!((head.status, head.text.as_str()), (get.status, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
    }
    let problem = Answer::of(asking.request(Method::HEAD, "/nowhere")).await;
    assert_eq!((problem.status.as_u16(), problem.text.as_str()), (404, ""));
}

#[tokio::test]
async fn answers_bear_the_request_id_and_the_node() {
    let asking = serve().await;
    let answer = Answer::of(asking.request(Method::GET, "/nowhere").header("x-request-id", "my-id.1")).await;
    assert_eq!(
        (answer.header("x-request-id"), answer.header("x-solehold-node")),
        ("my-id.1", "node-under-test")
    );
    assert_eq!(answer.problem("no_such_route")["request_id"], "my-id.1");
    let odd = Answer::of(asking.request(Method::GET, "/healthz").header("x-request-id", "a b\"c")).await;
    assert!(!odd.header("x-request-id").contains('"') && !odd.header("x-request-id").is_empty());
    assert_ne!(asking.get("/healthz").await.header("x-request-id"), odd.header("x-request-id"));
}

#[tokio::test]
async fn health_names_the_node_and_readiness_checks_the_store() {
    let store = Flaky::over(memory());
    let asking = serve_with(config(), store.clone()).await;
    let health = asking.get(paths::HEALTH).await.json();
    assert_eq!((&health["status"], &health["node_id"]), (&"ok".into(), &"node-under-test".into()));
    assert!(health["version"].is_string() && health["uptime_seconds"].is_u64(), "{health}");
    assert_eq!(asking.get(paths::READY).await.json()["ready"], true);

    store.set_down(true);
    let answer = asking.get(paths::READY).await;
    answer.problem("unavailable");
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
    assert_eq!(asking.get(paths::HEALTH).await.status, 200);
    assert!(asking.get(paths::METRICS).await.text.contains("solehold_store_up 0"));
    let refused = asking.send(Method::POST, "/api/v1/admin/raise-token", r#"{"above": 9}"#).await;
    refused.problem("unavailable");
    assert_eq!(refused.header("retry-after"), "1");

    store.set_down(false);
    let ready = async || asking.get(paths::READY).await.status == 200;
    wait_for("readiness to come back by itself", PATIENCE, ready).await.expect("ready");
    let raised = asking.send(Method::POST, "/api/v1/admin/raise-token", r#"{"above": 9}"#).await;
    assert_eq!(raised.status, 200, "{raised:?}");
}

#[tokio::test]
async fn one_address_without_a_key_is_limited() {
    let mut config = config();
    (config.limits.requests_per_second, config.limits.requests_burst) = (1, 3);
    let asking = serve_with(config, memory()).await;
    let mut refused = None;
    for _ in 0..5 {
        let answer = asking.get("/api/v1/admin/keys").await;
        refused = refused.or((answer.status == 429).then_some(answer));
    }
    let refused = refused.expect("a refusal");
    assert_eq!(refused.problem("too_many_requests")["limit"]["name"], "requests_per_second");
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(asking.get("/healthz").await.status, 200, "the ops routes are not limited");
}

#[tokio::test]
async fn metrics_tell_of_requests_and_operations() {
    let asking = serve().await;
    asking.send(Method::POST, "/api/v1/admin/raise-token", r#"{"above": 7}"#).await;
    asking.get("/api/v1/nowhere/0190").await;
    let answer = asking.get(paths::METRICS).await;
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"));
    for line in [
        r#"solehold_http_requests_total{route="/api/v1/admin/raise-token",method="POST",status="200"} 1"#,
        r#"solehold_http_requests_total{route="none",method="GET",status="404"} 1"#,
        r#"solehold_operations_total{operation="raise_revision",outcome="ok"} 1"#,
        r#"solehold_operation_seconds_count{operation="raise_revision"} 1"#,
        r#"solehold_batch_commands_count{lane="news"}"#,
        r#"solehold_store_seconds_count{lane="news"}"#,
        "solehold_live_leases 0",
        "solehold_sessions 0",
        "solehold_watchers 0",
        "solehold_connections 1",
        "solehold_sweeper_lag_seconds",
        "solehold_sweeper_nominations_total",
        "solehold_store_up 1",
    ] {
        assert!(answer.text.contains(line), "{line} is missing in\n{}", answer.text);
    }
    assert!(!answer.text.contains("0190"), "a path is no label");
}

#[tokio::test]
async fn shutdown_lets_a_request_finish_and_takes_no_more() {
    let begun = Arc::new(Notify::new());
    let may_end = Arc::new(Notify::new());
    let tell = begun.clone();
    let wait = may_end.clone();
    let slow = async move || {
        tell.notify_one();
        wait.notified().await;
        "finished"
    };
    let more = Router::new().route("/slow", get(slow));
    let running = Server::start_with(config(), memory(), more).await.expect("it starts");
    let url = running.url();
    let address = running.local_addr();
    let request = tokio::spawn(reqwest::get(format!("{url}/slow")));
    timeout(PATIENCE, begun.notified()).await.expect("it is in flight");
    let shutdown = tokio::spawn(running.shutdown());
    let is_closed = || async { TcpStream::connect(address).await.is_err() };
    wait_for("no more connections are taken", PATIENCE, is_closed).await.expect("it stops");
    assert!(!shutdown.is_finished(), "a request is in flight");
    may_end.notify_one();
    let answer = timeout(PATIENCE, request).await.expect("in time").expect("no panic").expect("an answer");
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.expect("a body")),
        (200, "finished".to_owned())
    );
    timeout(PATIENCE, shutdown).await.expect("in time").expect("no panic");
}

#[tokio::test]
async fn a_bind_beyond_loopback_needs_a_key() {
    let wide = || ServerConfig { listen: "0.0.0.0:0".parse().expect("an address"), ..config() };
    let refused = solehold_server::Server::start(wide(), memory()).await.expect_err("no keys");
    let text = refused.to_string();
    assert!(text.contains("solehold admin key create") && text.contains("SOLEHOLD_BOOTSTRAP_KEY"), "{text}");

    let key = "a secret that is long enough: 0123456789";
    let with_key = ServerConfig { bootstrap_key: Some(key.into()), ..wide() };
    let asking = serve_with(with_key, memory()).await;
    let path = format!("http://127.0.0.1:{}/api/v1/admin/keys", asking.running.local_addr().port());
    assert_eq!(asking.http.get(&path).send().await.expect("an answer").status(), 401);
    let answer = asking.http.get(&path).header("x-api-key", key).send().await.expect("an answer");
    let keys: serde_json::Value = answer.json().await.expect("a list");
    assert_eq!(keys["keys"][0]["name"], "bootstrap");
    assert!(!keys.to_string().contains("secret"));
}

#[tokio::test]
async fn connections_without_a_complete_request_are_closed() {
    let mut config = config();
    config.limits.idle_timeout = Duration::from_millis(100);
    let asking = serve_with(config, memory()).await;
    for said in ["", "P", "PRI * HT", "GET /heal", "GET /healthz HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
        stream.write_all(said.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        let end = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(end.is_ok(), "{said:?} holds a connection for ever");
    }
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_their_turn() {
    let mut config = config();
    config.limits.connections_max = 1;
    let asking = serve_with(config, memory()).await;
    let first = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
    let waiting = tokio::spawn(asking.http.get(format!("{}/healthz", asking.running.url())).send());
    let is_taken = async || asking.running.connections() == 1;
    wait_for("the first connection to be taken", PATIENCE, is_taken).await.expect("taken");
    assert!(!waiting.is_finished());
    drop(first);
    let answer = timeout(PATIENCE, waiting).await.expect("in time").expect("a task").expect("an answer");
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let mut config = config();
    config.limits.shutdown_grace = Duration::from_millis(200);
    let asking = serve_with(config, memory()).await;
    // A reader that does not read, of more than its socket holds.
    let mut deaf = TcpStream::connect(asking.running.local_addr()).await.expect("a connection");
    let ask = "GET /api/v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200);
    deaf.write_all(ask.as_bytes()).await.expect("sent");
    timeout(PATIENCE, asking.shutdown()).await.expect("the server stops");
}

#[tokio::test]
async fn pages_from_elsewhere_are_refused_while_there_are_no_keys() {
    let asking = serve().await;
    let from = |origin: String| asking.request(Method::POST, "/api/v1/admin/keys").header("origin", origin);
    Answer::of(from("http://evil.example".to_owned()).body("{}")).await.problem("forbidden");
    Answer::of(from(asking.running.url()).body("{}")).await.problem("invalid_field");
    let rebound = asking.request(Method::GET, "/api/v1/admin/export").header("host", "evil.example:7070");
    Answer::of(rebound).await.problem("forbidden");
}
