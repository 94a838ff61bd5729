//! A short form of `make power-loss`: what was answered survives a power loss, and a store that does not sync what it
//! must is found out.

use std::path::Path;

use anyhow::{Result, ensure};
use solehold_chaos::power_loss::{Recording, Selection, Unsynced, Until, Workload, judge};
use solehold_testkit::TempDir;

const SEED: u64 = 1;
const SELECTION: Selection = Selection { boundaries: Some(40), between: 10, parts: 1, servers: 1 };

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_power_loss() -> Result<()> {
    let folder = TempDir::new()?;
    let program = Path::new(env!("CARGO_BIN_EXE_solehold-chaos"));
    let workload = Workload { lives: 2, requests: 30, document_bytes: 1_000, seed: SEED };
    let recording = Recording::make(program, folder.path(), &workload).await?;
    let verdict = judge(&recording, &SELECTION, SEED, None, Until::End).await?;
    ensure!(verdict.wrong == 0, "{:#?}", verdict.shown);
    ensure!(verdict.answers > 100 && verdict.syncs > 50, "little was done: {verdict:?}");
    let selection = Selection { servers: 0, ..SELECTION };
    for without in Unsynced::ALL {
        let verdict = judge(&recording, &selection, SEED, Some(without), Until::FirstWrong).await?;
        ensure!(verdict.wrong > 0, "nothing misses the sync of {}", without.name());
    }
    Ok(())
}
