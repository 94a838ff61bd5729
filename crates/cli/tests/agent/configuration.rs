//! The agent's file: checked before the start, and read again when it changes.

use anyhow::Result;
use solehold_testkit::{Solehold, TempDir, wait_for};

use crate::{
    common::{SOON, run, server, write},
    world::{Agent, held_by, holder, script},
};

const ONE: &str = "resources: [job/a]\nmax_resources_per_worker: 1\nlease_retry_interval_seconds: 0.2";

#[tokio::test]
async fn a_check_tells_what_is_wrong_and_where() -> Result<()> {
    let folder = TempDir::new()?;
    let good = write(folder.path(), "good.yaml", "runner_id: r1\nworker:\n  command: [sleep, '9']\n")?;
    let checked = run(["agent", "--check", "--config", &good]).await?;
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(
        checked
            .stdout
            .contains("runner r1 works on what the server assigns, with up to 4 workers of 16 resources")
    );
    let long =
        write(folder.path(), "long.yaml", "drain_budget_seconds: 45\nworker:\n  command: [sleep, '9']\n")?;
    let checked = run(["agent", "--check", "--config", &long]).await?;
    assert!(checked.stderr.contains("Kubernetes kills after 30s"), "{}", checked.stderr);
    for (text, told) in [
        ("worker:\n  command: [a]\nmax_worker: 2\n", ":3: unknown field `max_worker`"),
        (
            "lease_ttl_seconds: 0\nworker:\n  command: [a]\n",
            ":1: lease_ttl_seconds is 0s; it must be 1s to 1day",
        ),
        ("runner_id: r1\n", "worker.command is missing"),
        (
            "worker:\n  command: [no-such-program]\n",
            ":2: worker.command: there is no program no-such-program in PATH",
        ),
    ] {
        let bad = write(folder.path(), "bad.yaml", text)?;
        let checked = run(["agent", "--check", "--config", &bad]).await?;
        assert_eq!(checked.code, Some(2), "{text}");
        assert!(checked.stderr.contains(told), "{} lacks {told}", checked.stderr);
    }
    Ok(())
}

/// Two servers over one database would do as well; two addresses of one are enough to see which one is asked.
async fn behind_proxy(server: &Solehold) -> Result<solehold_testkit::Proxy> {
    solehold_testkit::Proxy::start(server.url().trim_start_matches("http://").parse()?).await
}

#[tokio::test]
async fn a_new_configuration_is_followed_without_losing_a_lease() -> Result<()> {
    let server = server().start().await?;
    let proxy = behind_proxy(&server).await?;
    let top = format!("{ONE}\nlease_ttl_seconds: 4\nheartbeat_interval_seconds: 1");
    let agent = Agent::start(&server, "first", &top, &script("sleep 600")).await?;
    held_by(&server, "job/a", "first").await?;
    let token = agent.status().await?["resources"][0]["token"].clone();
    let before = agent.configuration()?;
    agent.configure(&before.replace("max_resources_per_worker: 1", "max_resource_per_worker: 1"))?;
    agent.logs("unknown field `max_resource_per_worker`").await?;
    agent.configure(&before.replace("runner_id: first", "runner_id: second"))?;
    agent.logs("runner_id cannot change while the agent runs").await?;
    let next = before.replace(server.url(), &format!("http://{}", proxy.addr()));
    agent.configure(&next.replace("[job/a]", "[job/a, job/b]"))?;
    agent.logs("configuration reloaded").await?;
    held_by(&server, "job/b", "first").await?;
    assert_eq!(agent.status().await?["resources"][0]["token"], token, "the lease stayed");
    // What it asks now is the new address: without it, the leases run out.
    proxy.cut().await;
    wait_for("the leases to run out", SOON, async || {
        holder(&server, "job/a").await.is_ok_and(|holder| holder.is_none())
    })
    .await?;
    agent.configure(&before)?;
    held_by(&server, "job/a", "first").await?;
    agent.drained().await?;
    Ok(())
}
