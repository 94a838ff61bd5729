//! The input of placement.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Plan, Policy, Step};
use crate::{
    call::ResourceScope,
    key::{HolderKey, Name, ResourceKey},
    session::HolderStatus,
};

/// The registry at one moment. Its order does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub policy: Policy,
    pub runners: Vec<Runner>,
    pub resources: Vec<PlacementResource>,
}

/// Whether a runner is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its session is live, so it can be given work.
    Here {
        up_ms: u64,
        /// Whether it was there before and came back.
        returned: bool,
    },
    /// It is heard of by name alone: it keeps what it holds, and is given nothing.
    ByName,
    /// Its session is over.
    Away { gone_ms: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// Its name within its tenant.
    pub key: HolderKey,
    pub presence: Presence,
    /// What an operator, or itself, has set.
    pub status: HolderStatus,
    /// Where it is. One without a site serves all of them.
    pub site: Option<Name>,
    pub group: Option<String>,
    /// Its version within that group.
    pub version: Option<String>,
    /// The weight of what it may hold.
    pub capacity: u32,
    /// How much of the capacity is taken by leases that are not placed.
    pub other_load: u32,
    pub labels: BTreeMap<String, String>,
    pub capabilities: BTreeSet<String>,
    /// The kinds that it works on; all, if empty.
    pub kinds: BTreeSet<String>,
    /// The only resources that its API key may touch (rule 26); all, if none. A key that was revoked may touch nothing.
    pub scopes: Option<Arc<[ResourceScope]>>,
}

/// What a resource asks of its runner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Needs {
    /// Labels that the runner must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// Capabilities that it must have.
    pub capabilities: BTreeSet<String>,
}

/// A hand-over that is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingMove {
    pub to: Name,
    /// For how long it has been under way.
    pub for_ms: u64,
}

/// A resource that is to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementResource {
    pub key: ResourceKey,
    /// Where it is. Only runners of that site, or of none, may hold it.
    pub site: Option<Name>,
    pub needs: Needs,
    /// How much of a capacity it takes, 1 to [`super::WEIGHT_MAX`].
    pub weight: u32,
    /// Its holder, or its last one if it is free and that is known.
    pub holder: Option<Name>,
    /// Whether the holder has a live lease of its present session, or by its name.
    pub held: bool,
    pub pending: Option<PendingMove>,
    /// Whether it has ended its workers too often to be tried again.
    pub quarantined: bool,
    /// Runners that failed to work on it. Others are preferred.
    pub avoid: BTreeSet<Name>,
}

impl PlacementResource {
    /// A free resource of weight 1 that any runner of its tenant may hold.
    pub fn new(key: ResourceKey) -> Self {
        Self {
            key,
            site: None,
            needs: Needs::default(),
            weight: 1,
            holder: None,
            held: false,
            pending: None,
            quarantined: false,
            avoid: BTreeSet::new(),
        }
    }
}

impl Runner {
    /// An active runner that was not seen before.
    pub fn new(key: HolderKey, capacity: u32) -> Self {
        Self {
            key,
            presence: Presence::Here { up_ms: 0, returned: false },
            status: HolderStatus::Active,
            site: None,
            group: None,
            version: None,
            capacity,
            other_load: 0,
            labels: BTreeMap::new(),
            capabilities: BTreeSet::new(),
            kinds: BTreeSet::new(),
            scopes: None,
        }
    }

    /// Whether it can be given work.
    pub(super) fn receives(&self) -> bool {
        let here = matches!(self.presence, Presence::Here { .. });
        here && self.status == HolderStatus::Active && self.room() > 0
    }

    /// How much of what is placed it may hold.
    pub(super) fn room(&self) -> u64 {
        self.capacity.min(crate::limits::SESSION_LEASES_MAX).saturating_sub(self.other_load).into()
    }

    /// Whether resources may be moved to it, or from it, for balance.
    pub(super) fn is_settled(&self, settle_ms: u64) -> bool {
        !matches!(self.presence, Presence::Here { up_ms, returned: true } if up_ms < settle_ms)
    }
}

impl Snapshot {
    /// The snapshot after every runner has done what the plan tells it to do now.
    pub fn follow(&self, plan: &Plan) -> Self {
        let mut after = self.clone();
        after.resources.sort_by(|a, b| a.key.cmp(&b.key));
        for (resource, placement) in after.resources.iter_mut().zip(&plan.placements) {
            if matches!(placement.step, Step::Acquire | Step::Move | Step::Moving) {
                resource.holder = placement.target.clone();
                (resource.held, resource.pending) = (true, None);
            }
        }
        after
    }
}
