//! Placement: which runner should hold which resource, without a coordinator (rule 27).
//!
//! [`plan`] is a function of a [`Snapshot`] of the registry. It reads no clock, draws no random number and counts in
//! whole numbers, so every replica that has the same snapshot makes the same [`Plan`]. Runners follow the plan by
//! acquiring, releasing and handing over; leases, not the plan, decide who holds what.
//!
//! ```text
//!   snapshot --> keep --> place --> share --> balance --> pace --> plan
//!                |        |         |         |           |
//!                |        |         |         |           which steps are taken now: room and move budget
//!                |        |         |         the fewest moves that bring every load into its band
//!                |        |         the fair share of every runner, as far as the constraints allow
//!                |        what has no place yet: unowned, then evicted, then shifted between groups
//!                what stays where it is
//! ```
//!
//! What a plan must and must not do is rule 27 in `docs/protocol.md`. Above all: constraints always hold, a resource
//! stays with its holder as long as that may hold it and is not overloaded, and unowned work goes first.

mod balance;
mod board;
mod classes;
mod fleet;
mod flow;
mod keep;
mod pace;
mod paths;
mod place;
mod plan;
mod policy;
mod runner_set;
mod share;
mod snapshot;
mod version;

pub use plan::{Eviction, Holdup, Placement, Plan, Reason, Step, Unplaceable};
pub use policy::{Band, MoveBudget, Policy, Shift};
pub use snapshot::{Needs, PendingMove, PlacementResource, Presence, Runner, Snapshot};
pub use version::newest_first;

use board::Board;

/// The version of the algorithm below. It grows whenever the same snapshot would give another plan. During an upgrade
/// of the servers all replicas must plan by the same version: the lowest among those that are live.
pub const ALGORITHM_VERSION: u32 = 1;

/// The heaviest that a resource can be declared.
pub const WEIGHT_MAX: u32 = 1_000;

/// Makes the plan for a snapshot. Names of runners and keys of resources are unique in it; their order does not matter.
pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut board = Board::new(snapshot);
    keep::keep(&mut board);
    place::place(&mut board);
    let shares = share::shares(&board);
    balance::balance(&mut board, &shares);
    pace::pace(board, &shares)
}
