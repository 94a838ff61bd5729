//! PostgreSQL goes away, or an answer is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{Postgres, Proxy, Solehold, wait_for};

use crate::world::{Api, PATIENCE, replicas, token};

#[tokio::test(flavor = "multi_thread")]
async fn postgres_stops_and_starts_again_under_load() -> Result<()> {
    let postgres = Postgres::start().await?;
    let replicas = replicas(&postgres.url(), 2).await?;
    let is_over = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    let is_over = Arc::new(is_over);
    let answered = Arc::new(answered);
    let refused = Arc::new(refused);
    let granted = Arc::new(Mutex::new(BTreeMap::<u64, String>::new()));
    let mut load = Vec::new();
    for n in 0..16 {
        let api = replicas[n % 2].1.clone();
        let granted = granted.clone();
        let is_over = is_over.clone();
        let answered = answered.clone();
        let refused = refused.clone();
        load.push(tokio::spawn(async move {
            for turn in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let key = format!("job/load-{n}-{turn}");
                match api.acquire(&key, "worker", 300_000).await {
                    Ok((status, grant)) if status < 300 => {
                        let before = granted.lock().expect("no panic").insert(token(&grant)?, key);
                        assert_eq!(before, None, "a token was given twice");
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok((status, problem)) => {
                        assert_eq!(status, 503, "{problem}");
                        let code = problem["code"].as_str().context("a code")?;
                        assert!(
                            ["unavailable", "unknown_outcome", "overloaded"].contains(&code),
                            "{problem}"
                        );
                        assert!(problem["retry_after_ms"].is_u64(), "{problem}");
                        refused.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                    }
                    Err(error) => anyhow::bail!("no answer: {error}"),
                }
            }
            Ok(())
        }));
    }
    let progress = |what: &'static str, counter: &Arc<AtomicU64>, more: u64| {
        let from = counter.load(Ordering::SeqCst);
        let counter = counter.clone();
        wait_for(what, PATIENCE, move || {
            let counter = counter.clone();
            async move { counter.load(Ordering::SeqCst) >= from + more }
        })
    };
    progress("grants before the outage", &answered, 100).await?;
    postgres.stop().await?;
    progress("refusals during the outage", &refused, 100).await?;
    let (_, api) = &replicas[0];
    let root = replicas[0].0.url().to_owned();
    let ready = |root: String| async move {
        reqwest::get(format!("{root}/readyz")).await.map(|r| r.status().as_u16())
    };
    assert_eq!(ready(root.clone()).await?, 503);
    assert_eq!(reqwest::get(format!("{root}/healthz")).await?.status().as_u16(), 200, "alive, if not ready");
    postgres.start_again().await?;
    progress("grants after the outage", &answered, 100).await?;
    wait_for("the replica to be ready", PATIENCE, async || ready(root.clone()).await.is_ok_and(|s| s == 200))
        .await?;
    is_over.store(true, Ordering::SeqCst);
    for task in load {
        task.await??;
    }
    let granted = granted.lock().expect("no panic").clone();
    for (token, key) in granted {
        let (status, lease) = api.lease(&key).await?;
        assert_eq!((status, lease["token"].as_u64()), (200, Some(token)), "{key}: {lease}");
    }
    Ok(())
}

