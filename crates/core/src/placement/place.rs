//! Finds a runner for each resource without one.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{
    Eviction, Reason, Unplaceable,
    board::{Board, Ranked, first},
    paths::Stacks,
    runner_set::RunnerSet,
    share::{Shares, wanted_shares},
};
use crate::key::ResourceKey;

/// Which runners to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Circle {
    /// The preferred runners of a group's preferred version.
    Newest,
    /// The preferred runners.
    Preferred,
    /// Everyone who may hold it.
    Allowed,
}

/// Finds a place for everything that has none: unowned resources first, then those that must leave their holders, then
/// those that should be in another group.
pub fn place(board: &mut Board<'_>) {
    let (homeless, wishes) = without_place(board);
    if homeless.is_empty() && wishes.is_empty() {
        return relieve(board);
    }
    let mut chooser = Chooser::new(board);
    let mut left = Vec::new();
    for item in homeless {
        match chooser.choose(board, item, true) {
            Some(runner) => {
                let movable = board.class(item).preferred.has(runner);
                let reason = board.items[item].reason.clone();
                board.put(item, runner, movable, reason);
            }
            None => left.push(item),
        }
    }
    make_room(board, left);
    relieve(board);
    for item in wishes {
        let from = board.items[item].at;
        if let Some(runner) = chooser.choose(board, item, false)
            && Some(runner) != from
        {
            board.lift(item);
            let failed = board.items[item].resource.holder.as_ref();
            let failed = failed.is_some_and(|holder| board.items[item].resource.avoid.contains(holder));
            board.put(item, runner, true, if failed { Reason::FailedThere } else { Reason::Shift });
        }
    }
}

/// What has no place, in the order in which places are given; and what should be in another group.
fn without_place(board: &Board<'_>) -> (Vec<usize>, Vec<usize>) {
    let is_homeless = |item: &usize| {
        let item = &board.items[*item];
        item.at.is_none() && matches!(item.reason, Reason::Unowned | Reason::Evicted(_))
    };
    let is_wish = |item: &usize| {
        let class = board.class(*item);
        let item = &board.items[*item];
        item.reason == Reason::Held
            && item.at.is_some_and(|at| !class.preferred.has(at))
            && !class.allowed.is_empty()
    };
    // Counting a set takes a while, and there are fewer classes than resources.
    let choices: Vec<usize> = board.classes.iter().map(|class| class.preferred.len()).collect();
    let order = |item: &usize| {
        let of = &board.items[*item];
        (of.reason != Reason::Unowned, choices[of.class], Reverse(of.weight), *item)
    };
    let mut homeless: Vec<usize> = (0..board.items.len()).filter(is_homeless).collect();
    homeless.sort_by_cached_key(order);
    (homeless, (0..board.items.len()).filter(is_wish).collect())
}

/// Frees room for what found none, by moving others along; what then has no place still can be placed nowhere.
fn make_room(board: &mut Board<'_>, left: Vec<usize>) {
    if left.is_empty() {
        return;
    }
    let mut stacks = Stacks::of(board, &board.fleet.receivers);
    let mut hopeless = HashSet::new();
    for item in left {
        let class = board.items[item].class;
        let hops = if hopeless.contains(&class) { None } else { stacks.path_for(board, class) };
        let Some(hops) = hops else {
            hopeless.insert(class);
            give_up(board, item);
            continue;
        };
        let first = hops.first().map(|hop| hop.from);
        stacks.follow(board, &hops, Reason::MakesRoom);
        if let Some(runner) = first {
            let movable = board.class(item).preferred.has(runner);
            let reason = board.items[item].reason.clone();
            board.put(item, runner, movable, reason);
            stacks.add(board, item);
        }
    }
}

/// Runners whose capacity was lowered give up the resources beyond it, except those that no other runner can take.
fn relieve(board: &mut Board<'_>) {
    let is_over = |board: &Board<'_>, runner: usize| board.load[runner] > board.capacity[runner];
    let over: Vec<usize> = board.fleet.receivers.iter().filter(|runner| is_over(board, *runner)).collect();
    if over.is_empty() {
        return;
    }
    let mut stacks = Stacks::of(board, &board.fleet.receivers);
    for runner in over {
        while is_over(board, runner) {
            let Some(hops) = stacks.path_from(board, runner) else { break };
            stacks.follow(board, &hops, Reason::Evicted(Eviction::OverCapacity));
        }
        keep_beyond(board, runner);
    }
}

/// Marks what a runner keeps beyond its capacity, because it can be nowhere else: the last by key.
fn keep_beyond(board: &mut Board<'_>, runner: usize) {
    let mut beyond = board.load[runner].saturating_sub(board.capacity[runner]);
    for item in board.items.iter_mut().rev() {
        if beyond > 0 && item.movable && (item.at, item.home) == (Some(runner), Some(runner)) {
            (item.movable, item.reason) = (false, Reason::NowhereElse(Unplaceable::AllAtCapacity));
            beyond = beyond.saturating_sub(item.weight);
        }
    }
}

