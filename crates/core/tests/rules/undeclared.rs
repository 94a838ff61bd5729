//! A resource that nobody declared exists only for those who say that they take it as it is.

use solehold_core::{
    command::{Acquire, Command, Undeclared},
    lease::Declaration,
    outcome::Answer,
};

use crate::common::{TTL_MS, Told, World, key, name};

fn asks_for_declared(w: &mut World, who: &str) -> Told {
    let ask = Acquire { undeclared: Undeclared::Refuse, ..w.asks(who, "lobby") };
    w.told(Command::Acquire(ask))
}

#[test]
fn what_nobody_declared_is_not_granted_to_those_who_ask_for_declared_ones_even_while_it_is_held() {
    let unknown = "refused: resource scene/lobby of tenant acme does not exist";
    let mut w = World::new();
    asks_for_declared(&mut w, "ann").says(unknown, "");
    w.acquire("bob", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    asks_for_declared(&mut w, "ann").says(unknown, "");
    w.declare("lobby", 0);
    asks_for_declared(&mut w, "ann")
        .says("refused: held by bob with token 1, for another 10000 ms unless it is renewed", "");
}

#[test]
fn what_is_declared_only_if_new_is_not_declared_twice() {
    let mut w = World::new();
    let mut declare = |lock_delay_ms| {
        let declaration = Declaration { lock_delay_ms, ..Default::default() };
        w.told(Command::Declare { key: key("lobby"), declaration, only_new: true })
    };
    declare(0).says("declared, created: true", "resource_declared");
    declare(5).says("refused: already exists", "");
}

/// Declaring settles what had run out unswept, and answers with the row as it is then.
#[test]
fn the_answer_to_a_declaration_is_the_row_as_it_is_stored() {
    let answered_as_stored = |w: &mut World| {
        let declaration = Declaration { lock_delay_ms: 5, ..Default::default() };
        let decision = w.run(&Command::Declare { key: key("lobby"), declaration, only_new: false });
        let Ok(Answer::Declared { resource, .. }) = decision.outcome else { panic!("not declared") };
        assert_eq!(Some(&resource), w.state.resource(&key("lobby")));
        resource.lease.map(|lease| lease.holder)
    };
    let mut w = World::new();
    assert_eq!(answered_as_stored(&mut w), None);
    // Its lease ran out and nothing else kept the row.
    let mut w = World::new();
    w.acquire("ann", "lobby");
    w.wait(TTL_MS);
    assert_eq!(answered_as_stored(&mut w), None);
    // Its lease ran out and the next in line gets it.
    let mut w = World::new();
    let room = w.room();
    w.acquire("ann", "lobby");
    w.waits(room, "bob", "lobby");
    w.wait(TTL_MS);
    assert_eq!(answered_as_stored(&mut w), Some(name("bob")));
}
