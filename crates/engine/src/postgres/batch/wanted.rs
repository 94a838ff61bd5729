//! The rows that a batch or a read wants, by the names that commands have for them.

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::{
    command::Footprint,
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    ledger::FoundLate,
    limits::{WAITERS_LOADED, WAITERS_MAX},
    request::Requester,
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
    pub(crate) cancelled: Vec<Requester>,
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
            FoundLate::Slots(key) => {
                if !self.keys.contains(key) {
                    self.keys.push(key.clone());
                }
            }
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

/// Rows of names as one array per column.
pub(crate) fn columns<'a, const N: usize>(rows: impl Iterator<Item = [&'a Name; N]>) -> [Vec<&'a str>; N] {
    let mut columns = std::array::from_fn(|_| Vec::new());
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, name)| column.push(name.as_str()));
    }
    columns
}

pub(crate) fn of_keys<'a>(keys: impl IntoIterator<Item = &'a ResourceKey>) -> [Vec<&'a str>; 3] {
    columns(keys.into_iter().map(|key| [&key.tenant, &key.kind, &key.key]))
}

pub(crate) fn of_holders<'a>(holders: impl IntoIterator<Item = &'a HolderKey>) -> [Vec<&'a str>; 2] {
    columns(holders.into_iter().map(|holder| [&holder.tenant, &holder.name]))
}

pub(crate) fn of_pairs<'a>(pairs: impl IntoIterator<Item = &'a (Name, Name)>) -> [Vec<&'a str>; 2] {
    columns(pairs.into_iter().map(|(one, two)| [one, two]))
}

pub(crate) fn of_requests<'a>(requests: impl IntoIterator<Item = &'a RequestKey>) -> [Vec<&'a str>; 5] {
    columns(requests.into_iter().map(
        |RequestKey { resource: ResourceKey { tenant, kind, key, .. }, holder, request }| {
            [tenant, kind, key, holder, request]
        },
    ))
}
