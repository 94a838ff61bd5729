//! What a server printed, kept in memory.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::wait_for;

/// The most lines kept; older ones are forgotten.
const LINES: usize = 4_000;
/// The most bytes kept of a line.
const LINE_BYTES: usize = 4_096;

/// The last lines of one server's stdout and stderr, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output(Arc<Mutex<Capture>>);

#[derive(Debug, Default)]
struct Capture {
    lines: VecDeque<String>,
    readers: Vec<JoinHandle<()>>,
}

impl Output {
    /// Reads `stream` to its end, in a thread: output is read even while the test's runtime is busy.
    pub(crate) fn follow(&self, stream: impl Read + Send + 'static) {
        let captured = self.clone();
        let reader = std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.by_ref().take(LINE_BYTES as u64).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                captured.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
        });
        self.lock().readers.push(reader);
    }

    /// Waits until everything that an ended server printed has been read, including what its children still print.
    pub(crate) async fn read_to_end(&self, timeout: Duration) -> Result<()> {
        let all_read = async || self.lock().readers.iter().all(JoinHandle::is_finished);
        wait_for("the end of the output", timeout, all_read).await
    }

    /// The first value that `find` returns for a line.
    pub(crate) fn find_map<T>(&self, find: impl FnMut(&String) -> Option<T>) -> Option<T> {
        self.lock().lines.iter().find_map(find)
    }

    /// Everything kept.
    pub(crate) fn text(&self) -> String {
        self.tail(LINES)
    }

    /// The last `count` lines.
    pub(crate) fn tail(&self, count: usize) -> String {
        let captured = self.lock();
        let skip = captured.lines.len().saturating_sub(count);
        captured.lines.iter().skip(skip).flat_map(|line| [line, "\n"]).collect()
    }

    fn push(&self, line: String) {
        let mut captured = self.lock();
        if captured.lines.len() == LINES {
            captured.lines.pop_front();
        }
        captured.lines.push_back(line);
    }

    fn lock(&self) -> MutexGuard<'_, Capture> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
