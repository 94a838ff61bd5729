//! A whole run: two recordings that are judged, and then the same with syncs left out, which must be found out.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use solehold_testkit::TempDir;

use super::{Recording, Selection, Unsynced, Until, Verdict, Workload, judge};

/// A recording, and how much of it is judged.
struct Scene {
    name: &'static str,
    workload: Workload,
    selection: Selection,
}

/// Small documents show every sync. Large ones fill the log of the store, which is folded into its snapshot, and that
/// of SQLite, which is copied into the database, while the server runs; there are too many states to open them all.
fn scenes(selection: &Selection, seed: u64) -> [Scene; 2] {
    let small = Workload { lives: 4, requests: 40, document_bytes: 3_000, seed };
    let large = Workload { lives: 2, requests: 150, document_bytes: 60_000, seed };
    let fewer = Selection { boundaries: Some(150), between: 150, parts: 2, servers: 2 };
    [
        Scene { name: "small documents", workload: small, selection: selection.clone() },
        Scene { name: "large documents", workload: large, selection: fewer },
    ]
}

/// Records and judges; false if anything was wrong. The recordings are kept in `folder` if there is one, and those that
/// are there are judged again.
pub async fn run(program: &Path, selection: &Selection, seed: u64, folder: Option<PathBuf>) -> Result<bool> {
    let temporary = TempDir::new()?;
    let is_kept = folder.is_some();
    let folder = folder.unwrap_or_else(|| temporary.path().to_owned());
    let mut is_right = true;
    let mut first = None;
    println!(
        "| recording | system calls | syncs | answers | moments | states opened | wrong |\n{}",
        "|---".repeat(7) + "|"
    );
    for Scene { name, workload, selection } in scenes(selection, seed) {
        let recording = recorded(program, &folder.join(name.replace(' ', "-")), &workload).await?;
        let verdict = judge(&recording, &selection, seed, None, Until::End).await?;
        ensure!(verdict.answers > 0, "{name}: nothing was answered, so nothing is shown");
        let Verdict { calls, syncs, answers, moments, states, wrong, shown } = verdict;
        println!("| {name} | {calls} | {syncs} | {answers} | {moments} | {states} | {wrong} |");
        shown.iter().for_each(|line| eprintln!("power-loss: {name}: {line}"));
        is_right &= wrong == 0;
        first = first.or(Some(recording));
    }
    if let Some(recording) = &first {
        is_right &= is_found_out(recording, selection, seed).await?;
    }
    if !is_right && !is_kept {
        let folder = temporary.keep();
        eprintln!("power-loss: judge again with --recordings {} --seed {seed}", folder.display());
    }
    Ok(is_right)
}

async fn recorded(program: &Path, folder: &Path, workload: &Workload) -> Result<Recording> {
    if folder.exists() {
        return Recording::read(folder);
    }
    fs::create_dir_all(folder)?;
    Recording::make(program, folder, workload).await
}

/// Leaves syncs out, one kind after the other; false if one is not missed.
async fn is_found_out(recording: &Recording, selection: &Selection, seed: u64) -> Result<bool> {
    let selection = Selection { servers: 0, ..selection.clone() };
    let mut is_right = true;
    println!("\n| not synced | states until found | what was wrong |\n|---|---|---|");
    for without in Unsynced::ALL {
        let verdict = judge(recording, &selection, seed, Some(without), Until::FirstWrong).await?;
        let wrong = verdict.shown.first().map_or("nothing", String::as_str);
        println!("| {} | {} | {wrong} |", without.name(), verdict.states);
        is_right &= verdict.wrong > 0;
    }
    Ok(is_right)
}
