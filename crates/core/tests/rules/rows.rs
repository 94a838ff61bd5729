//! The rows of a state, as readers take them.

use solehold_core::{command::Command, command::Over, record::Record};

use crate::common::{World, document, name};

#[test]
fn readers_miss_no_sort_of_row() {
    let mut w = World::new();
    w.opens("ann");
    w.declare("lobby", 0);
    w.cancel("ann", "lobby", "r1");
    let record = Record { collection: name("keys"), id: name("k"), document: document("{}") };
    w.told(Command::PutRecord { record, over: Over::Nothing });
    let rows = w.state.rows();
    assert!(rows.sessions().eq(w.state.sessions()) && rows.sessions().count() == 1);
    assert!(rows.resources().eq(w.state.resources()) && rows.resources().count() == 1);
    assert!(rows.holders().eq(w.state.holders()) && rows.holders().count() == 1);
    assert!(rows.requests().eq(w.state.requests()) && rows.requests().count() == 1);
    assert!(rows.records().eq(w.state.records()) && rows.records().count() == 1);
}
