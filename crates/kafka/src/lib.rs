//! A consumer of Kafka partitions whose effects happen once.
//!
//! ```text
//!   owners (a consumer group, or leases) ──> tenure of a partition (epoch)
//!                                               │
//!   broker ──> lane of the partition ──> work, in parallel by key ──> one transaction: epoch, inbox, effects, position
//!                  │ what is finished                                     │
//!                  └── pause and resume                                   └──> position to the broker, for display
//! ```

mod consumer;
mod desk;
mod figures;
mod group;
mod handler;
mod identity;
pub mod lane;
mod leases;
mod member;
mod poll;
mod security;
mod settings;
mod tenure;
mod trouble;

pub use consumer::{Consumer, ConsumerError};
pub use desk::{Hook, Moment};
pub use figures::{Figures, PartitionFigures};
pub use handler::{Done, Failure, Handler, Leaving, Message};
pub use identity::{Identity, identify};
pub use leases::PARTITION_KIND;
pub use member::Member;
pub use security::given;
pub use security::{Mechanism, Sasl, Tls};
pub use settings::{
    Begin, Brokers, BrokersError, ConsumerSettings, LostMessages, PartitionAssignment, Properties,
};
pub use trouble::{HEARD_WITHIN, Reason, Trouble};
