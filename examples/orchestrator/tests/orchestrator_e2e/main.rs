//! The video pipeline from end to end, and the loop that it is compared with.

mod broker;
mod control;
