//! Keeps resources with their holders, by fact or by choice.

use super::{Eviction, PendingMove, Presence, Reason, Unplaceable, board::Board, classes::Class};
use crate::session::HolderStatus;

/// Runners that were all away, as in an outage of the network, come back one after the other. For this long the first
/// ones leave to the others what they held.
const REGROUP_MS: u64 = 5_000;
/// One that has been away for longer is not waited for.
const REGROUP_AFTER_MAX_MS: u64 = 600_000;

/// Leaves every resource where it is, unless it must not be there. What has no place afterwards has a reason for that.
pub fn keep(board: &mut Board<'_>) {
    for item in 0..board.items.len() {
        let resource = board.items[item].resource;
        let holder = resource.holder.as_ref().and_then(|name| board.fleet.find(resource, name));
        board.items[item].home = holder.filter(|_| resource.held);
        match (&resource.pending, holder) {
            (Some(pending), _) => keep_moving(board, item, pending),
            (None, Some(holder)) if resource.held => keep_held(board, item, holder),
            (None, None) if resource.held => board.items[item].reason = Reason::Outsider,
            _ if resource.quarantined => {
                board.items[item].reason = Reason::Unplaceable(Unplaceable::Quarantined);
            }
            (None, _) => {}
        }
    }
    let longest_up: Vec<Option<u64>> = board.classes.iter().map(|class| longest_up(board, class)).collect();
    for item in 0..board.items.len() {
        keep_for_return(board, item, longest_up[board.items[item].class]);
    }
    evict_surplus(board);
}

/// For how long the one that was there first has been there, of those that may hold what is of a class.
fn longest_up(board: &Board<'_>, class: &Class) -> Option<u64> {
    let up_ms = |runner: usize| match board.fleet.runners[runner].presence {
        Presence::Here { up_ms, .. } => Some(up_ms),
        Presence::Away { .. } | Presence::ByName => None,
    };
    class.allowed.iter().filter_map(up_ms).max()
}

/// A hand-over continues if it still can; otherwise the holder keeps the resource until the pending lease is gone.
fn keep_moving(board: &mut Board<'_>, item: usize, pending: &PendingMove) {
    let to = board.fleet.find(board.items[item].resource, &pending.to);
    let to =
        to.filter(|to| board.class(item).allowed.has(*to) && pending.for_ms < board.policy.stuck_after_ms);
    match (to, board.items[item].home) {
        (Some(to), _) => board.put(item, to, false, Reason::HandOver),
        (None, Some(home)) => board.put(item, home, false, Reason::StuckHandOver),
        (None, None) => board.items[item].reason = Reason::StuckHandOver,
    }
}

fn keep_held(board: &mut Board<'_>, item: usize, holder: usize) {
    if board.items[item].resource.quarantined {
        return board.put(item, holder, false, Reason::NowhereElse(Unplaceable::Quarantined));
    }
    let eviction = match board.fleet.runners[holder].status {
        HolderStatus::Draining => Some(Eviction::Draining),
        HolderStatus::Maintenance => Some(Eviction::Maintenance),
        HolderStatus::Active => (!board.class(item).fit.has(holder)).then_some(Eviction::Unfit),
    };
    match eviction {
        Some(eviction) => board.items[item].reason = Reason::Evicted(eviction),
        None => {
            let movable = board.class(item).preferred.has(holder);
            board.put(item, holder, movable, Reason::Held);
        }
    }
}

/// A free resource goes back to its last holder: at once if that is there; otherwise within the return window, or
/// while runners come back that were all away when that one went.
fn keep_for_return(board: &mut Board<'_>, item: usize, longest_up: Option<u64>) {
    let resource = board.items[item].resource;
    if resource.held || board.items[item].reason != Reason::Unowned {
        return;
    }
    let last = resource.holder.as_ref().and_then(|name| board.fleet.find(resource, name));
    let Some(last) = last else { return };
    match board.fleet.runners[last].presence {
        Presence::Here { .. } => {
            let weight = board.items[item].weight;
            if board.class(item).preferred.has(last) && board.has_room(last, weight) {
                board.put(item, last, true, Reason::Returned);
            }
        }
        Presence::Away { gone_ms } => {
            let is_active = board.fleet.runners[last].status == HolderStatus::Active;
            let regroup = is_active && gone_ms < REGROUP_AFTER_MAX_MS;
            let regroup = regroup && longest_up.is_some_and(|up_ms| up_ms < gone_ms.min(REGROUP_MS));
            let is_awaited = regroup || gone_ms < board.policy.return_window_ms;
            if is_awaited && board.class(item).fit.has(last) && board.has_room(last, board.items[item].weight)
            {
                board.put(item, last, false, Reason::AwaitsReturn);
            }
        }
        Presence::ByName => {}
    }
}

/// A runner that gets nothing more and holds more than its capacity gives away what it holds beyond it, the last by key
/// first. For the others the cheapest way is found once everything else has its place.
fn evict_surplus(board: &mut Board<'_>) {
    for item in (0..board.items.len()).rev() {
        if let Some(at) = board.items[item].at
            && board.load[at] > board.capacity[at]
            && !board.fleet.receivers.has(at)
            && board.items[item].reason == Reason::Held
        {
            board.lift(item);
            board.items[item].reason = Reason::Evicted(Eviction::OverCapacity);
        }
    }
}
