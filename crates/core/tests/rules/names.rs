//! Names are any printable text: nothing in them is read as structure.

use crate::common::{Proof, World, name, on};

#[test]
fn names_that_look_alike_are_different_resources() {
    let mut w = World::new();
    let names = [
        "a/b",
        "a",
        "b",
        "a/b/",
        "A/b",
        "%2F",
        "a%2Fb",
        "søn",
        "so\u{308}n",
        "sön",
        "🚦",
        " ",
        "..",
        "'; --",
    ];
    for (i, what) in names.into_iter().enumerate() {
        w.acquire("ann", what).says(&format!("granted #{} for 10000 ms", i + 1), "lease_acquired");
    }
    for (i, what) in names.into_iter().enumerate() {
        w.release(on(what).token(i as u64 + 1)).says("released", "lease_released");
    }
    assert_eq!(w.state.resources().count(), 0);
}

#[test]
fn kind_and_key_are_not_glued_together() {
    let mut w = World::new();
    for (kind, what) in [("a/b", "c"), ("a", "b/c")] {
        let mut ask = w.asks("ann", what);
        ask.key.kind = name(kind);
        let told = w.told(solehold_core::command::Command::Acquire(ask));
        assert!(told.outcome.starts_with("granted #"), "{told:?}");
    }
    assert_eq!(w.state.resources().count(), 2);
}
