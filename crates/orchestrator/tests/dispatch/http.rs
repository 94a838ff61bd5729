//! A service that takes tasks over HTTP.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Result, ensure};
use axum::{Json, Router, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use serde_json::{Value, json};
use solehold_orchestrator::{
    config::{HttpTasksConfig, Time},
    dispatch::{Dispatch as _, DispatchError, Weight, http::Http},
    model::task::ReportKind,
};
use tokio::{net::TcpListener, task::JoinSet};

use crate::world::{Kept, id, refusal, stage, task};

/// What the service was asked, with the key of each request.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

async fn service() -> Result<(SocketAddr, Asked, JoinSet<()>)> {
    let asked = Asked::default();
    let keep = |State(asked): State<Asked>, headers: HeaderMap, Json(body): Json<Value>| async move {
        let text =
            |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        let key = format!("{} {}", text("idempotency-key"), text("authorization"));
        asked.lock().unwrap_or_else(PoisonError::into_inner).push((key, body));
        Json(json!({ "result": { "frames": 9 } }))
    };
    let router = Router::new()
        .route("/video/now", post(keep))
        .route("/video/later", post(async || StatusCode::ACCEPTED))
        .route("/video/never", post(async || (StatusCode::UNPROCESSABLE_ENTITY, "no such codec")))
        .route("/video/busy", post(async || StatusCode::TOO_MANY_REQUESTS))
        .route("/video/odd", post(async || "done"))
        .route("/video/huge", post(async || json!({ "result": "x".repeat(1024 * 1024) }).to_string()))
        .route("/video/down", post(async || (StatusCode::BAD_GATEWAY, "x".repeat(2 * 1024 * 1024))))
        .route("/video/full", post(async || (StatusCode::ACCEPTED, "x".repeat(2 * 1024 * 1024))))
        .route("/video/hang", post(std::future::pending::<StatusCode>))
        .with_state(Arc::clone(&asked));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut serving = JoinSet::new();
    serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    Ok((address, asked, serving))
}

#[tokio::test]
async fn a_service_answers_at_once_or_later() -> Result<()> {
    let (address, asked, _serving) = service().await?;
    let kept = Kept::default();
    let config = HttpTasksConfig {
        url: format!("http://{address}/video"),
        headers: BTreeMap::from([("authorization".to_owned(), "Bearer hunter2".to_owned())]),
        timeout: Some(Time(Duration::from_secs(2))),
        report_to: Some("http://orchestrator:7073".to_owned()),
    };
    ensure!(!format!("{config:?}").contains("hunter2"));
    let http = Http::new(&config, Arc::new(kept.clone())).map_err(anyhow::Error::msg)?;
    let now = id("jöb", "now", 2);
    let later = id("j", "later", 1);
    let batch =
        [task(now.clone(), "/now", json!({ "file": "a.mp4" })), task(later.clone(), "later", json!({}))];
    let sent = http.send(&batch).await;
    ensure!(sent.iter().all(Result::is_ok), "{sent:?}");
    ensure!(kept.of(&now) == [ReportKind::Succeeded { result: json!({ "frames": 9 }) }]);
    ensure!(kept.of(&later).is_empty(), "it reports later");
    let (key, body) = asked.lock().unwrap_or_else(PoisonError::into_inner)[0].clone();
    ensure!(key == "j%C3%B6b:now:2 Bearer hunter2", "{key}");
    ensure!(body["attempt"] == json!(2) && body["input"] == json!({ "file": "a.mp4" }), "{body}");
    ensure!(body["report_to"] == json!("http://orchestrator:7073"), "{body}");

    // A result that was not kept is asked for again, under the same key.
    kept.go_away();
    let lost = refusal(&http, &batch[0]).await;
    ensure!(matches!(lost, Some(DispatchError::Unreachable(_))), "{lost:?}");
    let of = async |path: &str| refusal(&http, &task(id("j", "s", 1), path, json!({}))).await;
    let never = of("never").await;
    let says = |error: &Option<DispatchError>, part: &str| {
        error.as_ref().is_some_and(|e| e.to_string().contains(part))
    };
    ensure!(matches!(never, Some(DispatchError::Refused(_))) && says(&never, "no such codec"), "{never:?}");
    let odd = of("odd").await;
    ensure!(matches!(odd, Some(DispatchError::Refused(_))) && says(&odd, "not a JSON object"), "{odd:?}");
    let missing = of("missing").await;
    ensure!(matches!(missing, Some(DispatchError::Refused(_))) && says(&missing, "404"), "{missing:?}");
    let huge = of("huge").await;
    ensure!(
        matches!(huge, Some(DispatchError::Refused(_))) && says(&huge, "more than 1048576 bytes"),
        "a task that was done is not done again: {huge:?}"
    );
    ensure!(of("full").await.is_none(), "it was taken over, whatever else the answer says");
    for path in ["busy", "hang", "down"] {
        let again = of(path).await;
        ensure!(matches!(again, Some(DispatchError::Unreachable(_))), "{path}: {again:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_service_that_is_not_there_is_found_by_the_check() -> Result<()> {
    let config = HttpTasksConfig {
        url: format!("http://127.0.0.1:{}", solehold_testkit::free_port()?),
        headers: BTreeMap::new(),
        timeout: Some(Time(Duration::from_secs(2))),
        report_to: None,
    };
    let http = Http::new(&config, Arc::new(Kept::default())).map_err(anyhow::Error::msg)?;
    let stage = stage("decode", "/decode", Duration::from_secs(60));
    let findings = http.check(&[stage]).await?;
    ensure!(
        findings.iter().any(|f| f.weight == Weight::Problem && f.text.contains("refused")),
        "{findings:?}"
    );
    ensure!(
        findings.iter().any(|f| f.weight == Weight::Warning && f.text.contains("report_to")),
        "{findings:?}"
    );
    let away = refusal(&http, &task(id("j", "s", 1), "decode", json!({}))).await;
    ensure!(matches!(away, Some(DispatchError::Unreachable(_))), "{away:?}");
    let wrong = HttpTasksConfig { url: "decode".to_owned(), ..config };
    ensure!(
        Http::new(&wrong, Arc::new(Kept::default()))
            .is_err_and(|error| error.what.contains("`url` \"decode\""))
    );
    Ok(())
}
