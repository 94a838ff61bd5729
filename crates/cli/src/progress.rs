//! Progress of long work, on stderr: one line that is updated on a terminal; elsewhere a line in the log every ten
//! seconds, at level info; nothing with `--json`.

use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

use solehold_clock::BootTime;

use crate::global::GlobalArgs;

const SHOW_EVERY: Duration = Duration::from_millis(200);
const LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Terminal,
    Log,
    Nowhere,
}

/// Counts rows, and tells how many there are, how fast they come and, where that is known, which part of all.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    rows: u64,
    /// Rows or bytes, of which the total is known.
    part: u64,
    total: Option<u64>,
    began: BootTime,
    told: BootTime,
    to: Where,
    is_shown: bool,
}

impl Progress {
    /// Of work such as `read`, of which `total` are to be done: rows, bytes, or whatever [`Self::add`] is told.
    pub fn new(what: &'static str, total: Option<u64>, global: &GlobalArgs) -> Self {
        let to = if global.json {
            Where::Nowhere
        } else if stderr().is_terminal() {
            Where::Terminal
        } else {
            Where::Log
        };
        let now = BootTime::now();
        Self { what, rows: 0, part: 0, total, began: now, told: now, to, is_shown: false }
    }

    /// So many rows more are done, which are `part` of the total.
    pub fn add(&mut self, rows: u64, part: u64) {
        self.rows += rows;
        self.part += part;
        if self.to == Where::Nowhere {
            return;
        }
        let now = BootTime::now();
        let every = if self.to == Where::Terminal { SHOW_EVERY } else { LOG_EVERY };
        if now.since(self.told) < every {
            return;
        }
        self.told = now;
        let text = self.text(now.since(self.began));
        match self.to {
            Where::Terminal => {
                self.is_shown = true;
                let _ = write!(stderr().lock(), "\r\x1b[K{text}");
            }
            Where::Log | Where::Nowhere => tracing::info!("{text}"),
        }
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// As in `read 120000 rows, 41 %, 24000 rows per second`.
    fn text(&self, passed: Duration) -> String {
        let Self { what, rows, part, .. } = self;
        let rate = (u128::from(*rows) * 1_000).checked_div(passed.as_millis()).unwrap_or_default();
        let part = match self.total {
            Some(total @ 1..) => format!(", {} %", u128::from(*part.min(&total)) * 100 / u128::from(total)),
            _ => String::new(),
        };
        format!("{what} {rows} rows{part}, {rate} rows per second")
    }
}

/// The line is removed from a terminal when the work is done, or has failed.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(stderr().lock(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_rows_part_and_rate() {
        let global = GlobalArgs { json: true, log_level: None, log_format: None, otlp_endpoint: None };
        let mut progress = Progress::new("read", Some(1_000), &global);
        progress.add(50, 400);
        progress.add(50, 10);
        assert_eq!(progress.text(Duration::from_secs(4)), "read 100 rows, 41 %, 25 rows per second");
        assert_eq!(progress.rows(), 100);
        let mut unknown = Progress::new("wrote", None, &global);
        unknown.add(7, 7);
        assert_eq!(unknown.text(Duration::ZERO), "wrote 7 rows, 0 rows per second");
        // More than was expected, as of a file that grows.
        progress.add(1, 5_000);
        assert!(progress.text(Duration::from_secs(1)).contains("100 %"));
    }
}
