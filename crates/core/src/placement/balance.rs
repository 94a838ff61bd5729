//! The fewest moves that bring every load into its band.
//!
//! First those with too much give to those with too little; then, if there still are any, those with too much to
//! others with room in their bands, and others with some to spare to those with too little. Moves from one runner
//! straight to another are found by comparing loads; where the constraints leave none, load is passed on along the path
//! with the fewest moves. Each step takes a cheapest path, so that the whole costs least.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    Reason,
    board::{Board, Ranked, first},
    paths::{Hop, Stacks},
    share::Shares,
};

/// Paths that are searched for in one plan, at most. What is left is found in the next one.
const PATHS_MAX: usize = 1_000;

/// How many moves a path may cost, step by step: cheaper paths are taken before dearer ones. A path that sends
/// something home saves a move.
const COSTS: [i64; 5] = [-1, 0, 1, 2, i64::MAX];

/// Moves what must be moved for balance.
pub fn balance(board: &mut Board<'_>, shares: &Shares) {
    let bands = Bands::new(board, shares);
    if bands.is_needed(board) {
        let stacks = Stacks::of(board, &shares.runners);
        let mut balance = Balance { shares, stacks, bands, searched: 0 };
        for most in COSTS {
            balance.straight(board, Takers::Short, most);
            balance.along_paths(board, Takers::Short, most);
        }
        for most in COSTS {
            balance.straight(board, Takers::WithRoom, most);
            balance.straight_to_short(board, most);
            balance.along_paths(board, Takers::WithRoom, most);
            balance.along_paths_to_short(board, most);
        }
        balance.back_home(board);
    }
}

/// Who is given the surplus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takers {
    /// Only runners below their band.
    Short,
    /// Every runner that stays in its band.
    WithRoom,
}

struct Balance<'s> {
    shares: &'s Shares,
    stacks: Stacks,
    bands: Bands<'s>,
    searched: usize,
}

/// The loads between which nothing is moved.
struct Bands<'s> {
    shares: &'s Shares,
    /// The least and the greatest load of each runner.
    of: Vec<(u64, u64)>,
}

impl<'s> Bands<'s> {
    fn new(board: &Board<'_>, shares: &'s Shares) -> Self {
        let heaviest =
            board.items.iter().filter(|item| item.movable).map(|item| item.weight).max().unwrap_or(1);
        let band = |runner| {
            if shares.runners.has(runner) {
                shares.band(runner, board.policy.band, heaviest)
            } else {
                (0, u64::MAX)
            }
        };
        Self { shares, of: (0..board.load.len()).map(band).collect() }
    }

    fn is_needed(&self, board: &Board<'_>) -> bool {
        self.shares
            .runners
            .iter()
            .any(|runner| self.has_surplus(board, runner) || self.is_short(board, runner))
    }

    fn has_surplus(&self, board: &Board<'_>, runner: usize) -> bool {
        board.load[runner] > self.of[runner].1
    }

    fn is_short(&self, board: &Board<'_>, runner: usize) -> bool {
        board.load[runner] < self.of[runner].0
    }

    fn stays_below(&self, board: &Board<'_>, runner: usize, weight: u64) -> bool {
        board.load[runner] + weight <= self.of[runner].1
    }

    /// Whether a runner can give a weight away and stay in its band.
    fn spares(&self, board: &Board<'_>, runner: usize, weight: u64) -> bool {
        board.load[runner] >= self.of[runner].0 + weight
    }
}

