//! Several replicas over one PostgreSQL.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use futures_util::{StreamExt, future::join_all};
use reqwest::Method;
use serde_json::{Value, json};
use solehold_api::sse::Decoder;
use solehold_testkit::{Postgres, Solehold, free_port, wait_for};

use crate::world::{Api, PATIENCE, database, replicas, token, wait_until_free};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_acquirers_race_over_two_replicas_and_one_wins() -> Result<()> {
    let replicas = replicas(&database().await?, 2).await?;
    for round in 0..3 {
        let key = format!("job/race-{round}");
        let asks = (0..200).map(|n| {
            let api = &replicas[n % 2].1;
            let key = &key;
            async move { api.acquire(key, &format!("worker-{n}"), 30_000).await }
        });
        let answers: Vec<_> = join_all(asks).await.into_iter().collect::<Result<_>>()?;
        let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(status, _)| *status < 300);
        assert_eq!((won.len(), lost.len()), (1, 199), "round {round}");
        let winner = &won[0].1["holder"];
        let grant = token(&won[0].1)?;
        for (status, refusal) in lost {
            assert_eq!((status, &refusal["code"]), (409, &json!("held")));
            assert_eq!((&refusal["holder"], refusal["token"].as_u64()), (winner, Some(grant)));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_resource_grow_across_replicas() -> Result<()> {
    let replicas = replicas(&database().await?, 3).await?;
    let mut before = 0;
    for turn in 0..30 {
        let (_, api) = &replicas[turn % 3];
        let (status, grant) = api.acquire("job/turns", "worker", 30_000).await?;
        assert!(status < 300, "{grant}");
        let now = token(&grant)?;
        assert!(now > before, "{now} after {before}");
        before = now;
        let (_, other) = &replicas[(turn + 1) % 3];
        other.expect(204, Method::DELETE, "/resources/job/turns/lease", json!({ "token": now })).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_races_its_own_expiry_on_another_replica_wins_or_loses_whole() -> Result<()> {
    let replicas = replicas(&database().await?, 2).await?;
    let one = &replicas[0].1;
    let other = &replicas[1].1;
    for round in 0..8 {
        let key = format!("job/heartbeat-{round}");
        let open = json!({ "holder": format!("runner-{round}"), "ttl_ms": 1_000 });
        let session = one.expect(201, Method::POST, "/sessions", open).await?;
        let id = session["session_id"].as_str().context("a session id")?;
        let ask = json!({ "holder": format!("runner-{round}"), "session_id": id });
        let (status, grant) = one.call(Method::POST, &format!("/resources/{key}/lease"), ask).await?;
        assert!(status < 300, "{grant}");
        // A thief at the other replica takes it the moment it may; the heartbeat comes at the very end.
        let thief = wait_for("the thief to get it, or the heartbeat", PATIENCE, async || {
            let (status, stolen) = other.acquire(&key, "thief", 30_000).await.ok()?;
            (status < 300).then_some(stolen)
        });
        let heart = async {
            let path = format!("/sessions/{id}/heartbeat");
            wait_for("the heartbeat near the deadline", PATIENCE, async || {
                let (_, lease) = one.lease(&key).await.ok()?;
                // On a busy machine the thief may have it before the heartbeat is sent, which then is too late.
                let is_own = lease["holder"] != json!("thief");
                if is_own && lease["ttl_ms"].as_u64().is_some_and(|left| left > 25) {
                    return None;
                }
                one.call(Method::PUT, &path, json!({})).await.ok()
            })
            .await
        };
        let (stolen, beat) = tokio::join!(thief, heart);
        let stolen = stolen?;
        let (status, body) = beat?;
        assert!(token(&stolen)? > token(&grant)?);
        if status == 200 {
            // It was kept once more: the thief had to wait for the whole ttl after it, and got a later token.
            assert_eq!(body["leases"].as_array().map(Vec::len), Some(1), "{body}");
        } else {
            assert_eq!((status, &body["code"]), (404, &json!("no_session")), "{body}");
        }
        let (_, held) = other.lease(&key).await?;
        assert_eq!((held["holder"].as_str(), token(&held)?), (Some("thief"), token(&stolen)?));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_is_swept_by_any_replica() -> Result<()> {
    let replicas = replicas(&database().await?, 2).await?;
    let (status, grant) = replicas[0].1.acquire("job/short", "worker", 1_000).await?;
    assert!(status < 300, "{grant}");
    replicas[0].0.kill9().await?;
    wait_until_free(&replicas[1].1, "job/short").await?;
    let history = "/resources/job/short/history";
    wait_for("the expiry in the history", PATIENCE, async || {
        let (_, history) = replicas[1].1.call(Method::GET, history, Value::Null).await.ok()?;
        history.to_string().contains("lease_expired").then_some(())
    })
    .await
}

/// The replica whose turn it is to sweep is stopped (SIGSTOP): its connections stay open, and it gives nothing back.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_stopped_during_its_turn_at_sweeping_keeps_no_lease_from_expiring() -> Result<()> {
    let postgres = Postgres::start().await?;
    let client = postgres.connect().await?;
    let last_keeper = async || -> Option<String> {
        let sql = "SELECT keeper::text FROM solehold.turns ORDER BY number DESC LIMIT 1";
        Some(client.query_opt(sql, &[]).await.ok()??.get(0))
    };
    // Alone it takes the first turn, by which its name is known.
    let (keeper, _) = replicas(&postgres.url(), 1).await?.remove(0);
    let name = wait_for("the first turn", PATIENCE, &last_keeper).await?;
    let (other, api) = replicas(&postgres.url(), 1).await?.remove(0);
    wait_for("the first replica to be stopped during its turn", PATIENCE, async || {
        keeper.pause().await.ok()?;
        let is_its_turn = last_keeper().await.is_some_and(|keeper| keeper == name);
        if !is_its_turn {
            keeper.resume().ok()?;
        }
        is_its_turn.then_some(())
    })
    .await?;
    let path = "/resources/job/left/history";
    wait_for("a grant by the other replica", PATIENCE, async || {
        api.acquire("job/left", "worker", 1_000).await.is_ok_and(|(status, _)| status < 300)
    })
    .await?;
    let expired = async || -> Option<usize> {
        let (_, history) = api.call(Method::GET, path, Value::Null).await.ok()?;
        Some(history.to_string().matches("lease_expired").count())
    };
    let swept = wait_for("the expiry in the history", PATIENCE, async || expired().await.filter(|n| *n > 0));
    assert_eq!(swept.await?, 1);
    assert_ne!(last_keeper().await.context("a turn")?, name, "the other replica took the turn over");
    // It goes on as if nothing had happened, and nothing expires twice.
    keeper.resume()?;
    let back = Api::new(keeper.url())?;
    wait_for("the first replica to answer", PATIENCE, async || back.lease("job/left").await.is_ok()).await?;
    assert!(keeper.terminate().await?.success() && other.terminate().await?.success());
    let sql = "SELECT count(*) FROM solehold.lease_events WHERE event_type = 'lease_expired'";
    assert_eq!(client.query_one(sql, &[]).await?.get::<_, i64>(0), 1);
    Ok(())
}

/// Watches from a cursor and collects revisions until `until` is there; tells the last cursor.
async fn collect(url: &str, from: Option<String>, until: u64, seen: &mut Vec<u64>) -> Result<String> {
    let from = from.map(|cursor| format!("&from={cursor}")).unwrap_or_default();
    let response = reqwest::get(format!("{url}/api/v1/watch?kind=job{from}")).await?.error_for_status()?;
    let mut bytes = response.bytes_stream();
    let mut decoder = Decoder::default();
    let mut cursor = String::new();
    loop {
        let chunk = bytes.next().await.context("the watch ended early")??;
        for frame in decoder.push(&chunk)? {
            if let Some(id) = &frame.id {
                cursor.clone_from(id);
            }
            if frame.event.as_deref() == Some("event") {
                let event: Value = serde_json::from_str(&frame.data)?;
                seen.push(event["revision"].as_u64().context("a revision")?);
            }
            if seen.last().is_some_and(|last| *last >= until) {
                return Ok(cursor);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_across_replicas_and_restarts_with_no_gap_and_no_double() -> Result<()> {
    let url = database().await?;
    let replicas = replicas(&url, 2).await?;
    let one = &replicas[0].1;
    let other = &replicas[1].1;
    let listen = ([127, 0, 0, 1], free_port()?).into();
    let third = Solehold::builder().engine(&url).listen(listen);
    let watched = third.start().await?;
    let (_, first) = one.acquire("job/first", "worker", 60_000).await?;
    let mut seen = Vec::new();
    let mut tokens = Vec::new();
    let start = format!("{}/api/v1/watch?kind=job", watched.url());
    // The snapshot has the first lease; what follows comes as events.
    let mut snapshot = reqwest::get(start).await?.bytes_stream();
    let mut decoder = Decoder::default();
    let mut cursor = None;
    while cursor.is_none() {
        let chunk = snapshot.next().await.context("a snapshot")??;
        for frame in decoder.push(&chunk)? {
            if frame.event.as_deref() == Some("snapshot") && frame.data.contains(&token(&first)?.to_string())
            {
                cursor = frame.id.clone();
            }
        }
    }
    drop(snapshot);
    for n in 0..40 {
        let api = if n % 2 == 0 { one } else { other };
        let (status, grant) = api.acquire(&format!("job/{n}"), "worker", 60_000).await?;
        assert!(status < 300, "{grant}");
        tokens.push(token(&grant)?);
    }
    cursor = Some(collect(watched.url(), cursor, tokens[19], &mut seen).await?);
    // The watched replica goes away and comes back; the watch goes on from its cursor, at another one even.
    watched.kill9().await?;
    cursor = Some(collect(replicas[0].0.url(), cursor, tokens[29], &mut seen).await?);
    let watched = third.start().await?;
    collect(watched.url(), cursor, tokens[39], &mut seen).await?;
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(seen, distinct.into_iter().collect::<Vec<_>>(), "in order, and nothing twice");
    assert_eq!(seen, tokens, "every grant, and nothing else");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_replicas_start_at_once_on_an_empty_database() -> Result<()> {
    let builder = Solehold::builder().engine(&database().await?);
    let started = join_all((0..8).map(|_| builder.start())).await.into_iter().collect::<Result<Vec<_>>>()?;
    for (n, replica) in started.iter().enumerate() {
        let (status, grant) = Api::new(replica.url())?.acquire(&format!("job/{n}"), "worker", 30_000).await?;
        assert!(status < 300, "{grant}");
    }
    Ok(())
}
