//! A data folder made once per machine and copied for each server, since `initdb` takes seconds.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::install::Install;
use crate::cache;

const INITDB: [&str; 6] = ["-U", "postgres", "-A", "trust", "--locale=C.UTF-8", "-N"];

/// Gives `folder` to the user that PostgreSQL runs as, with fresh data in `folder/data`.
pub(super) fn copy_into(install: &Install, folder: &Path) -> Result<()> {
    let template = template(install)?;
    give(install, folder)?;
    copy(&template, &folder.join("data"))
}

/// Gives `folder` to the user that PostgreSQL runs as, with a copy of the primary's data that follows it.
pub(super) fn follow(install: &Install, primary: SocketAddr, folder: &Path) -> Result<()> {
    give(install, folder)?;
    let mut backup = Command::new(install.program("pg_basebackup"));
    backup.arg("-D").arg(folder.join("data")).args(["-U", "postgres", "-h", &primary.ip().to_string()]);
    backup.args(["-p", &primary.port().to_string(), "--write-recovery-conf", "--checkpoint=fast"]);
    run(as_user(install, backup.current_dir(folder)))
}

/// The template for this version, user and way of `initdb`; made under a lock by the first process that needs it.
fn template(install: &Install) -> Result<PathBuf> {
    let cache = cache::folder()?;
    let mut hasher = DefaultHasher::new();
    (install.version()?, install.user.map(|user| user.uid), INITDB).hash(&mut hasher);
    let template = cache.join(format!("pg-template-{:016x}", hasher.finish()));
    let lock = File::create(cache.join("pg-template.lock"))?;
    lock.lock().context("cannot lock the PostgreSQL template")?;
    if !template.exists() {
        make(install, &template)?;
    }
    Ok(template)
}

/// `initdb` in a folder that its user can reach, then into the cache, whole or not at all.
fn make(install: &Install, template: &Path) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("solehold-initdb-").tempdir()?;
    give(install, folder.path())?;
    let data = folder.path().join("data");
    let mut initdb = Command::new(install.program("initdb"));
    run(as_user(install, initdb.arg("-D").arg(&data).args(INITDB).current_dir(folder.path())))?;
    let partial = template.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    copy(&data, &partial)?;
    // A machine that loses power now must not keep a template with holes.
    run(Command::new("sync").arg("--file-system").arg(&partial))?;
    fs::rename(&partial, template).context("cannot put the PostgreSQL template in its place")
}

fn as_user<'a>(install: &Install, command: &'a mut Command) -> &'a mut Command {
    match install.user {
        Some(user) => command.uid(user.uid).gid(user.gid),
        None => command,
    }
}

fn give(install: &Install, folder: &Path) -> Result<()> {
    let Some(user) = install.user else { return Ok(()) };
    chown(folder, Some(user.uid), Some(user.gid))
        .with_context(|| format!("cannot chown {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}:\n{words}", output.status);
    Ok(())
}
