//! `solehold orchestrator export-marks`: writes the marks of commands that took effect here as keys of the former
//! system.

use std::{path::Path, time::Duration};

use serde::Serialize;
use solehold_clock::BootTime;
use solehold_sql::inbox::{ID_SEPARATOR, ListedMark};

use super::{KeyTemplate, MarkOrders, PAGE, PROGRESS_EVERY, connect, unreachable};
use crate::{
    config::{self, Flags},
    error::RunError,
    model::command::CommandKind,
    operations::start::open,
    store::IMPORTED,
};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ExportedMarks {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Marks of commands that took effect here.
    pub marks: u64,
    pub exported: u64,
    pub known: u64,
    /// Marks without a key in the former system.
    pub skipped: u64,
}

/// Writes a key for each command that has taken effect, unless it exists. It may be repeated.
pub async fn export_marks(
    path: &Path,
    flags: Flags,
    orders: MarkOrders,
    ttl: Duration,
    say: impl Fn(&str),
) -> Result<ExportedMarks, RunError> {
    let settings = config::load(path, |file| flags.apply(file))?;
    let template: KeyTemplate = orders.pattern.parse()?;
    if ttl.as_secs() == 0 {
        return Err(RunError::Usage("--ttl must be at least 1s".to_owned()));
    }
    let mut redis = connect(&orders.redis).await?;
    let (store, _) = open(&settings, settings.postgres.wait).await?;
    let mut exported = ExportedMarks { dry_run: orders.dry_run, ..Default::default() };
    let mut after = (String::new(), String::new(), String::new());
    let mut shown = BootTime::now();
    loop {
        let client = store.pool.get().await.map_err(RunError::database)?;
        let from = (after.0.as_str(), after.1.as_str(), after.2.as_str());
        let marks =
            store.inbox.list_marks(&**client, None, from, PAGE as i64).await.map_err(RunError::database)?;
        drop(client);
        let Some(last) = marks.last() else { return Ok(exported) };
        after = (last.scope.clone(), last.command.clone(), last.id.clone());
        // Imported marks came from keys of the former system.
        let ours: Vec<&ListedMark> = marks.iter().filter(|mark| mark.scope != IMPORTED).collect();
        let keys: Vec<String> = ours.iter().filter_map(|mark| key(&template, mark)).collect();
        exported.marks += ours.len() as u64;
        exported.skipped += (ours.len() - keys.len()) as u64;
        if orders.dry_run {
            exported.exported += keys.len() as u64;
            continue;
        }
        let mut setting = redis::pipe();
        for key in &keys {
            setting.cmd("SET").arg(key).arg("1").arg("EX").arg(ttl.as_secs()).arg("NX");
        }
        let set: Vec<Option<String>> = if keys.is_empty() {
            Vec::new()
        } else {
            setting.query_async(&mut redis).await.map_err(unreachable)?
        };
        let new = set.iter().flatten().count();
        exported.exported += new as u64;
        exported.known += (keys.len() - new) as u64;
        if BootTime::now().since(shown) >= PROGRESS_EVERY {
            shown = BootTime::now();
            say(&format!("{} marks read, {} keys written", exported.marks, exported.exported));
        }
    }
}

/// The key of a mark, if the former system can have one.
fn key(template: &KeyTemplate, mark: &ListedMark) -> Option<String> {
    let kind = CommandKind::ALL.into_iter().find(|kind| kind.name() == mark.command)?;
    let (job, command) = match mark.id.split_once(ID_SEPARATOR) {
        Some((job, command)) => (job, Some(command)),
        None => (mark.id.as_str(), None),
    };
    template.key(kind, job, command)
}
