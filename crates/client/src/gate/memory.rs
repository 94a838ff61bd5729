//! The file in which a gate keeps its marks across restarts.
//!
//! One JSON object per line, appended and synced in groups. A mark admits only when its line is on the disk. When the
//! file has grown to several lines per mark it is replaced by one with a line for each. The end of a line that was cut
//! off by a crash was never relied on, and is dropped; any other line that cannot be read is an error.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use solehold_clock::Backoff;
use solehold_core::{
    fence::{Fence, Mark, MarkRecord},
    key::{Name, ResourceKey, SessionId},
    time::Token,
};

use super::{options::MemoryError, state::GateState};

const TITLE: &str = "{\"solehold_gate\":1}\n";
/// The file is replaced when it has more lines than this, and several per mark.
const LINES_MIN: usize = 10_000;
const AGAIN: Backoff = Backoff { first: Duration::from_millis(100), cap: Duration::from_secs(5) };

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Mark {
        tenant: Name,
        kind: Name,
        key: Name,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
        token: Token,
        session: Option<SessionId>,
    },
    Floor(Token),
    Epoch(u64),
}

impl From<MarkRecord> for Line {
    fn from(record: MarkRecord) -> Self {
        match record {
            MarkRecord::Mark(ResourceKey { tenant, kind, key, slot }, Mark { token, session }) => {
                let slot = Some(slot).filter(|slot| *slot > 0);
                Self::Mark { tenant, kind, key, slot, token, session }
            }
            MarkRecord::Floor(floor) => Self::Floor(floor),
            MarkRecord::Epoch(epoch) => Self::Epoch(epoch),
        }
    }
}

impl From<Line> for MarkRecord {
    fn from(line: Line) -> Self {
        match line {
            Line::Mark { tenant, kind, key, slot, token, session } => {
                let slot = slot.unwrap_or(0);
                Self::Mark(ResourceKey { tenant, kind, key, slot }, Mark { token, session })
            }
            Line::Floor(floor) => Self::Floor(floor),
            Line::Epoch(epoch) => Self::Epoch(epoch),
        }
    }
}

/// The file, locked for as long as the gate is there.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    file: File,
    lines: usize,
    /// Keeps others out, across the replacement of the file.
    _lock: File,
}

