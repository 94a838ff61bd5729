//! What an engine tells about its work: for metrics, and for those who watch.

use std::time::Duration;

use solehold_core::{
    command::Command,
    event::{Change, Event},
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

/// Hears of an engine's work. It must be quick: it is called on the way.
pub trait Observer: Send + Sync + 'static {
    /// A batch of so many commands took the store so long, whatever came of it.
    fn batch(&self, _lane: Lane, _commands: usize, _took: Duration) {}
    /// A batch was committed.
    fn committed(&self, _events: &[Event], _renewals: &[Change]) {}
    /// A sweep nominated so many, of which the most overdue was so late.
    fn swept(&self, _nominated: usize, _lag_ms: u64) {}
}

/// Hears nothing.
impl Observer for () {}
