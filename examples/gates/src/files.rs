//! Files: a write under an old token is not renamed into place.
//!
//! ```text
//!   FILE         what readers see; always whole
//!   FILE.mark    the newest token that has written it
//!   FILE.lock    held while the two are compared and changed
//!   FILE.new     being written
//! ```
//! The mark is on the disk before the file is in place. A crash between the two leaves the former file under the newer
//! mark, so that the former holder is refused and the present one writes again. The lock is the kernel's, so a writer
//! that dies holds up nobody. One machine, and writers that all come through here: a network file system is only as
//! good as its locks.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// What came of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The file is in place, and on the disk.
    InPlace,
    /// Nothing was changed: a newer token has written it.
    Stale {
        /// The newest token.
        newest: u64,
    },
}

/// Writes a file under a token. It waits for another writer of the same file.
pub fn write_fenced(path: &Path, token: u64, content: &[u8]) -> io::Result<Written> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(beside(path, "lock"))?;
    lock.lock()?;
    let newest = mark(path)?;
    if token < newest {
        return Ok(Written::Stale { newest });
    }
    if token > newest {
        replace(&beside(path, "mark"), token.to_string().as_bytes())?;
    }
    replace(path, content)?;
    Ok(Written::InPlace)
}

/// The newest token that has written a file; 0 if none has. A mark that cannot be read is an error, never 0.
fn mark(path: &Path) -> io::Result<u64> {
    match fs::read_to_string(beside(path, "mark")) {
        Ok(text) => text.trim().parse().map_err(|_| {
            let why = format!("{} is not a token: {text:?}", beside(path, "mark").display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Writes another file and renames it into place; when this returns, it is on the disk.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = beside(path, "new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}
