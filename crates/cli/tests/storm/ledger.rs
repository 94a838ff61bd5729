//! What the workers wrote, and whether it was in order.

use std::{collections::BTreeMap, fmt, fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use solehold_clock::BootTime;

/// The writes under one token.
#[derive(Debug, Clone)]
struct Tenure {
    first: BootTime,
    last: BootTime,
    count: usize,
    runner: String,
}

/// All writes, by resource and token.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<String, BTreeMap<u64, Tenure>>);

/// An older token was written under after the first write of a newer one.
#[derive(Debug, PartialEq, Eq)]
pub struct Overlap {
    pub resource: String,
    pub older: (u64, String),
    pub newer: (u64, String),
    pub lasted: Duration,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, older, newer, lasted } = self;
        write!(
            f,
            "{resource}: {} wrote under token {} for {lasted:?} after {} had begun under token {}",
            older.1, older.0, newer.1, newer.0
        )
    }
}

impl Ledger {
    /// Reads what was written so far. A line that is being written is left out.
    pub fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let mut ledger = Self::default();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            ledger.add(line).with_context(|| format!("not a write: {line:?}"))?;
        }
        Ok(ledger)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let resource = words.next()?;
        let token = words.next()?.parse().ok()?;
        let at = BootTime::from_nanos(words.next()?.parse().ok()?);
        let runner = words.next()?;
        let tenures = self.0.entry(resource.to_owned()).or_default();
        let tenure = tenures.entry(token).or_insert(Tenure {
            first: at,
            last: at,
            count: 0,
            runner: runner.to_owned(),
        });
        tenure.first = tenure.first.min(at);
        tenure.last = tenure.last.max(at);
        tenure.count += 1;
        Some(())
    }

    pub fn writes(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).map(|tenure| tenure.count).sum()
    }

    /// How often a resource was worked on under another token than before.
    pub fn takeovers(&self) -> usize {
        self.0.values().map(|tenures| tenures.len() - 1).sum()
    }

    /// How many resources were written after a time.
    pub fn written_since(&self, time: BootTime) -> usize {
        let is_since = |tenures: &&BTreeMap<u64, Tenure>| tenures.values().any(|tenure| tenure.last > time);
        self.0.values().filter(is_since).count()
    }

    /// Every token that was written under after the first write of a newer one, and by how much at most.
    pub fn overlaps(&self) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        for (resource, tenures) in &self.0 {
            for (older, tenure) in tenures {
                let newer = tenures.range(older + 1..).min_by_key(|(_, newer)| newer.first);
                let Some((newer, next)) = newer.filter(|(_, next)| tenure.last > next.first) else {
                    continue;
                };
                overlaps.push(Overlap {
                    resource: resource.clone(),
                    older: (*older, tenure.runner.clone()),
                    newer: (*newer, next.runner.clone()),
                    lasted: tenure.last.since(next.first),
                });
            }
        }
        overlaps
    }
}

#[test]
fn a_write_of_an_older_token_after_one_of_a_newer_token_is_found() {
    let mut ledger = Ledger::default();
    for line in ["a 1 100 x", "b 4 100 x", "a 1 200 x", "a 5 300 y", "b 6 150 y", "b 6 900 y", "b 4 170 x"] {
        ledger.add(line).expect("a write");
    }
    let overlaps = ledger.overlaps();
    assert_eq!(overlaps.len(), 1, "{overlaps:?}");
    assert_eq!((overlaps[0].resource.as_str(), overlaps[0].lasted), ("b", Duration::from_nanos(20)));
    assert_eq!((ledger.writes(), ledger.takeovers()), (7, 2));
    assert_eq!(ledger.written_since(BootTime::from_nanos(300)), 1);
    assert_eq!(ledger.add("a 1"), None);
}
