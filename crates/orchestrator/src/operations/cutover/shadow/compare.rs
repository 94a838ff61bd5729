//! What the orchestrator would do beside what the former system did.

use std::fmt;

use serde::Serialize;

use super::{
    decide::Decided,
    marks::{Marked, TheirMark},
};
use crate::batch::Verdict;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The orchestrator would keep it as a dead letter.
    DeadLetter,
    /// The orchestrator would park it behind a dead letter.
    Parked,
    /// It would take effect here, and there is no sign that the former system did it.
    NotDone,
    /// It would have no effect here, and the former system has set its mark again.
    DoneAgain,
}

impl DifferenceKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::DeadLetter => "dead_letter",
            Self::Parked => "parked",
            Self::NotDone => "not_done",
            Self::DoneAgain => "done_again",
        }
    }
}

/// A command that the orchestrator would treat in another way than the former system did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub kind: DifferenceKind,
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub ours: String,
    pub theirs: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, partition, offset, key, ours, theirs } = self;
        let key = if key.is_empty() { "-" } else { key };
        write!(f, "{partition}-{offset}  {key}  {}  ours: {ours}; theirs: {theirs}", kind.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Compared {
    Same,
    /// There is too little evidence.
    Undecided,
    Differs(Difference),
}

impl Decided {
    /// The command, for people.
    pub fn what(&self) -> String {
        match (&self.command, &self.job) {
            (Some(command), _) => format!("{} of job {}", command.kind.name(), command.job_id),
            (None, Some(job)) => format!("a message for job {job}"),
            (None, None) => "a message".to_owned(),
        }
    }
}

/// Compares a decision with the mark of the former system, whose keys have the form `pattern`.
pub(super) fn compare(decided: &Decided, mark: TheirMark, pattern: &str) -> Compared {
    if decided.may_have_begun {
        return Compared::Undecided;
    }
    let (kind, ours) = match (&decided.verdict, mark) {
        (Verdict::Taken, TheirMark::Present | TheirMark::SetAgain) => return Compared::Same,
        (Verdict::Taken, TheirMark::MayHaveExpired) => return Compared::Undecided,
        (Verdict::Taken, _) => (DifferenceKind::NotDone, format!("{} takes effect", decided.what())),
        (Verdict::Duplicate, TheirMark::SetAgain) => {
            (DifferenceKind::DoneAgain, format!("{} took effect before", decided.what()))
        }
        (Verdict::Duplicate, _) => return Compared::Same,
        (Verdict::Parked, _) => {
            (DifferenceKind::Parked, format!("{} is parked behind a dead letter of its key", decided.what()))
        }
        (Verdict::Dead(reason) | Verdict::NoSuchJob(reason), _) => {
            (DifferenceKind::DeadLetter, format!("dead letter: {reason}"))
        }
    };
    let theirs = match mark {
        TheirMark::Unnamed => "passed, and the message names no job to look for".to_owned(),
        TheirMark::NoForm => match &decided.command {
            Some(command) => format!("passed, and {pattern} has no mark for a {}", command.kind.name()),
            None => format!("passed, and {pattern} has no mark for it"),
        },
        TheirMark::Absent => "passed without a mark".to_owned(),
        TheirMark::MayHaveExpired => "passed, and its mark may have expired".to_owned(),
        TheirMark::Present => "passed with a mark".to_owned(),
        TheirMark::SetAgain => SET_AGAIN.to_owned(),
    };
    let Decided { partition, offset, key, .. } = decided;
    Compared::Differs(Difference {
        kind,
        partition: *partition,
        offset: *offset,
        key: key.clone(),
        ours,
        theirs,
    })
}

const SET_AGAIN: &str = "its mark was set again";

/// The difference of a command that came once, and whose mark was set again.
pub(super) fn set_again(marked: &Marked) -> Difference {
    Difference {
        kind: DifferenceKind::DoneAgain,
        partition: marked.partition,
        offset: marked.offset,
        key: marked.key.clone(),
        ours: format!("{} takes effect once", marked.what),
        theirs: SET_AGAIN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::command::Mapping;

    fn decided(kind: &str, verdict: Verdict) -> Decided {
        let payload = format!("{{\"job_id\": \"a\", \"type\": \"{kind}\"}}");
        Decided {
            partition: 3,
            offset: 7,
            key: "k".to_owned(),
            timestamp_ms: None,
            command: Mapping::default().parse(Some(payload.as_bytes()), Some(b"k")).ok(),
            job: Some("a".to_owned()),
            verdict,
            may_have_begun: false,
        }
    }

    #[test]
    fn a_decision_differs_if_the_mark_says_something_else() {
        use TheirMark as Mark;
        let dead = || Verdict::Dead("there is no such job".to_owned());
        for (verdict, mark, wanted) in [
            (Verdict::Taken, Mark::Present, None),
            (Verdict::Taken, Mark::SetAgain, None),
            (Verdict::Taken, Mark::Absent, Some(DifferenceKind::NotDone)),
            (Verdict::Taken, Mark::NoForm, Some(DifferenceKind::NotDone)),
            (Verdict::Duplicate, Mark::Present, None),
            (Verdict::Duplicate, Mark::Absent, None),
            (Verdict::Duplicate, Mark::SetAgain, Some(DifferenceKind::DoneAgain)),
            (Verdict::Parked, Mark::Present, Some(DifferenceKind::Parked)),
            (dead(), Mark::Present, Some(DifferenceKind::DeadLetter)),
            (dead(), Mark::Unnamed, Some(DifferenceKind::DeadLetter)),
        ] {
            let found = match compare(&decided("CANCEL", verdict.clone()), mark, "p:{job_id}") {
                Compared::Differs(difference) => Some(difference.kind),
                _ => None,
            };
            assert_eq!(found, wanted, "{verdict:?} {mark:?}");
        }
    }

    #[test]
    fn what_the_evidence_does_not_tell_is_undecided() {
        let old = compare(&decided("CREATE", Verdict::Taken), TheirMark::MayHaveExpired, "p:{job_id}");
        assert_eq!(old, Compared::Undecided);
        let begun = Decided {
            may_have_begun: true,
            ..decided("CANCEL", Verdict::NoSuchJob("there is no such job".to_owned()))
        };
        assert_eq!(compare(&begun, TheirMark::NoForm, "p:{job_id}"), Compared::Undecided);
    }

    #[test]
    fn a_difference_is_one_line() {
        let Compared::Differs(difference) =
            compare(&decided("CANCEL", Verdict::Taken), TheirMark::NoForm, "p:{job_id}")
        else {
            panic!("it differs");
        };
        assert_eq!(
            difference.to_string(),
            "3-7  k  not_done  ours: CANCEL of job a takes effect; theirs: passed, and p:{job_id} has no mark for a CANCEL"
        );
    }
}
