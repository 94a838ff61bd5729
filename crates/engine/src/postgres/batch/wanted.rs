//! The rows that a batch or a read wants, by the names that commands have for them.

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::{
    command::Footprint,
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    ledger::FoundLate,
    limits::{WAITERS_LOADED, WAITERS_MAX},
};
use uuid::Uuid;

/// The rows that the commands of a batch name: a footprint without repetitions, and what was found late.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedRows {
    pub(crate) keys: Vec<ResourceKey>,
    pub(crate) leases: Vec<LeaseId>,
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) whole: BTreeSet<SessionId>,
    pub(crate) holders: BTreeSet<HolderKey>,
    pub(crate) whole_holders: BTreeSet<HolderKey>,
    /// Holders of which everything that they hold is wanted.
    pub(crate) holdings: BTreeSet<HolderKey>,
    pub(crate) requests: Vec<RequestKey>,
    /// Holders and resources of which all cancelled requests are wanted.
    pub(crate) cancelled: Vec<(ResourceKey, Name)>,
    pub(crate) records: Vec<(Name, Name)>,
    pub(crate) moves: Vec<(Name, Name)>,
    pub(crate) waiters: Vec<(ResourceKey, LeaseId)>,
    /// How many of a line are needed, where it was found to be more than usual.
    pub(crate) lines: BTreeMap<ResourceKey, usize>,
    /// Sessions of which all waiters were found to be needed.
    pub(crate) waiters_on: BTreeSet<SessionId>,
}

impl WantedRows {
    /// The leases, and the mark of each.
    pub(crate) fn lease_arrays(&self) -> (Vec<Uuid>, Vec<i32>) {
        self.leases.iter().map(|id| (id.0, id.mark() as i32)).unzip()
    }

    pub(crate) fn of(footprint: &Footprint) -> Self {
        let whole_holders: BTreeSet<_> = footprint.whole_holders.iter().cloned().collect();
        let whole: BTreeSet<_> = footprint.whole_sessions.iter().copied().collect();
        Self {
            keys: once_each(&footprint.resources),
            leases: once_each(&footprint.leases),
            sessions: footprint.sessions.iter().chain(&whole).copied().collect(),
            whole,
            holders: footprint.holders.iter().chain(&whole_holders).cloned().collect(),
            whole_holders,
            holdings: footprint.holdings.iter().cloned().collect(),
            requests: once_each(&footprint.requests),
            cancelled: once_each(&footprint.cancelled),
            records: once_each(&footprint.records),
            moves: once_each(&footprint.moves),
            waiters: once_each(&footprint.waiters),
            ..Self::default()
        }
    }

    /// Adds what was found late.
    pub(crate) fn add(&mut self, late: &FoundLate) {
        match late {
            FoundLate::Session(id) => drop(self.sessions.insert(*id)),
            FoundLate::WaitersOn(id) => drop(self.waiters_on.insert(*id)),
            FoundLate::Line(key) => {
                let most = self.lines.entry(key.clone()).or_insert(WAITERS_LOADED);
                *most = most.saturating_mul(WAITERS_LOADED).min(2 * WAITERS_MAX as usize);
            }
        }
    }
}

fn once_each<T: Ord + Clone>(all: &[T]) -> Vec<T> {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.dedup();
    all
}

/// Keys as three arrays.
pub(crate) struct KeyArrays<'a>(pub(crate) [Vec<&'a str>; 3]);

impl<'a> KeyArrays<'a> {
    pub(crate) fn of(keys: impl Iterator<Item = &'a ResourceKey>) -> Self {
        let mut columns: [Vec<&str>; 3] = Default::default();
        for key in keys {
            for (column, part) in columns.iter_mut().zip([&key.tenant, &key.kind, &key.key]) {
                column.push(part.as_str());
            }
        }
        Self(columns)
    }
}

/// Names in pairs as two arrays.
pub(crate) struct PairArrays<'a>(pub(crate) [Vec<&'a str>; 2]);

impl<'a> PairArrays<'a> {
    pub(crate) fn of(pairs: impl Iterator<Item = (&'a Name, &'a Name)>) -> Self {
        let (first, second) = pairs.map(|(a, b)| (a.as_str(), b.as_str())).unzip();
        Self([first, second])
    }

    pub(crate) fn of_holders(holders: impl Iterator<Item = &'a HolderKey>) -> Self {
        Self::of(holders.map(|h| (&h.tenant, &h.name)))
    }
}

/// Requests as five arrays.
pub(crate) struct RequestArrays<'a>(pub(crate) [Vec<&'a str>; 5]);

impl<'a> RequestArrays<'a> {
    pub(crate) fn of(requests: impl Iterator<Item = &'a RequestKey>) -> Self {
        let mut columns: [Vec<&str>; 5] = Default::default();
        for r in requests {
            let parts = [&r.resource.tenant, &r.resource.kind, &r.resource.key, &r.holder, &r.request];
            for (column, part) in columns.iter_mut().zip(parts) {
                column.push(part.as_str());
            }
        }
        Self(columns)
    }
}
