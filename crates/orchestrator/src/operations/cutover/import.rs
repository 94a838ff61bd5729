//! `solehold orchestrator import-marks`: imports the former system's marks of processed commands.

use std::path::Path;

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use solehold_clock::BootTime;

use super::{KeyTemplate, MarkOrders, PAGE, PROGRESS_EVERY, connect, template::UnreadableKey, unreachable};
use crate::{
    config::{self, Flags},
    error::RunError,
    operations::start::open,
    store::{IMPORTED, Store},
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportedMarks {
    /// Whether nothing was written.
    pub dry_run: bool,
    pub pattern: String,
    /// Keys in Redis. A key that Redis lists twice counts twice.
    pub found: u64,
    pub imported: u64,
    pub known: u64,
    /// Keys that identify no command.
    pub skipped: u64,
    /// The first skipped keys.
    pub examples: Vec<SkippedKey>,
}

/// A key that identifies no command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedKey {
    /// The key, or its beginning.
    pub key: String,
    pub reason: String,
}

const SHOWN_MAX: usize = 10;
/// How much of a key is shown, in characters.
const SHOWN_CHARS: usize = 120;

/// Writes a mark for each key of the former system. It may be repeated.
pub async fn import_marks(
    path: &Path,
    flags: Flags,
    orders: MarkOrders,
    say: impl Fn(&str),
) -> Result<ImportedMarks, RunError> {
    let settings = config::load(path, |file| flags.apply(file))?;
    let template: KeyTemplate = orders.pattern.parse()?;
    let mut redis = connect(&orders.redis).await?;
    let store = if orders.dry_run { None } else { Some(open(&settings, settings.postgres.wait).await?.0) };
    let glob = template.glob();
    let mut cursor = 0;
    let mut imported = ImportedMarks { dry_run: orders.dry_run, pattern: glob.clone(), ..Default::default() };
    let mut shown = BootTime::now();
    loop {
        let (next, keys) = scan(&mut redis, cursor, &glob).await?;
        imported.found += keys.len() as u64;
        let mut names = Vec::with_capacity(keys.len());
        for key in &keys {
            match template.read(key) {
                Ok(mark) => names.push(mark.name()),
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
        if BootTime::now().since(shown) >= PROGRESS_EVERY {
            shown = BootTime::now();
            say(&format!("{} keys read, {} marks imported", imported.found, imported.imported));
        }
    }
}

/// The next cursor and some keys. A key that exists during the whole scan is found at least once.
async fn scan(
    redis: &mut MultiplexedConnection,
    cursor: u64,
    glob: &str,
) -> Result<(u64, Vec<Vec<u8>>), RunError> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(glob).arg("COUNT").arg(PAGE);
    scan.query_async(redis).await.map_err(unreachable)
}

fn skip(imported: &mut ImportedMarks, key: &[u8], reason: UnreadableKey) {
    imported.skipped += 1;
    if imported.examples.len() < SHOWN_MAX {
        let key = String::from_utf8_lossy(key).chars().take(SHOWN_CHARS).collect();
        imported.examples.push(SkippedKey { key, reason: reason.to_string() });
    }
}

/// Writes marks; returns how many are new.
async fn keep(store: &Store, names: &[(&'static str, String)]) -> Result<u64, RunError> {
    let client = store.pool.get().await.map_err(RunError::database)?;
    let mut new = 0;
    for some in names.chunks(PAGE) {
        new += store.inbox.import(&**client, IMPORTED, some).await.map_err(RunError::database)?;
    }
    Ok(new)
}
