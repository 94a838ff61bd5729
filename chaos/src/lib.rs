//! Chaos: real servers over a real PostgreSQL, writers and a sink as processes of their own, and faults on all of them
//! and on every link between. What happened is recorded, and judged afterwards.
//!
//! ```text
//!   writer 1 ─┐          ┌─ server 1 ─┐
//!   writer 2 ─┼─ links ──┤            ├─ links ── PostgreSQL (── standbys)
//!   writer 3 ─┘          └─ server 2 ─┘
//!       └──── links ── sink behind the gate ── links ── servers
//!
//!   world      these processes and links, and how they are started
//!   store      what the servers keep leases in: PostgreSQL alone, with a standby, a Patroni cluster of three, or a data
//!              folder
//!   servers    how writers, sink and watcher reach them; certificates: what they show and whom clients trust
//!   fault      what is done to them, one by one and in pairs
//!   replacing  certificates and programs, replaced while everything runs
//!   section    one world under one fault, from its start to its judgement
//!   history    what each process recorded; judge: what must hold in it
//!   report     the figures of all sections as a table; plot: as a picture
//!   lock_set   how many updates a lock loses whose clients are paused: ours and etcd's
//!   power_loss the states that a power loss can leave of an embedded store: another kind of run, without a world
//! ```
//! Every process is ended by its pid, and by a watchdog if this program dies.

#![allow(missing_docs, reason = "fields and variants whose names say everything need no docs")]

pub mod broken;
mod certificates;
mod etcd;
pub mod fault;
pub mod history;
pub mod judge;
pub mod lock_set;
mod patroni;
pub mod plot;
pub mod power_loss;
pub mod process;
mod replacing;
pub mod report;
pub mod section;
pub mod servers;
pub mod sink;
pub mod store;
mod watcher;
pub mod world;
pub mod writer;
