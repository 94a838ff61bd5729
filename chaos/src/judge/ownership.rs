//! Ownership of a resource is linearizable: there is one order of all grants, which agrees with time, in which no
//! holder trusts a lease after the next one was granted.
//!
//! A resource is a register whose value is the token of its present holder. An acquire that returns a token writes it;
//! a writer that finds its lease live reads it, and must read its own. In general a checker has to try many orders
//! (Wing and Gong). Here the order is given: tokens grow with each grant, so a history is linearizable only if the
//! order of tokens is an order of the grants. What is left is to place each grant at a point in time:
//!
//! - between the start and the end of its acquire,
//! - not before the point of any lower token,
//! - not before the last moment at which a holder of a lower token trusted its lease.
//!
//! Taken in the order of tokens, the earliest such point leaves the most room for those that follow. So if the earliest
//! point comes after the end of the acquire, no other choice would do, and the history is wrong; otherwise the points
//! are the proof that it is right.
//!
//! An acquire whose outcome is unknown may have granted or not. It rules nothing out, since no holder trusted what it
//! granted.

use std::collections::BTreeMap;

use solehold_clock::BootTime;

use super::Violation;
use crate::history::{Action, History, Operation, Outcome};

const NAME: &str = "ownership";

/// A grant, and for how long its holder trusted it.
struct Tenure<'h> {
    by: &'h str,
    asked: BootTime,
    told: BootTime,
    last_trusted: Option<BootTime>,
}

/// The grants of one resource, by token.
type Grants<'h> = BTreeMap<u64, Tenure<'h>>;

pub(super) fn judge(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut resources: BTreeMap<&str, Grants> = BTreeMap::new();
    for operation in &history.operations {
        if let (Action::Acquire { resource }, Some((told, Outcome::Granted { token }))) =
            (&operation.action, &operation.end)
        {
            let tenure =
                Tenure { by: &operation.by, asked: operation.start, told: *told, last_trusted: None };
            if let Some(other) = resources.entry(resource).or_default().insert(*token, tenure) {
                let detail = format!(
                    "token {token} of {resource} was granted twice, to {} and {}",
                    other.by, operation.by
                );
                found.push(Violation::new(NAME, detail));
            }
        }
    }
    for operation in &history.operations {
        found.extend(trust(operation, &mut resources));
    }
    for (resource, grants) in &resources {
        found.extend(place(resource, grants));
    }
    found
}

/// Notes that a holder trusted its lease when it began to write.
fn trust(operation: &Operation, resources: &mut BTreeMap<&str, Grants>) -> Option<Violation> {
    let Action::Write(write) = &operation.action else { return None };
    let grants = resources.get_mut(write.resource.as_str());
    let tenure = grants.and_then(|grants| grants.get_mut(&write.token));
    match tenure.filter(|tenure| tenure.by == operation.by) {
        Some(tenure) => {
            tenure.last_trusted = tenure.last_trusted.max(Some(operation.start));
            None
        }
        None => {
            let detail = format!(
                "{} wrote {} under token {}, which it was not granted",
                operation.by, write.resource, write.token
            );
            Some(Violation::new(NAME, detail))
        }
    }
}

/// Places each grant at its earliest point, and names those for which there is none.
fn place(resource: &str, grants: &Grants) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut floor = BootTime::from_nanos(0);
    let mut before = None;
    for (token, tenure) in grants {
        let point = tenure.asked.max(floor);
        if let Some((older, holder)) = before.filter(|_| point > tenure.told) {
            let late = point.since(tenure.told);
            let detail = format!(
                "{} was granted {resource} under token {token}, and {late:?} later {holder} still trusted token {older}, \
                 or was granted it",
                tenure.by
            );
            found.push(Violation::new(NAME, detail));
        }
        let end = tenure.last_trusted.map_or(point, |trusted| trusted.max(point));
        if end > floor {
            before = Some((*token, tenure.by));
        }
        floor = floor.max(end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::story::{acquire, write};

    fn violations(operations: Vec<Operation>) -> Vec<String> {
        let history = History { operations, ..History::default() };
        judge(&history).into_iter().map(|violation| violation.detail).collect()
    }

    #[test]
    fn one_after_the_other_is_right() {
        let done = Outcome::Done;
        let operations = vec![
            acquire("x", 0, 10, 1),
            write("x", 20, 1, done.clone()),
            // Its answer comes long after the next holder has the resource, and it trusts nothing any more.
            acquire("y", 15, 90, 2),
            acquire("z", 40, 50, 5),
            write("z", 60, 5, done),
        ];
        assert_eq!(violations(operations), [""; 0]);
    }

    #[test]
    fn a_grant_may_take_effect_at_any_time_while_it_is_asked_for() {
        let operations = vec![
            acquire("x", 0, 10, 1),
            acquire("y", 20, 100, 2),
            write("x", 99, 1, Outcome::Done),
            write("y", 101, 2, Outcome::Done),
        ];
        assert_eq!(violations(operations), [""; 0]);
    }

    #[test]
    fn trust_after_the_next_grant_is_wrong() {
        let operations =
            vec![acquire("x", 0, 10, 1), acquire("y", 20, 30, 2), write("x", 31, 1, Outcome::Unknown)];
        let found = violations(operations);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("y was granted a under token 2, and 1ms later x still trusted token 1"));
    }

    #[test]
    fn trust_after_any_later_grant_is_wrong() {
        let operations = vec![
            acquire("x", 0, 10, 1),
            acquire("y", 20, 90, 2),
            acquire("z", 20, 30, 3),
            write("x", 40, 1, Outcome::Done),
        ];
        assert_eq!(violations(operations).len(), 1, "y can be placed at 40, and z cannot");
    }

    #[test]
    fn a_lower_token_that_was_asked_for_later_is_wrong() {
        assert_eq!(violations(vec![acquire("x", 0, 10, 2), acquire("y", 20, 30, 1)]).len(), 1);
        assert_eq!(violations(vec![acquire("x", 0, 20, 2), acquire("y", 20, 30, 1)]), [""; 0]);
    }

    #[test]
    fn a_token_that_was_granted_twice_is_wrong() {
        assert_eq!(violations(vec![acquire("x", 0, 10, 1), acquire("y", 20, 30, 1)]).len(), 1);
    }

    #[test]
    fn a_write_under_the_token_of_another_is_wrong() {
        let operations = vec![acquire("x", 0, 10, 1), write("y", 20, 1, Outcome::Done)];
        assert_eq!(violations(operations), ["y wrote a under token 1, which it was not granted"]);
    }
}
