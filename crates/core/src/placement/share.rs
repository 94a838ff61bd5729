//! Fair shares: how much each runner would hold if the loads were as even as the constraints allow.
//!
//! The loads relative to the capacities are max-min fair: no runner's can be lowered without raising that of another
//! that is no lower. They are found from the top: if not everything fits when all runners are filled to the same level,
//! a least cut shows the resources that are in too tight a place. They and their runners are a part of their own, at a
//! higher level, and the others another one, at a lower level.

use std::{cmp::Reverse, collections::HashMap};

use super::{Band, Reason, board::Board, flow::Network, runner_set::RunnerSet};

/// Sets of runners that resources are balanced between, at most. Resources of further sets are placed, and stay.
const SETS_MAX: usize = 1_024;

/// The fair share of every runner that takes part.
pub struct Shares {
    /// As a fraction.
    of: Vec<Option<Fraction>>,
    /// In whole units of weight, of which runners that share among themselves have as many as there is to share.
    whole: Vec<u64>,
    /// Whether the resources of a class take part.
    counted: Vec<bool>,
    /// The runners that take part.
    pub runners: RunnerSet,
}

#[derive(Debug, Clone, Copy)]
struct Fraction {
    over: u64,
    under: u64,
}

impl Shares {
    /// The share in whole units of weight: rounded down, or for those with the greatest rest, up.
    pub fn whole(&self, runner: usize) -> u64 {
        self.whole[runner]
    }

    /// The share in thousandths of a unit of weight.
    pub fn thousandths(&self, runner: usize) -> Option<u64> {
        let Fraction { over, under } = self.of[runner]?;
        Some((u128::from(over) * 1_000 / u128::from(under)) as u64)
    }

    /// The least and the greatest load that is near enough to the share, where no resource is heavier than `heaviest`.
    pub fn band(&self, runner: usize, band: Band, heaviest: u64) -> (u64, u64) {
        let Some(Fraction { over, under }) = self.of[runner] else { return (0, u64::MAX) };
        let over = u128::from(over) * 100;
        let under = u128::from(under) * 100;
        let by_percent = over / 100 * u128::from(band.percent);
        let by_floor = u128::from(u64::from(band.floor) * heaviest) * under;
        let half = by_percent.max(by_floor);
        (over.saturating_sub(half).div_ceil(under) as u64, ((over + half) / under) as u64)
    }

    /// A load relative to the share, to compare runners by.
    pub fn relative(&self, runner: usize, load: u64) -> u64 {
        match self.of[runner] {
            Some(Fraction { over, under }) if over > 0 => {
                (((u128::from(load) * u128::from(under)) << 20) / u128::from(over)) as u64
            }
            _ if load > 0 => u64::MAX,
            _ => 0,
        }
    }

    /// Whether the resources of a class are balanced.
    pub fn counts(&self, class: usize) -> bool {
        self.counted[class]
    }
}

/// The shares of all runners that can be given work, when every resource is where it should be.
pub fn wanted_shares(board: &Board<'_>) -> Shares {
    let mut demand = Demand::new(board, board.fleet.receivers.clone());
    for item in &board.items {
        let is_wanted =
            item.movable || matches!(item.reason, Reason::Held | Reason::Unowned | Reason::Evicted(_));
        match item.at {
            Some(at) if !is_wanted => demand.fix(at, item.weight),
            Some(at) if !demand.add(board, item.class, item.weight) => demand.fix(at, item.weight),
            None if is_wanted => drop(demand.add(board, item.class, item.weight)),
            _ => {}
        }
    }
    demand.shares(board)
}

/// The shares of the runners that take part in balancing: those that can be given work and have settled, of groups with
/// one version. They share what they are meant to hold.
pub fn shares(board: &Board<'_>) -> Shares {
    let settled = RunnerSet::of(board.load.len(), |runner| {
        board.fleet.runners[runner].is_settled(board.policy.settle_ms)
    });
    let runners = board.fleet.receivers.clone().and(&settled).without(&board.fleet.rollouts.mixed);
    let mut demand = Demand::new(board, runners);
    for item in &board.items {
        if let Some(at) = item.at
            && demand.runners.has(at)
            && !(item.movable && demand.add(board, item.class, item.weight))
        {
            demand.fix(at, item.weight);
        }
    }
    demand.shares(board)
}

