//! `solehold orchestrator import-marks`: takes over what the other system has marked as processed.

use std::path::Path;

use redis::aio::MultiplexedConnection;
use solehold_clock::BootTime;

use super::{KeyTemplate, PAGE, TELL_EVERY, connect, of_database, unreachable};
use crate::{
    config,
    run::{apply, open},
    running::{Flags, ImportedMarks, MarkOrders, RunError, SkippedKey},
    store::{IMPORTED, Store},
};

/// How many of the keys that were skipped are shown.
const SHOWN_MAX: usize = 10;
/// How much of a key is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// Reads the keys of the other system and keeps a mark for each command that it has processed. It may be repeated.
pub async fn import_marks(
    path: &Path,
    flags: Flags,
    orders: MarkOrders,
    say: impl Fn(&str),
) -> Result<ImportedMarks, RunError> {
    let settings = config::load(path, |file| apply(flags, file))?;
    let template: KeyTemplate =
        orders.pattern.parse().map_err(|error| RunError::Usage(format!("--pattern: {error}")))?;
    let mut redis = connect(&orders.redis).await?;
    let store = if orders.dry_run { None } else { Some(open(&settings, settings.postgres.wait).await?.0) };
    let (glob, mut cursor) = (template.glob(), 0);
    let mut imported = ImportedMarks { dry_run: orders.dry_run, pattern: glob.clone(), ..Default::default() };
    let mut told = BootTime::now();
    loop {
        let (next, keys) = scan(&mut redis, cursor, &glob).await?;
        imported.found += keys.len() as u64;
        let mut names = Vec::with_capacity(keys.len());
        for key in &keys {
            match template.read(key) {
                Ok(former) => names.push(former.name()),
                Err(reason) => skip(&mut imported, key, reason),
            }
        }
        if let Some(store) = &store {
            let new = keep(store, &names).await?;
            imported.imported += new;
            imported.known += names.len() as u64 - new;
        } else {
            imported.imported += names.len() as u64;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(imported);
        }
        if BootTime::now().since(told) >= TELL_EVERY {
            told = BootTime::now();
            say(&format!("{} keys read, {} marks imported", imported.found, imported.imported));
        }
    }
}

/// Some of the keys, and where to go on. A key that is there all the time is found, perhaps twice.
async fn scan(
    redis: &mut MultiplexedConnection,
    cursor: u64,
    glob: &str,
) -> Result<(u64, Vec<Vec<u8>>), RunError> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(glob).arg("COUNT").arg(PAGE);
    scan.query_async(redis).await.map_err(unreachable)
}

fn skip(imported: &mut ImportedMarks, key: &[u8], reason: &'static str) {
    imported.skipped += 1;
    if imported.examples.len() < SHOWN_MAX {
        let key = String::from_utf8_lossy(key).chars().take(SHOWN_CHARS).collect();
        imported.examples.push(SkippedKey { key, reason: reason.to_owned() });
    }
}

/// Returns how many of these marks are new.
async fn keep(store: &Store, names: &[(&'static str, String)]) -> Result<u64, RunError> {
    let client = store.pool().get().await.map_err(of_database)?;
    let mut new = 0;
    for some in names.chunks(PAGE) {
        new += store.inbox().import(&**client, IMPORTED, some).await.map_err(of_database)?;
    }
    Ok(new)
}
