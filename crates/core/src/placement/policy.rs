//! What an operator can tune about placement.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::key::{Name, ResourceKey};

/// How far a load may be from the fair share before something moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Band {
    /// Percent of the fair share.
    pub percent: u32,
    /// The least half-width, in resources: a band of a few percent of a small share would be narrower than one
    /// resource, and nothing could ever be in it.
    pub floor: u32,
}

/// How many moves may be under way at once: the greater of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveBudget {
    /// So many resources.
    pub floor: u32,
    /// So many percent of all resources.
    pub percent: u32,
}

impl MoveBudget {
    /// The budget where there are `resources`.
    pub fn of(self, resources: usize) -> usize {
        (self.floor as usize).max(resources.saturating_mul(self.percent as usize) / 100)
    }
}

/// A shift of ownership to one deployment group: that percent of the resources should be held there, and the others
/// elsewhere. Which resources they are depends on their keys alone, so that a greater percentage only adds to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// The deployment group that work is shifted to.
    pub to: String,
    /// How much of the work, 0 to 100.
    pub percent: u32,
    /// Why the shift halted, if it did: nothing is moved for its sake, and unowned work goes to the other groups.
    pub halted: Option<String>,
}

impl Shift {
    /// Whether a resource is among those that should be held by the group.
    pub fn takes(&self, key: &ResourceKey) -> bool {
        let text = [key.kind.as_str(), key.key.as_str()].join("\0");
        // A hundred buckets, evenly: the high half of a product by 100.
        let bucket = (u128::from(xxh3_64(text.as_bytes())) * 100) >> 64;
        bucket < u128::from(self.percent)
    }
}

/// What an operator can tune about placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub band: Band,
    pub move_budget: MoveBudget,
    /// For how long after a runner has gone its resources wait for it to return. While they wait no runner works on
    /// them, so this is 0 unless runners are known to restart in place.
    pub return_window_ms: u64,
    /// For how long a runner that came back must stay before resources are moved to it for balance.
    pub settle_ms: u64,
    /// After this time a hand-over is stuck: it holds no budget any longer.
    pub stuck_after_ms: u64,
    pub shift: Option<Shift>,
    /// Static placement: these runners hold what is listed for them, as kind and key, and nothing else.
    pub static_lists: BTreeMap<Name, BTreeSet<(Name, Name)>>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            band: Band { percent: 10, floor: 1 },
            move_budget: MoveBudget { floor: 32, percent: 1 },
            return_window_ms: 0,
            settle_ms: 60_000,
            stuck_after_ms: 60_000,
            shift: None,
            static_lists: BTreeMap::new(),
        }
    }
}