impl Memory {
    /// Opens or makes the file, and takes over what it says.
    pub fn open(path: &Path, fence: &mut Fence) -> Result<Self, MemoryError> {
        let failed = |why| MemoryError::Io { path: path.to_owned(), why };
        let lock = open(&beside(path, "lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(MemoryError::InUse(path.to_owned())),
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
        let mut file = open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let lines =
            restore(&bytes, fence).map_err(|line| MemoryError::Damaged { path: path.to_owned(), line })?;
        let mut memory = Self { path: path.to_owned(), file, lines, _lock: lock };
        // What was cut off is written over, and so is what came before in many steps.
        memory.replace(fence.records()).map_err(failed)?;
        Ok(memory)
    }

    /// Saves what there is to save, for as long as the gate is there.
    pub async fn keep(mut self, shared: Arc<GateState>) {
        let mut failures = 0;
        let mut waiting: Vec<MarkRecord> = Vec::new();
        loop {
            shared.to_save.notified().await;
            loop {
                let (records, number) = shared.write().unsaved();
                waiting.extend(records);
                if waiting.is_empty() {
                    break;
                }
                let is_long = self.lines + waiting.len() > LINES_MIN.max(4 * shared.read().marks());
                let whole = is_long.then(|| shared.read().records().collect::<Vec<_>>());
                let task = tokio::task::spawn_blocking(move || {
                    let saved = match whole {
                        Some(records) => self.replace(records.into_iter()),
                        None => self.append(&waiting),
                    };
                    (self, waiting, saved)
                });
                let Ok((memory, tried, saved)) = task.await else { return };
                (self, waiting) = (memory, tried);
                match saved {
                    Ok(()) => {
                        failures = 0;
                        waiting.clear();
                        shared.write().saved_up_to(number);
                        shared.changes.send_modify(|count| *count += 1);
                    }
                    Err(error) => {
                        failures += 1;
                        let path = self.path.display();
                        tracing::error!(%error, %path, "cannot save the gate's marks; refusing new tokens");
                        tokio::time::sleep(AGAIN.wait(failures, 0.5)).await;
                    }
                }
            }
        }
    }

    fn append(&mut self, records: &[MarkRecord]) -> io::Result<()> {
        let text = encode(records.iter().cloned())?;
        // What a failed attempt has left would be in the middle of a line.
        let end = self.file.seek(SeekFrom::End(0))?;
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            self.file.set_len(end)?;
        }
        self.lines += records.len();
        written
    }

    /// Writes another file and puts it in the place of this one.
    fn replace(&mut self, records: impl Iterator<Item = MarkRecord>) -> io::Result<()> {
        let text = encode(records)?;
        let path = beside(&self.path, "new");
        let mut file = File::create(&path)?;
        file.write_all(TITLE.as_bytes())?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&path, &self.path)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        self.lines = text.lines().count();
        self.file = file;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

fn encode(records: impl Iterator<Item = MarkRecord>) -> io::Result<String> {
    let mut text = String::new();
    for record in records {
        text.push_str(&serde_json::to_string(&Line::from(record))?);
        text.push('\n');
    }
    Ok(text)
}

/// Takes over what the file says, and gives the number of its lines, or the first that cannot be read.
fn restore(bytes: &[u8], fence: &mut Fence) -> Result<usize, usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split_inclusive('\n').enumerate().peekable();
    if lines.next().is_none_or(|(_, title)| title != TITLE) {
        return Err(1);
    }
    let mut count = 0;
    while let Some((at, line)) = lines.next() {
        match serde_json::from_str::<Line>(line).ok().filter(|_| line.ends_with('\n')) {
            Some(line) => fence.restore(line.into()),
            None if lines.peek().is_none() => break,
            None => return Err(at + 1),
        }
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use solehold_core::fence::Rules;

    use super::*;

    fn key() -> ResourceKey {
        let name = |text: &str| Name::new(text).expect("a name");
        ResourceKey::new(name("default"), name("scene"), name("the \"lobby\""))
    }

    fn fence() -> Fence {
        Fence::new(Rules { remembers: true, ..Rules::default() })
    }

    fn mark(token: u64) -> MarkRecord {
        MarkRecord::Mark(key(), Mark { token: Token(token), session: None })
    }

    #[test]
    fn what_was_saved_comes_back_and_a_line_that_was_cut_off_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marks");
        let mut memory = Memory::open(&path, &mut fence()).expect("a new file");
        assert!(matches!(Memory::open(&path, &mut fence()), Err(MemoryError::InUse(_))));
        memory.append(&[MarkRecord::Epoch(3), mark(7)]).expect("saved");
        memory.append(&[mark(9), MarkRecord::Floor(Token(2))]).expect("saved");
        drop(memory);
        let whole = std::fs::read(&path).expect("a file");
        let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        // The title, and what a gate without marks says of its floors and its epoch.
        assert_eq!(count(&whole), 4 + 4);

        for cut in TITLE.len()..=whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("written");
            let mut restored = fence();
            drop(Memory::open(&path, &mut restored).expect("it can be used"));
            let expected = match count(&whole[..cut]) {
                0..=5 => None,
                6 => Some(Token(7)),
                _ => Some(Token(9)),
            };
            assert_eq!(restored.mark(&key()).map(|mark| mark.token), expected, "cut at {cut}");
            let mut again = fence();
            drop(Memory::open(&path, &mut again).expect("it can be used"));
            assert_eq!(again.mark(&key()), restored.mark(&key()), "what was taken over was written anew");
        }
        assert_eq!((count(&whole), whole.starts_with(TITLE.as_bytes())), (8, true));
    }

    #[test]
    fn what_no_gate_has_written_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("marks");
        let odd = |text: &str| {
            std::fs::write(&path, text).expect("written");
            Memory::open(&path, &mut fence()).expect_err("damaged").to_string()
        };
        let refused = odd(&format!("{TITLE}nonsense\n{{\"floor\":3}}\n"));
        assert!(refused.starts_with("line 2 of the gate's memory"), "{refused}");
        assert!(odd("root:x:0:0\n").starts_with("line 1 of"));
        let path = folder.path().join("nowhere/marks");
        assert!(Memory::open(&path, &mut fence()).expect_err("no folder").to_string().contains("nowhere"));
    }
}
