//! What the fenced sink acknowledged is there, once; what it refused is not.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::history::{Action, History, Outcome, Write};

const NAME: &str = "kept";

pub(super) fn judge(history: &History) -> Vec<Violation> {
    let wrong = |write: &Write, what: &str| {
        Violation::new(NAME, format!("{} of {}, token {}, {what}", write.id, write.resource, write.token))
    };
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for taken in &history.taken {
        *times.entry(&taken.write.id).or_default() += 1;
    }
    let lost = lost(history).into_iter().map(|write| wrong(write, "was acknowledged and is not there"));
    let repeated = history.taken.iter().filter(|taken| times[taken.write.id.as_str()] > 1);
    let repeated = repeated.map(|taken| wrong(&taken.write, "is there more than once"));
    let refused = writes(history, Outcome::Refused).filter(|write| times.contains_key(write.id.as_str()));
    let refused = refused.map(|write| wrong(write, "was refused and is there"));
    lost.chain(repeated).chain(refused).collect()
}

/// Writes that were acknowledged and are not there.
pub(super) fn lost(history: &History) -> Vec<&Write> {
    let kept: BTreeSet<(&str, u64)> =
        history.taken.iter().map(|taken| (taken.write.id.as_str(), taken.write.token)).collect();
    writes(history, Outcome::Done).filter(|write| !kept.contains(&(write.id.as_str(), write.token))).collect()
}

fn writes(history: &History, wanted: Outcome) -> impl Iterator<Item = &Write> {
    history.operations.iter().filter_map(move |operation| match &operation.action {
        Action::Write(write) if operation.outcome() == wanted => Some(write),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::story::{at_sink, write};

    #[test]
    fn what_was_acknowledged_must_be_there_once_and_what_was_refused_must_not() {
        let operations = vec![
            write("x", 1, 4, Outcome::Done),
            write("x", 2, 4, Outcome::Done),
            write("x", 3, 4, Outcome::Refused),
            write("x", 4, 4, Outcome::Done),
            // Whether these two are there is not known, and both ways are right.
            write("x", 5, 4, Outcome::Unknown),
            write("x", 6, 4, Outcome::Unknown),
        ];
        let starts = [1, 3, 4, 4, 5];
        let taken = starts.map(|start| at_sink(start, start, 4)).to_vec();
        let found = judge(&History { operations, taken, ..History::default() });
        let details: Vec<&str> = found.iter().map(|violation| violation.detail.as_str()).collect();
        assert_eq!(
            details,
            [
                "4/2 of a, token 4, was acknowledged and is not there",
                "4/4 of a, token 4, is there more than once",
                "4/4 of a, token 4, is there more than once",
                "4/3 of a, token 4, was refused and is there",
            ]
        );
    }
}
