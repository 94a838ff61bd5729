//! The workers in `examples/workers` do what they show.

use anyhow::Result;
use solehold_testkit::package_file;

use crate::{
    common::server,
    world::{Agent, held_by},
};

fn example(name: &str) -> String {
    package_file("../../examples/workers").join(name).display().to_string()
}

#[tokio::test]
async fn the_worker_in_python_goes_on_where_the_last_one_stopped() -> Result<()> {
    let server = server().start().await?;
    let worker =
        format!("  command: [python3, {}]\n  env: {{WORK_EVERY_SECONDS: '0.05'}}\n", example("worker.py"));
    let top = "resources: [job/a, job/b, job/c]\nmax_workers: 2";
    let agent = Agent::start(&server, "first", top, &worker).await?;
    for resource in ["job/a", "job/b", "job/c"] {
        held_by(&server, resource, "first").await?;
        agent.logs(&format!("{resource} token ")).await?;
    }
    agent.logs("count 5").await?;
    agent.drained().await?;
    let url = format!("{}/api/v1/resources/job/a/state", server.url());
    let state: serde_json::Value = reqwest::get(url).await?.json().await?;
    let count = state["document"]["count"].as_u64().unwrap_or_default();
    assert!(count > 0, "{state}");
    let next = Agent::start(&server, "next", top, &worker).await?;
    next.logs(&format!("count {}", count + 1)).await?;
    next.drained().await?;
    Ok(())
}

#[tokio::test]
async fn the_worker_in_shell_finishes_when_it_is_asked_to() -> Result<()> {
    let server = server().start().await?;
    let worker =
        format!("  command: [sh, {}]\n  env: {{WORK_EVERY_SECONDS: '0.05'}}\n", example("worker.sh"));
    let agent =
        Agent::start(&server, "first", "resources: [job/a]\nmax_resources_per_worker: 1", &worker).await?;
    agent.logs("job/a token ").await?;
    agent.logs("count 3").await?;
    let status = agent.status().await?;
    assert_eq!(status["workers"][0]["phase"], "running", "{status}");
    let took = agent.drained().await?;
    assert!(took.as_secs() < 10, "it says when it is drained: {took:?}");
    Ok(())
}
