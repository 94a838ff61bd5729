//! The watch tells of every change, in order: revisions grow, epochs never go back, and every grant that a writer was
//! given is told once.
//!
//! After a failover the store goes on as another history, and a watcher begins again with a snapshot (rule 23). Grants
//! between the last event that it saw and that snapshot may be missing, and no others.

use std::collections::BTreeMap;

use super::Violation;
use crate::history::{Action, Grantee, History, Outcome, Sighting};

const NAME: &str = "watch";

pub(super) fn judge(history: &History) -> Vec<Violation> {
    let mut found = order(&history.watched);
    let told = told(&history.watched);
    let excused = excused(&history.watched);
    for operation in &history.operations {
        let (Action::Acquire { resource }, Outcome::Granted { token }) =
            (&operation.action, operation.outcome())
        else {
            continue;
        };
        let holder = operation.by.split('.').next().unwrap_or_default();
        let expected = Grantee { resource: resource.clone(), holder: holder.to_owned(), token };
        let sightings = told.get(&token).map(Vec::as_slice).unwrap_or_default();
        match sightings {
            [grantee] if **grantee == expected => {}
            [] if excused.iter().any(|(after, until)| token > *after && token <= *until) => {}
            others => {
                let detail =
                    format!("the grant of {resource} to {holder} under token {token} was told as {others:?}");
                found.push(Violation::new(NAME, detail));
            }
        }
    }
    found
}

fn order(watched: &[Sighting]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last = (0, 0);
    for sighting in watched {
        let (at, is_event) = match sighting {
            Sighting::Event { epoch, revision, .. } => ((*epoch, *revision), true),
            Sighting::Snapshot { epoch, revision } => ((*epoch, *revision), false),
        };
        if at < last || (is_event && at == last) {
            found.push(Violation::new(NAME, format!("{}.{} came after {}.{}", at.0, at.1, last.0, last.1)));
        }
        last = last.max(at);
    }
    found
}

/// Every grant that was told, by token.
fn told(watched: &[Sighting]) -> BTreeMap<u64, Vec<&Grantee>> {
    let mut told: BTreeMap<u64, Vec<&Grantee>> = BTreeMap::new();
    for sighting in watched {
        if let Sighting::Event { grant: Some(grantee), .. } = sighting {
            told.entry(grantee.token).or_default().push(grantee);
        }
    }
    told
}

/// The revisions between the last event of one history and the snapshot that begins the next.
fn excused(watched: &[Sighting]) -> Vec<(u64, u64)> {
    let mut excused = Vec::new();
    let mut last = None;
    for sighting in watched {
        match sighting {
            Sighting::Event { epoch, revision, .. } => last = Some((*epoch, *revision)),
            Sighting::Snapshot { epoch, revision } => {
                if let Some((_, before)) = last.filter(|(former, _)| former < epoch) {
                    excused.push((before, *revision));
                }
                last = Some((*epoch, *revision));
            }
        }
    }
    excused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::story::acquire;

    fn event(epoch: u64, token: u64) -> Sighting {
        let grantee = Grantee { resource: "a".to_owned(), holder: "x".to_owned(), token };
        Sighting::Event { epoch, revision: token, grant: Some(grantee) }
    }

    fn violations(granted: &[u64], watched: Vec<Sighting>) -> usize {
        let operations = granted.iter().map(|token| acquire("x.17", 0, 1, *token)).collect();
        judge(&History { operations, watched, ..History::default() }).len()
    }

    #[test]
    fn every_grant_is_told_once_and_in_order() {
        let start = Sighting::Snapshot { epoch: 1, revision: 0 };
        assert_eq!(violations(&[2, 5], vec![start.clone(), event(1, 2), event(1, 5)]), 0);
        assert_eq!(violations(&[2, 5], vec![start.clone(), event(1, 2)]), 1, "one is missing");
        assert_eq!(violations(&[2, 5], vec![start.clone(), event(1, 5), event(1, 2)]), 1, "out of order");
        assert_eq!(
            violations(&[2], vec![start, event(1, 2), event(1, 2)]),
            2,
            "repeated, so out of order too"
        );
    }

    #[test]
    fn a_grant_is_told_as_what_it_is() {
        let other = Grantee { resource: "b".to_owned(), holder: "x".to_owned(), token: 2 };
        assert_eq!(violations(&[2], vec![Sighting::Event { epoch: 1, revision: 2, grant: Some(other) }]), 1);
    }

    #[test]
    fn a_snapshot_excuses_what_came_before_it_in_a_former_history_only() {
        let next = Sighting::Snapshot { epoch: 2, revision: 100 };
        assert_eq!(violations(&[2, 5, 101], vec![event(1, 2), next.clone(), event(2, 101)]), 0);
        assert_eq!(violations(&[2, 101], vec![event(1, 2), next.clone()]), 1, "after the snapshot");
        assert_eq!(violations(&[2, 5], vec![event(1, 5), next.clone()]), 1, "before the last event");
        let same = Sighting::Snapshot { epoch: 1, revision: 100 };
        assert_eq!(violations(&[2, 5], vec![event(1, 2), same]), 1, "within one history nothing is excused");
        assert_eq!(violations(&[], vec![next, event(1, 101)]), 1, "an older history");
    }
}
