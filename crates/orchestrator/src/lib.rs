//! The orchestrator: jobs of several stages, each stage carried out by workers elsewhere.
//!
//! ```text
//!   commands (Kafka) ──┐                                        ┌──> tasks: Celery, Kafka, HTTP
//!   reports of tasks ──┼──> the owner of the job's partition ───┤
//!   operators (HTTP) ──┘    one transaction per batch:          └──> job events (Kafka)
//!                           epoch, inbox, job, outbox
//! ```
//!
//! A job belongs to the partition that its command came from, and only the owner of that partition changes it. What
//! others have to say to it (a worker's report, an operator's cancel) is put into the partition's mailbox, a table.

mod anew;
mod attend;
mod backlog;
mod check;
pub mod command;
pub mod config;
mod cutover;
pub mod dispatch;
mod floor;
pub mod http;
pub mod job;
mod jobs;
pub mod limits;
mod metrics;
pub mod path;
pub mod pipeline;
pub mod publish;
mod revokes;
mod run;
mod running;
mod sender;
pub mod store;
mod task;
pub mod template;
pub mod wake;
mod wire;

pub use anew::begin_anew;
pub use check::check;
pub use cutover::{drain, export_marks, import_marks};
pub use jobs::{Desk, Jobs, Parts};
pub use metrics::Figures;
pub use run::run;
pub use running::{
    BegunAnew, Drained, ExportedMarks, Flags, ImportedMarks, MarkOrders, RunError, SkippedKey,
};
pub use task::{Arguments, Report, ReportKind, Task, TaskId};
