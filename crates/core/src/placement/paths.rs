//! The cheapest way to pass load on from runner to runner.

use std::collections::{BTreeMap, VecDeque};

use super::{Reason, board::Board, runner_set::RunnerSet};

/// The most often that a node's distance is improved in one search: beyond it something is odd, and no path is better
/// than an endless search.
const VISITS_MAX: u32 = 64;

/// The resources that can be moved, by the runner where they are meant to be and by class. Those that are at home come
/// first, so that the last one is the cheapest to move.
pub struct Stacks {
    of: Vec<BTreeMap<usize, Vec<usize>>>,
    /// The runners that take part.
    runners: RunnerSet,
}

/// One resource of a class passes from a runner to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    pub from: usize,
    pub to: usize,
    class: usize,
}

impl Hop {
    pub fn new(from: usize, to: usize, class: usize) -> Self {
        Self { from, to, class }
    }
}

impl Stacks {
    /// What can be moved between these runners.
    pub fn of(board: &Board<'_>, runners: &RunnerSet) -> Self {
        let mut stacks = Self { of: vec![BTreeMap::new(); board.load.len()], runners: runners.clone() };
        let (home, away): (Vec<usize>, Vec<usize>) =
            (0..board.items.len()).partition(|item| board.items[*item].at == board.items[*item].home);
        home.into_iter().chain(away).for_each(|item| stacks.add(board, item));
        stacks
    }

    /// Adds a resource where it is meant to be, if it can be moved from there.
    pub fn add(&mut self, board: &Board<'_>, item: usize) {
        let Some(at) = board.items[item].at.filter(|at| self.runners.has(*at)) else { return };
        if !board.items[item].movable {
            return;
        }
        let stack = self.of[at].entry(board.items[item].class).or_default();
        if board.items[item].home == Some(at) {
            stack.insert(home_count(board, stack, at), item)
        } else {
            stack.push(item)
        }
    }

    /// The classes of which a runner has something to give.
    pub fn classes(&self, runner: usize) -> impl Iterator<Item = usize> + '_ {
        self.of[runner].iter().filter(|(_, stack)| !stack.is_empty()).map(|(class, _)| *class)
    }

    /// How many moves more it costs to give away one of a class: none if that is displaced anyway.
    pub fn cost(&self, board: &Board<'_>, runner: usize, class: usize) -> Option<i64> {
        let last = self.of[runner].get(&class)?.last()?;
        Some(i64::from(board.items[*last].home == Some(runner)))
    }

    /// Moves one resource, and says why.
    pub fn pass(&mut self, board: &mut Board<'_>, hop: Hop, reason: &Reason) {
        let Some(stack) = self.of[hop.from].get_mut(&hop.class) else { return };
        let goes_home = stack.iter().rposition(|item| board.items[*item].home == Some(hop.to));
        let Some(at) = goes_home.or(stack.len().checked_sub(1)) else { return };
        let item = stack.remove(at);
        board.lift(item);
        let reason = match board.items[item].home {
            Some(home) if home == hop.to => Reason::Held,
            // What was placed for another reason still is.
            Some(home) if home == hop.from => reason.clone(),
            _ => board.items[item].reason.clone(),
        };
        board.put(item, hop.to, true, reason);
        self.add(board, item);
    }

    /// Takes a path, its end first, so that there is room for every step.
    pub fn follow(&mut self, board: &mut Board<'_>, hops: &[Hop], reason: Reason) {
        hops.iter().rev().for_each(|hop| self.pass(board, *hop, &reason));
    }

    /// How to free room for a resource of a class at one of its runners, all of which are full.
    pub fn path_for(&self, board: &Board<'_>, class: usize) -> Option<Vec<Hop>> {
        let class = &board.classes[class];
        let starts: Vec<usize> = class.allowed.iter().collect();
        let gives =
            |runner: usize, weight: u64| board.load[runner] + class.weight <= board.capacity[runner] + weight;
        self.cheapest(board, &starts, gives, |runner, weight| board.has_room(runner, weight))
            .map(|(_, hops)| hops)
    }

    /// How to take something from a runner that has too much.
    pub fn path_from(&self, board: &Board<'_>, runner: usize) -> Option<Vec<Hop>> {
        let takes = |runner: usize, weight: u64| board.has_room(runner, weight);
        self.cheapest(board, &[runner], |_, _| true, takes).map(|(_, hops)| hops)
    }

    /// The path with the fewest moves, and how many they are: from one of `starts`, which `gives` a weight away, to a
    /// runner that `takes` one.
    pub fn cheapest(
        &self,
        board: &Board<'_>,
        starts: &[usize],
        gives: impl Fn(usize, u64) -> bool,
        takes: impl Fn(usize, u64) -> bool,
    ) -> Option<(i64, Vec<Hop>)> {
        let mut search = Search::new(self, board);
        starts.iter().for_each(|start| search.begin(*start));
        while let Some(node) = search.next() {
            match node.checked_sub(board.load.len()) {
                None => search.leave_runner(node, &gives),
                Some(class) => search.leave_class(class),
            }
        }
        let ends = self
            .runners
            .iter()
            .filter(|end| search.hop_to[*end].is_some_and(|hop| takes(*end, search.weight(hop))));
        let end = ends.min_by_key(|end| (search.distance[*end], *end))?;
        Some((search.distance[end], search.path(end)?))
    }
}

