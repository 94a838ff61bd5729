//! Faults against the real binary over a real PostgreSQL, with one replica or several: what is easy to get wrong.

mod clock;
mod failover;
mod outage;
mod replicas;
mod world;
