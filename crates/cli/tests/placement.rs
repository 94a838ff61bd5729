//! Commands about where resources are placed.

mod common;

use std::time::Duration;

use anyhow::{Context, Result};
use common::{Ran, ask, ask_args, json_of, refused, seen, server};
use serde_json::{Value, json};
use solehold_testkit::wait_for;

#[tokio::test]
async fn placement() -> Result<()> {
    let server = server().start().await?;
    let register = async |runner: &str, group: &str| -> Result<()> {
        let body = json!({"runner_id": runner, "deployment_group": group, "deployment_version": "1.2"});
        let url = format!("{}/api/v1/runners/register/", server.url());
        reqwest::Client::new().post(url).json(&body).send().await?.error_for_status()?;
        Ok(())
    };
    seen(&server, "resource put job/nightly").await?;
    let facts = seen(&server, "explain job/nightly").await?;
    assert!(facts.starts_with("job/nightly\nheld by nobody\nstep nothing\n"), "{facts}");
    assert!(facts.contains("\nwhy it is placed nowhere: no runner is registered\n"), "{facts}");
    assert_eq!(ask(&server, "deploy status").await?.stderr, "no runners are registered\n");
    let (code, said, _) = {
        let Ran { code, stdout, stderr } = ask(&server, "deploy promote").await?;
        (code, stderr, stdout)
    };
    assert_eq!(code, Some(2));
    assert!(
        said.contains("no shift is in progress") && said.contains("solehold deploy shift --to GROUP"),
        "{said}"
    );
    seen(&server, "deploy shift --to green --percent 0").await?;
    register("b1", "blue").await?;
    register("g1", "green").await?;
    let explained = async |wanted: &str| -> Result<Value> {
        let look = || async {
            let explained = json_of(&server, "explain job/nightly").await.ok()?;
            (explained["target"].as_str().unwrap_or("nobody") == wanted).then_some(explained)
        };
        wait_for(wanted, Duration::from_secs(20), look).await
    };
    explained("b1").await?;
    assert_eq!(
        seen(&server, "deploy promote").await?,
        "green gets 100 % of the resources, step by step; see `solehold deploy status`"
    );
    explained("g1").await?;
    let status = seen(&server, "deploy status").await?;
    assert_eq!(
        status,
        "GROUP VERSIONS ACTIVE HOLDS\nblue 1.2 1/1 0/16\ngreen 1.2 1/1 0/16\n\n\
         green should hold 100 % of the resources; 0 moves left"
    );
    seen(&server, "deploy rollback").await?;
    explained("b1").await?;
    assert_eq!(
        seen(&server, "resource quarantine job/nightly --reason noisy").await?,
        "job/nightly is in quarantine: it is placed nowhere until it is cleared"
    );
    assert_eq!(explained("nobody").await?["reason"], "quarantined");
    seen(&server, "resource clear job/nightly").await?;
    explained("b1").await?;
    let (code, said, problem) = refused(&server, "explain job/none").await?;
    assert_eq!((code, problem.as_str()), (4, "not_found"), "{said}");
    Ok(())
}

#[tokio::test]
async fn placement_settings() -> Result<()> {
    let server = server().start().await?;
    let shown = seen(&server, "placement show").await?;
    assert_eq!(
        shown,
        "band 10 % (default)\nmoves at once 32, or 1 % of the resources if that is more (default)\n\
         return window TTL (default)\nsettle TTL (default)"
    );
    let set = ask_args(
        &server,
        [
            "placement",
            "set",
            "--band-percent",
            "20",
            "--settle",
            "5s",
            "--unplaced-kinds",
            "task, tour",
            "--static-lists",
            r#"{"old": ["job/2"]}"#,
        ],
    );
    set.await?.good()?;
    let changed = json_of(&server, "placement set --moves-at-once 4").await?;
    let all = json!({"band_percent": 20, "moves_at_once": 4, "return_window_ms": null, "settle_ms": 5_000,
        "unplaced_kinds": ["task", "tour"], "static_lists": {"old": ["job/2"]}});
    assert_eq!(changed, all, "the others stay");
    let shown = seen(&server, "placement set --band-percent default --static-lists default").await?;
    assert_eq!(
        shown,
        "band 10 % (default)\nmoves at once 4\nreturn window TTL (default)\nsettle TTL\nunplaced kinds task, tour"
    );
    let odd = ask(&server, "placement set").await?;
    assert_eq!(odd.code, Some(2));
    assert!(odd.stderr.contains("no setting is given to change"), "{}", odd.stderr);
    let odd = ask(&server, "placement set --static-lists [1]").await?;
    assert!(odd.code == Some(2) && odd.stderr.contains("write JSON"), "{}", odd.stderr);
    let (code, said, problem) = refused(&server, "placement set --band-percent 0").await?;
    assert_eq!((code, problem.as_str()), (2, "invalid_field"), "{said}");
    Ok(())
}

#[tokio::test]
async fn an_explanation_tells_of_failures_penalties_and_runners_that_settle() -> Result<()> {
    let server = server().start().await?;
    seen(&server, "resource put job/a").await?;
    let http = reqwest::Client::builder().no_proxy().build()?;
    let call = async |method: reqwest::Method, path: &str, body: Value| -> Result<Value> {
        let url = format!("{}/api/v1/{path}", server.url());
        Ok(http.request(method, url).json(&body).send().await?.error_for_status()?.json().await?)
    };
    let register = async || call(reqwest::Method::POST, "runners/register", json!({"runner_id": "r1"})).await;
    register().await?;
    seen(&server, "explain job/a").await?;
    let session = register().await?["session_id"].clone();
    let acquire = format!("lease acquire job/a --holder r1 --session {}", session.as_str().context("an id")?);
    seen(&server, &acquire).await?;
    let failed = json!({"runner_id": "r1", "session_id": session, "reason": "exit 9"});
    call(reqwest::Method::POST, "resources/job/a/failures", failed).await?;
    let metrics = json!({"failed_resources": {"job/a": "its worker failed"}});
    let beat = json!({"session_id": session, "metrics": metrics});
    call(reqwest::Method::PUT, "runners/r1/heartbeat", beat).await?;
    let look = async || {
        let facts = seen(&server, "explain job/a").await.ok()?;
        let lines = [
            "\nlast failure on r1, ",
            ": exit 9\n",
            "\npenalty other runners than r1 are preferred for another TTL",
            ", and it does not ask for it now (its worker failed)\n",
            "\nsettling r1 gets nothing for balance for another TTL; settle_ms is 60000\n",
        ];
        lines.iter().all(|line| facts.contains(line)).then_some(())
    };
    let waited = wait_for("the whole explanation", Duration::from_secs(20), look).await;
    waited.with_context(|| "explain job/a")?;
    Ok(())
}
