//! Spent request ids: they are granted nothing more (rule 7).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    key::{Name, RequestKey, ResourceKey},
    limits::SPENT_REQUESTS_MAX,
    time::StoreTime,
};

/// What is remembered of a spent request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpentRequest {
    /// It is remembered until then.
    pub until: StoreTime,
    /// The key that it counts for: the owner of the lease or place in line that it had, or the key that cancelled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// Whether it was cancelled before it was seen, or after what it had was over. Such requests are never forgotten
    /// before their time; their number is bounded when they are cancelled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}

/// A holder, and a resource that it asks for: its spent requests for that resource are one row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requester {
    pub resource: ResourceKey,
    pub holder: Name,
}

impl Requester {
    /// Whose request it is.
    pub fn of(request: &RequestKey) -> Self {
        Self { resource: request.resource.clone(), holder: request.holder.clone() }
    }

    /// Its request of this name.
    pub fn request(&self, request: &Name) -> RequestKey {
        RequestKey { resource: self.resource.clone(), holder: self.holder.clone(), request: request.clone() }
    }
}

/// The spent requests of one holder for one resource, by the time until which they are remembered, then by name. They
/// are few, since their number is bounded, so they are looked through rather than indexed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Name, SpentRequest)>", into = "Vec<(Name, SpentRequest)>")]
pub struct SpentRequests(Vec<Remembered>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Remembered {
    request: Name,
    spent: SpentRequest,
}

impl Remembered {
    fn place(&self) -> (StoreTime, &Name) {
        (self.spent.until, &self.request)
    }
}

impl From<Vec<(Name, SpentRequest)>> for SpentRequests {
    fn from(requests: Vec<(Name, SpentRequest)>) -> Self {
        let mut all: Vec<_> =
            requests.into_iter().map(|(request, spent)| Remembered { request, spent }).collect();
        all.sort_by(|a, b| a.place().cmp(&b.place()));
        Self(all)
    }
}

impl From<SpentRequests> for Vec<(Name, SpentRequest)> {
    fn from(requests: SpentRequests) -> Self {
        requests.0.into_iter().map(|of| (of.request, of.spent)).collect()
    }
}

impl SpentRequests {
    pub fn get(&self, request: &Name) -> Option<&SpentRequest> {
        self.index_of(request).map(|index| &self.0[index].spent)
    }

    fn index_of(&self, request: &Name) -> Option<usize> {
        let hash = request.text_hash();
        self.0.iter().position(|of| of.request.text_hash() == hash && of.request == *request)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Name, &SpentRequest)> {
        self.0.iter().map(|of| (&of.request, &of.spent))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Until when the first of them is remembered.
    pub fn first_until(&self) -> Option<StoreTime> {
        self.0.first().map(|of| of.spent.until)
    }

    pub(crate) fn put(&mut self, request: Name, spent: SpentRequest) {
        let new = Remembered { request, spent };
        if let Some(index) = self.index_of(&new.request) {
            self.0.remove(index);
        }
        let index = self.0.partition_point(|of| of.place() < new.place());
        self.0.insert(index, new);
    }

    pub(crate) fn remove(&mut self, request: &Name) {
        if let Some(index) = self.index_of(request) {
            self.0.remove(index);
        }
    }

    /// Forgets requests beyond the bound that count for the key `by`: the oldest of them. Those that were cancelled
    /// before they were seen are bounded when they are cancelled, and displace nothing.
    pub(crate) fn trim(&mut self, by: Option<&Name>) {
        let counts = |of: &Remembered| !of.spent.cancelled && of.spent.by.as_ref() == by;
        let count = self.0.iter().filter(|of| counts(of)).count();
        let mut surplus = count.saturating_sub(SPENT_REQUESTS_MAX);
        if surplus > 0 {
            self.0.retain(|of| {
                let is_surplus = surplus > 0 && counts(of);
                surplus -= usize::from(is_surplus);
                !is_surplus
            });
        }
    }

    /// Forgets requests whose time has passed, and those beyond the bound of any key; tells which.
    pub(crate) fn forget(&mut self, now: StoreTime) -> Vec<Name> {
        let before: Vec<Name> = self.iter().map(|(name, _)| name.clone()).collect();
        self.0.retain(|of| of.spent.until > now);
        if self.0.len() > SPENT_REQUESTS_MAX {
            let keys: BTreeSet<_> = self.0.iter().map(|of| of.spent.by.clone()).collect();
            keys.iter().for_each(|by| self.trim(by.as_ref()));
        }
        before.into_iter().filter(|name| self.get(name).is_none()).collect()
    }
}