/// A cursor that is known already is judged from memory, which says nothing about the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_with_a_sealed_cursor_does_not_report_that_a_stopped_store_answers() -> Result<()> {
    const HEARTBEATS: usize = 50;
    let postgres = Postgres::start().await?;
    let replicas = replicas(&postgres.url(), 1).await?;
    let (server, api) = &replicas[0];
    let asked = json!({ "holder": "worker", "ttl_ms": 300_000 });
    let opened = api.expect(201, Method::POST, "/sessions", asked).await?;
    let session = opened["session_id"].as_str().context("a session")?;
    let path = format!("/sessions/{session}/heartbeat");
    let renewed = api.expect(200, Method::PUT, &path, json!({})).await?;
    let cursor = json!({ "sealed_cursor": renewed["sealed_cursor"].as_str().context("a sealed cursor")? });
    let count = |line: &str| server.logs().matches(line).count();
    postgres.stop().await?;
    wait_for("the server to notice", PATIENCE, async || {
        matches!(api.call(Method::PUT, &path, cursor.clone()).await, Ok((503, _)))
    })
    .await?;
    for _ in 0..HEARTBEATS {
        let (status, problem) = api.call(Method::PUT, &path, cursor.clone()).await?;
        assert_eq!(status, 503, "{problem}");
    }
    assert_eq!(count("the store answers again"), 0, "{}", server.logs());
    assert_eq!(count("commands fail until it answers"), 1, "{}", server.logs());
    postgres.start_again().await?;
    wait_for("the session to be renewed", PATIENCE, async || {
        matches!(api.call(Method::PUT, &path, cursor.clone()).await, Ok((200, _)))
    })
    .await?;
    wait_for("the log to say so", PATIENCE, async || count("the store answers again") == 1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_client_is_asked_for_by_request_id() -> Result<()> {
    let server = Solehold::builder().start().await?;
    let direct = Api::new(server.url())?;
    let address = server.url().trim_start_matches("http://").parse()?;
    let proxy = Proxy::start(address).await?;
    let lossy = Api::new(&format!("http://{}", proxy.addr()))?;
    let ask = json!({ "holder": "worker", "ttl_ms": 60_000, "request_id": "r-1" });
    proxy.drop_responses();
    let path = "/resources/job/lost/lease";
    lossy.call(Method::POST, path, ask.clone()).await.expect_err("the answer is swallowed");
    let (_, held) = direct.lease("job/lost").await?;
    proxy.restore().await?;
    let (status, again) = lossy.call(Method::POST, path, ask.clone()).await?;
    assert!(status < 300, "{again}");
    assert_eq!((again["token"].as_u64(), &again["repeated"]), (held["token"].as_u64(), &json!(true)));
    direct.expect(204, Method::DELETE, path, json!({ "token": token(&again)? })).await?;
    let (status, spent) = lossy.call(Method::POST, path, ask).await?;
    assert_eq!((status, &spent["code"]), (409, &json!("request_spent")), "{spent}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_commit_finds_its_own_grant_and_never_a_second() -> Result<()> {
    let postgres = Postgres::start().await?;
    let proxy = Proxy::start(postgres.addr()).await?;
    let url = format!("postgres://postgres@{}/postgres", proxy.addr());
    let replicas = replicas(&url, 1).await?;
    let (server, api) = &replicas[0];
    let lost = || server.logs().matches("lost the response to COMMIT").count();
    let mut tokens = Vec::new();
    for round in 0..6 {
        let lost_before = lost();
        let key = format!("job/commit-{round}");
        let ask = json!({ "holder": "worker", "ttl_ms": 60_000, "request_id": "once" });
        let path = format!("/resources/{key}/lease");
        // The event of a grant goes to PostgreSQL with its batch, which is over when PostgreSQL says COMMIT.
        proxy.lose_answer("lease_acquired", "COMMIT");
        let first = api.call(Method::POST, &path, ask.clone()).await;
        proxy.restore().await?;
        let is_noticed = async || lost() > lost_before;
        wait_for("the server to notice that the answer to its COMMIT was lost", PATIENCE, is_noticed).await?;
        // Whatever the first answer was, asking again settles it, and there is one grant.
        let grant: Value = wait_for("an answer that is known", PATIENCE, async || {
            let (status, body) = api.call(Method::POST, &path, ask.clone()).await.ok()?;
            (status < 300).then_some(body)
        })
        .await?;
        if let Ok((status, body)) = first
            && status < 300
        {
            assert_eq!(body["token"], grant["token"]);
        }
        let (_, history) = api.call(Method::GET, &format!("/resources/{key}/history"), Value::Null).await?;
        assert_eq!(history.to_string().matches("lease_acquired").count(), 1, "{history}");
        tokens.push(token(&grant)?);
    }
    assert!(tokens.is_sorted() && tokens.windows(2).all(|w| w[0] < w[1]), "{tokens:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_killed_in_the_middle_of_a_thousand_acquires_loses_none_that_it_answered() -> Result<()> {
    let postgres = Postgres::start().await?;
    let mut pair = replicas(&postgres.url(), 2).await?;
    let (victim, api) = pair.remove(0);
    let (_, survivor) = &pair[0];
    let granted = Arc::new(Mutex::new(Vec::<(String, u64)>::new()));
    let asks: Vec<_> = (0..1_000)
        .map(|n| {
            let api = api.clone();
            let granted = granted.clone();
            tokio::spawn(async move {
                let key = format!("job/killed-{n}");
                if let Ok((status, grant)) = api.acquire(&key, "worker", 300_000).await
                    && status < 300
                    && let Some(token) = grant["token"].as_u64()
                {
                    granted.lock().expect("no panic").push((key, token));
                }
            })
        })
        .collect();
    wait_for("some grants", PATIENCE, async || granted.lock().expect("no panic").len() >= 50).await?;
    victim.kill9().await?;
    for ask in asks {
        ask.await?;
    }
    let granted = granted.lock().expect("no panic").clone();
    for (key, token) in &granted {
        let (status, lease) = survivor.lease(key).await?;
        assert_eq!((status, lease["token"].as_u64()), (200, Some(*token)), "{key}: {lease}");
    }
    let highest = granted.iter().map(|(_, token)| *token).max().context("some grants")?;
    let (_, next) = survivor.acquire("job/after", "worker", 30_000).await?;
    assert!(token(&next)? > highest);
    Ok(())
}
