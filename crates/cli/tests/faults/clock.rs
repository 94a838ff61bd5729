//! The clock of the host is set forward or back: nothing expires early, and nothing lives for ever.

use anyhow::Result;
use reqwest::Method;
use serde_json::{Value, json};
use solehold_testkit::{FakeClock, Postgres, Solehold, TempDir};

use crate::world::{Api, token, wait_until_free};

const HOUR: i64 = 3_600;

/// Holds a long and a short lease, lets `step` happen to the clock, and looks.
async fn survives(api: &Api, name: &str, step: impl AsyncFnOnce() -> Result<Api>) -> Result<Api> {
    let long = format!("job/long-{name}");
    let short = format!("job/short-{name}");
    let (status, grant) = api.acquire(&long, "worker", 300_000).await?;
    assert!(status < 300, "{grant}");
    let (status, other) = api.acquire(&short, "worker", 8_000).await?;
    assert!(status < 300, "{other}");
    let api = step().await?;
    // The short one is still held right after the step: 8 s cannot have passed, unless the machine stood still.
    let (status, lease) = api.lease(&long).await?;
    assert_eq!((status, lease["token"].as_u64()), (200, grant["token"].as_u64()), "{name}: {lease}");
    let left = lease["ttl_ms"].as_u64().unwrap_or(0);
    assert!((180_000..=300_000).contains(&left), "{name}: {left} ms left of 300 s");
    let (_, refused) = api.acquire(&long, "thief", 30_000).await?;
    assert_eq!(refused["code"], json!("held"), "{name}: {refused}");
    api.expect(
        200,
        Method::POST,
        &format!("/resources/{long}/lease/renew"),
        json!({ "token": token(&grant)? }),
    )
    .await?;
    // And the short one does end, in its own time.
    wait_until_free(&api, &short).await?;
    let (status, next) = api.acquire(&short, "successor", 30_000).await?;
    assert!(status < 300 && token(&next)? > token(&other)?, "{name}: {next}");
    Ok(api)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_clock_steps_while_running() -> Result<()> {
    let postgres = Postgres::builder().fake_clock().start().await?;
    let server = Solehold::builder().engine(postgres.url()).start().await?;
    let api = Api::new(server.url())?;
    for (name, offset) in [("forward", HOUR), ("back", -HOUR), ("home", 0)] {
        survives(&api, name, async || {
            postgres.set_clock_offset(offset)?;
            Ok(api.clone())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_clock_steps_between_a_stop_and_a_start_of_everything() -> Result<()> {
    let postgres = Postgres::builder().fake_clock().start().await?;
    let builder = Solehold::builder().engine(postgres.url());
    let mut server = builder.start().await?;
    for (name, offset) in [("forward", HOUR), ("back", -HOUR)] {
        let api = Api::new(server.url())?;
        let old = server;
        let mut new = None;
        survives(&api, name, async || {
            old.terminate().await?;
            postgres.stop().await?;
            postgres.set_clock_offset(offset)?;
            postgres.start_again().await?;
            let started = builder.start().await?;
            let api = Api::new(started.url())?;
            new = Some(started);
            Ok(api)
        })
        .await?;
        let Some(started) = new else { anyhow::bail!("the server was started again") };
        server = started;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_clock_steps_and_the_embedded_store_does_not_care() -> Result<()> {
    let folder = TempDir::new()?;
    let clock = FakeClock::new()?;
    let builder = Solehold::builder().data_dir(folder.path()).fake_clock(&clock);
    let mut server = builder.start().await?;
    let running = Api::new(server.url())?;
    for (name, offset) in [("forward-running", HOUR), ("back-running", -HOUR)] {
        survives(&running, name, async || {
            clock.set_offset_seconds(offset)?;
            Ok(running.clone())
        })
        .await?;
    }
    for (name, offset) in [("forward-restart", HOUR), ("back-restart", -HOUR)] {
        let api = Api::new(server.url())?;
        let old = server;
        let mut new = None;
        survives(&api, name, async || {
            old.kill9().await?;
            clock.set_offset_seconds(offset)?;
            let started = builder.start().await?;
            let api = Api::new(started.url())?;
            new = Some(started);
            Ok(api)
        })
        .await?;
        let Some(started) = new else { anyhow::bail!("the server was started again") };
        server = started;
    }
    let (_, events) = Api::new(server.url())?
        .call(Method::GET, "/resources/job/long-back-restart/history", Value::Null)
        .await?;
    assert!(events.to_string().contains("lease_acquired"), "{events}");
    Ok(())
}
