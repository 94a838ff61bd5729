//! What a world came to, in one line, which other processes read.

use std::fmt;

use crate::world::Story;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How many things happened.
    pub steps: usize,
    /// How many acts the plan has.
    pub acts: usize,
    pub violation: Option<String>,
}

impl Report {
    pub fn of(story: &Story) -> Self {
        let violation = story.violation.as_ref().map(ToString::to_string);
        Self { steps: story.steps, acts: story.acts, violation }
    }

    /// Reads the last line of what a process printed.
    pub fn read(line: &str) -> Option<Self> {
        let (steps, rest) = line.split_once(" steps, ")?;
        let (acts, rest) = rest.split_once(" acts, ")?;
        let violation = rest.strip_prefix("violated: ").map(str::to_owned);
        Some(Self { steps: steps.parse().ok()?, acts: acts.parse().ok()?, violation })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps, {} acts, ", self.steps, self.acts)?;
        match &self.violation {
            Some(what) => write!(f, "violated: {what}"),
            None => write!(f, "sound"),
        }
    }
}