impl Balance<'_> {
    fn takes(&self, board: &Board<'_>, who: Takers, runner: usize, weight: u64) -> bool {
        let stays_in_band = self.bands.stays_below(board, runner, weight);
        let is_one = who == Takers::WithRoom || self.bands.is_short(board, runner);
        is_one && stays_in_band && board.has_room(runner, weight)
    }

    fn rank(&self, board: &Board<'_>, runner: usize) -> u64 {
        self.shares.relative(runner, board.load[runner])
    }

    /// The classes that are balanced, of those that a runner has something of, the cheapest to move first.
    fn gives(&self, board: &Board<'_>, runner: usize) -> Vec<usize> {
        let mut classes: Vec<usize> =
            self.stacks.classes(runner).filter(|class| self.shares.counts(*class)).collect();
        classes.sort_by_key(|class| self.stacks.cost(board, runner, *class));
        classes
    }

    /// Runners with too much give straight to others.
    fn straight(&mut self, board: &mut Board<'_>, who: Takers, most: i64) {
        let surplus = self.shares.runners.iter().filter(|runner| self.bands.has_surplus(board, *runner));
        let mut givers: BinaryHeap<(u64, Reverse<usize>)> =
            surplus.map(|runner| (self.rank(board, runner), Reverse(runner))).collect();
        let mut takers: BTreeMap<usize, Ranked<TakerRank>> = BTreeMap::new();
        while let Some((_, Reverse(from))) = givers.pop() {
            if let Some(hop) = self.straight_from(board, &mut takers, from, (who, most)) {
                self.stacks.pass(board, hop, &Reason::Balance);
                if self.bands.has_surplus(board, from) {
                    givers.push((self.rank(board, from), Reverse(from)));
                }
            }
        }
    }

    fn straight_from(
        &self,
        board: &Board<'_>,
        takers: &mut BTreeMap<usize, Ranked<TakerRank>>,
        from: usize,
        (who, most): (Takers, i64),
    ) -> Option<Hop> {
        let options = self.gives(board, from).into_iter().filter_map(|class| {
            let weight = board.classes[class].weight;
            let ranked = takers.entry(class).or_insert_with(|| self.ranked_takers(board, class));
            // Takers' loads only grow meanwhile, so one that was dropped would not do later either.
            let takes = |to| to != from && self.takes(board, who, to, weight);
            let to = first(ranked, |to| self.taker_rank(board, to), takes)?;
            let cost = self.stacks.cost(board, from, class)?;
            let option = (cost, Reverse(self.taker_rank(board, to)), Reverse(weight), class, to);
            (cost <= most && self.bands.spares(board, from, weight)).then_some(option)
        });
        let (_, _, _, class, to) = options.min()?;
        Some(Hop::new(from, to, class))
    }

    fn ranked_takers(&self, board: &Board<'_>, class: usize) -> Ranked<TakerRank> {
        let runners = board.classes[class].preferred.clone().and(&self.shares.runners);
        runners.iter().map(|runner| (self.taker_rank(board, runner), Reverse(runner))).collect()
    }

    /// Those that are short come first, then those with the least relative to their share.
    fn taker_rank(&self, board: &Board<'_>, runner: usize) -> TakerRank {
        Reverse((!self.bands.is_short(board, runner), self.rank(board, runner)))
    }

    /// Runners with too little are given straight from those that have most to spare.
    fn straight_to_short(&mut self, board: &mut Board<'_>, most: i64) {
        let short = self.shares.runners.iter().filter(|runner| self.bands.is_short(board, *runner));
        let mut takers: BinaryHeap<Reverse<(u64, usize)>> =
            short.map(|runner| Reverse((self.rank(board, runner), runner))).collect();
        let mut givers: BTreeMap<usize, Ranked<(bool, u64)>> = BTreeMap::new();
        while let Some(Reverse((_, to))) = takers.pop() {
            if let Some(hop) = self.straight_to(board, &mut givers, to, most) {
                self.stacks.pass(board, hop, &Reason::Balance);
                if self.bands.is_short(board, to) {
                    takers.push(Reverse((self.rank(board, to), to)));
                }
            }
        }
    }

    fn straight_to(
        &self,
        board: &Board<'_>,
        givers: &mut BTreeMap<usize, Ranked<(bool, u64)>>,
        to: usize,
        most: i64,
    ) -> Option<Hop> {
        let classes = (0..board.classes.len()).filter(|class| {
            let weight = board.classes[*class].weight;
            let is_its = self.shares.counts(*class) && board.classes[*class].preferred.has(to);
            is_its && self.takes(board, Takers::Short, to, weight)
        });
        let options = classes.filter_map(|class| {
            let ranked = givers.entry(class).or_insert_with(|| {
                let runners = self.shares.runners.iter();
                runners.map(|runner| (self.giver_rank(board, runner, class), Reverse(runner))).collect()
            });
            let weight = board.classes[class].weight;
            let gives = |from| {
                let has_one = self.stacks.cost(board, from, class).is_some();
                from != to && has_one && self.bands.spares(board, from, weight)
            };
            let from = first(ranked, |from| self.giver_rank(board, from, class), gives)?;
            let (is_free, rank) = self.giver_rank(board, from, class);
            (i64::from(!is_free) <= most).then_some((Reverse(is_free), Reverse(rank), class, from))
        });
        let (_, _, class, from) = options.min()?;
        Some(Hop::new(from, to, class))
    }

    /// Those whose resource is displaced anyway come first, then those with the most relative to their share.
    fn giver_rank(&self, board: &Board<'_>, runner: usize, class: usize) -> (bool, u64) {
        (self.stacks.cost(board, runner, class) == Some(0), self.rank(board, runner))
    }

    /// Runners with too much pass it on.
    fn along_paths(&mut self, board: &mut Board<'_>, who: Takers, most: i64) {
        loop {
            let starts: Vec<usize> =
                self.shares.runners.iter().filter(|runner| self.bands.has_surplus(board, *runner)).collect();
            let has_takers = self.shares.runners.iter().any(|runner| self.takes(board, who, runner, 1));
            if starts.is_empty() || !has_takers || !self.along_a_path(board, &starts, (who, most)) {
                return;
            }
        }
    }

    /// Runners with too little get it from those that can spare it.
    fn along_paths_to_short(&mut self, board: &mut Board<'_>, most: i64) {
        loop {
            let is_short = self.shares.runners.iter().any(|runner| self.bands.is_short(board, runner));
            let starts: Vec<usize> =
                self.shares.runners.iter().filter(|runner| self.bands.spares(board, *runner, 1)).collect();
            if !is_short || !self.along_a_path(board, &starts, (Takers::Short, most)) {
                return;
            }
        }
    }

    /// A long way from a runner with too much to one with too little may have cost more than two short ways, to and
    /// from others that stay in their bands. Then something can go back.
    fn back_home(&mut self, board: &mut Board<'_>) {
        loop {
            let starts: Vec<usize> =
                self.shares.runners.iter().filter(|runner| self.bands.spares(board, *runner, 1)).collect();
            if !self.along_a_path(board, &starts, (Takers::WithRoom, -1)) {
                return;
            }
        }
    }

    fn along_a_path(&mut self, board: &mut Board<'_>, starts: &[usize], (who, most): (Takers, i64)) -> bool {
        self.searched += 1;
        if self.searched > PATHS_MAX {
            return false;
        }
        let gives = |runner: usize, weight: u64| self.bands.spares(board, runner, weight);
        let takes = |runner: usize, weight: u64| self.takes(board, who, runner, weight);
        let hops = self.stacks.cheapest(board, starts, gives, takes).filter(|(cost, _)| *cost <= most);
        let hops = hops.map(|(_, hops)| hops);
        let found = hops.is_some();
        self.stacks.follow(board, &hops.unwrap_or_default(), Reason::Balance);
        found
    }
}

/// The least is first.
type TakerRank = Reverse<(bool, u64)>;
