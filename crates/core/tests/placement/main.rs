//! Placement (rule 27): what a plan promises, checked against answers that are computed in another way.
//!
//! `fair` computes the fair shares by looking at all sets of runners, and the fewest moves as a flow of least cost;
//! `properties` compares plans with them after random events. `stories` tells the rules one by one, and `simulation`
//! plays whole histories: rolling restarts, flapping runners, a fleet that doubles.

mod fair;
mod properties;
mod simulation;
mod stories;
mod world;
