//! Which rows of a channel to read next: fresh rows, which were not tried yet, and rows that were left because they
//! could not be sent. It knows neither the clock nor the database.
//!
//! ```text
//!     sent        left, or sent       not tried yet
//!   ─────────┼──────────────────────┼────────────────>  sequence
//!            └ the next pass        └ fresh
//! ```
//!
//! Rows that were left are retried in passes, starting at the lowest. Meanwhile fresh rows are sent, except those of
//! jobs that have a row left, since the rows of a job are sent in order. At most [`JOBS_LEFT_MAX`] such jobs are
//! remembered; beyond that, fresh rows wait.

use std::{collections::HashMap, time::Duration};

use solehold_clock::BootTime;
use xxhash_rust::xxh3::xxh3_64;

use crate::model::limits::JOBS_LEFT_MAX;

/// The pause after a batch that could not be sent at all, and between two passes.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Rows that were not tried yet.
    Fresh,
    /// Rows that could not be sent.
    Left,
}

/// Rows to read: from `from` on, below `below`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub kind: SpanKind,
    pub from: i64,
    pub below: i64,
}

#[derive(Debug, Default)]
pub struct Tried {
    /// The last row that was read.
    pub last: Option<i64>,
    /// Whether there are no more rows in the span.
    pub is_all: bool,
    /// Rows that are left, with their jobs.
    pub left: Vec<(i64, String)>,
    /// Whether rows were tried and none could be sent.
    pub is_stuck: bool,
}

/// The pass in which a row of a job was last left, by kind of span.
#[derive(Debug, Clone, Copy, Default)]
struct LastLeft {
    fresh: u64,
    left: u64,
}

#[derive(Debug)]
pub struct Backlog {
    /// The lowest sequence that was not read yet.
    fresh: i64,
    /// There are more fresh rows than were read.
    has_more: bool,
    /// Jobs that have a row left, by digest. Two jobs of the same digest only wait for each other.
    jobs: HashMap<u64, LastLeft>,
    /// The lowest row that was left since the present pass began.
    lowest_left: Option<i64>,
    /// Where the present pass continues, and where it ends.
    pass: Option<(i64, i64)>,
    passes: u64,
    /// Not before this time.
    fresh_at: Option<BootTime>,
    pass_at: Option<BootTime>,
}

impl Default for Backlog {
    fn default() -> Self {
        Self {
            fresh: i64::MIN,
            has_more: true,
            jobs: HashMap::new(),
            lowest_left: None,
            pass: None,
            passes: 0,
            fresh_at: None,
            pass_at: None,
        }
    }
}

impl Backlog {
    /// The rows of this kind to read now, if any.
    pub fn span(&mut self, kind: SpanKind, now: BootTime) -> Option<Span> {
        let is_due = |at: Option<BootTime>| at.is_none_or(|at| now >= at);
        let (from, below) = match kind {
            SpanKind::Fresh if self.has_room() && is_due(self.fresh_at) => (self.fresh, i64::MAX),
            SpanKind::Left if is_due(self.pass_at) => {
                if self.pass.is_none() {
                    self.pass = Some((self.lowest_left.take()?, self.fresh));
                    self.passes += 1;
                }
                self.pass?
            }
            _ => return None,
        };
        Some(Span { kind, from, below })
    }

    /// Whether a row of this job must wait for an earlier one.
    pub fn holds(&self, kind: SpanKind, job: &str) -> bool {
        let mark = self.jobs.get(&digest(job));
        mark.is_some_and(|mark| kind == SpanKind::Fresh || mark.left == self.passes)
    }

