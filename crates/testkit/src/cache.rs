//! The folder that test processes of one user on one machine share.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// `$XDG_CACHE_HOME` or the temporary folder, then `solehold-testkit-<uid>`, made if missing.
pub(crate) fn folder() -> Result<PathBuf> {
    let cache_home = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty());
    let base = cache_home.map_or_else(std::env::temp_dir, PathBuf::from);
    let uid = rustix::process::getuid().as_raw();
    let folder = base.join(format!("solehold-testkit-{uid}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // In a folder for everyone the name could be taken: what another user wrote is not run.
    let owner = fs::metadata(&folder)?.uid();
    ensure!(owner == uid, "{} belongs to user {owner}; remove it or set XDG_CACHE_HOME", folder.display());
    Ok(folder)
}
