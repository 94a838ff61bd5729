//! The wait itself, and ports.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use solehold_testkit::{free_port, wait_for};

#[tokio::test]
async fn out_of_time_names_what_was_awaited() {
    let error = wait_for("the moon", Duration::from_millis(30), async || false).await.expect_err("it held");
    assert!(error.to_string().contains("for the moon"), "{error}");
}

#[tokio::test]
async fn a_condition_that_hangs_is_out_of_time() {
    let hangs = async || std::future::pending::<bool>().await;
    let error = wait_for("an answer", Duration::from_millis(30), hangs).await.expect_err("it held");
    assert!(error.to_string().contains("for an answer"), "{error}");
}

#[tokio::test]
async fn looks_at_least_once() -> Result<()> {
    wait_for("nothing", Duration::ZERO, async || true).await?;
    assert_eq!(wait_for("a value", Duration::ZERO, async || Some(7)).await?, 7);
    Ok(())
}

#[test]
fn ports_are_given_once() -> Result<()> {
    let ports = (0..50).map(|_| free_port()).collect::<Result<HashSet<_>>>()?;
    assert_eq!(ports.len(), 50);
    Ok(())
}
