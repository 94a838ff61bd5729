//! A resource that nobody declared exists only for those who say that they take it as it is.

use solehold_core::command::{Acquire, Command, Undeclared};

use crate::common::{Told, World};

fn asks_for_declared(w: &mut World, who: &str) -> Told {
    let ask = Acquire { undeclared: Undeclared::Refuse, ..w.asks(who, "lobby") };
    w.told(Command::Acquire(ask))
}

#[test]
fn what_nobody_declared_is_not_granted_to_those_who_ask_for_declared_ones_even_while_it_is_held() {
    let unknown = "refused: there is no resource scene/lobby of tenant acme";
    let mut w = World::new();
    asks_for_declared(&mut w, "ann").says(unknown, "");
    w.acquire("bob", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
    asks_for_declared(&mut w, "ann").says(unknown, "");
    w.declare("lobby", 0);
    asks_for_declared(&mut w, "ann").says("refused: held by bob with token 1 for another 10000 ms", "");
}
