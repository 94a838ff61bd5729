//! A command decided on the rows of its footprint alone is decided as on the whole state, changes no other row, and its
//! changes absorbed into the whole state are the changes applied to it. This makes a store that loads only those right.

use solehold_core::command::Footprint;

use crate::{
    harness::{decide_and_apply, on_a_part},
    step::Step,
};

pub fn holds_all_that_is_read_or_changed(step: &Step<'_>) {
    let mut footprint = Footprint::default();
    step.command.footprint(&mut footprint);
    let (loaded, mut part, decided) =
        on_a_part(step.before, &footprint, std::slice::from_ref(step.command), step.by, step.at);
    assert_eq!([step.decision], [&decided[0]], "decided on a part");

    let mut full = step.before.clone();
    decide_and_apply(&mut full, step);
    let dirty = part.take_dirty();
    let dirty_in_full = full.take_dirty();
    assert_eq!(dirty, dirty_in_full, "the rows that changed");
    loaded.assert_covers(&dirty, step.before);

    let mut absorbed = step.before.clone();
    absorbed.absorb(&part, &dirty);
    assert_eq!(&absorbed, step.after, "absorbed");
}
