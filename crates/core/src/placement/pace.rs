//! Which steps of a plan are taken now: as far as there is room, and as the move budget allows.

use std::collections::BTreeMap;

use super::{
    ALGORITHM_VERSION, Eviction, Holdup, Placement, Plan, Reason, Step,
    board::{Board, Item},
    share::Shares,
};

/// Turns what was planned into steps.
pub fn pace(board: Board<'_>, shares: &Shares) -> Plan {
    let budget = board.policy.move_budget.of(board.items.len());
    let mut steps: Vec<Step> = board.items.iter().map(first_step).collect();
    let mut room = Room::of(&board);
    for (item, step) in board.items.iter().zip(&mut steps) {
        if *step == Step::Acquire && !room.take(item) {
            *step = Step::Later(Holdup::Room);
        }
    }
    let mut left = budget.saturating_sub(steps.iter().filter(|step| **step == Step::Moving).count());
    for item in in_turns(&board, &steps) {
        steps[item] = match (left, room.has(&board.items[item])) {
            (0, _) => Step::Later(Holdup::Budget),
            (_, false) => Step::Later(Holdup::Room),
            (_, true) => {
                room.take(&board.items[item]);
                left -= 1;
                Step::Move
            }
        };
    }
    let name = |runner: usize| board.fleet.runners[runner].key.clone();
    let thousandths = |runner| Some((name(runner), shares.thousandths(runner)?));
    Plan {
        algorithm: ALGORITHM_VERSION,
        shares: shares.runners.iter().filter_map(thousandths).collect(),
        move_budget: budget,
        placements: board.items.iter().zip(steps).map(|(item, step)| placement(&board, item, step)).collect(),
    }
}

fn first_step(item: &Item<'_>) -> Step {
    match (&item.reason, item.at, item.home) {
        (Reason::HandOver, ..) => Step::Moving,
        (Reason::AwaitsReturn, ..) => Step::Later(Holdup::Return),
        (_, Some(at), Some(home)) if at == home => Step::Keep,
        (_, Some(_), Some(_)) => Step::Move,
        (_, Some(_), None) => Step::Acquire,
        (Reason::Outsider, ..) => Step::Keep,
        (_, None, _) => Step::Nothing,
    }
}

/// The moves in the order in which they are started: by reason, and then each tenant's kinds in turns.
fn in_turns(board: &Board<'_>, steps: &[Step]) -> Vec<usize> {
    let mut turns: BTreeMap<(u8, &str, &str), usize> = BTreeMap::new();
    let moves = (0..steps.len()).filter(|item| steps[*item] == Step::Move);
    let mut moves: Vec<_> = moves
        .map(|item| {
            let rank = rank(&board.items[item].reason);
            let key = &board.items[item].resource.key;
            let turn = turns.entry((rank, key.tenant.as_str(), key.kind.as_str())).or_default();
            *turn += 1;
            (rank, *turn, item)
        })
        .collect();
    moves.sort_unstable();
    moves.into_iter().map(|(_, _, item)| item).collect()
}

fn rank(reason: &Reason) -> u8 {
    match reason {
        Reason::MakesRoom | Reason::Evicted(Eviction::Draining) => 0,
        Reason::Evicted(_) | Reason::FailedThere => 1,
        Reason::Shift => 2,
        _ => 3,
    }
}

/// How much room the runners have now: what is about to leave has not left yet.
struct Room(Vec<u64>);

impl Room {
    fn of(board: &Board<'_>) -> Self {
        let mut room = Self(board.capacity.clone());
        for item in &board.items {
            let coming = item.at.filter(|_| item.reason == Reason::HandOver);
            for runner in item.home.into_iter().chain(coming) {
                room.0[runner] = room.0[runner].saturating_sub(item.weight);
            }
        }
        room
    }

    fn has(&self, item: &Item<'_>) -> bool {
        item.at.is_some_and(|at| self.0[at] >= item.weight)
    }

    fn take(&mut self, item: &Item<'_>) -> bool {
        let has = self.has(item);
        if let (true, Some(at)) = (has, item.at) {
            self.0[at] -= item.weight;
        }
        has
    }
}

fn placement(board: &Board<'_>, item: &Item<'_>, step: Step) -> Placement {
    let holder = item.resource.holder.clone().filter(|_| item.resource.held);
    let target = item.at.map(|at| board.fleet.runners[at].key.name.clone());
    let target = if item.reason == Reason::Outsider { holder.clone() } else { target };
    Placement { key: item.resource.key.clone(), holder, target, step, reason: item.reason.clone() }
}
