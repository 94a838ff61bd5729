//! The works that are measured. Another one is a module with its systems and a round, and a line in each of these.

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::{batch, cycle, hand_over, keepalive, servers::Servers, system::System, watch};
use crate::round::Round;

/// What the systems do side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Acquire and release one lock
    Cycle,
    /// Acquire 1,000 leases at once
    Batch,
    /// Renew leases, 1,000 of each client
    Keepalive,
    /// Hand a lock over along a line of tasks
    HandOver,
    /// Bring a change to many watchers
    Watch,
}

impl Work {
    /// What it is called in tables and plots.
    pub fn title(self, tasks: usize) -> String {
        match self {
            Self::Cycle if tasks == 1 => "cycle (acquire and release), 1 task".to_owned(),
            Self::Cycle => format!("cycle (acquire and release), {tasks} tasks"),
            Self::Batch => "batch acquire of 1,000 leases, 1 task".to_owned(),
            Self::Keepalive => format!("leases kept alive, {tasks} clients of 1,000 leases each"),
            Self::HandOver => format!("hand-over of a lock, {tasks} tasks in line"),
            Self::Watch => format!("a change, {tasks} watchers"),
        }
    }

    /// What is counted.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Cycle => "cycle",
            Self::Batch | Self::Keepalive => "lease",
            Self::HandOver => "hand-over",
            Self::Watch => "change",
        }
    }

    /// What p50 and p99 are of.
    pub fn latency_of(self) -> &'static str {
        match self {
            Self::Cycle => "an acquire",
            Self::Batch => "a batch",
            Self::Keepalive => "a round over 1,000 leases",
            Self::HandOver => "a hand-over",
            Self::Watch => "a change until the last watcher has it",
        }
    }

    /// The systems that do it.
    pub fn systems(self) -> &'static [System] {
        match self {
            Self::Cycle => cycle::SYSTEMS,
            Self::Batch => batch::SYSTEMS,
            Self::Keepalive => keepalive::SYSTEMS,
            Self::HandOver => hand_over::SYSTEMS,
            Self::Watch => watch::SYSTEMS,
        }
    }

    /// How many tasks do it side by side, each of them a measurement; `asked` is for cycles, and `crowd` for those who
    /// wait or watch.
    pub fn tasks(self, asked: &[usize], crowd: usize) -> Vec<usize> {
        match self {
            Self::Cycle => asked.to_vec(),
            Self::Batch => vec![1],
            Self::Keepalive => vec![keepalive::TASKS],
            Self::HandOver | Self::Watch => vec![crowd],
        }
    }

    /// One round of one system.
    pub async fn round(
        self,
        servers: &Servers,
        system: System,
        tasks: usize,
        duration: Duration,
    ) -> Result<Round> {
        match self {
            Self::Cycle => cycle::round(servers, system, tasks, duration).await,
            Self::Batch => batch::round(servers, system, duration).await,
            Self::Keepalive => keepalive::round(servers, system, duration).await,
            Self::HandOver => hand_over::round(servers, system, tasks, duration).await,
            Self::Watch => watch::round(servers, system, tasks, duration).await,
        }
    }
}
