//! Times that depend on each other: how long leases last, how often they are renewed, and how long work takes to stop.

use std::time::Duration;

use solehold_clock::deadline::margin;

use super::Finding;

const CHECK: &str = "ttl";
/// A store that was restored or failed over grants nothing for `ttl_max`.
const TTL_MAX_LONG: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, Default)]
pub struct TtlFacts {
    /// The longest ttl that the server grants.
    pub ttl_max: Option<Duration>,
    /// How far the store's clock may run ahead unnoticed (rule 2).
    pub slack: Duration,
    pub agent: Option<AgentTimes>,
}

/// Times of an agent's configuration.
#[derive(Debug, Clone, Default)]
pub struct AgentTimes {
    pub ttl: Duration,
    /// Between two heartbeats.
    pub every: Duration,
    /// From SIGTERM to SIGKILL of a worker.
    pub stop: Duration,
    /// What the agent itself remarks at its start.
    pub remarks: Vec<String>,
}

pub fn judge(facts: &TtlFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts.ttl_max.map(bar).into_iter().collect();
    if let Some(agent) = &facts.agent {
        findings.extend(judge_agent(facts, agent));
    }
    findings
}

fn shown(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn bar(ttl_max: Duration) -> Finding {
    let seen = format!("leases last at most {} (`ttl_max`)", shown(ttl_max));
    if ttl_max <= TTL_MAX_LONG {
        return Finding::ok(CHECK, seen);
    }
    let why =
        "after a restore or a failover nothing is granted for that long, since a lost lease may last as long";
    Finding::warning(CHECK, seen, why, "lower `ttl_max` to the longest ttl that holders ask for")
}

fn judge_agent(facts: &TtlFacts, agent: &AgentTimes) -> Vec<Finding> {
    let AgentTimes { ttl, every, stop, remarks } = agent;
    let trusted = ttl.saturating_sub(margin(*ttl, facts.slack));
    let mut findings = Vec::new();
    let times = format!("the agent's leases last {} and are renewed every {}", shown(*ttl), shown(*every));
    if let Some(most) = facts.ttl_max.filter(|most| most < ttl) {
        let seen =
            format!("lease_ttl_seconds is {}, and the server grants at most {}", shown(*ttl), shown(most));
        let why = "the server refuses the agent's session";
        findings.push(Finding::problem(CHECK, seen, why, "lower lease_ttl_seconds, or raise `ttl_max`"));
    }
    findings.push(if *every * 2 > trusted {
        let seen = format!("{times}; the agent trusts them for {}", shown(trusted));
        let why = "one heartbeat that is late or lost ends every lease";
        Finding::warning(CHECK, seen, why, "raise lease_ttl_seconds, or lower heartbeat_interval_seconds")
    } else {
        Finding::ok(CHECK, times)
    });
    if *stop > trusted {
        findings.push(Finding::warning(
            CHECK,
            format!("worker.stop_timeout_seconds is {}, and leases last {}", shown(*stop), shown(*ttl)),
            "while the server cannot be reached, workers are killed at the deadline, before that time is over",
            "raise lease_ttl_seconds, or lower worker.stop_timeout_seconds",
        ));
    }
    let remark = |remark: &String| {
        let why = "workers are killed before they have stopped by themselves";
        Finding::warning(CHECK, remark.clone(), why, "change one of the two values")
    };
    findings.extend(remarks.iter().map(remark));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{
        Severity,
        testing::{told, worst},
    };

    fn facts(ttl: u64, every_ms: u64, stop: u64) -> TtlFacts {
        let every = Duration::from_millis(every_ms);
        let agent = AgentTimes {
            ttl: Duration::from_secs(ttl),
            every,
            stop: Duration::from_secs(stop),
            remarks: vec![],
        };
        let slack = Duration::from_millis(500);
        TtlFacts { ttl_max: Some(Duration::from_secs(300)), slack, agent: Some(agent) }
    }

    #[test]
    fn times_that_fit_are_well_and_others_are_told() {
        assert_eq!(worst(&judge(&facts(60, 15_000, 10))), Severity::Ok);
        let long = judge(&facts(600, 15_000, 10));
        assert!(told(&long, Severity::Problem).contains("lease_ttl_seconds is 10m"), "{long:?}");
        // Half of a ttl of a second is slack and margin.
        let tight = judge(&facts(1, 333, 0));
        assert!(told(&tight, Severity::Warning).contains("trusts them for 500ms"), "{tight:?}");
        let slow = judge(&facts(60, 15_000, 90));
        assert!(told(&slow, Severity::Warning).contains("stop_timeout_seconds is 1m 30s"), "{slow:?}");
        let bars = TtlFacts { ttl_max: Some(Duration::from_secs(86_400)), ..facts(60, 15_000, 10) };
        assert!(told(&judge(&bars), Severity::Warning).contains("at most 1day"));
    }
}
