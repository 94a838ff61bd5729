//! Facts of this machine: files, disks, clocks and processes.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::{Access, FlockOperation, access, flock, statfs};
use solehold_engine::{
    clock::{BootTime, wall_ms},
    embedded,
};
use solehold_process::tls;
use solehold_server::{Tls, TlsFiles};

use crate::doctor::{
    certificates::CertificateFacts,
    files::SecretFile,
    folder::{Disk, FolderFacts, LockState, There},
};

/// The programs that keep a clock, by the names of their processes, of which the kernel keeps 15 characters.
const TIME_SERVICES: [&str; 6] = ["chronyd", "ntpd", "ntpsec", "openntpd", "ptp4l", "systemd-timesyn"];

/// The wall clock and the time since boot, read together.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    wall_ms: u64,
    boot: BootTime,
}

impl Clocks {
    pub fn read() -> Self {
        Self { wall_ms: wall_ms(), boot: BootTime::now() }
    }

    /// How far the wall clock has moved since then beyond the time that passed.
    pub fn moved_ms(self) -> i64 {
        let now = Self::read();
        let passed = i64::try_from(now.boot.since(self.boot).as_millis()).unwrap_or(i64::MAX);
        now.wall_ms.cast_signed() - self.wall_ms.cast_signed() - passed
    }
}

/// The time services among the processes of this machine; none if they cannot be listed.
pub fn time_services() -> Option<Vec<String>> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let names = processes.filter_map(|process| fs::read_to_string(process.path().join("comm")).ok());
    let mut found: Vec<String> = names
        .map(|name| name.trim().to_owned())
        .filter(|name| TIME_SERVICES.contains(&name.as_str()))
        .collect();
    found.sort();
    found.dedup();
    Some(found)
}

pub fn secret(what: &'static str, path: &Path) -> SecretFile {
    let mode = fs::metadata(path).map(|file| file.permissions().mode()).map_err(|error| error.to_string());
    SecretFile { what, path: path.to_owned(), mode }
}

pub fn folder(path: &Path) -> FolderFacts {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = fs::metadata(&path).ok().map(|folder| There {
        mode: folder.permissions().mode(),
        owner: folder.uid(),
        user: rustix::process::geteuid().as_raw(),
        is_writable: access(&path, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        lock: lock(&path),
        schema: embedded::schema_version(&path).map_err(|error| error.to_string()),
        schema_known: embedded::SCHEMA_VERSION,
    });
    let disk = disk(&path);
    FolderFacts { path, there, disk }
}

/// Whether a process has the folder. Asks for a shared lock for a moment: a lock that another has is refused.
fn lock(folder: &Path) -> LockState {
    let mut file = match File::open(folder.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return LockState::Free,
        Err(error) => return LockState::Unknown(error.to_string()),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return LockState::Free;
    }
    let mut pid = String::new();
    let read = file.read_to_string(&mut pid);
    LockState::Taken(read.ok().and_then(|_| pid.trim().parse().ok()))
}

/// The disk of a folder, or of the nearest folder above it that is there.
fn disk(path: &Path) -> Result<Disk, String> {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    let disk = statfs(there).map_err(|error| error.to_string())?;
    let block = u64::try_from(disk.f_bsize).unwrap_or_default();
    Ok(Disk {
        // The number has 32 bits, and is signed on some machines.
        kind: disk.f_type.cast_unsigned() & 0xffff_ffff,
        bytes: disk.f_blocks.saturating_mul(block),
        free_bytes: disk.f_bavail.saturating_mul(block),
        inodes: disk.f_files,
        free_inodes: disk.f_ffree,
    })
}

pub async fn certificate(files: &TlsFiles, hosts: Vec<String>) -> CertificateFacts {
    let info = fs::read(&files.cert)
        .map_err(|error| error.to_string())
        .and_then(|pem| tls::CertificateInfo::of_pem(&pem).map_err(|error| error.to_string()));
    let unusable = Tls::open(files.clone(), &[]).await.err().map(|error| error.to_string());
    CertificateFacts { path: files.cert.clone(), info, unusable, hosts, now_ms: wall_ms() }
}
