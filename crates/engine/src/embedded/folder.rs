//! The lock on a data folder.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use crate::store::StoreError;

/// This process has the folder, for as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder, making it if there is none. Refused, with the other's pid, while another process has it.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let unusable =
            |e: std::io::Error| StoreError::Unusable(format!("data folder {}: {e}", folder.display()));
        fs::create_dir_all(folder).map_err(unusable)?;
        let path = folder.join("lock");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(unusable)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(unusable)?;
            let pid = match pid.trim() {
                "" => "another process".to_owned(),
                pid => format!("process {pid}"),
            };
            let text = format!("data folder {} is in use by {pid}", folder.display());
            return Err(StoreError::Unusable(text));
        }
        // Written over what is there, which takes no room: a full disk is no reason not to start. The lock holds
        // without it.
        let pid = format!("{:<10}\n", std::process::id());
        let written = file.rewind().and_then(|()| file.write_all(pid.as_bytes()));
        if let Err(error) = written.and_then(|()| file.set_len(pid.len() as u64)) {
            tracing::warn!(%error, "the data folder does not say which process has it");
        }
        Ok(Self { _file: file })
    }
}
