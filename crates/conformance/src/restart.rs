//! What a store keeps that is stopped and started again: only one that keeps anything can be asked.

pub use crate::{
    moving::{reopen_keeps_everything, reopen_keeps_time_left, tokens_grow_through_reopen},
    waiting::a_line_outlives_a_restart,
    watching::across_a_restart,
};
