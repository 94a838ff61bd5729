//! The orchestrator: runs jobs of several stages, each stage carried out by workers elsewhere.
//!
//! A job belongs to the partition of the command that created it, and only the owner of that partition changes it.
//! Everything else (a worker's report, an operator's cancel) is written to the partition's mailbox, a table.
//!
//! ```text
//!   command   Kafka ──> consumer ──> partition owner ──> batch ──> decide ──> one transaction
//!                                                               (epoch, inbox, jobs, outbox)
//!   task      outbox ──> outbox sender ──> dispatcher (Celery, Kafka, HTTP) or topic (events, dead letters)
//!   report    dispatcher ──> mailbox ──> partition owner ──> batch ──> decide ──> one transaction
//! ```
//!
//! A module imports only from modules above it in this list:
//!
//! | module | holds |
//! |---|---|
//! | [`model`] | commands, jobs, the state machine `decide`; no I/O |
//! | [`config`] | the configuration file |
//! | [`store`] | the tables, one file per table; no decisions |
//! | `batch` | one transaction of an owner: decides, then writes everything together |
//! | [`dispatch`], [`publish`] | ways to workers and to topics |
//! | [`notifier`], `metrics` | hints that there is work; counters |
//! | `mailbox` | [`Mailbox`]: accepts reports and requests for jobs of any partition |
//! | `orchestrator` | [`Orchestrator`]: what the partition owners of one process share |
//! | `outbox` | `OutboxSender`: sends one channel of one partition |
//! | `owner` | `PartitionOwner`: the background work for one partition; the consumer's handler |
//! | [`http`] | the API for operators and workers |
//! | `operations` | the entry points of the command line: run, check, drain and so on |

#![allow(missing_docs, reason = "fields whose names say everything need no docs")]

pub mod model;

pub mod config;
mod error;
pub mod store;

mod batch;
pub mod dispatch;
mod metrics;
pub mod notifier;
pub mod publish;

mod mailbox;
mod orchestrator;
mod outbox;
mod owner;

pub mod http;
mod operations;

pub use batch::Tally;
pub use config::Flags;
pub use error::RunError;
pub use mailbox::Mailbox;
pub use metrics::Metrics;
pub use operations::{
    anew::begin_anew,
    check::check,
    cutover::{
        Difference, DifferenceKind, ExportedMarks, ImportedMarks, MarkOrders, ShadowEnd, ShadowOrders,
        ShadowReport, SkippedKey, drain, export_marks, import_marks, shadow,
    },
    run::run,
};
pub use orchestrator::{Orchestrator, Parts};
pub use store::{BegunAnew, RemainingWork};
