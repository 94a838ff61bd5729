//! A short form of `make chaos`: order and safety under a few faults, and that a broken system is found out.

use std::time::Duration;

use anyhow::{Result, ensure};
use solehold_chaos::{
    broken::Broken,
    fault::Fault,
    section::{self, Section},
    world::Setup,
};

const TTL: Duration = Duration::from_secs(3);

/// The faults begin once, together.
async fn once(faults: &[Fault], broken: Option<Broken>) -> Result<Section> {
    let program = env!("CARGO_BIN_EXE_solehold-chaos").into();
    section::run(Setup::new(program, TTL, broken), faults, Duration::ZERO).await
}

/// Nothing that must not happen has happened.
fn check(section: &Section) -> Result<()> {
    let Section { name, figures, violations, .. } = section;
    ensure!(violations.is_empty(), "{name}: {violations:#?}");
    assert_eq!((figures.lost, figures.overlap_fenced), (0, Duration::ZERO), "{name}");
    ensure!(figures.operations > 0, "{name}: nothing was done, so nothing is shown");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_a_writer_are_killed() -> Result<()> {
    check(&once(&[Fault::ServersKilled, Fault::WriterKilled], None).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_killed_and_writes_are_late() -> Result<()> {
    check(&once(&[Fault::DatabaseKilled, Fault::WritesLate], None).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_an_embedded_store_is_full() -> Result<()> {
    check(&once(&[Fault::DiskFull], None).await?)
}

/// The writer is paused for longer than its leases last: others take over, and it goes on writing when it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_trusts_its_lease_for_ever_is_found_out() -> Result<()> {
    let section = once(&[Fault::WriterPaused], Some(Broken::Deadline)).await?;
    let has_failed = section.violations.iter().any(|violation| violation.judgement == "ownership");
    ensure!(has_failed, "{:#?}", section.violations);
    ensure!(section.figures.overlap_fenced.is_zero(), "the gate refuses what it writes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_passes_everything_is_found_out() -> Result<()> {
    // The write that the paused writer had begun comes after those of its successors.
    let section = once(&[Fault::WritesLate], Some(Broken::Gate)).await?;
    let has_failed = section.violations.iter().any(|violation| violation.judgement == "fence");
    ensure!(has_failed, "{:#?}", section.violations);
    ensure!(!section.figures.overlap_fenced.is_zero());
    Ok(())
}