    pub fn tried(&mut self, span: Span, tried: &Tried, now: BootTime) {
        let knew_any = self.lowest_left.is_some() || self.pass.is_some();
        for (sequence, job) in &tried.left {
            self.lowest_left = Some(self.lowest_left.map_or(*sequence, |lowest| lowest.min(*sequence)));
            let mark = self.jobs.entry(digest(job)).or_default();
            match span.kind {
                SpanKind::Fresh => mark.fresh = self.passes,
                SpanKind::Left => mark.left = self.passes,
            }
        }
        let pause = Some(now.plus(PAUSE));
        let next = tried.last.map(|last| last.saturating_add(1));
        match span.kind {
            SpanKind::Fresh => {
                self.fresh = next.unwrap_or(self.fresh);
                self.has_more = !tried.is_all;
                self.fresh_at = pause.filter(|_| tried.is_stuck);
                if !knew_any && self.lowest_left.is_some() {
                    self.pass_at = pause;
                }
            }
            SpanKind::Left => match next.filter(|next| !tried.is_all && *next < span.below) {
                Some(next) => {
                    self.pass = Some((next, span.below));
                    self.pass_at = pause.filter(|_| tried.is_stuck);
                }
                None => {
                    self.pass = None;
                    self.pass_at = pause.filter(|_| self.lowest_left.is_some());
                    let pass = self.passes;
                    self.jobs.retain(|_, mark| mark.fresh == pass || mark.left == pass);
                }
            },
        }
    }

    /// Whether there are rows to read at once.
    pub fn is_ready(&self) -> bool {
        let has_fresh = self.has_more && self.has_room() && self.fresh_at.is_none();
        has_fresh || self.pass.is_some() && self.pass_at.is_none()
    }

    /// When rows are due again, unless new ones are written before.
    pub fn next(&self) -> Option<BootTime> {
        let fresh = self.fresh_at.filter(|_| self.has_room());
        let pass = self.pass_at.filter(|_| self.pass.is_some() || self.lowest_left.is_some());
        fresh.into_iter().chain(pass).min()
    }

    /// Every row below this has been sent.
    pub fn floor(&self) -> i64 {
        let pass = self.pass.map(|(next, _)| next);
        [self.lowest_left, pass].into_iter().flatten().fold(self.fresh, i64::min)
    }

    fn has_room(&self) -> bool {
        self.jobs.len() < JOBS_LEFT_MAX
    }
}