fn home_count(board: &Board<'_>, stack: &[usize], runner: usize) -> usize {
    stack.partition_point(|item| board.items[*item].home == Some(runner))
}

/// A search by distance. The nodes are the runners, then the classes: from a runner to the classes of which it has
/// something to give, and from a class to its runners. A displaced resource that goes home takes a move back.
struct Search<'s, 'a> {
    stacks: &'s Stacks,
    board: &'s Board<'a>,
    distance: Vec<i64>,
    visits: Vec<u32>,
    queued: Vec<bool>,
    queue: VecDeque<usize>,
    /// The runner that gives, for each class that was reached.
    giver: Vec<usize>,
    /// How each runner was reached; none for a start.
    hop_to: Vec<Option<Hop>>,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(stacks: &'s Stacks, board: &'s Board<'a>) -> Self {
        let runners = board.load.len();
        let classes = board.classes.len();
        Self {
            stacks,
            board,
            distance: vec![i64::MAX; runners + classes],
            visits: vec![0; runners + classes],
            queued: vec![false; runners + classes],
            queue: VecDeque::new(),
            giver: vec![0; classes],
            hop_to: vec![None; runners],
        }
    }

    fn begin(&mut self, start: usize) {
        if self.stacks.runners.has(start) {
            self.reach(start, 0);
        }
    }

    fn next(&mut self) -> Option<usize> {
        let node = self.queue.pop_front()?;
        self.queued[node] = false;
        Some(node)
    }

    /// Notes a shorter distance; returns whether it is one.
    fn reach(&mut self, node: usize, distance: i64) -> bool {
        if distance >= self.distance[node] || self.visits[node] >= VISITS_MAX {
            return false;
        }
        self.distance[node] = distance;
        self.visits[node] += 1;
        if !self.queued[node] {
            self.queued[node] = true;
            self.queue.push_back(node);
        }
        true
    }

    fn weight(&self, hop: Hop) -> u64 {
        self.board.classes[hop.class].weight
    }

    fn leave_runner(&mut self, runner: usize, gives: &impl Fn(usize, u64) -> bool) {
        let gets = self.hop_to[runner].map_or(0, |hop| self.weight(hop));
        for class in self.stacks.classes(runner) {
            let weight = self.board.classes[class].weight;
            let is_able = match gets {
                0 => gives(runner, weight),
                gets => {
                    self.board.load[runner] + gets
                        <= self.board.capacity[runner].max(self.board.load[runner]) + weight
                }
            };
            if !is_able {
                continue;
            }
            let cost = self.stacks.cost(self.board, runner, class).unwrap_or(1);
            if self.reach(self.board.load.len() + class, self.distance[runner] + cost) {
                self.giver[class] = runner;
            }
            self.send_home(runner, class);
        }
    }

    /// What is displaced can go back home.
    fn send_home(&mut self, runner: usize, class: usize) {
        let Some(stack) = self.stacks.of[runner].get(&class) else { return };
        for item in stack.iter().rev().map(|item| &self.board.items[*item]) {
            let Some(home) = item.home else { continue };
            if home == runner {
                break;
            }
            let is_open = self.stacks.runners.has(home) && self.board.classes[class].preferred.has(home);
            if is_open && self.reach(home, self.distance[runner] - 1) {
                self.hop_to[home] = Some(Hop { from: runner, to: home, class });
            }
        }
    }

    fn leave_class(&mut self, class: usize) {
        let from = self.giver[class];
        let distance = self.distance[self.board.load.len() + class];
        let runners = &self.board.classes[class].preferred;
        for to in runners.iter().filter(|to| *to != from && self.stacks.runners.has(*to)) {
            if self.reach(to, distance) {
                self.hop_to[to] = Some(Hop { from, to, class });
            }
        }
    }

    /// The hops that lead to a runner.
    fn path(&self, end: usize) -> Option<Vec<Hop>> {
        let mut hops = Vec::new();
        let mut at = end;
        while let Some(hop) = self.hop_to[at] {
            hops.push(hop);
            at = hop.from;
            if hops.len() > self.hop_to.len() {
                return None;
            }
        }
        hops.reverse();
        Some(hops)
    }
}
