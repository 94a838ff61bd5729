//! The lock on a data folder, and its permissions: only the owner may read it, since it has leases, state documents and
//! the hashes of keys.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{Read, Seek, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use crate::store::StoreError;

/// The permissions of all users but the owner.
const OTHERS: u32 = 0o077;

/// Opens a file, making it if there is none, that only its owner may read or write.
pub fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(mode & !OTHERS))?;
    }
    Ok(file)
}

/// This process has the folder, for as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder, making it if there is none. Refused, with the other's pid, while another process has it.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let unusable = |e: std::io::Error| {
            StoreError::Unusable(format!("cannot use data folder {}: {e}", folder.display()))
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        let mut file = private_file(&folder.join("lock")).map_err(unusable)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(unusable)?;
            return Err(StoreError::InUse { folder: folder.to_owned(), pid: pid.trim().parse().ok() });
        }
        let mode = fs::metadata(folder).map_err(unusable)?.permissions().mode();
        if mode & OTHERS != 0 {
            // It was there before, and may be shared on purpose.
            let path = folder.display();
            tracing::warn!("other users can read the data folder; run `chmod 700 {path}`");
        }
        // Written over what is there, which takes no room: a full disk is no reason not to start. The lock holds
        // without it.
        let pid = format!("{:<10}\n", std::process::id());
        let written = file.rewind().and_then(|()| file.write_all(pid.as_bytes()));
        if let Err(error) = written.and_then(|()| file.set_len(pid.len() as u64)) {
            tracing::warn!(%error, "cannot write the process id into the lock file; the lock is held anyway");
        }
        Ok(Self { _file: file })
    }
}
