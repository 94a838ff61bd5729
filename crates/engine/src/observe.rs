//! What an engine reports about its work: for metrics, and for watchers.

use std::time::Duration;

use solehold_core::{
    command::Command,
    event::{Change, Event},
    key::SessionId,
};

/// One of the driver's two queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Commands that may make events.
    News,
    /// Renewals, which do not.
    Quiet,
}

impl Lane {
    /// The lane of commands that are decided together: across two there would be no order.
    pub fn of<'a>(commands: impl IntoIterator<Item = &'a Command>) -> Self {
        if commands.into_iter().any(Command::may_make_news) { Self::News } else { Self::Quiet }
    }

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::News => "news",
            Self::Quiet => "quiet",
        }
    }
}

/// Hears of an engine's work. It must be quick: commands wait for it.
pub trait Observer: Send + Sync + 'static {
    /// The store has finished a batch of `commands`, successfully or not, and took `took` for it.
    fn batch(&self, _lane: Lane, _commands: usize, _took: Duration) {}
    fn committed(&self, _events: &[Event], _renewals: &[Change]) {}
    /// Sessions were superseded or closed by a commit of this replica. No event says so.
    fn sessions_over(&self, _sessions: &[SessionId]) {}
    /// A sweep made `nominated` nominations, the most overdue of them `lag_ms` late.
    fn swept(&self, _nominated: usize, _lag_ms: u64) {}
}

/// Hears nothing.
impl Observer for () {}
