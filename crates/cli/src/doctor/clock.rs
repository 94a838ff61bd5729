//! Clocks: deadlines are judged by the store's alone (rule 1), so a wrong one here ends no lease. It misleads people
//! who read logs, and breaks TLS.

use super::Finding;
use crate::human::duration_ms;

const CHECK: &str = "clock";
/// Clocks that a time service keeps differ by less.
const SKEW_MAX_MS: u64 = 1_000;
/// A certificate of this minute may not be valid yet elsewhere.
const SKEW_WRONG_MS: u64 = 60_000;
/// More than a slewed clock differs in the seconds that the doctor takes.
const STEP_MAX_MS: u64 = 100;

#[derive(Debug, Default)]
pub struct ClockFacts {
    pub others: Vec<OtherClock>,
    /// How far the wall clock moved against the time since boot while facts were gathered.
    pub moved_ms: Option<i64>,
    /// The time services that run on this machine; none if its processes cannot be seen.
    pub services: Option<Vec<String>>,
}

/// Another clock, read while this machine's was read before and after.
#[derive(Debug, Clone)]
pub struct OtherClock {
    /// As in `PostgreSQL`.
    pub whose: String,
    pub before_ms: u64,
    pub told_ms: u64,
    pub after_ms: u64,
}

impl OtherClock {
    /// How far it surely is from this machine's clock: ahead if positive.
    fn skew_ms(&self) -> i64 {
        if self.told_ms > self.after_ms {
            (self.told_ms - self.after_ms).cast_signed()
        } else {
            -self.before_ms.saturating_sub(self.told_ms).cast_signed()
        }
    }
}

pub fn judge(facts: &ClockFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.others.iter().map(skew).collect();
    if let Some(moved) = facts.moved_ms.filter(|moved| moved.unsigned_abs() > STEP_MAX_MS) {
        findings.push(Finding::warning(
            CHECK,
            format!("the wall clock of this machine was set by {moved} ms during this check"),
            "something sets the clock in steps; times in logs jump",
            "use a time service that slews the clock, such as chrony, and nothing else beside it",
        ));
    }
    findings.push(match &facts.services {
        Some(services) if !services.is_empty() => {
            Finding::ok(CHECK, format!("a time service is running: {}", services.join(", ")))
        }
        Some(_) => Finding::not_checked(
            CHECK,
            "no time service was found among the processes of this machine",
            "without one, its clock drifts; in a container, the host's service keeps the clock",
            "run chrony or systemd-timesyncd on the host",
        ),
        None => Finding::not_checked(
            CHECK,
            "the processes of this machine cannot be listed",
            "whether a time service is running is not known",
            "check it by `timedatectl` on the host",
        ),
    });
    findings
}

fn skew(other: &OtherClock) -> Finding {
    let skew = other.skew_ms();
    let by = duration_ms(skew.unsigned_abs());
    let side = if skew > 0 { "ahead of" } else { "behind" };
    let seen = match skew.unsigned_abs() {
        0 => format!("the clock of {} agrees with this machine's", other.whose),
        _ => format!("the clock of {} is {by} {side} this machine's", other.whose),
    };
    let why =
        "no lease ends early or late by it, since only the store's clock decides; times in logs do not match";
    let remedy = "let a time service keep both clocks: chrony or systemd-timesyncd";
    match skew.unsigned_abs() {
        skew if skew <= SKEW_MAX_MS => Finding::ok(CHECK, seen),
        skew if skew <= SKEW_WRONG_MS => Finding::warning(CHECK, seen, why, remedy),
        _ => Finding::problem(CHECK, seen, format!("{why}, and certificates may count as expired"), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn other(told_ms: u64) -> ClockFacts {
        let whose = "PostgreSQL".to_owned();
        let others = vec![OtherClock { whose, before_ms: 1_000_000, told_ms, after_ms: 1_000_400 }];
        ClockFacts { others, moved_ms: Some(3), services: Some(vec!["chronyd".to_owned()]) }
    }

    #[test]
    fn a_clock_is_judged_by_what_the_round_trip_leaves_open() {
        for told_ms in [1_000_000, 1_000_200, 1_000_400, 1_001_400, 999_000] {
            assert_eq!(worst(&judge(&other(told_ms))), Severity::Ok, "{told_ms}");
        }
        let ahead = judge(&other(1_031_400));
        assert_eq!(worst(&ahead), Severity::Warning);
        assert!(told(&ahead, Severity::Warning).contains("31s ahead of this machine's"), "{ahead:?}");
        let behind = judge(&other(1_000_000 - 61_000));
        assert!(told(&behind, Severity::Problem).contains("1m 1s behind this machine's"), "{behind:?}");
    }

    #[test]
    fn a_step_is_told_and_a_missing_service_is_not_held_against_a_container() {
        let stepped = ClockFacts { moved_ms: Some(-2_000), ..other(1_000_000) };
        assert!(told(&judge(&stepped), Severity::Warning).contains("set by -2000 ms"));
        let unknown = ClockFacts { services: None, ..other(1_000_000) };
        assert_eq!(worst(&judge(&unknown)), Severity::NotChecked);
        let none = ClockFacts { services: Some(Vec::new()), ..other(1_000_000) };
        assert_eq!(worst(&judge(&none)), Severity::NotChecked);
    }
}
