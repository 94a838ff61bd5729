//! A consumer of Kafka partitions whose effects happen once.
//!
//! ```text
//!   assignment (a consumer group, or leases) ──> tenure of a partition (epoch)
//!                                                   │
//!   broker ──> lane of the partition ──> work, in parallel by key ──> one transaction: epoch, inbox, effects, position
//!                  │                                                      │
//!                  └── pause and resume                                   └──> position to the broker, for display
//! ```
//!
//! A *tenure* is the right to write for a partition under one epoch. One thread (`poll`) talks to librdkafka and runs
//! its callbacks; each partition has a task (`tenure`); both work on `shared`.

#![allow(missing_docs, reason = "fields whose names say everything need no docs")]

mod broker_errors;
mod consumer;
mod group;
mod handler;
mod identity;
pub mod lane;
mod leases;
mod member;
mod metrics;
mod observer;
mod poll;
mod security;
mod settings;
mod shared;
mod tenure;
pub mod winning;

pub use broker_errors::{BrokerErrors, BrokerProblem, REPORTED_WITHIN};
pub use consumer::{Consumer, ConsumerError};
pub use handler::{Done, Failure, Handler, Leaving, Message};
pub use identity::{Identity, IdentityError, identify};
pub use leases::PARTITION_KIND;
pub use member::Member;
pub use metrics::{ConsumerMetrics, NotReady, PartitionMetrics};
pub use observer::{Observer, ObserverError};
pub use security::{Mechanism, Sasl, Tls, given};
pub use settings::{
    Begin, Brokers, BrokersError, ConsumerSettings, LostMessages, PartitionAssignment, Properties,
    SettingsError,
};
pub use shared::{Hook, Moment};
