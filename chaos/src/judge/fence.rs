//! The fenced sink takes no write of an older token after one of a newer token.

use std::{collections::BTreeMap, time::Duration};

use solehold_clock::BootTime;

use super::Violation;
use crate::history::{History, SinkWrite, Write};

pub(super) fn judge(history: &History) -> Vec<Violation> {
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut found = Vec::new();
    for SinkWrite { write, .. } in &history.taken {
        let newest = newest.entry(&write.resource).or_default();
        if write.token < *newest {
            let Write { resource, token, id } = write;
            let detail =
                format!("{resource} took a write under token {token} after one under {newest}: {id}");
            found.push(Violation::new("fence", detail));
        }
        *newest = write.token.max(*newest);
    }
    found
}

/// For how long writes of older tokens went on after the first write of a newer one, over all resources and tokens.
pub fn overlap(writes: &[SinkWrite]) -> Duration {
    let mut resources: BTreeMap<&str, BTreeMap<u64, (BootTime, BootTime)>> = BTreeMap::new();
    for SinkWrite { at, write } in writes {
        let tokens = resources.entry(&write.resource).or_default();
        let (first, last) = tokens.entry(write.token).or_insert((*at, *at));
        *first = (*first).min(*at);
        *last = (*last).max(*at);
    }
    let of_token = |tokens: &BTreeMap<u64, (BootTime, BootTime)>, token: u64, last: BootTime| {
        let next = tokens.range(token + 1..).map(|(_, (first, _))| *first).min();
        next.map_or(Duration::ZERO, |next| last.since(next))
    };
    resources
        .values()
        .flat_map(|tokens| tokens.iter().map(|(token, (_, last))| of_token(tokens, *token, *last)))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::story::at_sink;

    #[test]
    fn an_older_token_after_a_newer_one_is_found() {
        let taken =
            vec![at_sink(1, 1, 4), at_sink(2, 2, 7), at_sink(3, 3, 4), at_sink(9, 4, 7), at_sink(12, 4, 6)];
        assert_eq!(overlap(&taken), Duration::from_millis(1 + 10));
        let found = judge(&History { taken, ..History::default() });
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].detail, "a took a write under token 4 after one under 7: 4/3");
    }

    #[test]
    fn tokens_that_grow_are_right() {
        let taken = vec![at_sink(1, 1, 4), at_sink(2, 2, 4), at_sink(3, 3, 5), at_sink(3, 4, 9)];
        assert_eq!(overlap(&taken), Duration::ZERO);
        assert_eq!(judge(&History { taken, ..History::default() }), []);
    }
}
