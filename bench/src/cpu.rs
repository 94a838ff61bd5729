//! The processor time of servers, from `/proc`.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// The processes of a system, each with its children.
#[derive(Debug, Clone)]
pub struct Meter(pub Vec<u32>);

impl Meter {
    /// What they have spent so far, in steps of a clock tick (10 ms on Linux).
    pub fn read(&self) -> Result<Duration> {
        let mut ticks = 0;
        for pid in &self.0 {
            ticks += family(*pid)?;
        }
        let per_second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }
}

/// A process, its children that have ended, and those that run.
fn family(pid: u32) -> Result<u64> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let running = children.split_whitespace().filter_map(|child| child.parse().ok());
    // One that ends at this moment is in its parent's count at the next reading.
    let running: u64 = running.filter_map(|child| family(child).ok()).sum();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("a server is gone")?;
    Ok(running + ticks(&stat).with_context(|| format!("/proc/{pid}/stat cannot be read"))?)
}

/// Fields 14 to 17: user and system time, its own and that of the children that it has waited for. The name, which may
/// hold spaces, is the second field, in parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(") ")?.1;
    let fields: Vec<u64> =
        after_name.split(' ').skip(11).take(4).map(str::parse).collect::<Result<_, _>>().ok()?;
    (fields.len() == 4).then(|| fields.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_four_fields_after_the_name() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 900 800 0 0 40 30 20 10 20 0 5 0 1000";
        assert_eq!(ticks(stat), Some(100));
        assert_eq!(ticks("17 (short) S 1 2"), None);
    }

    #[test]
    fn a_process_that_worked_has_spent_time() {
        let meter = Meter(vec![std::process::id()]);
        let before = meter.read().expect("this process");
        while meter.read().expect("this process") == before {}
        assert!(Meter(vec![u32::MAX]).read().is_err(), "no such process");
    }
}
