//! Histories that do not follow from one another (rule 23): a store that was restored, copied, moved or failed over
//! goes on in a history of its own, whose revisions and tokens lie above any that may have been given elsewhere.

use solehold_core::time::Revision;

use crate::store::Cursor;

/// Revisions, and so tokens, jump by at least this much between histories: more than can have been lost.
pub const JUMP: u64 = 1 << 32;
/// Minutes are counted from the beginning of 2026.
const MINUTES_FROM_MS: u64 = 1_767_225_600_000;
/// A history begins at this many revisions for each minute by the wall clock. A store makes far fewer per minute, so a
/// history that begins later lies above one that began earlier, even if no process remembers that one: a backup may
/// be older than the last failover.
const REVISIONS_PER_MINUTE: u64 = 1 << 26;

/// The longest ttl that a store allows, unless an option says otherwise: long enough for a lease, and not too long for
/// people to wait after a failover or a restore.
pub const TTL_MAX_MS: u64 = 5 * 60 * 1_000;

/// How long nothing is decided after a store was set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    /// Until the longest lease that can have been lost has run out.
    LongestTtl,
    /// Not at all: nothing was lost, or all holders have been stopped.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// Where: tokens lie above its revision.
    pub cursor: Cursor,
    /// Nothing is granted or renewed for about this long.
    pub barred_ms: u64,
}

/// Where a history begins that comes after `seen`, the furthest point known of any other. The wall clock decides
/// nothing here: if it is wrong, the jump remains.
pub fn another(seen: Cursor, wall_ms: u64) -> Cursor {
    let minutes = wall_ms.saturating_sub(MINUTES_FROM_MS) / 60_000;
    let by_clock = minutes.saturating_mul(REVISIONS_PER_MINUTE);
    let revision =
        seen.revision.0.saturating_add(JUMP).max(by_clock.min(solehold_core::limits::REVISION_MAX / 2));
    Cursor { epoch: seen.epoch.saturating_add(1).max(minutes), revision: Revision(revision) }
}

/// Seals cursors, so that a holder can show how far the history had come and cannot make it up.
#[derive(Clone)]
pub struct Seal {
    key: [u8; 32],
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// A point of a history that was sealed by its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedPoint {
    pub cursor: Cursor,
    /// PostgreSQL's timeline at that point; 0 elsewhere.
    pub timeline: u32,
}

impl Seal {
    /// A seal with a key of its own.
    pub fn random() -> Self {
        let a = uuid::Uuid::new_v4();
        let b = uuid::Uuid::new_v4();
        Self { key: *blake3::Hasher::new().update(a.as_bytes()).update(b.as_bytes()).finalize().as_bytes() }
    }

    /// The seal that a store keeps; nothing, if that is not a key.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        Some(Self { key: key.try_into().ok()? })
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn seal(&self, proven: SealedPoint) -> String {
        let SealedPoint { cursor: Cursor { epoch, revision }, timeline } = proven;
        let text = format!("{epoch:x}.{:x}.{timeline:x}", revision.0);
        let mark = self.mark(&text);
        format!("{text}.{mark}")
    }

    /// What was sealed; nothing, if this seal did not seal it.
    pub fn open(&self, sealed: &str) -> Option<SealedPoint> {
        let (text, mark) = sealed.rsplit_once('.')?;
        // Hashes compare in constant time.
        if blake3::Hash::from_hex(mark).ok()? != self.mark(text) {
            return None;
        }
        let mut numbers = text.split('.').map(|number| u64::from_str_radix(number, 16).ok());
        let epoch = numbers.next()??;
        let revision = numbers.next()??;
        let timeline = numbers.next()??;
        Some(SealedPoint {
            cursor: Cursor { epoch, revision: Revision(revision) },
            timeline: u32::try_from(timeline).ok()?,
        })
    }

    fn mark(&self, text: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.key, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(epoch: u64, revision: u64) -> Cursor {
        Cursor { epoch, revision: Revision(revision) }
    }

    /// A backup from before a failover is restored by a process that knows of neither.
    #[test]
    fn two_histories_from_one_backup_never_give_the_same_token() {
        let backup = cursor(1, 7);
        let noon = MINUTES_FROM_MS + 400_000 * 60_000;
        let failed_over = another(backup, noon);
        assert!(failed_over.revision.0 > backup.revision.0 + JUMP && failed_over.epoch > backup.epoch);
        // An hour later, after a million grants per minute.
        let last = failed_over.revision.0 + 60 * 1_000_000;
        let restored = another(backup, noon + 60 * 60_000);
        assert!(restored.revision.0 > last && restored > failed_over);
    }

    #[test]
    fn a_clock_that_is_wrong_leaves_the_jump() {
        for wall_ms in [0, MINUTES_FROM_MS, u64::MAX] {
            let next = another(cursor(5, 1 << 50), wall_ms);
            assert!(next.revision.0 >= (1 << 50) + JUMP && next.epoch > 5, "{next:?}");
            assert!(next.revision.0 <= solehold_core::limits::REVISION_MAX);
        }
    }

    #[test]
    fn a_forged_cursor_proves_nothing() {
        let seal = Seal::random();
        let other = Seal::random();
        let proven = SealedPoint { cursor: cursor(3, 1 << 40), timeline: 2 };
        let sealed = seal.seal(proven);
        assert_eq!(seal.open(&sealed), Some(proven));
        assert_eq!(Seal::of_key(seal.key()).and_then(|again| again.open(&sealed)), Some(proven));
        assert_eq!(other.open(&sealed), None);
        assert_eq!(seal.open(&sealed.replacen('3', "4", 1)), None);
        for odd in ["", ".", "1.2.3", "1.2.3.", "x.y.z.q", "é.é"] {
            assert_eq!(seal.open(odd), None, "{odd}");
        }
    }
}
