//! The surfaces, called as their clients call them: over HTTP, with the bodies that they send.

mod audit;
mod batch;
mod common;
mod config;
mod hand_over;
mod leases;
mod locks;
mod names;
mod placement;
mod resources;
mod rights;
mod runners;
mod scenes;
mod sessions;
mod tenants;
mod words;