/// What is shared by whom.
struct Demand {
    runners: RunnerSet,
    /// Distinct sets of runners, and the weight that each set has to share.
    sets: Vec<(RunnerSet, u64)>,
    by_set: HashMap<RunnerSet, usize>,
    /// The set of each class: not known yet, none, or which.
    of_class: Vec<Option<Option<usize>>>,
    /// The weight that cannot leave a runner.
    fixed: Vec<u64>,
}

impl Demand {
    fn new(board: &Board<'_>, runners: RunnerSet) -> Self {
        Self {
            runners,
            sets: Vec::new(),
            by_set: HashMap::new(),
            of_class: vec![None; board.classes.len()],
            fixed: vec![0; board.load.len()],
        }
    }

    /// Counts a resource that can be moved. Returns false if it does not take part.
    fn add(&mut self, board: &Board<'_>, class: usize, weight: u64) -> bool {
        let set = match self.of_class[class] {
            Some(known) => known,
            None => *self.of_class[class].insert(Self::set_of(
                &mut self.sets,
                &mut self.by_set,
                board.classes[class].preferred.clone().and(&self.runners),
            )),
        };
        if let Some(set) = set {
            self.sets[set].1 += weight;
        }
        set.is_some()
    }

    fn set_of(
        sets: &mut Vec<(RunnerSet, u64)>,
        by_set: &mut HashMap<RunnerSet, usize>,
        runners: RunnerSet,
    ) -> Option<usize> {
        if let Some(known) = by_set.get(&runners) {
            return Some(*known);
        }
        if runners.is_empty() || sets.len() >= SETS_MAX {
            return None;
        }
        by_set.insert(runners.clone(), sets.len());
        sets.push((runners, 0));
        Some(sets.len() - 1)
    }

    /// Counts a resource that stays.
    fn fix(&mut self, runner: usize, weight: u64) {
        self.fixed[runner] += weight;
    }

    fn shares(self, board: &Board<'_>) -> Shares {
        let mut sets_of = vec![Vec::new(); board.load.len()];
        for (set, (runners, _)) in self.sets.iter().enumerate() {
            runners.iter().for_each(|runner| sets_of[runner].push(set));
        }
        let mut solver = Solver {
            capacity: &board.capacity,
            fixed: &self.fixed,
            demand: self.sets.iter().map(|(_, demand)| *demand).collect(),
            sets_of: &sets_of,
            of: vec![None; board.load.len()],
            whole: vec![0; board.load.len()],
        };
        let whole =
            ShareComponent { sets: (0..self.sets.len()).collect(), runners: self.runners.iter().collect() };
        let mut parts = vec![whole];
        while let Some(part) = parts.pop() {
            parts.extend(solver.solve(part).into_iter().flatten());
        }
        let counted = self.of_class.iter().map(|set| set.flatten().is_some()).collect();
        Shares { of: solver.of, whole: solver.whole, counted, runners: self.runners }
    }
}

/// Sets of runners that share among themselves.
struct ShareComponent {
    sets: Vec<usize>,
    runners: Vec<usize>,
}

struct Solver<'a> {
    capacity: &'a [u64],
    fixed: &'a [u64],
    demand: Vec<u64>,
    sets_of: &'a [Vec<usize>],
    of: Vec<Option<Fraction>>,
    whole: Vec<u64>,
}

/// Runners that the same sets of a part have.
#[derive(Default)]
struct Group {
    capacity: u64,
    fixed: u64,
    runners: Vec<usize>,
}

