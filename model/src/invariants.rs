//! What must hold in every state.

use crate::world::World;

/// A statement about every state, and whether it holds in one.
#[derive(Clone, Copy)]
pub struct Invariant {
    pub name: &'static str,
    pub holds: fn(&World) -> bool,
}

pub const ONE_TRUSTS: Invariant =
    Invariant { name: "at most one client trusts its lease", holds: one_trusts };
pub const IN_ORDER: Invariant =
    Invariant { name: "the sink admits no write of an older grant after one of a newer", holds: in_order };
pub const TOKENS_GROW: Invariant =
    Invariant { name: "every grant has a greater token than the one before", holds: tokens_grow };
pub const TRUST_IS_BACKED: Invariant =
    Invariant { name: "nobody else can get what a client trusts to hold", holds: trust_is_backed };
pub const LATER_UNTOUCHED: Invariant =
    Invariant { name: "a request that shows a lease affects no later grant", holds: later_untouched };
pub const GRANTED_ONCE: Invariant =
    Invariant { name: "a request is granted at most once", holds: granted_once };
pub const FREE_IN_THE_END: Invariant =
    Invariant { name: "the resource can be acquired once everything has run out", holds: free_in_the_end };
/// The work of the other designs is not a command, so this is none of [`ALL`].
pub const EFFECT_ONCE: Invariant =
    Invariant { name: "a command takes effect at most once", holds: effect_once };

/// What Solehold promises. A hand-written table has no rows that the last two could be asked of; there they hold.
pub const ALL: [Invariant; 7] =
    [ONE_TRUSTS, IN_ORDER, TOKENS_GROW, TRUST_IS_BACKED, LATER_UNTOUCHED, GRANTED_ONCE, FREE_IN_THE_END];

fn one_trusts(world: &World) -> bool {
    world.clients.iter().filter(|client| client.trusted().is_some()).count() <= 1
}

fn in_order(world: &World) -> bool {
    !world.sink.has_admitted_older
}

fn tokens_grow(world: &World) -> bool {
    !world.has_reused_token
}

fn trust_is_backed(world: &World) -> bool {
    world.clients.iter().filter_map(|client| client.trusted()).all(|guard| world.protects(guard))
}

fn later_untouched(world: &World) -> bool {
    !world.has_affected_later
}

fn granted_once(world: &World) -> bool {
    !world.has_granted_twice()
}

fn free_in_the_end(world: &World) -> bool {
    world.is_free_in_the_end()
}

fn effect_once(world: &World) -> bool {
    world.sink.effects <= 1
}
