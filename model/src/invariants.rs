//! What must hold in every state.

use crate::world::World;

/// A statement about every state, and whether it holds in one.
#[derive(Clone, Copy)]
pub struct Invariant {
    pub name: &'static str,
    pub holds: fn(&World) -> bool,
}

/// All of them. A hand-written table has no rows that the last three could be asked of; there they hold.
pub const ALL: [Invariant; 6] = [
    Invariant { name: "at most one client trusts its lease", holds: one_trusts },
    Invariant { name: "the sink admits no write of an older grant after one of a newer", holds: in_order },
    Invariant { name: "every grant has a greater token than the one before", holds: tokens_grow },
    Invariant { name: "nobody else can get what a client trusts to hold", holds: trust_is_backed },
    Invariant { name: "a request is granted at most once", holds: granted_once },
    Invariant { name: "the resource can be acquired once everything has run out", holds: free_in_the_end },
];

/// The first that does not hold.
pub fn violated(world: &World) -> Option<Invariant> {
    ALL.into_iter().find(|invariant| !(invariant.holds)(world))
}

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
    world.clients.iter().filter_map(|client| client.trusted()).all(|guard| world.protects(guard.token))
}

fn granted_once(world: &World) -> bool {
    !world.has_granted_twice()
}

fn free_in_the_end(world: &World) -> bool {
    world.is_free_in_the_end()
}