/// A resource that can be placed nowhere stays with its holder, if it has one.
fn give_up(board: &mut Board<'_>, item: usize) {
    let class = board.class(item);
    let why = match (class.fit.is_empty(), class.allowed.is_empty()) {
        (true, _) => board.fleet.why_unfit(board.items[item].resource),
        (false, true) => match board.fleet.pin(board.items[item].resource) {
            Some(name) => Unplaceable::StaticRunnerAway(name.clone()),
            None => Unplaceable::NoneAvailable,
        },
        (false, false) => Unplaceable::AllAtCapacity,
    };
    match board.items[item].home {
        Some(home) => board.put(item, home, false, Reason::NowhereElse(why)),
        None => board.items[item].reason = Reason::Unplaceable(why),
    }
}

/// Chooses runners.
///
/// While every group has one version, runners are filled up to their fair shares, and each resource begins to look at a
/// runner that depends on its key alone. So the rest of a plan stays as it was while runners, in whichever order,
/// acquire their part of it. Beyond the shares, and in a rollout, the least loaded runner is chosen.
struct Chooser {
    shares: Option<Shares>,
    probes: HashMap<usize, Probe>,
    ranked: HashMap<(usize, Circle), Ranked<Reverse<u64>>>,
}

impl Chooser {
    fn new(board: &Board<'_>) -> Self {
        let is_rollout = !board.fleet.rollouts.mixed.is_empty();
        let shares = (!is_rollout).then(|| wanted_shares(board));
        Self { shares, probes: HashMap::new(), ranked: HashMap::new() }
    }

    /// A runner with room for a resource: one that should have it, or if `must`, any that may.
    fn choose(&mut self, board: &Board<'_>, item: usize, must: bool) -> Option<usize> {
        self.within_share(board, item)
            .or_else(|| self.shares.is_none().then(|| self.least(board, item, Circle::Newest)).flatten())
            .or_else(|| self.least(board, item, Circle::Preferred))
            .or_else(|| must.then(|| self.least(board, item, Circle::Allowed)).flatten())
    }

    /// The next runner from the resource's own starting point that has less than its share.
    fn within_share(&mut self, board: &Board<'_>, at: usize) -> Option<usize> {
        let shares = self.shares.as_ref()?;
        let item = &board.items[at];
        let probe = self.probes.entry(item.class).or_insert_with(|| Probe::new(&board.class(at).preferred));
        let has_less = |runner: usize| {
            let share = shares.whole(runner);
            board.load[runner] + item.weight <= share && board.has_room(runner, item.weight)
        };
        probe.first(start(&item.resource.key), has_less)
    }

    /// The least loaded runner with room.
    fn least(&mut self, board: &Board<'_>, at: usize, circle: Circle) -> Option<usize> {
        let item = &board.items[at];
        let ranked = self.ranked.entry((item.class, circle)).or_insert_with(|| {
            let class = board.class(at);
            let runners = match circle {
                Circle::Newest => class.preferred.clone().and(&board.fleet.rollouts.preferred),
                Circle::Preferred => class.preferred.clone(),
                Circle::Allowed => class.allowed.clone(),
            };
            runners.iter().map(|runner| (Reverse(board.level(runner)), Reverse(runner))).collect()
        });
        first(ranked, |runner| Reverse(board.level(runner)), |runner| board.has_room(runner, item.weight))
    }
}

fn start(key: &ResourceKey) -> u64 {
    xxh3_64_with_seed(key.key.as_str().as_bytes(), xxh3_64(key.kind.as_str().as_bytes()))
}

/// A ring of runners that skips those which were found full. Loads only grow while it is used, or it finds less than it
/// could.
struct Probe {
    runners: Vec<usize>,
    /// From each position the next one that may have room.
    next: Vec<usize>,
}

impl Probe {
    fn new(runners: &RunnerSet) -> Self {
        let runners: Vec<usize> = runners.iter().collect();
        Self { next: (0..=runners.len()).collect(), runners }
    }

    /// The first runner from a starting point on that has room.
    fn first(&mut self, start: u64, has_room: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.runners.len();
        let start = if count == 0 { return None } else { (start % count as u64) as usize };
        [start, 0].into_iter().find_map(|from| {
            loop {
                let at = self.find(from);
                match self.runners.get(at) {
                    None => return None,
                    Some(runner) if has_room(*runner) => return Some(*runner),
                    Some(_) => self.next[at] = at + 1,
                }
            }
        })
    }

    fn find(&mut self, from: usize) -> usize {
        let mut at = from;
        while self.next[at] != at {
            self.next[at] = self.next[self.next[at]];
            at = self.next[at];
        }
        at
    }
}
