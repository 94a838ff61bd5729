//! The state of planning: where each resource is meant to be so far.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use super::{
    PlacementResource, Policy, Reason, Snapshot,
    classes::{Class, Classes, weight},
    fleet::Fleet,
};

/// A resource while it is planned.
pub struct Item<'a> {
    pub resource: &'a PlacementResource,
    pub class: usize,
    pub weight: u64,
    /// The runner that holds it now.
    pub home: Option<usize>,
    /// The runner that should hold it, as far as planned.
    pub at: Option<usize>,
    /// Whether it may be moved on: it is placed by choice, not by a fact.
    pub movable: bool,
    pub reason: Reason,
}

pub struct Board<'a> {
    pub policy: &'a Policy,
    pub fleet: Fleet<'a>,
    pub classes: Vec<Class>,
    /// By key; elsewhere a resource is its position here.
    pub items: Vec<Item<'a>>,
    /// The weight of what each runner is meant to hold.
    pub load: Vec<u64>,
    /// The weight that each runner may hold.
    pub capacity: Vec<u64>,
}

impl<'a> Board<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let fleet = Fleet::of(snapshot);
        let mut classes = Classes::default();
        let mut resources: Vec<&PlacementResource> = snapshot.resources.iter().collect();
        resources.sort_by(|a, b| a.key.cmp(&b.key));
        let items = resources.into_iter().map(|resource| Item {
            resource,
            class: classes.of(&fleet, &snapshot.policy, resource),
            weight: weight(resource),
            home: None,
            at: None,
            movable: false,
            reason: Reason::Unowned,
        });
        let items = items.collect();
        Self {
            policy: &snapshot.policy,
            items,
            load: vec![0; fleet.runners.len()],
            capacity: fleet.runners.iter().map(|runner| runner.room()).collect(),
            classes: classes.all,
            fleet,
        }
    }

    pub fn class(&self, item: usize) -> &Class {
        &self.classes[self.items[item].class]
    }

    /// Puts a resource that is nowhere at a runner.
    pub fn put(&mut self, item: usize, runner: usize, movable: bool, reason: Reason) {
        let item = &mut self.items[item];
        self.load[runner] += item.weight;
        (item.at, item.movable, item.reason) = (Some(runner), movable, reason);
    }

    /// Takes a resource from the runner where it is meant to be, if it is anywhere.
    pub fn lift(&mut self, item: usize) {
        let item = &mut self.items[item];
        if let Some(runner) = item.at.take() {
            self.load[runner] -= item.weight;
        }
    }

    /// Whether a runner has room for this weight.
    pub fn has_room(&self, runner: usize, weight: u64) -> bool {
        self.load[runner] + weight <= self.capacity[runner]
    }

    /// The load of a runner relative to its capacity, to compare runners by.
    pub fn level(&self, runner: usize) -> u64 {
        (self.load[runner] << 32) / self.capacity[runner].max(1)
    }
}

/// Runners, the highest rank first, and of equals the first by name.
pub type Ranked<R> = BinaryHeap<(R, Reverse<usize>)>;

/// The first by rank that `is_one`. A rank that has changed is brought up to date; a runner that is passed over is
/// dropped, so it must not become one later.
pub fn first<R: Ord>(
    ranked: &mut Ranked<R>,
    rank: impl Fn(usize) -> R,
    is_one: impl Fn(usize) -> bool,
) -> Option<usize> {
    while let Some(mut top) = ranked.peek_mut() {
        let Reverse(runner) = top.1;
        let now = rank(runner);
        if top.0 != now {
            top.0 = now;
        } else if is_one(runner) {
            return Some(runner);
        } else {
            PeekMut::pop(top);
        }
    }
    None
}
