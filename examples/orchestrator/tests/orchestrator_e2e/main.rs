//! The video pipeline from end to end: Kafka, PostgreSQL, pods of the orchestrator, and workers, under every fault that
//! the design of such a service must bear. It prints its figures.
//!
//! `make e2e EXAMPLE=orchestrator` runs it in full (20,000 jobs of 4 stages, 2 to 6 pods, both ways of assigning
//! partitions); a plain `cargo test` runs a short form.

mod broker;
mod celery;
mod control;
mod faults;
mod line;
mod moving;
mod shadow;
mod takeover;
mod world;

use anyhow::Result;

use crate::{
    faults::Faults,
    world::{Mode, Size, World},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_group_loses_nothing_and_does_nothing_twice() -> Result<()> {
    walk(Mode::Group).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_partitions_lose_nothing_and_do_nothing_twice() -> Result<()> {
    walk(Mode::Leases).await
}

async fn walk(mode: Mode) -> Result<()> {
    let size = Size::from_env();
    let mut walk = Faults::new(World::start(mode, size).await?);
    walk.jobs_flow().await?;
    walk.a_killed_pod_is_replaced().await?;
    walk.a_terminated_pod_hands_over().await?;
    walk.a_paused_pod_is_refused().await?;
    if size.is_full {
        walk.a_pod_is_cut_from_the_broker().await?;
        walk.a_pod_is_cut_from_the_database().await?;
        walk.a_rolling_restart_stops_nothing().await?;
        walk.the_broker_is_restarted().await?;
        walk.the_database_is_restarted().await?;
    }
    walk.everything_adds_up().await
}
