//! Where PostgreSQL is on this machine, and whom it may run as.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::server::User;

/// The programs of one PostgreSQL version.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    bin: PathBuf,
    /// Another user than ours, since PostgreSQL refuses to run as root.
    pub(crate) user: Option<User>,
}

impl Install {
    /// By `pg_config`, then Debian's folders from the newest version down, then `PATH`.
    pub(crate) fn find() -> Result<Self> {
        let bin = from_pg_config()
            .into_iter()
            .chain(from_debian())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()))
            .find(|bin| bin.join("postgres").is_file() && bin.join("initdb").is_file())
            .context("PostgreSQL is not here: install the Debian package `postgresql`")?;
        Ok(Self { bin, user: user() })
    }

    /// The path of one of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// Such as `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`.
    pub(super) fn version(&self) -> Result<String> {
        let output = Command::new(self.program("postgres")).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn from_debian() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable();
    let bin = |version: &u32| Path::new("/usr/lib/postgresql").join(version.to_string()).join("bin");
    versions.iter().rev().map(bin).collect()
}

/// As ourselves, unless we are root: then as `postgres`, or as nobody where there is no such user.
pub(crate) fn user() -> Option<User> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let postgres = passwd.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    });
    Some(postgres.unwrap_or(User { uid: 65534, gid: 65534 }))
}
