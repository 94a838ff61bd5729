//! The output of placement: a plan, its steps and their reasons.

use serde::{Deserialize, Serialize};

use crate::key::{HolderKey, Name, ResourceKey};

/// Where everything should be, and what is to be done about it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The version of the algorithm that made it.
    pub algorithm: u32,
    /// Every resource of the snapshot, by key.
    pub placements: Vec<Placement>,
    /// The fair share of every runner that takes part in balancing, in thousandths of a unit of weight, by name.
    pub shares: Vec<(HolderKey, u64)>,
    /// How many moves may be under way at once.
    pub move_budget: usize,
}

impl Plan {
    pub fn placement(&self, key: &ResourceKey) -> Option<&Placement> {
        self.placements
            .binary_search_by(|placement| placement.key.cmp(key))
            .ok()
            .map(|at| &self.placements[at])
    }

    /// The fair share of a runner, in thousandths of a unit of weight, if it takes part in balancing.
    pub fn share(&self, runner: &HolderKey) -> Option<u64> {
        self.shares.binary_search_by(|(key, _)| key.cmp(runner)).ok().map(|at| self.shares[at].1)
    }

    pub fn count(&self, is: impl Fn(&Step) -> bool) -> usize {
        self.placements.iter().filter(|placement| is(&placement.step)).count()
    }

    /// How many moves are started, under way, or wait for the budget or for room.
    pub fn moves(&self) -> usize {
        self.placements.iter().filter(|placement| placement.is_move()).count()
    }

    pub fn is_settled(&self) -> bool {
        self.placements.iter().all(|placement| matches!(placement.step, Step::Keep | Step::Nothing))
    }
}

/// Where one resource should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    pub key: ResourceKey,
    /// The runner that holds it now.
    pub holder: Option<Name>,
    /// The runner that should hold it.
    pub target: Option<Name>,
    pub step: Step,
    /// Why it should be there, or why it can be nowhere.
    pub reason: Reason,
}

impl Placement {
    /// Whether it is to pass from one holder to another.
    pub fn is_move(&self) -> bool {
        self.holder.is_some() && self.target.is_some() && self.holder != self.target
    }
}

/// What is to be done about a resource now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Its holder keeps it.
    Keep,
    /// The target acquires it: it is free.
    Acquire,
    /// Its holder hands it over to the target.
    Move,
    /// A hand-over is under way.
    Moving,
    /// It will be acquired or moved later.
    Later(Holdup),
    /// Nothing: it can be placed nowhere, or is not ours to place.
    Nothing,
}

/// What a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holdup {
    /// Enough other moves are under way.
    Budget,
    /// The target is full until something else has left it.
    Room,
    /// Its last holder may come back for it.
    Return,
}

/// Why a resource should be where the plan says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is held there, and nothing asks for a move.
    Held,
    /// Its last holder is back, or never left.
    Returned,
    /// Its last holder may come back for it.
    AwaitsReturn,
    Unowned,
    /// Its holder must not keep it.
    Evicted(Eviction),
    /// It is among the resources that a shift moves between deployment groups.
    Shift,
    /// Its holder failed to work on it.
    FailedThere,
    /// Its holder has more than its share, or the target less.
    Balance,
    /// It leaves room for a resource that can be held nowhere else.
    MakesRoom,
    /// A hand-over is under way.
    HandOver,
    /// A hand-over has been under way for too long.
    StuckHandOver,
    /// It is held by something that is not a registered runner.
    Outsider,
    /// Its holder should not keep it, but no other runner can have it.
    NowhereElse(Unplaceable),
    /// It can be held nowhere.
    Unplaceable(Unplaceable),
}

/// Why a holder must not keep a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    Draining,
    Maintenance,
    /// It lacks what the resource asks for, or another runner is named for it.
    Unfit,
    /// It holds more than its capacity.
    OverCapacity,
}

/// Why a resource can be held nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unplaceable {
    /// It ended its workers too often.
    Quarantined,
    NoRunner,
    NoRunnerForKind(Name),
    NoRunnerAtSite(Name),
    NoRunnerWithLabel {
        label: String,
        value: String,
    },
    NoRunnerWithCapability(String),
    /// No runner has an API key that may touch it.
    NoRunnerWithKey,
    /// Each demand is met by some runner, but no runner meets all of them.
    NoRunnerWithAll,
    /// A static list names this runner for it, which is not there.
    StaticRunnerAway(Name),
    /// Every runner that could hold it is draining, under maintenance, or away.
    NoneAvailable,
    /// Every runner that could hold it is full.
    AllAtCapacity,
}
