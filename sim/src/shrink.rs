//! Worlds in processes of their own, and the smallest plan that still fails.
//!
//! A world has a process to itself, because only the first world of a process follows from its seed alone: some
//! libraries count what they have made since the process began.

use std::{fmt, io, process::Command};

use crate::report::Report;

/// How many of the last lines of a log are shown.
const SHOWN_MAX: usize = 120;

/// What becomes of a world that fails when all is left out that it does not need.
pub struct Shrunk {
    pub seed: u64,
    pub report: Report,
    pub acts_before: usize,
    pub without: Vec<usize>,
    pub log: Vec<String>,
}

fn words(left_out: &[usize]) -> String {
    left_out.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn printed(seed: u64, left_out: &[usize], with_log: bool) -> io::Result<Vec<String>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--seed", &seed.to_string()]);
    if !left_out.is_empty() {
        command.args(["--without", &words(left_out)]);
    }
    if with_log {
        command.arg("--log");
    }
    let run = command.output()?;
    let told = String::from_utf8_lossy(&run.stdout);
    let lines: Vec<String> = told.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return Err(io::Error::other(String::from_utf8_lossy(&run.stderr).into_owned()));
    }
    Ok(lines)
}

fn read(lines: &[String]) -> io::Result<Report> {
    let report = lines.last().and_then(|line| Report::read(line));
    report.ok_or_else(|| io::Error::other("the world ended without a report"))
}

/// Runs the world of a seed, without some steps of its plan.
pub fn world(seed: u64, left_out: &[usize]) -> io::Result<Report> {
    read(&printed(seed, left_out, false)?)
}

/// Leaves steps out, first many at a time and then one by one, for as long as the world still fails.
pub fn shrunk(seed: u64) -> io::Result<Option<Shrunk>> {
    let whole = world(seed, &[])?;
    if whole.violation.is_none() {
        return Ok(None);
    }
    let mut without: Vec<usize> = Vec::new();
    let mut size = whole.acts.div_ceil(2).max(1);
    loop {
        let mut has_shrunk = false;
        let kept: Vec<usize> = (0..whole.acts).filter(|step| !without.contains(step)).collect();
        for some in kept.chunks(size) {
            let mut more: Vec<usize> = without.iter().chain(some).copied().collect();
            more.sort_unstable();
            if world(seed, &more)?.violation.is_some() {
                without = more;
                has_shrunk = true;
            }
        }
        if size == 1 && !has_shrunk {
            break;
        }
        size = (size / 2).max(1);
    }
    let log = printed(seed, &without, true)?;
    let report = read(&log)?;
    Ok(Some(Shrunk { seed, report, acts_before: whole.acts, without, log }))
}

/// What happens all the time, and is left out of a story that is shown unless it is about that.
const DULL: [&str; 8] = [
    "written without a gate",
    "passes the gate",
    "lives for",
    "may run until",
    "-> Heartbeat",
    " Plan ",
    " News ",
    " Head ",
];

fn is_dull(line: &str, violation: &str) -> bool {
    let is_about_gates = violation.contains("gate") || violation.contains("sink");
    DULL.iter().any(|word| line.contains(word)) && !(is_about_gates && line.contains("gate"))
}

impl fmt::Display for Shrunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, report, acts_before, without, log } = self;
        let violation = report.violation.as_deref().unwrap_or("nothing");
        let story: Vec<&String> = log.iter().filter(|line| !is_dull(line, violation)).collect();
        let left_out = story.len().saturating_sub(SHOWN_MAX);
        if left_out > 0 {
            writeln!(f, "      ... {left_out} lines before")?;
        }
        story.iter().skip(left_out).take(SHOWN_MAX - 1).try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "seed {seed} violates: {violation}")?;
        writeln!(f, "shrunk from {acts_before} to {} acts; all of it:", report.acts)?;
        let words = words(without);
        let option = if words.is_empty() { String::new() } else { format!(" --without {words}") };
        write!(f, "    cargo run --release -p solehold-sim -- --seed {seed}{option} --log")
    }
}
