//! The data folder itself: that it survives a power loss, who has it, and its permissions: only the owner may read it,
//! since it has leases, state documents and the hashes of keys.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, ErrorKind, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use crate::store::StoreError;

/// The permissions of all users but the owner.
const OTHERS: u32 = 0o077;

/// Opens a file, making it if there is none, that only its owner may read or write.
pub fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(mode & !OTHERS))?;
    }
    Ok(file)
}

/// Makes the names in a folder durable: syncing a file keeps its content, but a file that was made or renamed has its
/// name after a power loss only if the folder was synced.
pub fn sync_names(folder: &Path) -> io::Result<()> {
    // The folder of a relative path with one part.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // Some file systems have no such request.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Makes a folder that is missing, and those above it. Each is durable before anything is made in it.
fn make(folder: &Path) -> io::Result<()> {
    let Some(parent) = folder.parent() else { return Ok(()) };
    if !parent.as_os_str().is_empty() && !parent.exists() {
        make(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made?,
    }
    match sync_names(parent) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let above = parent.display();
            tracing::warn!(%error, "cannot sync {above}; run `sync`, or a power loss may remove the data folder");
            Ok(())
        }
        synced => synced,
    }
}

/// Makes the folder if it is missing. One that is there is made durable too: the process that made it may have been
/// killed before it did that.
fn make_durable(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return make(folder);
    }
    let place = fs::canonicalize(folder)?;
    match place.parent().map_or(Ok(()), sync_names) {
        // Another user made the folder there, as systemd does, or it is mounted there.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            Ok(())
        }
        synced => synced,
    }
}

/// This process has the folder, for as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder, making it if there is none. Refused, with the other's pid, while another process has it.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let unusable =
            |e: io::Error| StoreError::Unusable(format!("cannot use data folder {}: {e}", folder.display()));
        make_durable(folder).map_err(unusable)?;
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
