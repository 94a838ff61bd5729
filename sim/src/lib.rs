//! A simulator of the whole system: one thread, one virtual clock, one seed.
//!
//! ```text
//!   program-0, 1, 2   real sessions; acquire, wait in line, take over, adopt, release, write
//!   agent-0, 1        real agent machines and sessions; simulated workers under simulated keepers
//!         |
//!      Wire           one for each process: loses, delays and repeats requests of each kind in its own way
//!         |
//!   two servers       real engines over one real store in memory, and over those that follow it by failing over;
//!         |           each remembers its plan, and in some worlds corrects a wall clock that is set
//!         |
//!   gate, watcher     the real gate in front of a sink; a watcher that counts every event
//!   mqtt-0, 1         the real MQTT window and gate, by turns; a simulated broker
//!
//!   consumer-0, 1     the real lane, tenure and job machine, by turns, in a consumer group; a simulated Kafka broker,
//!                     simulated tables and workers of jobs
//! ```
//!
//! A driver of a machine is simulated, a machine never is: an agent, a gate for MQTT and a consumer are the pure
//! machines of their crates, driven here as the crate's own driver drives them.
//!
//! # How a step works
//!
//! A seed gives a [`Plan`](plan::Plan): what is done, and when. Programs ask for resources and give them back, an
//! operator revokes and hands over, processes are paused and killed, wires turn bad, the store fails over. The world
//! carries it out for 40 seconds; then the faults stop, and within 30 seconds everything must be worked on again.
//!
//! Whatever happens becomes a record of the [`Chronicle`](chronicle::Chronicle): a request leaves, is done, is
//! answered, an event is committed, someone begins to work, a write reaches a sink. With each record every one of the
//! [`invariants`] is asked, and also who works at that moment. The first violation ends the world.
//!
//! Time is tokio's, paused: it moves on to the next timer when nothing is left to do. A process has a clock of its own
//! over it, which drifts by up to 1 %. A process that is paused hears no timer and no answer until it goes on; one that
//! was killed hears nothing any more ([`Process`](process::Process)).
//!
//! # Why a seed replays
//!
//! There is one thread, so the order of everything follows from the order of timers and from chance, and all chance is
//! drawn from one number: that of the plan, of the wires and of the sessions, and what libraries ask of the system
//! (`entropy`). A log shows no time of the machine. Only the first world of a process is so, therefore each has a
//! process of its own ([`shrink::world`]).
//!
//! What is not simulated: PostgreSQL but for its clock, HTTP, the agent's driver and keeper as processes, the pump of
//! the gate for MQTT, partitions by leases, and the ways of tasks to workers. An actor for one of them is a module
//! beside `agent` with a place in `world`, and its faults are acts of `plan`.
#![allow(missing_docs, reason = "items whose names say everything need no docs")]

mod agent;
mod brief;
mod broker;
mod chance;
pub mod chronicle;
mod consumer;
mod entropy;
pub mod invariants;
mod kafka;
mod mqtt;
pub mod plan;
mod planner;
pub mod process;
mod program;
mod remote;
mod report;
mod server;
pub mod shrink;
mod sink;
mod stores;
mod tables;
mod virtual_time;
mod wall;
mod watcher;
mod wire;
mod worker;
mod world;

pub use chronicle::Violation;
pub use report::Report;
pub use world::Story;

/// Runs the world of a seed, without some steps of its plan. Once in a process: only its first world follows from the
/// seed alone.
pub fn run(seed: u64, left_out: &[usize]) -> Story {
    entropy::seed(seed);
    let left_out = left_out.to_vec();
    // A thread of its own, since the hash maps of a thread are seeded once.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(world::run(seed, &left_out))
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