fn digest(job: &str) -> u64 {
    xxh3_64(job.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    /// A channel: rows with their jobs, those that were sent, and jobs whose service does not answer.
    #[derive(Default)]
    struct Channel {
        rows: BTreeMap<i64, String>,
        sent: Vec<(String, i64)>,
        tried: u64,
    }

    impl Channel {
        /// As the sender does it: both parts, a batch of each.
        fn step(&mut self, backlog: &mut Backlog, now: BootTime, is_down: impl Fn(&str) -> bool) {
            for kind in [SpanKind::Fresh, SpanKind::Left] {
                let Some(span) = backlog.span(kind, now) else { continue };
                let rows: Vec<(i64, String)> = self
                    .rows
                    .range(span.from..span.below)
                    .take(10)
                    .map(|(n, job)| (*n, job.clone()))
                    .collect();
                let mut tried =
                    Tried { last: rows.last().map(|row| row.0), is_all: rows.len() < 10, ..Tried::default() };
                let mut sent = 0;
                let mut failed = 0;
                for (sequence, job) in rows {
                    let is_behind = tried.left.iter().any(|(_, left)| *left == job);
                    if !backlog.holds(kind, &job) && !is_behind {
                        self.tried += 1;
                        if !is_down(&job) {
                            sent += 1;
                            self.rows.remove(&sequence);
                            self.sent.push((job, sequence));
                            continue;
                        }
                        failed += 1;
                    }
                    tried.left.push((sequence, job));
                }
                tried.is_stuck = failed > 0 && sent == 0;
                backlog.tried(span, &tried, now);
            }
        }
    }

    fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(1).plus(Duration::from_millis(ms))
    }

    #[test]
    fn rows_that_cannot_be_sent_are_overtaken_and_retried_slowly() {
        let mut channel = Channel::default();
        let mut backlog = Backlog::default();
        channel.rows = (1..=1_000).map(|n| (n, format!("down-{n}"))).collect();
        channel.rows.extend((1_001..=1_010).map(|n| (n, format!("good-{n}"))));
        let is_down = |job: &str| job.starts_with("down");
        let mut now = 0;
        while channel.sent.len() < 10 {
            channel.step(&mut backlog, at(now), is_down);
            now += 10;
        }
        assert!(now < 60_000, "ten rows each 500 ms: {now}");
        // A row that comes now is sent at once.
        channel.rows.insert(1_011, "good-1011".to_owned());
        channel.step(&mut backlog, at(now), is_down);
        assert_eq!(channel.sent.len(), 11);
        channel.tried = 0;
        (0..1_000).for_each(|n| channel.step(&mut backlog, at(now + n * 10), is_down));
        assert!((100..=220).contains(&channel.tried), "{} in ten seconds", channel.tried);
        // When the service answers again, everything goes as fast as it can.
        let from = now + 20_000;
        let mut steps = 0;
        while !channel.rows.is_empty() {
            channel.step(&mut backlog, at(from + steps), |_| false);
            steps += 1;
        }
        assert!(steps < 2_000, "{steps}");
        let after = at(from + steps + 1_000);
        (0..3).for_each(|_| channel.step(&mut backlog, after, |_| false));
        assert!(
            backlog.jobs.is_empty() && backlog.next().is_none() && backlog.floor() == 1_012,
            "{backlog:?}"
        );
    }

    #[test]
    fn remembered_jobs_are_bounded() {
        let mut backlog = Backlog::default();
        let span = backlog.span(SpanKind::Fresh, at(0)).expect("fresh rows");
        let most = i64::try_from(JOBS_LEFT_MAX).expect("a number");
        let left = (0..most).map(|n| (n, format!("job-{n}"))).collect();
        backlog.tried(span, &Tried { last: Some(most - 1), left, ..Tried::default() }, at(0));
        assert_eq!(backlog.span(SpanKind::Fresh, at(10_000)), None);
        assert!(!backlog.is_ready() && backlog.next() == Some(at(500)), "it waits, and does not spin");
        // Those that are left are tried, and make room.
        let span = backlog.span(SpanKind::Left, at(500)).expect("rows that were left");
        assert_eq!((span.from, span.below), (0, most));
        backlog.tried(span, &Tried { last: Some(most - 1), is_all: true, ..Tried::default() }, at(500));
        assert!(backlog.jobs.is_empty() && backlog.span(SpanKind::Fresh, at(500)).is_some());
    }

    #[test]
    fn every_row_is_sent_once_and_rows_of_a_job_in_order() {
        for seed in 0..40 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut channel = Channel::default();
            let mut backlog = Backlog::default();
            let mut next = 1;
            let mut now = 0;
            for _ in 0..300 {
                for _ in 0..random.random_range(0..6) {
                    channel.rows.insert(next, format!("j{}", random.random_range(0..15)));
                    next += 1;
                }
                let down: Vec<String> = (0..random.random_range(0..15)).map(|n| format!("j{n}")).collect();
                channel.step(&mut backlog, at(now), |job| down.iter().any(|of| of == job));
                let lowest = channel.rows.first_key_value().map_or(next, |(lowest, _)| *lowest);
                assert!(backlog.floor() <= lowest, "seed {seed}: {lowest} is below {backlog:?}");
                now += random.random_range(0..400);
            }
            for _ in 0..500 {
                channel.step(&mut backlog, at(now), |_| false);
                now += 50;
            }
            assert!(channel.rows.is_empty(), "seed {seed}: {:?} left by {backlog:?}", channel.rows);
            assert_eq!(i64::try_from(channel.sent.len()), Ok(next - 1), "seed {seed}");
            let mut last: BTreeMap<&str, i64> = BTreeMap::new();
            for (job, sequence) in &channel.sent {
                let before = last.insert(job, *sequence);
                assert!(before < Some(*sequence), "seed {seed}: {job} {before:?} {sequence}");
            }
        }
    }
}
