//! `solehold admin import`: an export of another store, the live rows of a hand-written lease table, or the cameras,
//! zones and scenes of another system.
//!
//! ```text
//!   FILE                  -> transfer: a store that has never been used
//!   --from-table          -> table: rows and the old clock -> takeover: tokens, hold-backs, declarations
//!   --cameras, --scenes   -> source: files and pages -> documents: cameras and zones / scenes, only what differs
//! ```

mod cameras;
mod changes;
mod fixture;
mod scenes;
mod source;
#[cfg(feature = "postgres")]
mod table;
#[cfg(feature = "postgres")]
mod takeover;

use std::path::{Path, PathBuf};

use clap::Args;
use solehold_api::problem::ErrorCode;

#[cfg(feature = "postgres")]
use self::takeover::{Options, Takeover};
use super::transfer;
use crate::{
    client::{Client, ServerArgs},
    error::{CommandError, CommandResult},
    global::GlobalArgs,
    store::StoreChoice,
    target::pair,
};

/// How many faults of what is imported are named.
const FAULTS_SHOWN: usize = 20;

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The export; - or nothing reads stdin
    #[arg(conflicts_with_all = ["from_table", "cameras", "scenes", "dry_run", "only", "site"])]
    file: Option<PathBuf>,
    /// Take over a lease table that you wrote yourself: scene_leases, leases or session_locks, or one of another name
    /// as scene_leases=SCHEMA.TABLE. Tokens go on above those of the table, and a resource that it shows as held is
    /// held back until that lease has run out
    #[arg(long, num_args = 2, value_names = ["URL", "TABLE"], conflicts_with_all = ["cameras", "scenes"])]
    from_table: Option<Vec<String>>,
    /// Declare the cameras and zones of a Django fixture, a list in JSON or CSV, or a paged REST list; may be repeated.
    /// SOLEHOLD_IMPORT_AUTHORIZATION is the Authorization header for a URL
    #[arg(long, value_name = "FILE|URL", conflicts_with = "scenes")]
    cameras: Vec<String>,
    /// Declare the scenes of a list in JSON or CSV, or of a paged REST list; may be repeated
    #[arg(long, value_name = "FILE|URL")]
    scenes: Vec<String>,
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Import only the resource with this key; may be repeated
    #[arg(long, value_name = "KEY")]
    only: Vec<String>,
    /// Import only what is at this site; cameras and zones that name no site are at this one
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// With --from-table: mark the rows in the old table as held by solehold, so that no worker can renew or acquire
    /// there
    #[arg(long, requires = "from_table")]
    retire: bool,
    /// With --from-table: a column that has another name than in the documented table, such as scene_id=id; may be
    /// repeated
    #[arg(long = "map", value_name = "COLUMN=COLUMN", value_parser = pair, requires = "from_table")]
    columns: Vec<(String, String)>,
    /// With --from-table: the time zone of times without one [default: that of the database]
    #[arg(long, value_name = "ZONE", requires = "from_table")]
    time_zone: Option<String>,
}

/// Which of what was found is imported.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub only: Vec<String>,
    pub site: Option<String>,
}

impl Selection {
    fn takes(&self, key: &str, site: Option<&str>) -> bool {
        let by_key = self.only.is_empty() || self.only.iter().any(|only| only == key);
        by_key && self.site.as_deref().is_none_or(|wanted| site == Some(wanted))
    }

    /// Fails if a key was asked for that was not found: it is probably mistyped.
    fn refuse_unknown<'a>(&self, found: impl Iterator<Item = &'a str> + Clone) -> CommandResult {
        match self.only.iter().find(|only| !found.clone().any(|key| key == only.as_str())) {
            Some(unknown) => Err(CommandError::usage(format!("--only {unknown}: there is no such row"))),
            None => Ok(()),
        }
    }
}

pub async fn run(
    args: ImportArgs,
    store: Option<&StoreChoice>,
    server: &ServerArgs,
    global: &GlobalArgs,
) -> CommandResult {
    let selection = Selection { only: args.only.clone(), site: args.site.clone() };
    if let Some(from) = &args.from_table {
        let [url, table] = from.as_slice() else {
            return Err(CommandError::usage("--from-table takes a URL and a table"));
        };
        return take_over(url, table, &selection, &args, store, server, global).await;
    }
    let documents = [("--cameras", &args.cameras), ("--scenes", &args.scenes)];
    let Some((flag, sources)) = documents.into_iter().find(|(_, sources)| !sources.is_empty()) else {
        if args.dry_run || !selection.only.is_empty() || selection.site.is_some() {
            let message = "--dry-run, --only and --site are for --from-table, --cameras and --scenes";
            return Err(CommandError::usage(message));
        }
        let file = args.file.unwrap_or_else(|| Path::new("-").to_owned());
        return transfer::import(&file, store, server, global).await;
    };
    if store.is_some() {
        // A change of a zone is an event of each camera that it applies to, which is the server's work.
        return Err(CommandError::usage(format!(
            "{flag} works through a server: use --server, not --data-dir or --engine"
        )));
    }
    let items = source::read_all(sources, server).await?;
    let client = Client::new(&ServerArgs { tenant: None, ..server.clone() })?;
    let tenant = server.tenant.as_deref().filter(|tenant| !tenant.is_empty());
    let changes = match flag {
        "--cameras" => cameras::changes(items, &selection, tenant, &client).await?,
        _ => scenes::changes(items, &selection, tenant, &client).await?,
    };
    changes.apply(args.dry_run, &client, global).await
}

#[cfg(feature = "postgres")]
async fn take_over(
    url: &str,
    table: &str,
    selection: &Selection,
    args: &ImportArgs,
    store: Option<&StoreChoice>,
    server: &ServerArgs,
    global: &GlobalArgs,
) -> CommandResult {
    let options = Options { dry_run: args.dry_run, retire: args.retire };
    let columns = args.columns.iter().cloned().collect();
    let shape = table::Shape::of(table, &columns, args.retire)?;
    if selection.site.is_some() && !shape.has_sites() {
        return Err(CommandError::usage(format!("--site: the rows of {table} name no site; use --only")));
    }
    let time_zone = args.time_zone.as_deref();
    takeover::run(Takeover { url, shape, time_zone, selection, options }, store, server, global).await
}

#[cfg(not(feature = "postgres"))]
async fn take_over(
    _: &str,
    _: &str,
    _: &Selection,
    _: &ImportArgs,
    _: Option<&StoreChoice>,
    _: &ServerArgs,
    _: &GlobalArgs,
) -> CommandResult {
    Err(CommandError::usage(crate::engine_url::NOT_BUILT))
}

/// Refuses the import with all of its faults in one error.
fn refuse_faults(code: ErrorCode, faults: &[String]) -> CommandResult {
    if faults.is_empty() {
        return Ok(());
    }
    let shown = faults.iter().take(FAULTS_SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    let rest = match faults.len().saturating_sub(FAULTS_SHOWN) {
        0 => String::new(),
        rest => format!("; and {rest} more"),
    };
    Err(CommandError::new(code, format!("nothing was imported: {shown}{rest}")))
}
