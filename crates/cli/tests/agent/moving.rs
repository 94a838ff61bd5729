//! Moving a resource from one holder to the next.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use serde_json::json;
use solehold_client::{ClientSession, Http, SessionConfig};

use crate::{
    common::server,
    world::{Agent, python},
};

/// The agent's worker finishes when the next holder asks, and its last word is there with the new token.
#[tokio::test]
async fn a_worker_hands_over_with_its_last_word() -> Result<()> {
    let server = server().start().await?;
    let worker = python(
        r#"
say(type="ready")
while True:
    m = hear()
    if m["type"] == "assign":
        print("assigned", m["token"], flush=True)
    if m["type"] == "revoke":
        print("asked:", m["reason"], flush=True)
        say(type="drained", id=m["id"], state={"frame": 42})
"#,
    );
    let agent =
        Agent::start(&server, "first", "resources: [job/a]\nmax_resources_per_worker: 1", &worker).await?;
    agent.logs("assigned ").await?;
    let http = Arc::new(Http::to(server.url())?);
    let next = ClientSession::open(http, SessionConfig::new("next")).await?;
    let guard = next.take_over("job", "a", Duration::from_secs(30)).await?.context("it is handed over")?;
    agent.logs("asked: the resource is handed over to next").await?;
    assert_eq!(guard.state(), Some(json!({"frame": 42})));
    let events = crate::common::ask(&server, "lease history job/a --json").await?.good()?;
    assert!(!events.contains("lease_expired"), "{events}");
    guard.release().await?;
    agent.drained().await?;
    Ok(())
}
