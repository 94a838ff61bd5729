//! What happened, as those to whom it happened recorded it: one file of JSON lines for each process.
//!
//! All times are `CLOCK_BOOTTIME`, which is one clock for all processes of a machine and is never set. A line is one
//! `write(2)`, so a process that is killed leaves whole lines behind, and what it had begun without an end.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use solehold_clock::BootTime;

/// One line of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    /// Nanoseconds since boot.
    at: u64,
    entry: Entry,
}

/// What a line tells.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    Began { operation: u64, action: Action },
    Ended { operation: u64, outcome: Outcome },
    Arrived(Write),
    Taken(Write),
    Watched(Sighting),
}

/// What a writer asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It asks the servers for a resource.
    Acquire { resource: String },
    /// It writes to the sink. It begins when the writer has found its lease to be live.
    Write(Write),
    /// It gives a resource back.
    Release { resource: String, token: u64 },
}

/// A write on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    pub resource: String,
    pub token: u64,
    /// Names the write among all of a run.
    pub id: String,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The resource is held, under this token.
    Granted { token: u64 },
    /// The write was taken, or the lease was released.
    Done,
    /// Nothing was done.
    Refused,
    /// It may or may not have been done.
    Unknown,
}

/// What a watcher was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sighting {
    /// A change, and what it grants, if it is a grant.
    Event { epoch: u64, revision: u64, grant: Option<Grantee> },
    /// A whole snapshot: what was before it may not have been told one by one.
    Snapshot { epoch: u64, revision: u64 },
}

/// To whom a resource was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grantee {
    pub resource: String,
    pub holder: String,
    pub token: u64,
}

/// Writes the file of one process.
#[derive(Debug)]
pub struct Recorder {
    file: Mutex<File>,
    next: AtomicU64,
}

impl Recorder {
    /// A new file, named after the process and its pid, since one that is started again is another.
    pub fn create(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!("{name}.{}.jsonl", std::process::id()));
        let file = File::options().append(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), next: AtomicU64::new(0) })
    }

    /// Records that an operation begins, as of `at`, and gives its number.
    pub fn began(&self, at: BootTime, action: Action) -> Result<u64> {
        let operation = self.next.fetch_add(1, Ordering::Relaxed);
        append(&mut self.file.lock(), at, Entry::Began { operation, action })?;
        Ok(operation)
    }

    /// Records that it has ended now.
    pub fn ended(&self, operation: u64, outcome: Outcome) -> Result<()> {
        self.record(Entry::Ended { operation, outcome })
    }

    /// Records that a write has reached the sink now, fenced or not.
    pub fn arrived(&self, write: Write) -> Result<()> {
        self.record(Entry::Arrived(write))
    }

    /// Records that the fenced sink takes a write now.
    pub fn taken(&self, write: Write) -> Result<()> {
        self.record(Entry::Taken(write))
    }

    /// Records what the watch has told now.
    pub fn watched(&self, sighting: Sighting) -> Result<()> {
        self.record(Entry::Watched(sighting))
    }

    fn record(&self, entry: Entry) -> Result<()> {
        let mut file = self.file.lock();
        // Read while the file is locked, so that times are in the order of lines.
        append(&mut file, BootTime::now(), entry)
    }
}

fn append(file: &mut File, at: BootTime, entry: Entry) -> Result<()> {
    let mut line = serde_json::to_string(&Line { at: at.as_nanos(), entry })?;
    line.push('\n');
    file.write_all(line.as_bytes()).context("cannot write the history")
}

/// All files together.
#[derive(Debug, Default)]
pub struct History {
    /// What writers did, each writer's in its order.
    pub operations: Vec<Operation>,
    /// What reached the sink, in order.
    pub arrived: Vec<SinkWrite>,
    /// What the fenced sink took, in order.
    pub taken: Vec<SinkWrite>,
    /// What the watcher saw, in order.
    pub watched: Vec<Sighting>,
}

/// One operation of a writer.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The process.
    pub by: String,
    pub action: Action,
    pub start: BootTime,
    /// None if the process was killed before.
    pub end: Option<(BootTime, Outcome)>,
}

impl Operation {
    /// What became of it. What has no end is unknown.
    pub fn outcome(&self) -> Outcome {
        self.end.as_ref().map_or(Outcome::Unknown, |(_, outcome)| outcome.clone())
    }
}

/// A write at the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkWrite {
    pub at: BootTime,
    pub write: Write,
}

impl History {
    /// Reads the files of a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut history = Self::default();
        let mut files: Vec<_> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        files.retain(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
        files.sort();
        for path in files {
            let text = fs::read_to_string(&path)?;
            let by = path.file_stem().unwrap_or_default().to_string_lossy();
            history.add(&by, &text).with_context(|| format!("in {}", path.display()))?;
        }
        // A sink that was started again has a second file.
        history.arrived.sort_by_key(|write| write.at);
        history.taken.sort_by_key(|write| write.at);
        Ok(history)
    }

    /// Adds the lines of one process.
    fn add(&mut self, by: &str, text: &str) -> Result<()> {
        let mut places = HashMap::new();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let Line { at, entry } = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let at = BootTime::from_nanos(at);
            match entry {
                Entry::Began { operation, action } => {
                    places.insert(operation, self.operations.len());
                    self.operations.push(Operation { by: by.to_owned(), action, start: at, end: None });
                }
                Entry::Ended { operation, outcome } => {
                    let place = *places.get(&operation).context("it ended before it began")?;
                    self.operations[place].end = Some((at, outcome));
                }
                Entry::Arrived(write) => self.arrived.push(SinkWrite { at, write }),
                Entry::Taken(write) => self.taken.push(SinkWrite { at, write }),
                Entry::Watched(sighting) => self.watched.push(sighting),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_and_a_line_that_was_cut_off_is_left_out() {
        let folder = solehold_testkit::TempDir::new().expect("a folder");
        let recorder = Recorder::create(folder.path(), "writer-1").expect("a file");
        let acquire = || Action::Acquire { resource: "a".to_owned() };
        let first = recorder.began(BootTime::from_nanos(5), acquire()).expect("written");
        recorder.began(BootTime::from_nanos(6), acquire()).expect("written");
        recorder.ended(first, Outcome::Granted { token: 7 }).expect("written");
        recorder.file.lock().write_all(b"{\"at\":9,").expect("written");
        let history = History::read(folder.path()).expect("read");
        let outcomes: Vec<Outcome> = history.operations.iter().map(Operation::outcome).collect();
        assert_eq!(outcomes, [Outcome::Granted { token: 7 }, Outcome::Unknown]);
        assert_eq!(history.operations[0].start, BootTime::from_nanos(5));
        assert!(history.operations[0].by.starts_with("writer-1."));
    }
}
