//! The camera pipeline from end to end: a control plane with a relay to RabbitMQ, agents with Python workers, and a
//! sink that takes each frame once. It walks the success criteria of a camera pipeline line by line, and prints its
//! figures.
//!
//! `make e2e EXAMPLE=pipeline` runs it in full (48 cameras, an outage of a minute, or of five with
//! `SOLEHOLD_E2E_LONG=1`); a plain `cargo test` runs a short form.

mod balancing;
mod events;
mod sink;
mod walk;
mod world;

use anyhow::Result;

use crate::{
    walk::Walk,
    world::{Size, World},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cameras_are_processed_by_one_worker_at_a_time_whatever_happens() -> Result<()> {
    let size = Size::from_env();
    let mut walk = Walk::new(World::start(size).await?);
    walk.cameras_are_acquired().await?;
    walk.health_is_told().await?;
    walk.leases_tell_of_the_work().await?;
    walk.leases_are_renewed().await?;
    walk.configuration_is_applied().await?;
    walk.failed_workers_are_restarted().await?;
    walk.a_lost_lease_is_handled().await?;
    walk.work_is_balanced_and_drained().await?;
    walk.an_outage_is_outlived().await?;
    walk.a_crashed_agent_is_replaced().await?;
    walk.a_rolling_restart_moves_everything_once().await?;
    walk.work_is_shifted_between_groups().await?;
    walk.everything_adds_up().await?;
    // It needs ten agents and their workers: too much for every run of the tests.
    if size.is_full {
        balancing::a_fleet_that_doubles_shares_the_work_out().await?;
    }
    Ok(())
}
