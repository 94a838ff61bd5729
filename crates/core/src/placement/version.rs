//! Deployment versions, and which of them a group is moving to.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use super::{Presence, Runner, runner_set::RunnerSet};
use crate::session::HolderStatus;

/// Compares two versions as people do: runs of digits by their value, everything else by its letters. So `1.10` is
/// newer than `1.9`, and a pre-release such as `2.0-rc1` is older than `2.0`.
pub fn newest_first(a: &str, b: &str) -> Ordering {
    let a = parts(a);
    let b = parts(b);
    let common = a.iter().zip(&b).map(|(a, b)| a.cmp(b)).find(|order| order.is_ne());
    let by_rest = || match a.len().cmp(&b.len()) {
        // What follows a dash comes before the version itself.
        Ordering::Less if matches!(b[a.len()], VersionPart::Text("-")) => Ordering::Greater,
        Ordering::Greater if matches!(a[b.len()], VersionPart::Text("-")) => Ordering::Less,
        order => order,
    };
    common.unwrap_or_else(by_rest).reverse()
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum VersionPart<'a> {
    Text(&'a str),
    /// Digits without leading zeros: the longer number is the greater one.
    Number(usize, &'a str),
}

fn parts(version: &str) -> Vec<VersionPart<'_>> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let mut parts = Vec::new();
    let mut rest = version;
    while let Some(first) = rest.chars().next() {
        let is_digit = first.is_ascii_digit();
        let end = if is_digit {
            rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())
        } else if first == '-' {
            1
        } else {
            rest.find(|c: char| c.is_ascii_digit() || c == '-').unwrap_or(rest.len())
        };
        let (part, after) = rest.split_at(end);
        let digits = part.trim_start_matches('0');
        parts.push(if is_digit {
            VersionPart::Number(digits.len(), digits)
        } else {
            VersionPart::Text(part)
        });
        rest = after;
    }
    parts
}

/// The groups that have more than one version, and where their work goes.
#[derive(Debug)]
pub struct Rollouts {
    /// Runners of groups with more than one version: nothing is balanced there.
    pub mixed: RunnerSet,
    /// Runners that what must move should go to: of mixed groups those of the preferred version, and all others.
    pub preferred: RunnerSet,
}

#[derive(Default)]
struct Versions<'a> {
    all: BTreeSet<&'a str>,
    active: BTreeSet<&'a str>,
    leaving: BTreeSet<&'a str>,
}

impl<'a> Versions<'a> {
    /// The version that the group is moving to: the newest that no runner drains, or the newest of all.
    fn preferred(&self) -> Option<&'a str> {
        self.active.iter().copied().min_by(|a, b| {
            let rank = |version: &str| self.leaving.contains(version);
            (rank(a).cmp(&rank(b))).then_with(|| newest_first(a, b)).then_with(|| Reverse(a).cmp(&Reverse(b)))
        })
    }
}

impl Rollouts {
    pub fn of(runners: &[&Runner]) -> Self {
        let mut groups: BTreeMap<_, Versions<'_>> = BTreeMap::new();
        for runner in runners.iter().filter(|runner| !matches!(runner.presence, Presence::Away { .. })) {
            let versions = groups.entry(group(runner)).or_default();
            versions.all.insert(version(runner));
            match runner.status {
                HolderStatus::Active => versions.active.insert(version(runner)),
                HolderStatus::Draining | HolderStatus::Maintenance => {
                    versions.leaving.insert(version(runner))
                }
            };
        }
        let is_mixed = |runner: &Runner| groups.get(&group(runner)).is_some_and(|v| v.all.len() > 1);
        let is_preferred = |runner: &Runner| {
            let wanted = groups.get(&group(runner)).and_then(Versions::preferred);
            !is_mixed(runner) || wanted == Some(version(runner))
        };
        Self {
            mixed: RunnerSet::of(runners.len(), |at| is_mixed(runners[at])),
            preferred: RunnerSet::of(runners.len(), |at| is_preferred(runners[at])),
        }
    }
}

fn group(runner: &Runner) -> (&str, Option<&str>) {
    (runner.key.tenant.as_str(), runner.group.as_deref())
}

fn version(runner: &Runner) -> &str {
    runner.version.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_people_compare_them() {
        let newest_to_oldest =
            ["v10", "2.0.1", "v2.0", "2.0-rc10", "2.0-rc9", "1.10.0", "1.9", "1.9-rc1", "1.09-beta", ""];
        for (at, newer) in newest_to_oldest.iter().enumerate() {
            for older in &newest_to_oldest[at + 1..] {
                assert_eq!(newest_first(newer, older), Ordering::Less, "{newer} and {older}");
                assert_eq!(newest_first(older, newer), Ordering::Greater, "{older} and {newer}");
            }
        }
        assert_eq!(newest_first("v1.2", "1.02"), Ordering::Equal);
        assert_eq!(newest_first("blue", "blue"), Ordering::Equal);
    }
}
