//! Fair shares and the fewest moves, by methods that have nothing in common with the planner's.

use std::collections::BTreeMap;

use solehold_core::placement::{PlacementResource, Runner};

use super::world::fits;

/// A fraction of whole numbers.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    over: u64,
    under: u64,
}

impl Share {
    /// The loads within 10 % or one resource of weight `heaviest`.
    pub fn band(self, heaviest: u64) -> (u64, u64) {
        let over = self.over * 10;
        let under = self.under * 10;
        let half = self.over.max(heaviest * under);
        (over.saturating_sub(half).div_ceil(under), (over + half) / under)
    }
}

/// The max-min fair share of each runner: of all sets of runners the one with the most, relative to its capacity, that
/// can be held only there is at one level; then the same for what is left. There are few enough runners to look at all
/// sets.
pub fn shares(runners: &[Runner], resources: &[PlacementResource]) -> Vec<Share> {
    let masks: Vec<u32> = resources.iter().map(|resource| mask(runners, resource)).collect();
    let mut shares = vec![Share { over: 0, under: 1 }; runners.len()];
    let mut left = (1u32 << runners.len()) - 1;
    while left != 0 {
        let subsets = (1..=left).filter(|set| set & left == *set);
        let level = |set: u32| {
            let only_there = masks
                .iter()
                .zip(resources)
                .filter(|(mask, _)| **mask & left != 0 && **mask & left & !set == 0);
            let load: u64 = only_there.map(|(_, resource)| u64::from(resource.weight)).sum();
            (load, capacity(runners, set))
        };
        let tightest = subsets.map(|set| (level(set), set)).max_by(|a, b| {
            let (load_a, capacity_a) = a.0;
            let (load_b, capacity_b) = b.0;
            (load_a * capacity_b).cmp(&(load_b * capacity_a)).then(a.1.count_ones().cmp(&b.1.count_ones()))
        });
        let ((load, capacity), set) = tightest.expect("a set");
        for runner in (0..runners.len()).filter(|runner| set >> runner & 1 == 1) {
            shares[runner] = Share { over: u64::from(runners[runner].capacity) * load, under: capacity };
        }
        left &= !set;
    }
    shares
}

fn mask(runners: &[Runner], resource: &PlacementResource) -> u32 {
    runners.iter().enumerate().filter(|(_, runner)| fits(runner, resource)).map(|(at, _)| 1 << at).sum()
}

fn capacity(runners: &[Runner], set: u32) -> u64 {
    runners
        .iter()
        .enumerate()
        .filter(|(at, _)| set >> at & 1 == 1)
        .map(|(_, runner)| u64::from(runner.capacity))
        .sum()
}

/// How many resources can be placed at all.
pub fn most_placed(runners: &[Runner], resources: &[PlacementResource]) -> usize {
    let mut network = Costs::new(resources.len(), runners.len());
    network.connect_all(runners, resources, |_, _| 0);
    for (at, runner) in runners.iter().enumerate() {
        network.connect(network.runner(at), network.sink(), runner.capacity.into(), 0);
    }
    network.send().0
}

/// The fewest moves after which every load is in the band of its share. What nobody holds, or what must leave its
/// holder, can go anywhere for what it costs anyway.
pub fn fewest_moves(runners: &[Runner], resources: &[PlacementResource], shares: &[Share]) -> usize {
    const MUST: i64 = 1_000_000;
    let mut network = Costs::new(resources.len(), runners.len());
    let names: BTreeMap<_, usize> =
        runners.iter().enumerate().map(|(at, runner)| (&runner.key.name, at)).collect();
    network.connect_all(runners, resources, |resource, runner| {
        let resource = &resources[resource];
        let home = resource.holder.as_ref().filter(|_| resource.held);
        i64::from(home.is_some_and(|home| names.get(home) != Some(&runner)))
    });
    let mut least = 0;
    for (at, share) in shares.iter().enumerate() {
        let (low, high) = share.band(1);
        let high = high.min(runners[at].capacity.into());
        network.connect(network.runner(at), network.sink(), low, -MUST);
        network.connect(network.runner(at), network.sink(), high - low, 0);
        least += low as i64;
    }
    let (sent, cost) = network.send();
    assert_eq!(sent, resources.len(), "there is a way to have every load in its band");
    usize::try_from(cost + least * MUST).expect("every load can be in its band")
}

/// A flow of least cost, found by shortest paths (Bellman and Ford).
struct Costs {
    resources: usize,
    runners: usize,
    /// From, to, what can flow, the cost; each edge is followed by its reverse.
    edges: Vec<(usize, usize, u64, i64)>,
}

impl Costs {
    fn new(resources: usize, runners: usize) -> Self {
        Self { resources, runners, edges: Vec::new() }
    }

    fn runner(&self, at: usize) -> usize {
        self.resources + at
    }

    fn source(&self) -> usize {
        self.resources + self.runners
    }

    fn sink(&self) -> usize {
        self.source() + 1
    }

    fn connect(&mut self, from: usize, to: usize, capacity: u64, cost: i64) {
        self.edges.push((from, to, capacity, cost));
        self.edges.push((to, from, 0, -cost));
    }

    fn connect_all(
        &mut self,
        runners: &[Runner],
        resources: &[PlacementResource],
        cost: impl Fn(usize, usize) -> i64,
    ) {
        for (at, resource) in resources.iter().enumerate() {
            self.connect(self.source(), at, 1, 0);
            for runner in (0..runners.len()).filter(|runner| fits(&runners[*runner], resource)) {
                self.connect(at, self.runner(runner), 1, cost(at, runner));
            }
        }
    }

    /// Sends all that can be sent, one by one, and returns how much and for how much.
    fn send(&mut self) -> (usize, i64) {
        let mut sent = 0;
        let mut cost = 0;
        loop {
            let mut distance = vec![i64::MAX; self.sink() + 1];
            let mut by = vec![usize::MAX; self.sink() + 1];
            distance[self.source()] = 0;
            let mut changed = true;
            while changed {
                changed = false;
                for (at, (from, to, left, cost)) in self.edges.iter().enumerate() {
                    if *left > 0 && distance[*from] != i64::MAX && distance[*from] + cost < distance[*to] {
                        (distance[*to], by[*to], changed) = (distance[*from] + cost, at, true);
                    }
                }
            }
            if distance[self.sink()] == i64::MAX {
                return (sent, cost);
            }
            let mut at = self.sink();
            while at != self.source() {
                let edge = by[at];
                self.edges[edge].2 -= 1;
                self.edges[edge ^ 1].2 += 1;
                at = self.edges[edge].0;
            }
            (sent, cost) = (sent + 1, cost + distance[self.sink()]);
        }
    }
}
