//! Restarts: for stores that keep their rows.

pub use crate::{
    moving::{reopen_keeps_everything, reopen_keeps_time_left, tokens_grow_through_reopen},
    waiting::a_line_outlives_a_restart,
    watching::across_a_restart,
};
