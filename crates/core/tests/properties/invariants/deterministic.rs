//! The same state, command and moment give the same decision and the same state.

use crate::{harness::decide_and_apply, step::Step};

pub fn the_same_twice(step: &Step<'_>) {
    let mut again = step.before.clone();
    assert_eq!(&decide_and_apply(&mut again, step), step.decision);
    again.take_dirty();
    assert_eq!(&again, step.after);
}
