//! The key that seals cursors, created on first use.

use rusqlite::{Connection, OptionalExtension, params};

use super::{failed, unreadable};
use crate::{history::Seal, store::StoreError};

pub(super) fn of(db: &mut Connection) -> Result<Seal, StoreError> {
    let read = "SELECT value FROM meta WHERE name = 'seal'";
    let kept: Option<String> = db.query_row(read, [], |row| row.get(0)).optional().map_err(failed)?;
    if let Some(kept) = kept {
        let key = blake3::Hash::from_hex(&kept).map_err(|e| unreadable("seal", e))?;
        return Seal::of_key(key.as_bytes()).ok_or_else(|| unreadable("seal", "not a key"));
    }
    let seal = Seal::random();
    let key: String = seal.key().iter().map(|byte| format!("{byte:02x}")).collect();
    db.execute("INSERT INTO meta (name, value) VALUES ('seal', ?1)", params![key]).map_err(failed)?;
    Ok(seal)
}