impl Solver<'_> {
    /// Gives every runner of a part its share, or splits the part in two.
    fn solve(&mut self, mut part: ShareComponent) -> Option<[ShareComponent; 2]> {
        let (load, capacity) = self.level(&mut part);
        if capacity == 0 {
            return None;
        }
        let groups = self.groups(&part);
        let source = part.sets.len() + groups.len();
        let sink = part.sets.len() + groups.len() + 1;
        let mut network = Network::new(sink + 1);
        for (at, set) in part.sets.iter().enumerate() {
            network.connect(source, at, self.demand[*set] * capacity);
        }
        for (at, (sets, group)) in groups.iter().enumerate() {
            sets.iter().for_each(|set| network.connect(*set, part.sets.len() + at, u64::MAX / 4));
            let room = group.capacity * load - group.fixed * capacity;
            network.connect(part.sets.len() + at, sink, room);
        }
        let wanted: u64 = part.sets.iter().map(|set| self.demand[*set] * capacity).sum();
        if network.send(source, sink) == wanted {
            // More than their capacity is more than they can have.
            self.give(&part.runners, load.min(capacity), capacity);
            return None;
        }
        Some(split(&part, groups, &network.reached(source)))
    }

    /// Gives the runners of a part their shares of its load, and rounds these by the method of the largest remainder.
    /// The rounding depends on capacities alone, so a plan stays as it was while parts of it are carried out.
    fn give(&mut self, runners: &[usize], load: u64, capacity: u64) {
        let mut rests = Vec::with_capacity(runners.len());
        let mut left = load;
        for runner in runners {
            let over = self.capacity[*runner] * load;
            self.of[*runner] = Some(Fraction { over, under: capacity });
            self.whole[*runner] = over / capacity;
            left -= over / capacity;
            rests.push((Reverse(over % capacity), *runner));
        }
        rests.sort_unstable();
        rests.iter().take(left as usize).for_each(|(_, runner)| self.whole[*runner] += 1);
    }

    /// The load and the capacity of a part, without those of its runners that have more than their part of it already.
    fn level(&mut self, part: &mut ShareComponent) -> (u64, u64) {
        loop {
            let sum = |of: &[u64], at: &[usize]| at.iter().map(|at| of[*at]).sum::<u64>();
            let load = sum(&self.demand, &part.sets) + sum(self.fixed, &part.runners);
            let capacity = sum(self.capacity, &part.runners);
            let before = part.runners.len();
            part.runners.retain(|runner| {
                let is_over = self.fixed[*runner] * capacity > load * self.capacity[*runner];
                if is_over {
                    self.of[*runner] = Some(Fraction { over: self.fixed[*runner], under: 1 });
                    self.whole[*runner] = self.fixed[*runner];
                }
                !is_over
            });
            if part.runners.len() == before {
                return (load, capacity);
            }
        }
    }

    fn groups(&self, part: &ShareComponent) -> Vec<(Vec<usize>, Group)> {
        let mut position = vec![None; self.demand.len()];
        part.sets.iter().enumerate().for_each(|(at, set)| position[*set] = Some(at));
        let mut groups: Vec<(Vec<usize>, Group)> = Vec::new();
        let mut by_sets: HashMap<Vec<usize>, usize> = HashMap::new();
        for runner in &part.runners {
            let sets: Vec<usize> = self.sets_of[*runner].iter().filter_map(|set| position[*set]).collect();
            let at = *by_sets.entry(sets).or_insert_with_key(|sets| {
                groups.push((sets.clone(), Group::default()));
                groups.len() - 1
            });
            let group = &mut groups[at].1;
            group.capacity += self.capacity[*runner];
            group.fixed += self.fixed[*runner];
            group.runners.push(*runner);
        }
        groups
    }
}

/// The sets that do not fit at the level of the whole, with their runners; and the others.
fn split(part: &ShareComponent, groups: Vec<(Vec<usize>, Group)>, reached: &[bool]) -> [ShareComponent; 2] {
    [true, false].map(|side| {
        let sets = part.sets.iter().enumerate().filter(|(at, _)| reached[*at] == side);
        let groups = groups.iter().enumerate().filter(|(at, _)| reached[part.sets.len() + at] == side);
        let runners = groups.flat_map(|(_, (_, group))| group.runners.iter().copied());
        ShareComponent { sets: sets.map(|(_, set)| *set).collect(), runners: runners.collect() }
    })
}
