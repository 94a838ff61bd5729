//! PostgreSQL's primary dies and its standby takes over: what was granted is kept, or waited out (rule 23).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::json;
use solehold_testkit::{Postgres, Solehold, wait_for};

use crate::world::{Api, PATIENCE, replicas_of, token};

/// Tokens jump by this when the store's history may have been cut.
const JUMP: u64 = 1 << 32;

/// A primary, a standby that follows it, and two replicas that know both.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    replicas: Vec<(Solehold, Api)>,
}

impl Pair {
    async fn start(is_synchronous: bool) -> Result<Self> {
        let primary = Postgres::start().await?;
        let standby = Postgres::builder().standby_of(&primary).start().await?;
        let client = primary.connect().await?;
        if is_synchronous {
            client.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await?;
            client.batch_execute("SELECT pg_reload_conf()").await?;
        }
        let wanted = if is_synchronous { "sync" } else { "async" };
        let sql = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1";
        wait_for("the standby to follow", PATIENCE, async || {
            client.query_opt(sql, &[&wanted]).await.ok().flatten().is_some()
        })
        .await?;
        let hosts = format!("{},{}", primary.addr(), standby.addr());
        let url = format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write");
        let failover = if is_synchronous { "lossless" } else { "lossy" };
        let ttl_max = if is_synchronous { "5m" } else { "15s" };
        let builder = Solehold::builder().engine(&url).env("SOLEHOLD_FAILOVER", failover);
        let replicas = replicas_of(&builder.env("SOLEHOLD_TTL_MAX", ttl_max), 2).await?;
        Ok(Self { primary, standby, replicas })
    }

    /// Waits until the standby has all that the primary has by now.
    async fn catch_up(&self) -> Result<()> {
        let client = self.primary.connect().await?;
        let lsn: String = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?.get(0);
        let standby = self.standby.connect().await?;
        let sql = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
        wait_for("the standby to catch up", PATIENCE, async || {
            standby.query_one(sql, &[&lsn]).await.is_ok_and(|row| row.get(0))
        })
        .await
    }

    async fn fail_over(&self) -> Result<()> {
        self.primary.kill9().await?;
        self.standby.promote().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_loses_nothing_and_grants_at_once() -> Result<()> {
    let pair = Pair::start(true).await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut load = Vec::new();
    for n in 0..8 {
        let api = pair.replicas[n % 2].1.clone();
        let is_over = is_over.clone();
        load.push(tokio::spawn(async move {
            let mut granted = BTreeMap::new();
            for turn in 0.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let key = format!("job/load-{n}-{turn}");
                // An unanswered one may or may not be there; one that outlasted the failover is.
                if let Ok((201, grant)) = api.acquire(&key, "worker", 300_000).await {
                    granted.insert(token(&grant)?, key);
                }
            }
            anyhow::Ok(granted)
        }));
    }
    let (_, api) = &pair.replicas[0];
    wait_for("some load", PATIENCE, async || matches!(api.lease("job/load-0-20").await, Ok((200, _))))
        .await?;
    pair.fail_over().await?;
    is_over.store(true, Ordering::SeqCst);
    let mut granted = BTreeMap::new();
    for task in load {
        for (token, key) in task.await?? {
            assert_eq!(granted.insert(token, key), None, "a token was given twice");
        }
    }
    let last = *granted.last_key_value().context("grants")?.0;
    assert!(granted.keys().any(|token| *token < JUMP), "some were granted before the failover");
    for (index, (_, api)) in pair.replicas.iter().enumerate() {
        let key = format!("job/after-{index}");
        let first = wait_for("a grant by the new primary", PATIENCE, async || {
            match api.acquire(&key, "worker", 300_000).await {
                Ok((201, grant)) => Some(Ok(grant)),
                // A bar would last for five minutes here.
                Ok((_, problem)) if problem["detail"].as_str().is_some_and(|d| d.contains("failed over")) => {
                    Some(Err(problem))
                }
                _ => None,
            }
        });
        let grant = first.await?.map_err(|problem| anyhow::anyhow!("nothing was lost, yet: {problem}"))?;
        assert!(token(&grant)? > last.max(JUMP), "{grant}");
    }
    for (token, key) in granted {
        let (status, lease) = api.lease(&key).await?;
        assert_eq!((status, lease["token"].as_u64()), (200, Some(token)), "{key}: {lease}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_asynchronous_standby_lost_leases_are_waited_out() -> Result<()> {
    let pair = Pair::start(false).await?;
    let (_, api) = &pair.replicas[0];
    let (_, grant) = api.acquire("job/kept", "worker", 15_000).await?;
    let kept = token(&grant)?;
    pair.catch_up().await?;
    pair.fail_over().await?;
    // What the standby lacks may be that the lease went to another: neither a grant nor a renewal before that has run
    // out.
    let (status, problem) = wait_for("a word of the new primary", PATIENCE, async || {
        let answer = api.acquire("job/new", "other", 15_000).await.ok()?;
        answer.1["detail"].as_str().is_some_and(|d| d.contains("failed over")).then_some(answer)
    })
    .await?;
    assert_eq!((status, problem["code"].as_str()), (503, Some("unavailable")), "{problem}");
    let left = problem["retry_after_ms"].as_u64().context("how long")?;
    assert!((1..=15_000).contains(&left), "{problem}");
    let renew = json!({ "token": kept });
    let (status, problem) = api.call(Method::POST, "/resources/job/kept/lease/renew", renew.clone()).await?;
    assert_eq!(status, 503, "{problem}");
    let granted =
        wait_for("grants again", PATIENCE, async || match api.acquire("job/new", "other", 15_000).await {
            Ok((201, grant)) => Some(grant),
            _ => None,
        });
    assert!(token(&granted.await?)? > kept + JUMP);
    let (status, problem) = api.call(Method::POST, "/resources/job/kept/lease/renew", renew).await?;
    assert_ne!(status, 200, "it is over: {problem}");
    Ok(())
}
